//! REST client: authorisation, error classification, message nonces. It knows no single route.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use ring::digest::{SHA256, digest};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use url::Url;

use crate::network::{MessageId, NetworkError, SendError};
use crate::wire::call_error::{CallError, DEFAULT_RETRY_AFTER};
use crate::wire::http_client::{self, HttpResponse, Repeatable};
use crate::wire::text::single_line;

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Discord: reference, user agent. Without one of this form Cloudflare rejects the request.
const USER_AGENT_TEXT: &str = concat!("DiscordBot (https://quell.invalid, ", env!("CARGO_PKG_VERSION"), ")");
/// Discord: JSON error codes, with a remedy for people.
const ERROR_REMEDIES: &[(u64, &str)] = &[
    (50001, "the bot does not see this channel: give it the permission View Channel"),
    (50007, "this person takes no direct messages from the bot"),
    (
        50013,
        "the bot lacks a permission here: it needs Send Messages, Add Reactions, Attach Files and, in threads, Send \
             Messages in Threads",
    ),
];

/// Client of the API with the token of the account.
#[derive(Debug)]
pub(super) struct DiscordRestClient {
    client: Client,
    base: Url,
    authorization: HeaderValue,
    token: SecretString,
}

impl DiscordRestClient {
    pub(super) fn new(base: Url, token: SecretString) -> Result<Self, NetworkError> {
        let authorization = http_client::secret_header(&format!("Bot {}", token.expose_secret()))
            .ok_or_else(|| NetworkError("the token has characters that no token has: copy it anew".to_owned()))?;
        Ok(Self { client: http_client::build_client(&base)?, base, authorization, token })
    }

    /// A request with the token. Each part of the path is encoded.
    pub(super) fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let url = http_client::extend_path(&self.base, path.iter().copied());
        let request = self.client.request(method, url).header(USER_AGENT, USER_AGENT_TEXT);
        request.header(AUTHORIZATION, self.authorization.clone())
    }

    /// A request without the token, for files, which are on other servers.
    pub(super) fn request_without_token(&self, url: Url) -> RequestBuilder {
        self.client.get(url).header(USER_AGENT, USER_AGENT_TEXT)
    }

    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    pub(super) fn token(&self) -> &SecretString {
        &self.token
    }
}

/// Makes a call. The result is null if the response has no JSON.
///
/// # Cancel safety
/// Safe: the request is abandoned; Discord may have acted on it.
pub(super) async fn call_api(request: RequestBuilder) -> Result<Value, CallError> {
    call_api_within(request, CALL_TIMEOUT).await
}

/// Like [`call_api`], with a time limit of its own.
pub(super) async fn call_api_within(request: RequestBuilder, time: Duration) -> Result<Value, CallError> {
    interpret_response(&http_client::send_request(request, time).await.map_err(CallError::NoResponse)?)
}

fn interpret_response(response: &HttpResponse) -> Result<Value, CallError> {
    let (status, body) = (response.status, response.json());
    if status.is_success() {
        return Ok(body);
    }
    let code = body["code"].as_u64().unwrap_or_default();
    let why = match body["message"].as_str() {
        Some(message) => describe_error(message, code, &body["errors"]),
        None => response.describe(),
    };
    if status == StatusCode::TOO_MANY_REQUESTS {
        let after = body["retry_after"]
            .as_f64()
            .and_then(http_client::retry_delay)
            .or_else(|| response.retry_after())
            .unwrap_or(DEFAULT_RETRY_AFTER);
        return Err(CallError::RateLimited { why: format!("Discord is asked too often: {why}"), after });
    }
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        return Err(CallError::ServerError(format!("Discord has failed: {why}")));
    }
    if status == StatusCode::UNAUTHORIZED {
        let why = "Discord does not take the token: reset it in the Developer Portal under Bot, and put the new one where \
                   token_env or token_file says";
        return Err(CallError::AccountRejected(why.to_owned()));
    }
    Err(CallError::Refused { code: code.to_string(), why })
}

fn describe_error(message: &str, code: u64, errors: &Value) -> String {
    let mut text = format!("Discord says \"{}\" (code {code})", single_line(message));
    if !errors.is_null() {
        text.push_str(": ");
        text.push_str(&single_line(&errors.to_string()));
    }
    if let Some((_, remedy)) = ERROR_REMEDIES.iter().find(|(of, _)| *of == code) {
        text.push_str(": ");
        text.push_str(remedy);
    }
    text
}

/// The id in the response to a sent message.
pub(super) fn sent_message_id(sent_message: &Value, repeatable: Repeatable) -> Result<MessageId, SendError> {
    let missing_id = || SendError::Unknown {
        why: "Discord accepted the message but did not return its id".to_owned(),
        is_repeatable: repeatable == Repeatable::Yes,
    };
    let id = sent_message["id"].as_str().and_then(super::message_parser::parse_snowflake).ok_or_else(missing_id)?;
    Ok(MessageId(id.to_owned()))
}

/// Discord: create message, `nonce`, at most 25 characters. The same for the same key in the same channel.
pub(super) fn message_nonce(channel: &str, key: &str) -> String {
    let hash = digest(&SHA256, format!("{channel}\n{key}").as_bytes());
    hash.as_ref().iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}
