//! The authorization server of a [`super::FakeMcpServer`] that asks for a sign-in by OAuth, and the check of its tokens.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use reqwest::Url;
use serde_json::{Value, json};

use crate::fake_server::FakeHttpReply;
use crate::fake_server::http1::RawHttpRequest;

/// The client that the server registers, or that is registered by hand.
pub(super) const CLIENT_ID: &str = "client-1";
/// The only valid code.
const CODE: &str = "code-1";

/// What an authorization server knows.
#[derive(Debug, Clone, Default)]
pub(super) struct AuthorizationState {
    /// Scheme, host and port of the server.
    origin: String,
    /// The lifetime of each token, in seconds.
    token_lifetime_s: u64,
    /// True if refresh tokens are valid no more.
    pub(super) refuses_refresh: bool,
    /// The secret of the one client, where none can register itself.
    pub(super) client_secret: Option<String>,
    /// Another authorization server that is named instead of this one.
    pub(super) elsewhere: Option<String>,
    /// Nothing is found at paths that begin with this.
    pub(super) missing_paths: Option<&'static str>,
    /// True if the last access token is valid no more; its refresh token is.
    pub(super) is_revoked: bool,
    /// True while answers with tokens are held back.
    pub(super) holds_answers: bool,
    /// The kinds of grants so far.
    pub(super) grants: Vec<String>,
    redirect_uri: String,
    code_challenge: String,
    /// The number of tokens so far. Only the last one is valid.
    tokens: usize,
}

impl AuthorizationState {
    pub(super) fn new(origin: String, token_lifetime_s: u64) -> Self {
        Self { origin, token_lifetime_s, ..Self::default() }
    }

    /// The answer to a request for a sign-in, or to one without a valid token; `None` lets a request pass.
    pub(super) fn reply(&mut self, request: &RawHttpRequest) -> Option<FakeHttpReply> {
        let origin = self.origin.clone();
        let url = Url::parse(&format!("{origin}{}", request.path)).ok()?;
        if self.missing_paths.is_some_and(|begin| url.path().starts_with(begin)) {
            return Some(FakeHttpReply::new(404, ""));
        }
        Some(match (request.method.as_str(), url.path()) {
            ("GET", "/.well-known/oauth-protected-resource" | "/.well-known/oauth-protected-resource/mcp") => {
                let resource = format!("{origin}/mcp");
                let server = self.elsewhere.as_ref().unwrap_or(&origin);
                FakeHttpReply::json(200, &json!({"resource": resource, "authorization_servers": [server]}))
            }
            ("GET", "/.well-known/oauth-authorization-server") if self.elsewhere.is_none() => {
                FakeHttpReply::json(200, &self.metadata())
            }
            ("POST", "/register") if self.client_secret.is_none() => self.register(&request.body),
            ("GET", "/authorize") => self.authorize(&url),
            ("POST", "/token") => self.token(request),
            (_, "/mcp") if !self.is_revoked && request.header("authorization") == Some(&self.bearer()) => return None,
            (_, "/mcp") => {
                let metadata = format!("{origin}/.well-known/oauth-protected-resource");
                FakeHttpReply::new(401, "")
                    .with_header("www-authenticate", format!("Bearer resource_metadata=\"{metadata}\""))
            }
            _ => FakeHttpReply::new(404, ""),
        })
    }

    fn bearer(&self) -> String {
        format!("Bearer token-{}", self.tokens)
    }

    fn metadata(&self) -> Value {
        let at = |path: &str| format!("{}{path}", self.origin);
        let method = if self.client_secret.is_some() { "client_secret_basic" } else { "none" };
        let mut metadata = json!({
            "issuer": self.origin, "authorization_endpoint": at("/authorize"), "token_endpoint": at("/token"),
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"], "token_endpoint_auth_methods_supported": [method],
        });
        if self.client_secret.is_none() {
            metadata["registration_endpoint"] = json!(at("/register"));
        }
        metadata
    }

    fn register(&mut self, body: &[u8]) -> FakeHttpReply {
        let client: Value = serde_json::from_slice(body).unwrap_or_default();
        self.redirect_uri = client["redirect_uris"][0].as_str().unwrap_or_default().to_owned();
        let uris = &client["redirect_uris"];
        FakeHttpReply::json(
            201,
            &json!({"client_id": CLIENT_ID, "redirect_uris": uris, "client_name": client["client_name"]}),
        )
    }

    /// Sends the browser back with a code, as if a person had agreed.
    fn authorize(&mut self, url: &Url) -> FakeHttpReply {
        let parameter =
            |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        if self.client_secret.is_some() {
            self.redirect_uri = parameter("redirect_uri").unwrap_or_default();
        }
        let is_registered = parameter("client_id").as_deref() == Some(CLIENT_ID)
            && parameter("redirect_uri").as_ref() == Some(&self.redirect_uri);
        let (Some(state), Some(challenge), true) = (parameter("state"), parameter("code_challenge"), is_registered)
        else {
            return FakeHttpReply::new(400, "");
        };
        self.code_challenge = challenge;
        let target = format!("{}?code={CODE}&state={state}", self.redirect_uri);
        FakeHttpReply::new(302, "").with_header("location", target)
    }

    fn token(&mut self, request: &RawHttpRequest) -> FakeHttpReply {
        if let Some(secret) = &self.client_secret {
            let expected = format!("Basic {}", STANDARD.encode(format!("{CLIENT_ID}:{secret}")));
            if request.header("authorization") != Some(&expected) {
                return FakeHttpReply::json(401, &json!({"error": "invalid_client"}));
            }
        }
        let body = String::from_utf8_lossy(&request.body);
        let form = Url::parse(&format!("http://form/?{body}"));
        let field = |name: &str| {
            let pairs = form.as_ref().ok()?.query_pairs();
            pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
        };
        let grant = field("grant_type").unwrap_or_default();
        let is_valid = match grant.as_str() {
            "authorization_code" => {
                let verifier = field("code_verifier").unwrap_or_default();
                let digest = ring::digest::digest(&ring::digest::SHA256, verifier.as_bytes());
                field("code").as_deref() == Some(CODE) && URL_SAFE_NO_PAD.encode(digest) == self.code_challenge
            }
            "refresh_token" => {
                !self.refuses_refresh && field("refresh_token") == Some(format!("refresh-{}", self.tokens))
            }
            _ => false,
        };
        if !is_valid {
            return FakeHttpReply::json(400, &json!({"error": "invalid_grant"}));
        }
        self.grants.push(grant);
        self.tokens += 1;
        self.is_revoked = false;
        let number = self.tokens;
        FakeHttpReply::json(
            200,
            &json!({
                "access_token": format!("token-{number}"), "token_type": "Bearer",
                "expires_in": self.token_lifetime_s, "refresh_token": format!("refresh-{number}"),
            }),
        )
    }
}
