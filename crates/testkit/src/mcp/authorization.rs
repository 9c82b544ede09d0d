//! The authorization server of a [`super::FakeMcpServer`] that asks for a sign-in by OAuth, and the check of its tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Url;
use serde_json::{Value, json};

use crate::fake_server::FakeHttpReply;
use crate::fake_server::http1::RawHttpRequest;

/// The client that the server registers.
const CLIENT_ID: &str = "client-1";
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
        Some(match (request.method.as_str(), url.path()) {
            ("GET", "/.well-known/oauth-protected-resource" | "/.well-known/oauth-protected-resource/mcp") => {
                let resource = format!("{origin}/mcp");
                FakeHttpReply::json(200, &json!({"resource": resource, "authorization_servers": [origin]}))
            }
            ("GET", "/.well-known/oauth-authorization-server") => FakeHttpReply::json(200, &self.metadata()),
            ("POST", "/register") => self.register(&request.body),
            ("GET", "/authorize") => self.authorize(&url),
            ("POST", "/token") => self.token(&request.body),
            (_, "/mcp") if request.header("authorization") == Some(&format!("Bearer token-{}", self.tokens)) => {
                return None;
            }
            (_, "/mcp") => {
                let metadata = format!("{origin}/.well-known/oauth-protected-resource");
                FakeHttpReply::new(401, "")
                    .with_header("www-authenticate", format!("Bearer resource_metadata=\"{metadata}\""))
            }
            _ => FakeHttpReply::new(404, ""),
        })
    }

    fn metadata(&self) -> Value {
        let at = |path: &str| format!("{}{path}", self.origin);
        json!({
            "issuer": self.origin, "authorization_endpoint": at("/authorize"), "token_endpoint": at("/token"),
            "registration_endpoint": at("/register"), "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"], "token_endpoint_auth_methods_supported": ["none"],
        })
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

    fn token(&mut self, body: &[u8]) -> FakeHttpReply {
        let body = String::from_utf8_lossy(body);
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
