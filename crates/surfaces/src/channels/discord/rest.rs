//! Calls of the REST API, and what their answers mean. It knows what is asked in general, and no single route.

use std::fmt::Write as _;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use ring::digest::{SHA256, digest};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use url::Url;

use super::message::line;
use crate::channels::seam::{Lost, MessageId, NotSent, Trouble};
use crate::channels::wire::http::{self, Answer, NoAnswer, Repeatable};

/// How long a call may take.
const CALL: Duration = Duration::from_secs(30);
/// Discord: reference, user agent. Without one of this form Cloudflare answers instead of Discord.
const AGENT: &str = concat!("DiscordBot (https://quell.invalid, ", env!("CARGO_PKG_VERSION"), ")");
/// Where Discord does not say how long to wait.
const PAUSE: Duration = Duration::from_secs(5);
/// Discord: JSON error codes, with what a person can do about them.
const REMEDIES: &[(u64, &str)] = &[
    (50001, "the bot does not see this channel: give it the permission View Channel"),
    (50007, "this person takes no direct messages from the bot"),
    (
        50013,
        "the bot lacks a permission here: it needs Send Messages, Add Reactions, Attach Files and, in threads, Send \
             Messages in Threads",
    ),
];

/// The API with the account's token.
#[derive(Debug)]
pub(super) struct Rest {
    client: Client,
    base: Url,
    authorization: HeaderValue,
    token: SecretString,
}

/// A call that was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// Nobody has answered.
    #[error("{0}")]
    NoAnswer(NoAnswer),
    /// It was one too many.
    #[error("Discord is asked too often: {why}")]
    TooMany { why: String, after: Duration },
    /// Discord does not want to.
    #[error("{why}")]
    Refused { status: StatusCode, code: u64, why: String },
    /// Discord has failed; nobody knows how far it came.
    #[error("Discord has failed: {0}")]
    Failed(String),
}

impl Rest {
    pub(super) fn new(base: Url, token: SecretString) -> Result<Self, Trouble> {
        let mut authorization = HeaderValue::from_str(&format!("Bot {}", token.expose_secret()))
            .map_err(|_| Trouble("the token has characters that no token has: copy it anew".to_owned()))?;
        authorization.set_sensitive(true);
        Ok(Self { client: http::client(&base)?, base, authorization, token })
    }

    /// A call with the token. Each part of the path is encoded.
    pub(super) fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.client.request(method, url).header(USER_AGENT, AGENT);
        request.header(AUTHORIZATION, self.authorization.clone())
    }

    /// A call without the token, for files: they are elsewhere.
    pub(super) fn anonymous(&self, url: Url) -> RequestBuilder {
        self.client.get(url).header(USER_AGENT, AGENT)
    }

    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    pub(super) fn token(&self) -> &SecretString {
        &self.token
    }
}

/// Makes a call; the answer is null where there is none to give.
///
/// # Cancel safety
/// Safe: the request is given up; Discord may have acted on it.
pub(super) async fn call(request: RequestBuilder) -> Result<Value, Failure> {
    call_within(request, CALL).await
}

/// Makes a call that may take longer.
///
/// # Cancel safety
/// As [`call`].
pub(super) async fn call_within(request: RequestBuilder, time: Duration) -> Result<Value, Failure> {
    understood(&http::call(request, time).await.map_err(Failure::NoAnswer)?)
}

fn understood(answer: &Answer) -> Result<Value, Failure> {
    let (status, body) = (answer.status, answer.json());
    if status.is_success() {
        return Ok(body);
    }
    let code = body["code"].as_u64().unwrap_or_default();
    let why = match body["message"].as_str() {
        Some(message) => told(message, code, &body["errors"]),
        None => answer.told(),
    };
    if status == StatusCode::TOO_MANY_REQUESTS {
        let after =
            body["retry_after"].as_f64().and_then(http::pause).or_else(|| answer.retry_after()).unwrap_or(PAUSE);
        return Err(Failure::TooMany { why, after });
    }
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        return Err(Failure::Failed(why));
    }
    if status == StatusCode::UNAUTHORIZED {
        let why = "Discord does not take the token: reset it in the Developer Portal under Bot, and put the new one where \
                   token_env or token_file says";
        return Err(Failure::Refused { status, code, why: why.to_owned() });
    }
    Err(Failure::Refused { status, code, why })
}

fn told(message: &str, code: u64, errors: &Value) -> String {
    let mut told = format!("Discord says \"{}\" (code {code})", line(message));
    if !errors.is_null() {
        told.push_str(": ");
        told.push_str(&line(&errors.to_string()));
    }
    if let Some((_, remedy)) = REMEDIES.iter().find(|(of, _)| *of == code) {
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
            Self::TooMany { after, .. } => NotSent::Undelivered { why, after: Some(after) },
            Self::Refused { .. } => NotSent::Refused { why },
            Self::Failed(_) => NotSent::Unknown { why, repeatable: repeatable == Repeatable::Yes },
        }
    }

    /// As the end of listening.
    pub(super) fn lost(self) -> Lost {
        let why = self.to_string();
        match self {
            Self::NoAnswer(_) | Self::Failed(_) => Lost::Connection(why),
            Self::TooMany { after, .. } => Lost::Busy { why, after },
            Self::Refused { .. } => Lost::Refused(why),
        }
    }
}

/// The id of a message that is shown now.
pub(super) fn id_of(shown: &Value, repeatable: Repeatable) -> Result<MessageId, NotSent> {
    let lost = || NotSent::Unknown {
        why: "Discord took the message and did not say its id".to_owned(),
        repeatable: repeatable == Repeatable::Yes,
    };
    let id = shown["id"].as_str().and_then(super::message::snowflake).ok_or_else(lost)?;
    Ok(MessageId(id.to_owned()))
}

/// Discord: create message, `nonce`, 25 characters at the most. The same for the same key in the same channel.
pub(super) fn nonce(channel: &str, key: &str) -> String {
    let hash = digest(&SHA256, format!("{channel}\n{key}").as_bytes());
    hash.as_ref().iter().take(12).fold(String::new(), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
