//! Network for any program: receives signed POSTs and sends signed POSTs to `reply_url`.
//!
//! Both are signed like lifecycle hooks; the secret is the token of the channel. There is no listener here: the HTTP
//! server calls in. docs/channels/webhook.md describes both directions.

mod receive;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use quell_engine::hooks::signature::WebhookSigner;
use quell_protocol::Attachment;
use quell_protocol::display_text::replace_controls;
use quell_scope::clock::Clock;
use reqwest::{Client, StatusCode};
use secrecy::ExposeSecret;
use serde_json::json;
use sha2::{Digest, Sha256};
use url::Url;

use super::config::{ChannelConfig, ChannelConfigError};
use super::format::{LengthUnit, Markup, MessageFormat, MessagePiece};
use super::network::{
    ChatAddress, Drafts, FileTransfer, InboundSink, ListenError, MessageId, Network, NetworkError, NetworkFeatures,
    NetworkLimits, OwnAccount, SendError, SenderIdentity, async_trait,
};
use super::wire::http_client::{HttpResponse, Repeatable, build_client, fetch_file, send_request_limited};

/// A shorter secret could be found by trying, given one signature.
const MIN_SECRET_BYTES: usize = 16;
/// Time limit of a POST to the receiver.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest response that is read: it holds an id or a reason.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Largest length of a message. The protocol has no limit; a longer text is easier to handle in parts.
const MAX_MESSAGE_CHARS: usize = 32_000;
/// Time between two edits of one draft.
const EDIT_INTERVAL: Duration = Duration::from_secs(1);
/// Not used, since there is no typing event; the trait asks for a value.
const TYPING_INTERVAL: Duration = Duration::from_secs(4);
/// Longest message id that a receiver may assign.
const MAX_ID_BYTES: usize = 256;
/// Characters of a receiver's reason that are shown.
const MAX_REASON_CHARS: usize = 200;

pub struct WebhookNetwork {
    channel_name: String,
    signer: WebhookSigner,
    reply_endpoint: Option<ReplyEndpoint>,
    /// Revision of the last edit.
    last_revision: Mutex<i64>,
}

struct ReplyEndpoint {
    url: Url,
    client: Client,
}

impl WebhookNetwork {
    /// Creates a channel from `[channels.NAME]`.
    ///
    /// # Errors
    /// A key is missing, wrong, or belongs to another network.
    pub fn new(channel_name: &str, config: &ChannelConfig) -> Result<Self, ChannelConfigError> {
        let config_error = |key, problem: String| ChannelConfigError::new(channel_name, key, problem);
        config.check_network_keys(channel_name, &["reply_url"])?;
        let Some(secret) = &config.token else {
            let problem = "is missing: name the environment variable with the secret that both sides sign with, or set \
                           token_file";
            return Err(config_error("token_env", problem.to_owned()));
        };
        if secret.expose_secret().len() < MIN_SECRET_BYTES {
            let problem = "the secret is too short; it needs";
            let problem = format!("{problem} {MIN_SECRET_BYTES} characters, such as `openssl rand -hex 32` makes");
            return Err(config_error("token_env", problem));
        }
        let reply_endpoint = config
            .reply_url
            .as_deref()
            .map(ReplyEndpoint::new)
            .transpose()
            .map_err(|problem| config_error("reply_url", problem))?;
        Ok(Self {
            channel_name: channel_name.to_owned(),
            signer: WebhookSigner::new(secret),
            reply_endpoint,
            last_revision: Mutex::new(0),
        })
    }

    /// Posts one event and reads the response. A repeated event has the same id.
    async fn post_event(
        &self,
        reply_endpoint: &ReplyEndpoint,
        id: &str,
        event_type: &'static str,
        mut event: serde_json::Value,
    ) -> Result<HttpResponse, SendError> {
        event["channel"] = json!(self.channel_name);
        event["id"] = json!(id);
        event["type"] = json!(event_type);
        let request = reply_endpoint.client.post(reply_endpoint.url.clone());
        let request = self.signer.sign_request(request, event_type, id, event.to_string());
        let response = send_request_limited(request, CALL_TIMEOUT, MAX_RESPONSE_BYTES).await;
        // The receiver recognises a repeated event by its id.
        interpret_response(response.map_err(|none| none.into_send_error(Repeatable::Yes))?)
    }

    /// Returns a number that rises with each edit, also over restarts, so that a receiver knows the newer of two edits.
    fn next_revision(&self) -> i64 {
        let mut last = self.last_revision.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (*last + 1).max(Clock::wall_seconds().saturating_mul(1_000));
        *last
    }
}

impl ReplyEndpoint {
    fn new(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("is no URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err("has to begin with https:// or http://".to_owned());
        }
        if url.password().is_some() || !url.username().is_empty() {
            return Err("holds a name or a password; requests are signed instead, so remove them".to_owned());
        }
        let client = build_client(&url).map_err(|error| error.0)?;
        Ok(Self { url, client })
    }
}

/// Shows neither the secret nor the path of the URL, which may be a secret, too.
impl fmt::Debug for WebhookNetwork {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.reply_endpoint.as_ref().and_then(|endpoint| endpoint.url.host_str());
        formatter.debug_struct("Webhook").field("name", &self.channel_name).field("host", &host).finish_non_exhaustive()
    }
}

#[async_trait]
impl Network for WebhookNetwork {
    fn limits(&self) -> NetworkLimits {
        let message_format =
            MessageFormat { markup: Markup::Markdown, max_length: MAX_MESSAGE_CHARS, length_unit: LengthUnit::Chars };
        NetworkLimits { message_format, edit_interval: EDIT_INTERVAL, typing_interval: TYPING_INTERVAL }
    }

    /// The signature is that of a program, which names the senders as it likes.
    fn sender_identity(&self) -> SenderIdentity {
        SenderIdentity::Claimed
    }

    async fn listen(&self, sink: &dyn InboundSink) -> ListenError {
        // No sender can have this id: sender ids have no control characters.
        let id = format!("{}\u{0}", self.channel_name);
        sink.on_connected(OwnAccount { id, name: format!("webhook {}", self.channel_name) });
        std::future::pending().await
    }

    async fn send(&self, address: &ChatAddress, piece: &MessagePiece, key: &str) -> Result<MessageId, SendError> {
        let id = event_id(key);
        let Some(endpoint) = &self.reply_endpoint else { return Ok(MessageId(id)) };
        let response = self.post_event(endpoint, &id, "message", message_event(address, piece)).await?;
        let receiver_id = response.json()["id"].as_str().map(str::to_owned);
        let fits = |id: &String| (1..=MAX_ID_BYTES).contains(&id.len()) && !id.chars().any(char::is_control);
        Ok(MessageId(receiver_id.filter(fits).unwrap_or(id)))
    }

    async fn probe(&self) -> Result<String, NetworkError> {
        let receive_text = format!("messages are taken at POST /api/channels/{}/messages", self.channel_name);
        let Some(endpoint) = &self.reply_endpoint else {
            return Ok(format!("{receive_text}; without reply_url answers are sent nowhere"));
        };
        let host = endpoint.url.host_str().unwrap_or_default();
        let id = uuid::Uuid::now_v7().to_string();
        match self.post_event(endpoint, &id, "ping", json!({})).await {
            Ok(_) => Ok(format!("{receive_text}; the receiver at {host} takes answers")),
            Err(error) => Err(NetworkError(format!("the receiver at {host} does not take answers: {error}"))),
        }
    }

    fn features(&self) -> NetworkFeatures<'_> {
        let drafts = self.reply_endpoint.as_ref().map(|_| self as &dyn Drafts);
        NetworkFeatures { drafts, files: Some(self), inbound_endpoint: Some(self), ..NetworkFeatures::default() }
    }
}

#[async_trait]
impl Drafts for WebhookNetwork {
    async fn edit(&self, address: &ChatAddress, message: &MessageId, piece: &MessagePiece) -> Result<(), SendError> {
        let Some(endpoint) = &self.reply_endpoint else { return Ok(()) };
        let revision = self.next_revision();
        let mut event = message_event(address, piece);
        event["message"] = json!(message.0);
        event["revision"] = json!(revision);
        let id = event_id(&format!("{}.{revision}", message.0));
        self.post_event(endpoint, &id, "edit", event).await.map(drop)
    }
}

#[async_trait]
impl FileTransfer for WebhookNetwork {
    /// Downloads from the origin of `reply_url`. Other servers are refused: the sender of a message chooses the URL, and
    /// this machine may reach hosts that the sender cannot.
    async fn fetch(&self, attachment: &Attachment, max_bytes: u64) -> Result<Vec<u8>, NetworkError> {
        let untrusted_host = || NetworkError("it is not on the server of reply_url, so it is not fetched".to_owned());
        let (Some(endpoint), Ok(url)) = (&self.reply_endpoint, Url::parse(&attachment.source)) else {
            return Err(untrusted_host());
        };
        if url.origin() != endpoint.url.origin() {
            return Err(untrusted_host());
        }
        fetch_file(endpoint.client.get(url), max_bytes).await?.into_file()
    }

    /// Events can only hold text.
    async fn send(
        &self,
        _address: &ChatAddress,
        _attachment: &Attachment,
        _bytes: Vec<u8>,
    ) -> Result<MessageId, SendError> {
        let why =
            "a webhook takes no files; let the agent put them where people find them, and name the place".to_owned();
        Err(SendError::Refused { why })
    }
}

/// The body of a message event.
fn message_event(address: &ChatAddress, piece: &MessagePiece) -> serde_json::Value {
    let mut event = json!({"target": address.target, "text": piece.formatted, "plain": piece.plain});
    if let Some(thread) = &address.thread {
        event["thread"] = json!(thread);
    }
    event
}

/// Returns an id that fits into a header; the same for the same key.
fn event_id(key: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-');
    if (1..=128).contains(&key.len()) && key.chars().all(fits) {
        return key.to_owned();
    }
    Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Maps the status of a response to an error of sending.
fn interpret_response(response: HttpResponse) -> Result<HttpResponse, SendError> {
    let status = response.status;
    if status.is_success() {
        return Ok(response);
    }
    // Show only the reason, not the whole body: error pages may contain the URL, which may hold a secret.
    let reason = response.json();
    let reason = reason["reason"].as_str().map(|reason| format!(": {}", replace_controls(reason, MAX_REASON_CHARS)));
    let why = format!("its receiver answered {}{}", status.as_u16(), reason.unwrap_or_default());
    Err(match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            SendError::NotDelivered { why, retry_after: response.retry_after() }
        }
        StatusCode::REQUEST_TIMEOUT => SendError::Unknown { why, is_repeatable: true },
        _ if status.is_server_error() => SendError::Unknown { why, is_repeatable: true },
        _ if status.is_redirection() => {
            SendError::Refused { why: format!("{why}, and redirects are not followed; correct reply_url") }
        }
        _ => SendError::Refused { why },
    })
}
