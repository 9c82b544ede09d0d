//! Web API client and error classification. It knows no single method except the one that opens a socket.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use url::Url;
use url::form_urlencoded::Serializer;

use crate::network::NetworkError;
use crate::wire::call_error::{CallError, DEFAULT_RETRY_AFTER};
use crate::wire::http_client::{self, HttpResponse, parse_api_base, secret_header};
use crate::wire::text::single_line;

const PUBLIC_API_URL: &str = "https://slack.com/api";
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Slack: Web API, `X-OAuth-Scopes` of each response.
const SCOPES_HEADER: HeaderName = HeaderName::from_static("x-oauth-scopes");
/// Key under which the scopes are added to the body of a response.
pub(super) const SCOPES_KEY: &str = "x-oauth-scopes";
/// Errors after which the call may have had an effect. Slack documents this for `fatal_error` and `internal_error`.
const UNCERTAIN_ERRORS: &[&str] =
    &["fatal_error", "internal_error", "request_timeout", "service_unavailable", "team_added_to_org"];
/// Slack's errors, with a remedy for people.
const ERROR_REMEDIES: &[(&str, &str)] = &[
    ("not_in_channel", "invite the app into the channel, with /invite"),
    ("channel_not_found", "the app does not see this conversation: invite it, with /invite"),
    ("is_archived", "the channel is archived"),
    ("restricted_action", "the workspace's settings do not let apps write here"),
    ("invalid_auth", "Slack does not take the token: copy it anew"),
    ("not_authed", "Slack does not take the token: copy it anew"),
    ("token_revoked", "the token was revoked: install the app again"),
    ("token_expired", "the token has expired: install the app again, without token rotation"),
    ("account_inactive", "the app was removed from the workspace: install it again"),
    (
        "not_allowed_token_type",
        "this is the wrong kind of token: token_env names the bot's (xoxb-...), app_token_env the app-level one (xapp-...)",
    ),
    ("socket_mode_disabled", "switch on Socket Mode in the settings of the app"),
    ("forbidden_team", "the app may not be used in this workspace"),
];

/// Client of the API with both tokens.
#[derive(Debug)]
pub(super) struct SlackApi {
    client: Client,
    base: Url,
    /// Marked as sensitive, so that `Debug` does not show it.
    bot_authorization: HeaderValue,
    app_authorization: HeaderValue,
}

impl SlackApi {
    /// A client for the API at `base`, or for the public one. The error holds the wrong key.
    pub(super) fn new(
        base: Option<&str>,
        bot: &SecretString,
        app: &SecretString,
    ) -> Result<Self, (&'static str, String)> {
        let base =
            parse_api_base(base.unwrap_or(PUBLIC_API_URL)).map_err(|problem| ("api_base", problem.to_owned()))?;
        if bot.expose_secret().starts_with("xapp-") {
            return Err(("token_env", "this is the app-level token: the bot's begins with xoxb-".to_owned()));
        }
        if app.expose_secret().starts_with("xoxb-") {
            return Err(("app_token_env", "this is the bot's token: the app-level one begins with xapp-".to_owned()));
        }
        let client = http_client::build_client(&base).map_err(|NetworkError(problem)| ("api_base", problem))?;
        let bot = bearer_header(bot).ok_or(("token_env", INVALID_TOKEN_TEXT.to_owned()))?;
        let app = bearer_header(app).ok_or(("app_token_env", INVALID_TOKEN_TEXT.to_owned()))?;
        Ok(Self { client, base, bot_authorization: bot, app_authorization: app })
    }

    /// Calls a method as the bot.
    ///
    /// # Cancel safety
    /// Safe: the request is abandoned; Slack may have acted on it.
    pub(super) async fn call_method(&self, method: &str, body: &Value) -> Result<Value, CallError> {
        send_request(self.method_request(method, &self.bot_authorization).json(body)).await
    }

    /// Calls a method that accepts no JSON.
    pub(super) async fn call_method_with_form(
        &self,
        method: &str,
        fields: &[(&str, &str)],
    ) -> Result<Value, CallError> {
        let form = Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self
            .method_request(method, &self.bot_authorization)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        send_request(request.body(form)).await
    }

    /// Requests the URL of a WebSocket. It is a secret, and valid for one connection.
    pub(super) async fn request_socket_url(&self) -> Result<Url, CallError> {
        let response =
            send_request(self.method_request("apps.connections.open", &self.app_authorization).json(&json!({})))
                .await?;
        let url = response["url"].as_str().and_then(|url| Url::parse(url).ok());
        // Messages are not received with less security than the token is sent.
        let url = url.filter(|url| url.scheme() == "wss" || (url.scheme() == "ws" && self.base.scheme() == "http"));
        url.ok_or_else(|| server_error("it does not say where to connect"))
    }

    /// A request with the bot's token for a file; none if the file is on a server that must not get the token.
    pub(super) fn file_request(&self, source: &str) -> Option<RequestBuilder> {
        let url = self.parse_trusted_url(source)?;
        Some(self.client.get(url).header(AUTHORIZATION, self.bot_authorization.clone()))
    }

    /// A request that uploads a file to a URL from Slack. The URL itself is the secret: no token is sent.
    pub(super) fn upload_request(&self, target: &str, bytes: Vec<u8>) -> Option<RequestBuilder> {
        Some(self.client.post(self.parse_trusted_url(target)?).body(bytes))
    }

    fn method_request(&self, method: &str, token: &HeaderValue) -> RequestBuilder {
        self.client.post(http_client::extend_path(&self.base, [method])).header(AUTHORIZATION, token.clone())
    }

    /// Parses a URL on Slack's servers, or on the server of the API if that is private. Messages name URLs, so no other
    /// host is allowed.
    fn parse_trusted_url(&self, text: &str) -> Option<Url> {
        let url = Url::parse(text).ok()?;
        let host = url.host_str()?;
        let is_slack = (host == "slack.com" || host.ends_with(".slack.com")) && url.scheme() == "https";
        ((is_slack && url.port().is_none()) || url.origin() == self.base.origin()).then_some(url)
    }
}

/// Problem of a token that does not fit into a header.
const INVALID_TOKEN_TEXT: &str = "it has characters that no token has: copy it anew";

fn bearer_header(token: &SecretString) -> Option<HeaderValue> {
    secret_header(&format!("Bearer {}", token.expose_secret()))
}

async fn send_request(request: RequestBuilder) -> Result<Value, CallError> {
    interpret_response(&http_client::send_request(request, CALL_TIMEOUT).await.map_err(CallError::NoResponse)?)
}

fn interpret_response(response: &HttpResponse) -> Result<Value, CallError> {
    let mut body = response.json();
    let error = body["error"].as_str().map(single_line).unwrap_or_default();
    if response.status == StatusCode::TOO_MANY_REQUESTS || matches!(error.as_str(), "ratelimited" | "rate_limited") {
        let after = response.retry_after().unwrap_or(DEFAULT_RETRY_AFTER);
        return Err(CallError::RateLimited { why: "Slack is asked too often".to_owned(), after });
    }
    if body["ok"] == true && response.status.is_success() {
        if let Some(scopes) = response.headers.get(SCOPES_HEADER).and_then(|scopes| scopes.to_str().ok()) {
            body[SCOPES_KEY] = json!(scopes);
        }
        return Ok(body);
    }
    if UNCERTAIN_ERRORS.contains(&error.as_str()) {
        return Err(server_error(&error));
    }
    if error.is_empty() {
        // The body is not from Slack but from a proxy and may hold anything: do not show it.
        let why = format!("HTTP {} without an answer of the API", response.status.as_u16());
        let is_refusal = response.status.is_client_error();
        return Err(if is_refusal { CallError::Refused { code: error, why } } else { server_error(&why) });
    }
    Err(CallError::Refused { why: describe_error(&error, &body), code: error })
}

/// The error of a call that may have had an effect.
pub(super) fn server_error(why: &str) -> CallError {
    CallError::ServerError(format!("Slack has failed: {why}"))
}

fn describe_error(error: &str, body: &Value) -> String {
    let mut text = format!("Slack says \"{error}\"");
    if let Some(needed) = body["needed"].as_str() {
        let needed = single_line(needed);
        text.push_str(&format!(": add the scope {needed} under OAuth & Permissions, and install the app again"));
    } else if let Some((_, remedy)) = ERROR_REMEDIES.iter().find(|(of, _)| *of == error) {
        text.push_str(": ");
        text.push_str(remedy);
    }
    text
}
