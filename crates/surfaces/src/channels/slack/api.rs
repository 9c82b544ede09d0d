//! Calls of the Web API, and what their answers mean. It knows what is asked in general, and no single method but one.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use url::form_urlencoded::Serializer;
use url::{Host, Url};

use super::event::line;
use crate::channels::seam::{Lost, NotSent, Trouble};
use crate::channels::wire::http::{self, Answer, NoAnswer, Repeatable};

/// The public API.
const API: &str = "https://slack.com/api";
/// How long a call may take.
const CALL: Duration = Duration::from_secs(30);
/// Where Slack does not say how long to wait.
const PAUSE: Duration = Duration::from_secs(5);
/// Slack: Web API, `X-OAuth-Scopes` of each answer.
const SCOPES: HeaderName = HeaderName::from_static("x-oauth-scopes");
/// Under which they are put into an answer's body.
pub(super) const SCOPES_KEY: &str = "x-oauth-scopes";
/// Errors after which it is not known what was done. Slack says so of `fatal_error` and `internal_error`.
const UNSURE: &[&str] =
    &["fatal_error", "internal_error", "request_timeout", "service_unavailable", "team_added_to_org"];
/// Slack's errors, with what a person can do about them.
const REMEDIES: &[(&str, &str)] = &[
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

/// The API with both tokens.
#[derive(Debug)]
pub(super) struct Api {
    client: Client,
    base: Url,
    /// Sensitive: it shows nothing of itself.
    bot: HeaderValue,
    app: HeaderValue,
}

/// A call that was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// Nobody has answered.
    #[error("{0}")]
    NoAnswer(NoAnswer),
    /// It was one too many.
    #[error("Slack is asked too often")]
    TooMany { after: Duration },
    /// Slack does not want to.
    #[error("{why}")]
    Refused { error: String, why: String },
    /// Slack has failed; nobody knows how far it came.
    #[error("Slack has failed: {0}")]
    Failed(String),
}

impl Api {
    /// The API at its base, or the public one. The error names the key.
    pub(super) fn new(
        base: Option<&str>,
        bot: &SecretString,
        app: &SecretString,
    ) -> Result<Self, (&'static str, String)> {
        let base = api_base(base.unwrap_or(API)).map_err(|problem| ("api_base", problem.to_owned()))?;
        if bot.expose_secret().starts_with("xapp-") {
            return Err(("token_env", "this is the app-level token: the bot's begins with xoxb-".to_owned()));
        }
        if app.expose_secret().starts_with("xoxb-") {
            return Err(("app_token_env", "this is the bot's token: the app-level one begins with xapp-".to_owned()));
        }
        let client = http::client(&base).map_err(|Trouble(problem)| ("api_base", problem))?;
        let bot = bearer(bot).ok_or(("token_env", STRANGE.to_owned()))?;
        let app = bearer(app).ok_or(("app_token_env", STRANGE.to_owned()))?;
        Ok(Self { client, base, bot, app })
    }

    /// Calls a method as the bot.
    ///
    /// # Cancel safety
    /// Safe: the request is given up; Slack may have acted on it.
    pub(super) async fn call(&self, method: &str, body: &Value) -> Result<Value, Failure> {
        answered(self.method(method, &self.bot).json(body)).await
    }

    /// Calls a method that takes no JSON.
    ///
    /// # Cancel safety
    /// As [`Self::call`].
    pub(super) async fn call_with_form(&self, method: &str, fields: &[(&str, &str)]) -> Result<Value, Failure> {
        let form = Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.method(method, &self.bot).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        answered(request.body(form)).await
    }

    /// Asks for the address of a WebSocket. It is good for one connection, and a secret.
    ///
    /// # Cancel safety
    /// As [`Self::call`].
    pub(super) async fn open_connection(&self) -> Result<Url, Failure> {
        let told = answered(self.method("apps.connections.open", &self.app).json(&json!({}))).await?;
        let url = told["url"].as_str().and_then(|url| Url::parse(url).ok());
        // What people write is not heard with less security than the token is sent.
        let url = url.filter(|url| url.scheme() == "wss" || (url.scheme() == "ws" && self.base.scheme() == "http"));
        url.ok_or_else(|| Failure::Failed("it does not say where to connect".to_owned()))
    }

    /// A request for a file, with the bot's token, if the file is where the token may go.
    pub(super) fn file(&self, source: &str) -> Option<RequestBuilder> {
        let url = self.own_url(source)?;
        Some(self.client.get(url).header(AUTHORIZATION, self.bot.clone()))
    }

    /// A request that brings a file to where Slack said. The address is secret enough: no token goes with it.
    pub(super) fn upload(&self, target: &str, bytes: Vec<u8>) -> Option<RequestBuilder> {
        Some(self.client.post(self.own_url(target)?).body(bytes))
    }

    fn method(&self, method: &str, token: &HeaderValue) -> RequestBuilder {
        self.client.post(self.url(method)).header(AUTHORIZATION, token.clone())
    }

    fn url(&self, method: &str) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push(method);
        }
        url
    }

    /// A URL on Slack's servers, or on the server of one's own where the API is. A message names it: it may not lead elsewhere.
    fn own_url(&self, text: &str) -> Option<Url> {
        let url = Url::parse(text).ok()?;
        let host = url.host_str()?;
        let is_slack = (host == "slack.com" || host.ends_with(".slack.com")) && url.scheme() == "https";
        ((is_slack && url.port().is_none()) || url.origin() == self.base.origin()).then_some(url)
    }
}

/// What is wrong with a token that no header can carry.
const STRANGE: &str = "it has characters that no token has: copy it anew";

fn bearer(token: &SecretString) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

async fn answered(request: RequestBuilder) -> Result<Value, Failure> {
    understood(&http::call(request, CALL).await.map_err(Failure::NoAnswer)?)
}

fn understood(answer: &Answer) -> Result<Value, Failure> {
    let mut body = answer.json();
    let error = body["error"].as_str().map(line).unwrap_or_default();
    if answer.status == StatusCode::TOO_MANY_REQUESTS || matches!(error.as_str(), "ratelimited" | "rate_limited") {
        return Err(Failure::TooMany { after: answer.retry_after().unwrap_or(PAUSE) });
    }
    if body["ok"] == true && answer.status.is_success() {
        if let Some(scopes) = answer.headers.get(SCOPES).and_then(|scopes| scopes.to_str().ok()) {
            body[SCOPES_KEY] = json!(scopes);
        }
        return Ok(body);
    }
    if UNSURE.contains(&error.as_str()) {
        return Err(Failure::Failed(error));
    }
    if error.is_empty() {
        // Not Slack's own words but those of something in between, which may hold anything: they are not repeated.
        let why = format!("HTTP {} without an answer of the API", answer.status.as_u16());
        let is_refusal = answer.status.is_client_error();
        return Err(if is_refusal { Failure::Refused { error, why } } else { Failure::Failed(why) });
    }
    Err(Failure::Refused { why: told(&error, &body), error })
}

fn told(error: &str, body: &Value) -> String {
    let mut told = format!("Slack says \"{error}\"");
    if let Some(needed) = body["needed"].as_str() {
        let needed = line(needed);
        told.push_str(&format!(": add the scope {needed} under OAuth & Permissions, and install the app again"));
    } else if let Some((_, remedy)) = REMEDIES.iter().find(|(of, _)| *of == error) {
        told.push_str(": ");
        told.push_str(remedy);
    }
    told
}

impl Failure {
    /// As an error of sending.
    pub(super) fn not_sent(self, repeatable: Repeatable) -> NotSent {
        let why = self.to_string();
        match self {
            Self::NoAnswer(none) => none.not_sent(repeatable),
            Self::TooMany { after } => NotSent::Undelivered { why, after: Some(after) },
            Self::Refused { .. } => NotSent::Refused { why },
            Self::Failed(_) => NotSent::Unknown { why, repeatable: repeatable == Repeatable::Yes },
        }
    }

    /// As an error of a step before anything is shown.
    pub(super) fn not_begun(self) -> NotSent {
        let why = self.to_string();
        match self {
            Self::NoAnswer(_) | Self::Failed(_) => NotSent::Undelivered { why, after: None },
            Self::TooMany { after } => NotSent::Undelivered { why, after: Some(after) },
            Self::Refused { .. } => NotSent::Refused { why },
        }
    }

    /// As the end of listening.
    pub(super) fn lost(self) -> Lost {
        let why = self.to_string();
        match self {
            Self::NoAnswer(_) | Self::Failed(_) => Lost::Connection(why),
            Self::TooMany { after } => Lost::Busy { why, after },
            Self::Refused { .. } => Lost::Refused(why),
        }
    }

    /// As any other error.
    pub(super) fn trouble(self) -> Trouble {
        Trouble(self.to_string())
    }
}

/// Where the API is. The tokens go there: not without encryption, unless it stays on this machine.
fn api_base(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "this is no URL; without the key the public API is taken")?;
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    match url.scheme() {
        "https" => {}
        "http" if is_here => {}
        _ => return Err("it has to begin with https://, because the tokens are sent there"),
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err("it may have neither a user, nor a query, nor a fragment");
    }
    Ok(url)
}
