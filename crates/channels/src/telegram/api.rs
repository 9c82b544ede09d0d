//! Bot API client; redacts the token in everything it reports. The code of a refusal is the HTTP status.
//!
//! The token is a part of every URL, so each text from outside passes through [`TelegramApi::redact_token`] or
//! [`TelegramApi::redact_no_response`].

use std::time::Duration;

use quell_protocol::display_text::replace_controls;
use reqwest::{Client, RequestBuilder, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use crate::network::{ListenError, NetworkError};
use crate::wire::call_error::{CallError, DEFAULT_RETRY_AFTER};
use crate::wire::http_client::{HttpResponse, NoHttpResponse, build_client, extend_path, send_request};

const PUBLIC_API_URL: &str = "https://api.telegram.org";
/// Time limit of a call. Telegram answers most calls within a second, and nearly all within ten.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A shorter secret is invalid, and redacting it would change ordinary words.
const MIN_SECRET_BYTES: usize = 16;
/// Characters of a text from outside that are shown.
const MAX_SHOWN_CHARS: usize = 300;
/// Pause after a conflict with another program that listens with the same token, and after a rate limit without a
/// given time.
const CONFLICT_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The problem when a webhook is set, and the remedy.
pub(super) const WEBHOOK_CONFLICT: &str = "a webhook is set for this bot, so it cannot be listened to; remove it (Bot API: deleteWebhook), or give \
    this channel a bot of its own";

#[derive(Debug)]
pub(super) struct TelegramApi {
    client: Client,
    base: Url,
    token: SecretString,
}

/// Bot API: "Making requests".
#[derive(Debug, Default, Deserialize)]
struct TelegramResponseBody {
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    result: Value,
    description: Option<String>,
    #[serde(default)]
    parameters: TelegramResponseParameters,
}

/// Bot API: `ResponseParameters`.
#[derive(Debug, Default, Deserialize)]
struct TelegramResponseParameters {
    retry_after: Option<u64>,
    migrate_to_chat_id: Option<i64>,
}

impl TelegramApi {
    /// Checks the address and the token. The error holds the wrong key.
    pub(super) fn new(base: Option<&str>, token: SecretString) -> Result<Self, (&'static str, String)> {
        let wrong = "is no address of a Bot API server, such as https://api.telegram.org";
        let base =
            Url::parse(base.unwrap_or(PUBLIC_API_URL)).map_err(|error| ("api_base", format!("{wrong}: {error}")))?;
        let has_no_extras = base.query().is_none() && base.fragment().is_none() && base.username().is_empty();
        if !matches!(base.scheme(), "http" | "https") || !has_no_extras || base.password().is_some() {
            return Err(("api_base", wrong.to_owned()));
        }
        let (id, secret) = token.expose_secret().split_once(':').unwrap_or_default();
        let has_valid_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        let is_token_char = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !has_valid_id || secret.len() < MIN_SECRET_BYTES || !secret.bytes().all(is_token_char) {
            let problem = "does not hold the token of a bot; @BotFather shows it as digits, a colon, and a long word";
            return Err(("token_env", problem.to_owned()));
        }
        let client = build_client(&base).map_err(|error| ("api_base", error.to_string()))?;
        Ok(Self { client, base, token })
    }

    /// Calls a method and returns its result.
    ///
    /// # Cancel safety
    /// Safe: the call is abandoned; Telegram may have acted on it.
    pub(super) async fn call_method(&self, method: &str, body: &Value) -> Result<Value, CallError> {
        self.call_method_with_wait(method, body, Duration::ZERO).await
    }

    /// Calls a method that may take `time` longer than other calls.
    pub(super) async fn call_method_with_wait(
        &self,
        method: &str,
        body: &Value,
        time: Duration,
    ) -> Result<Value, CallError> {
        self.send_request(self.method_request(method).json(body), time).await
    }

    /// A request for a method, without a body.
    pub(super) fn method_request(&self, method: &str) -> RequestBuilder {
        self.client.post(self.bot_url(None, [method]))
    }

    /// A request for the content of a file (Bot API: getFile).
    pub(super) fn file_request(&self, path: &str) -> RequestBuilder {
        self.client.get(self.bot_url(Some("file"), path.split('/')))
    }

    fn bot_url<'a>(&self, before: Option<&str>, path: impl IntoIterator<Item = &'a str>) -> Url {
        let bot = format!("bot{}", self.token.expose_secret());
        let bot_url = extend_path(&self.base, before.into_iter().chain([bot.as_str()]));
        extend_path(&bot_url, path)
    }

    /// Sends a request and returns the result in the response.
    pub(super) async fn send_request(&self, request: RequestBuilder, time: Duration) -> Result<Value, CallError> {
        let response =
            send_request(request, CALL_TIMEOUT + time).await.map_err(|lost| self.redact_no_response(lost))?;
        let body = serde_json::from_slice::<TelegramResponseBody>(&response.body).ok();
        match body {
            Some(body) if body.ok && response.status.is_success() => Ok(body.result),
            body => Err(self.call_error(&response, body.unwrap_or_default())),
        }
    }

    fn call_error(&self, response: &HttpResponse, body: TelegramResponseBody) -> CallError {
        let status = response.status;
        let why = body.description.map_or_else(|| self.describe_response(response), |why| self.redact_token(&why));
        // A server error may come from a proxy in front of Telegram after Telegram has acted.
        if !(status.is_client_error() || status.is_redirection()) {
            return CallError::InvalidResponse(why);
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            let after = body.parameters.retry_after.map(Duration::from_secs).or_else(|| response.retry_after());
            return CallError::RateLimited { why, after: after.unwrap_or(DEFAULT_RETRY_AFTER) };
        }
        let why = match body.parameters.migrate_to_chat_id {
            Some(chat) => format!("{why}: it is chat {chat} now"),
            None => why,
        };
        CallError::Refused { code: status.as_str().to_owned(), why }
    }

    /// Removes the token from the reason of a missing response.
    pub(super) fn redact_no_response(&self, lost: NoHttpResponse) -> CallError {
        CallError::NoResponse(match lost {
            NoHttpResponse::ConnectFailed(why) => NoHttpResponse::ConnectFailed(self.redact_token(&why)),
            NoHttpResponse::ResponseLost(why) => NoHttpResponse::ResponseLost(self.redact_token(&why)),
        })
    }

    /// Describes a response that is not from the Bot API.
    pub(super) fn describe_response(&self, response: &HttpResponse) -> String {
        format!("HTTP {}: {}", response.status.as_u16(), self.redact_token(&String::from_utf8_lossy(&response.body)))
    }

    /// Removes the token from a text: some servers repeat URLs in errors. It is removed before the text is shortened,
    /// so that no part of it remains at the end.
    pub(super) fn redact_token(&self, text: &str) -> String {
        let token = self.token.expose_secret();
        let secret = token.split_once(':').map_or(token, |(_, secret)| secret);
        replace_controls(&text.replace(secret, "***"), MAX_SHOWN_CHARS)
    }
}

/// Why listening ends. Only some refusals concern the account; after any other it is tried again.
pub(super) fn listen_error(failure: CallError) -> ListenError {
    match failure {
        CallError::Refused { code, why } => match code.as_str() {
            "409" => ListenError::Busy { why: conflict_text(&why), after: CONFLICT_RETRY_AFTER },
            // Telegram responds with "not found" to a token with an invalid form.
            "401" | "404" => ListenError::Refused(token_refused_text(&why)),
            _ => ListenError::Connection(why),
        },
        failure => failure.into_listen_error(),
    }
}

pub(super) fn network_error(failure: CallError) -> NetworkError {
    NetworkError(listen_error(failure).to_string())
}

/// True if Telegram refused the call with a reason that contains `words`.
pub(super) fn reason_contains(failure: &CallError, words: &str) -> bool {
    matches!(failure, CallError::Refused { why, .. } if why.contains(words))
}

fn conflict_text(why: &str) -> String {
    if why.contains("webhook") {
        return WEBHOOK_CONFLICT.to_owned();
    }
    format!("another program listens with the same token ({why}); end it, or give this channel a bot of its own")
}

fn token_refused_text(why: &str) -> String {
    format!(
        "Telegram does not take the token ({why}); @BotFather shows the right one, or makes a new one; api_base has to be right as well"
    )
}
