//! Any program that speaks signed HTTP: what it tells comes in by a POST to Quell ([`Webhook::receive`]), and what is answered
//! goes out by a POST to its `reply_url`. Both are signed like lifecycle hooks, with the token of the channel as the secret.
//!
//! Nothing is listened to here: the door that takes the POSTs calls in. docs/channels/webhook.md has the words of both sides.

mod files;
mod receive;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::clock::Clock;
use quell_engine::hooks::signature::Signer;
use reqwest::{Client, StatusCode};
use secrecy::ExposeSecret;
use serde::Serialize;
use sha2::{Digest, Sha256};
use url::Url;

use super::config::{BadChannel, ChannelConfig};
use super::format::{Form, Markup, Measure, Piece};
use super::seam::{Drafts, Ear, Files, Inbound, Lost, Manners, MessageId, Network, NotSent, Own, Place, Trouble};
use super::wire::http::{Answer, Repeatable, call_at_most, client};

pub use receive::{LARGEST, Unwelcome};

/// A shorter secret can be found by trying, by whoever has seen one signature.
const SHORTEST_SECRET: usize = 16;
/// How long a receiver may take for one message.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most that is read of an answer: it holds an id or a reason.
const LARGEST_ANSWER: usize = 64 * 1024;
/// How much fits into one message. There is no limit but ours: what is longer is easier to take in parts.
const LONGEST: usize = 32_000;
/// Between two changes of one draft.
const EDIT_EVERY: Duration = Duration::from_secs(1);
/// Typing is not told; a channel has to say something.
const TYPING_EVERY: Duration = Duration::from_secs(4);
/// The longest id that a receiver may give a message.
const LONGEST_ID: usize = 256;
/// How much of a receiver's reason is shown.
const LONGEST_REASON: usize = 200;

/// A channel of signed HTTP.
pub struct Webhook {
    name: String,
    signer: Signer,
    out: Option<Out>,
    /// The number of the last change of a message.
    revision: Mutex<i64>,
}

/// Where answers go.
struct Out {
    url: Url,
    client: Client,
}

impl Webhook {
    /// A channel as `[channels.NAME]` describes it.
    ///
    /// # Errors
    /// When a key is missing, wrong, or of another network.
    pub fn new(name: &str, config: &ChannelConfig) -> Result<Self, BadChannel> {
        let bad = |key, problem: String| BadChannel { channel: name.to_owned(), key, problem };
        let foreign = [
            ("api_base", config.api_base.is_some()),
            ("app_token_env", config.app_token_env.is_some()),
            ("mention_only", config.mention_only),
            ("server", config.server.is_some()),
            ("tls", config.tls.is_some()),
            ("nick", config.nick.is_some()),
            ("sasl_account", config.sasl_account.is_some()),
            ("join", !config.join.is_empty()),
        ];
        if let Some((key, _)) = foreign.into_iter().find(|(_, given)| *given) {
            return Err(bad(key, "a webhook has no such thing; remove it".to_owned()));
        }
        let Some(secret) = &config.token else {
            let problem = "is missing: it names the environment variable with the secret by which both sides sign, or \
                           token_file the file";
            return Err(bad("token_env", problem.to_owned()));
        };
        if secret.expose_secret().len() < SHORTEST_SECRET {
            let problem = "the secret is too short; it needs";
            let problem = format!("{problem} {SHORTEST_SECRET} characters, such as `openssl rand -hex 32` makes");
            return Err(bad("token_env", problem));
        }
        let out = config.reply_url.as_deref().map(Out::new).transpose().map_err(|problem| bad("reply_url", problem))?;
        Ok(Self { name: name.to_owned(), signer: Signer::new(secret), out, revision: Mutex::new(0) })
    }

    /// Posts one event, and reads what the receiver says. The id is the same when the same event is posted again.
    async fn post(&self, out: &Out, id: &str, event: &Event<'_>) -> Result<Answer, NotSent> {
        let refused = |error: serde_json::Error| NotSent::Refused { why: format!("it cannot be written: {error}") };
        let body = serde_json::to_string(&Letter { channel: &self.name, id, event }).map_err(refused)?;
        let request = self.signer.seal(out.client.post(out.url.clone()), (event.word(), id), body);
        let answer = call_at_most(request, PATIENCE, LARGEST_ANSWER).await;
        // The receiver knows a repeated event by its id.
        understood(answer.map_err(|none| none.not_sent(Repeatable::Yes))?)
    }

    async fn say(&self, place: &Place, piece: &Piece, key: &str) -> Result<MessageId, NotSent> {
        let id = id_of(key);
        let Some(out) = &self.out else { return Ok(MessageId(id)) };
        let event = Event::Message { place: Where::of(place), text: &piece.marked, plain: &piece.plain };
        let answer = self.post(out, &id, &event).await?;
        let theirs = answer.json()["id"].as_str().map(str::to_owned);
        let fits = |id: &String| (1..=LONGEST_ID).contains(&id.len()) && !id.chars().any(char::is_control);
        Ok(MessageId(theirs.filter(fits).unwrap_or(id)))
    }

    async fn change(&self, place: &Place, message: &MessageId, piece: &Piece) -> Result<(), NotSent> {
        let Some(out) = &self.out else { return Ok(()) };
        let revision = self.next_revision();
        let text = Where::of(place);
        let event =
            Event::Edit { place: text, message: &message.0, revision, text: &piece.marked, plain: &piece.plain };
        let id = id_of(&format!("{}.{revision}", message.0));
        self.post(out, &id, &event).await.map(drop)
    }

    /// Rises with each change, over restarts too, so that a receiver can tell the newer of two.
    fn next_revision(&self) -> i64 {
        let mut last = self.revision.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (*last + 1).max(Clock::wall_seconds().saturating_mul(1_000));
        *last
    }

    async fn ask(&self) -> Result<String, Trouble> {
        let heard = format!("messages are taken at POST /api/channels/{}/messages", self.name);
        let Some(out) = &self.out else {
            return Ok(format!("{heard}; without reply_url answers are sent nowhere"));
        };
        let host = out.url.host_str().unwrap_or_default();
        let id = uuid::Uuid::now_v7().to_string();
        match self.post(out, &id, &Event::Ping).await {
            Ok(_) => Ok(format!("{heard}; the receiver at {host} takes answers")),
            Err(error) => Err(Trouble(format!("the receiver at {host} does not take answers: {error}"))),
        }
    }
}

impl Out {
    fn new(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("is no URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err("has to begin with https:// or http://".to_owned());
        }
        if url.password().is_some() || !url.username().is_empty() {
            return Err("holds a name or a password; requests are signed instead, so remove them".to_owned());
        }
        let client = client(&url).map_err(|error| error.0)?;
        Ok(Self { url, client })
    }
}

/// Neither the secret nor the path of the URL, which may be one, too.
impl fmt::Debug for Webhook {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.out.as_ref().and_then(|out| out.url.host_str());
        formatter.debug_struct("Webhook").field("name", &self.name).field("host", &host).finish_non_exhaustive()
    }
}

impl Network for Webhook {
    fn manners(&self) -> Manners {
        let form = Form { markup: Markup::Markdown, longest: LONGEST, measure: Measure::Chars };
        Manners { form, edit_every: EDIT_EVERY, typing_every: TYPING_EVERY }
    }

    fn listen<'a>(&'a self, ear: &'a dyn Ear) -> BoxFuture<'a, Lost> {
        async move {
            // No sender is named so: what a sender is called has no control characters.
            let id = format!("{}\u{0}", self.name);
            ear.connected(Own { id, name: format!("webhook {}", self.name) });
            std::future::pending().await
        }
        .boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        self.say(place, piece, key).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Trouble>> {
        self.ask().boxed()
    }

    fn drafts(&self) -> Option<&dyn Drafts> {
        self.out.as_ref().map(|_| self as &dyn Drafts)
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn inbound(&self) -> Option<&dyn Inbound> {
        Some(self)
    }
}

impl Drafts for Webhook {
    fn edit<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        piece: &'a Piece,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.change(place, message, piece).boxed()
    }
}

/// What a receiver is posted.
#[derive(Serialize)]
struct Letter<'a> {
    channel: &'a str,
    id: &'a str,
    #[serde(flatten)]
    event: &'a Event<'a>,
}

/// What happened.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Event<'a> {
    Message {
        #[serde(flatten)]
        place: Where<'a>,
        text: &'a str,
        plain: &'a str,
    },
    Edit {
        #[serde(flatten)]
        place: Where<'a>,
        message: &'a str,
        revision: i64,
        text: &'a str,
        plain: &'a str,
    },
    Ping,
}

#[derive(Serialize)]
struct Where<'a> {
    target: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
}

impl<'a> Where<'a> {
    fn of(place: &'a Place) -> Self {
        Self { target: &place.target, thread: place.thread.as_deref() }
    }
}

impl Event<'_> {
    fn word(&self) -> &'static str {
        match self {
            Self::Message { .. } => "message",
            Self::Edit { .. } => "edit",
            Self::Ping => "ping",
        }
    }
}

/// An id that can stand in a header, the same for the same key.
fn id_of(key: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-');
    if (1..=128).contains(&key.len()) && key.chars().all(fits) {
        return key.to_owned();
    }
    Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What an answer says about the event.
fn understood(answer: Answer) -> Result<Answer, NotSent> {
    let status = answer.status;
    if status.is_success() {
        return Ok(answer);
    }
    // Not the whole body: pages of errors like to name the URL, and that may hold a secret.
    let reason = answer.json()["reason"].as_str().map(|reason| {
        let line = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
        format!(": {}", line.take(LONGEST_REASON).collect::<String>())
    });
    let why = format!("its receiver answered {}{}", status.as_u16(), reason.unwrap_or_default());
    Err(match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            NotSent::Undelivered { why, after: answer.retry_after() }
        }
        StatusCode::REQUEST_TIMEOUT => NotSent::Unknown { why, repeatable: true },
        _ if status.is_server_error() => NotSent::Unknown { why, repeatable: true },
        _ if status.is_redirection() => {
            NotSent::Refused { why: format!("{why}, and redirects are not followed; correct reply_url") }
        }
        _ => NotSent::Refused { why },
    })
}
