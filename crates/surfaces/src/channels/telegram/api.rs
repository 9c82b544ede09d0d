//! Calls of the Bot API. The token is a part of every address, so whatever is told to people goes through [`Api::shown`] or
//! [`Api::told`] first.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use crate::channels::seam::{Lost, NotSent, Trouble};
use crate::channels::wire::http::{Answer, NoAnswer, Repeatable, call, client};

/// Where the API is.
const PUBLIC: &str = "https://api.telegram.org";
/// For an answer. Telegram answers most calls within a second, and seldom within ten.
const PATIENCE: Duration = Duration::from_secs(30);
/// A secret that is shorter is none, and would be found in ordinary words.
const SHORTEST_SECRET: usize = 16;
/// How much of a text from outside is shown.
const SHOWN: usize = 300;
/// How long to leave somebody else alone who listens with the same token.
const CONFLICT: Duration = Duration::from_secs(30);

/// What is wrong when a webhook is set, and what to do.
pub(super) const WEBHOOK: &str = "a webhook is set for this bot, so it cannot be listened to; remove it (Bot API: deleteWebhook), or give \
    this channel a bot of its own";

/// The API, as one bot.
#[derive(Debug)]
pub(super) struct Api {
    client: Client,
    base: Url,
    token: SecretString,
}

/// A call that did not do what it should. Nothing in it holds the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// There was no answer.
    NoAnswer(NoAnswer),
    /// Telegram did not do it, and says why.
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// In Telegram's words.
        why: String,
        /// When it wants to be asked again.
        after: Option<Duration>,
        /// The chat's new id, if that is why.
        moved_to: Option<i64>,
    },
    /// Something between here and Telegram answered, or Telegram answered something else: it may have done it.
    Odd(String),
}

/// Bot API: "Making requests".
#[derive(Debug, Default, Deserialize)]
struct Body {
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    result: Value,
    description: Option<String>,
    #[serde(default)]
    parameters: Parameters,
}

/// Bot API: `ResponseParameters`.
#[derive(Debug, Default, Deserialize)]
struct Parameters {
    retry_after: Option<u64>,
    migrate_to_chat_id: Option<i64>,
}

impl Api {
    /// Checks the address and the token; an error names the key that is wrong.
    pub(super) fn new(base: Option<&str>, token: SecretString) -> Result<Self, (&'static str, String)> {
        let wrong = "is no address of a Bot API server, such as https://api.telegram.org";
        let base = Url::parse(base.unwrap_or(PUBLIC)).map_err(|error| ("api_base", format!("{wrong}: {error}")))?;
        let plain = base.query().is_none() && base.fragment().is_none() && base.username().is_empty();
        if !matches!(base.scheme(), "http" | "https") || !plain || base.password().is_some() {
            return Err(("api_base", wrong.to_owned()));
        }
        let (id, secret) = token.expose_secret().split_once(':').unwrap_or_default();
        let named = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !named || secret.len() < SHORTEST_SECRET || !secret.bytes().all(sound) {
            let problem =
                "leads to something that is no token of a bot; @BotFather shows it as digits, a colon, and a long word";
            return Err(("token_env", problem.to_owned()));
        }
        let client = client(&base).map_err(|trouble| ("api_base", trouble.to_string()))?;
        Ok(Self { client, base, token })
    }

    /// Calls a method and answers its result.
    ///
    /// # Cancel safety
    /// Safe: the call is given up; Telegram may have acted on it.
    pub(super) async fn call(&self, method: &str, body: &Value) -> Result<Value, Failure> {
        self.question(method, body, Duration::ZERO).await
    }

    /// Calls a method that takes its time.
    ///
    /// # Cancel safety
    /// As [`Self::call`].
    pub(super) async fn question(&self, method: &str, body: &Value, time: Duration) -> Result<Value, Failure> {
        self.result(self.post(method).json(body), time).await
    }

    /// A request for a method, without a body.
    pub(super) fn post(&self, method: &str) -> RequestBuilder {
        self.client.post(self.address("", [method]))
    }

    /// A request for the contents of a file (Bot API: getFile).
    pub(super) fn get_file(&self, path: &str) -> RequestBuilder {
        self.client.get(self.address("file", path.split('/')))
    }

    fn address<'a>(&self, before: &'a str, path: impl IntoIterator<Item = &'a str>) -> Url {
        let mut address = self.base.clone();
        // Segments are escaped, and the ways up are left out: nobody can lead a request elsewhere by its path. Only addresses
        // that cannot be a base have no segments, and those were refused.
        if let Ok(mut segments) = address.path_segments_mut() {
            let bot = format!("bot{}", self.token.expose_secret());
            segments.pop_if_empty().extend(Some(before).filter(|before| !before.is_empty()));
            segments.push(&bot).extend(path);
        }
        address
    }

    /// Sends a request and answers the result that Telegram tells.
    ///
    /// # Cancel safety
    /// As [`Self::call`].
    pub(super) async fn result(&self, request: RequestBuilder, time: Duration) -> Result<Value, Failure> {
        let answer = call(request, PATIENCE + time).await.map_err(|lost| self.no_answer(lost))?;
        let body = serde_json::from_slice::<Body>(&answer.body).ok();
        match body {
            Some(body) if body.ok && answer.status.is_success() => Ok(body.result),
            body => Err(self.failure(&answer, body.unwrap_or_default())),
        }
    }

    fn failure(&self, answer: &Answer, body: Body) -> Failure {
        let status = answer.status;
        let why = body.description.map_or_else(|| self.told(answer), |why| self.shown(&why));
        // A server error comes as well from what stands before Telegram's servers, when they have acted or still do.
        if !(status.is_client_error() || status.is_redirection()) {
            return Failure::Odd(why);
        }
        let after = body.parameters.retry_after.map(Duration::from_secs).or_else(|| answer.retry_after());
        Failure::Refused { status, why, after, moved_to: body.parameters.migrate_to_chat_id }
    }

    /// Why there was no answer, without the token.
    pub(super) fn no_answer(&self, lost: NoAnswer) -> Failure {
        Failure::NoAnswer(match lost {
            NoAnswer::Unreached(why) => NoAnswer::Unreached(self.shown(&why)),
            NoAnswer::Lost(why) => NoAnswer::Lost(self.shown(&why)),
        })
    }

    /// What somebody answered who does not speak the API.
    pub(super) fn told(&self, answer: &Answer) -> String {
        format!("HTTP {}: {}", answer.status.as_u16(), self.shown(&String::from_utf8_lossy(&answer.body)))
    }

    /// A text without the token: servers on the way like to repeat addresses. The whole text is looked through before it is
    /// made shorter, so that no part of the token is left at its end.
    pub(super) fn shown(&self, text: &str) -> String {
        let token = self.token.expose_secret();
        let secret = token.split_once(':').map_or(token, |(_, secret)| secret);
        let words = text.replace(secret, "***");
        words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect()
    }
}

impl Failure {
    /// As an error of sending. A refusal is certain; whatever else than an answer of Telegram came is not.
    pub(super) fn not_sent(self, repeatable: Repeatable) -> NotSent {
        match self {
            Self::NoAnswer(lost) => lost.not_sent(repeatable),
            Self::Odd(why) => NotSent::Unknown { why, repeatable: repeatable == Repeatable::Yes },
            Self::Refused { status: StatusCode::TOO_MANY_REQUESTS, why, after, .. } => {
                NotSent::Undelivered { why, after }
            }
            Self::Refused { why, moved_to: Some(chat), .. } => {
                NotSent::Refused { why: format!("{why}: it is chat {chat} now") }
            }
            Self::Refused { why, .. } => NotSent::Refused { why },
        }
    }

    /// As the end of listening.
    pub(super) fn lost(self) -> Lost {
        match self {
            Self::NoAnswer(lost) => Lost::Connection(lost.to_string()),
            Self::Odd(why) => Lost::Connection(why),
            Self::Refused { status, why, after, .. } => match status {
                StatusCode::TOO_MANY_REQUESTS => Lost::Busy { why, after: after.unwrap_or(CONFLICT) },
                StatusCode::CONFLICT => Lost::Busy { why: conflict(&why), after: CONFLICT },
                // A token that has not even the form of one is not found.
                StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND => Lost::Refused(refused(&why)),
                _ => Lost::Connection(why),
            },
        }
    }

    /// As an error of anything else.
    pub(super) fn trouble(self) -> Trouble {
        Trouble(self.lost().to_string())
    }

    /// Whether Telegram refused it with these words.
    pub(super) fn says(&self, words: &str) -> bool {
        matches!(self, Self::Refused { why, .. } if why.contains(words))
    }
}

fn conflict(why: &str) -> String {
    if why.contains("webhook") {
        return WEBHOOK.to_owned();
    }
    format!("another program listens with the same token ({why}); end it, or give this channel a bot of its own")
}

fn refused(why: &str) -> String {
    format!(
        "Telegram does not take the token ({why}); @BotFather shows the right one, or makes a new one; api_base has to be right as well"
    )
}
