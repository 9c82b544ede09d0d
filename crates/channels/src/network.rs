//! Traits and types between the message flow and a chat network.
//!
//! A network knows its own protocol and nothing about the engine, runs or sessions. The flow knows runs and sessions
//! and nothing about protocols. Every future here may be dropped at any await: a dropped connection is closed, a
//! dropped request is abandoned. Nothing here owns a task, a signal handler or a runtime.

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(test)]
pub(crate) mod test_support;

use std::time::Duration;

pub use async_trait::async_trait;
use futures_util::future::BoxFuture;
use quell_protocol::Attachment;
use reqwest::header::HeaderMap;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::format::{MessageFormat, MessagePiece};

/// One chat network with one account, as configured in `[channels.X]`.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Format and timing of messages to this network.
    fn limits(&self) -> NetworkLimits;

    /// Whether the network proves who has sent a message. Nobody else may answer questions for a user by their name.
    fn sender_identity(&self) -> SenderIdentity {
        SenderIdentity::Proven
    }

    /// Connects, listens and passes each message to `sink` until the connection is lost. It does not reconnect: its
    /// caller does, after a pause. A network without a connection of its own (one that calls Quell) waits forever.
    async fn listen(&self, sink: &dyn InboundSink) -> ListenError;

    /// Sends one piece. A retry of the same piece has the same `key`; some networks then show the message only once.
    async fn send(&self, address: &ChatAddress, piece: &MessagePiece, key: &str) -> Result<MessageId, SendError>;

    /// Sends one piece, such as the reply to a stop, before everything that waits inside this network. Only a network
    /// with a queue of its own has to override it.
    async fn send_urgent(
        &self,
        address: &ChatAddress,
        piece: &MessagePiece,
        key: &str,
    ) -> Result<MessageId, SendError> {
        self.send(address, piece, key).await
    }

    /// Asks the network for the identity of this account, without listening: for `quell channels test` and `quell
    /// doctor`. Returns one line for people.
    async fn probe(&self) -> Result<String, NetworkError>;

    /// What the network can do besides.
    fn features(&self) -> NetworkFeatures<'_> {
        NetworkFeatures::default()
    }
}

/// What the name of a sender is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderIdentity {
    /// The network authenticates its users.
    Proven,
    /// Anybody could use the name, or a program says who has sent the message.
    Claimed,
}

/// What only some networks can do.
#[derive(Clone, Copy, Default)]
pub struct NetworkFeatures<'a> {
    pub drafts: Option<&'a dyn Drafts>,
    pub typing: Option<&'a dyn TypingIndicator>,
    pub reactions: Option<&'a dyn Reactions>,
    pub files: Option<&'a dyn FileTransfer>,
    pub buttons: Option<&'a dyn MessageButtons>,
    pub inbound_endpoint: Option<&'a dyn InboundEndpoint>,
}

/// HTTP endpoint for a network that calls Quell. Each call is authenticated by itself.
pub trait InboundEndpoint: Send + Sync {
    fn max_body_bytes(&self) -> usize;

    /// Verifies a call and parses its message. `now` is the time of this machine in seconds since 1970. The same
    /// message may come again: it then has the same id.
    ///
    /// # Errors
    /// The reason of the rejection, in a text that the caller may read.
    fn parse_request(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<InboundMessage, InboundRejection>;
}

/// Editing of messages after they were sent.
#[async_trait]
pub trait Drafts: Send + Sync {
    /// Replaces the content of an earlier message by `piece`. Idempotent.
    async fn edit(&self, address: &ChatAddress, message: &MessageId, piece: &MessagePiece) -> Result<(), SendError>;
}

/// Indicator that the account is writing. It disappears by itself.
#[async_trait]
pub trait TypingIndicator: Send + Sync {
    /// Shows it for some more seconds.
    async fn show(&self, address: &ChatAddress) -> Result<(), SendError>;

    /// Removes it. Does nothing on networks where only time or a message removes it.
    async fn hide(&self, _address: &ChatAddress) -> Result<(), SendError> {
        Ok(())
    }
}

/// Reactions on messages. The account has at most one at a time on each message.
#[async_trait]
pub trait Reactions: Send + Sync {
    /// Adds an emoji to a message.
    async fn add(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError>;

    /// Removes the emoji. It is no error if there is none.
    async fn remove(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError>;
}

/// Download and upload of attachments.
#[async_trait]
pub trait FileTransfer: Send + Sync {
    /// Downloads a received attachment of at most `max_bytes` bytes.
    async fn fetch(&self, attachment: &Attachment, max_bytes: u64) -> Result<Vec<u8>, NetworkError>;

    /// Sends a file with the name and type of `attachment` and the content `bytes`.
    async fn send(
        &self,
        address: &ChatAddress,
        attachment: &Attachment,
        bytes: Vec<u8>,
    ) -> Result<MessageId, SendError>;
}

/// Messages with buttons. Each press is passed to [`InboundSink::on_button_press`].
#[async_trait]
pub trait MessageButtons: Send + Sync {
    /// Format of a message with buttons. Some networks limit such a message more than others.
    fn message_format(&self) -> MessageFormat;

    /// Sends one piece with a row of buttons below it. See [`Network::send`] for `key`.
    async fn send(
        &self,
        address: &ChatAddress,
        piece: &MessagePiece,
        buttons: &[MessageButton],
        key: &str,
    ) -> Result<MessageId, SendError>;

    /// Replaces the content and the buttons of an earlier message; without buttons they are removed. Idempotent.
    async fn edit(
        &self,
        address: &ChatAddress,
        message: &MessageId,
        piece: &MessagePiece,
        buttons: &[MessageButton],
    ) -> Result<(), SendError>;

    /// Tells the network that a press was handled, and the person who pressed, and nobody else, what came of it. Where
    /// the message itself shows that the press counted, only a refusal has to be told.
    async fn answer_press(&self, press: &ButtonPress, reply: &PressReply) -> Result<(), SendError>;
}

/// A button below a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageButton {
    pub style: ButtonStyle,
    pub label: &'static str,
    /// At most 64 bytes of ASCII. It comes back as [`ButtonPress::data`].
    pub data: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ButtonStyle {
    /// Allows something: green or highlighted.
    Positive,
    /// Red, where the network has colours.
    Negative,
}

/// A person pressed a button.
#[derive(Debug, Clone)]
pub struct ButtonPress {
    /// As the network verified it, in the form of [`InboundMessage::sender`].
    pub sender: String,
    /// Where the message with the button is.
    pub address: ChatAddress,
    pub message_id: MessageId,
    /// Untrusted: clients of some networks can send data that no button has.
    pub data: String,
    /// With it the network answers this press, for a short time. Opaque to the flow.
    pub reply_token: SecretString,
}

/// What came of a press, in plain text for the person who pressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PressReply {
    /// The press counted. The message is about to show it.
    Counted(String),
    /// The press had no effect, and the person has to be told why.
    Refused(String),
}

impl PressReply {
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Counted(text) | Self::Refused(text) => text,
        }
    }
}

/// Receiver of everything that a network delivers. The flow implements it.
pub trait InboundSink: Send + Sync {
    /// The network is connected and receives messages: resets the reconnect backoff.
    fn on_connected(&self, account: OwnAccount);

    /// Accepts a message and returns at once. A stop has taken effect when it returns. A network may deliver the same
    /// message again after a reconnect: it counts once.
    fn on_message(&self, inbound: InboundMessage);

    /// Handles a press and returns at once. Its effect has been decided when this returns, and it is answered through
    /// [`MessageButtons::answer_press`] by a task of the flow. A press that is delivered again counts once.
    fn on_button_press(&self, press: ButtonPress);

    /// Waits until every message so far is in the database or was refused, so that the network may acknowledge them.
    fn wait_until_stored(&self) -> BoxFuture<'_, ()>;

    /// The cursor that was saved last: the position from which to continue after a restart.
    fn load_cursor(&self) -> BoxFuture<'_, Option<String>>;

    /// Saves the position from which to continue. Call it after [`InboundSink::wait_until_stored`].
    fn save_cursor(&self, cursor: String) -> BoxFuture<'_, ()>;
}

/// The account of the channel itself. Its own messages are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnAccount {
    /// In the form of [`InboundMessage::sender`].
    pub id: String,
    /// For people.
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboundMessage {
    /// The network's id, unique in this channel even if two rooms use the same numbers. Duplicates are found by it.
    pub id: String,
    /// Identifies the message in a reply, an edit or a reaction.
    pub message_id: MessageId,
    pub sender: String,
    pub sender_name: Option<String>,
    /// Where the message is, and where a reply goes.
    pub address: ChatAddress,
    /// Limits an interruption, besides sender and target, if the network has such a scope.
    pub scope_id: Option<String>,
    /// The text without the mention of the account.
    pub text: String,
    /// True if the message is meant for this account. Any other message is only checked for stop words.
    pub is_addressed: bool,
    /// True if more than two people can read it.
    pub is_group: bool,
    pub attachments: Vec<Attachment>,
}

/// Where a message is, and where a reply to it goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChatAddress {
    /// Chat, room or person.
    pub target: String,
    /// Thread in the target, on networks that have threads.
    pub thread: Option<String>,
}

/// The network's id of one message, opaque to the flow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageId(pub String);

/// Format and timing of messages to a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkLimits {
    /// Markup and largest length of a message.
    pub message_format: MessageFormat,
    /// Least time between two edits of one draft.
    pub edit_interval: Duration,
    /// Time after which the typing indicator is shown again.
    pub typing_interval: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The connection broke, or the server closed it or asked for a reconnect. It is tried again.
    #[error("{0}")]
    Connection(String),
    /// The server asks the client to stay away for a time.
    #[error("{why}; try again in {} s", after.as_secs())]
    Busy { why: String, after: Duration },
    /// The server rejects this account. It is tried again, but seldom, because that rarely helps.
    #[error("{0}")]
    Refused(String),
}

/// Reason why one piece was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The network certainly does not show it. It may be sent again, after `retry_after` if there is one.
    #[error("not delivered: {why}")]
    NotDelivered { why: String, retry_after: Option<Duration> },
    /// The network certainly does not show it, and never will.
    #[error("not delivered: {why}")]
    Refused { why: String },
    /// The response was lost: the message may be shown or not. It is sent again only if the network shows a repeated
    /// key once.
    #[error("it is not known whether it was delivered: {why}")]
    Unknown {
        why: String,
        /// True if the network shows the message once when it is sent again with the same key.
        is_repeatable: bool,
    },
}

/// Reason why an inbound call was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InboundRejection {
    /// The body is larger than [`InboundEndpoint::max_body_bytes`].
    #[error("{0}")]
    TooLarge(String),
    /// The call does not prove the identity of its caller.
    #[error("{0}")]
    Unauthenticated(String),
    /// The proof is valid but old: it may be a replay.
    #[error("{0}")]
    Stale(String),
    /// The caller is authenticated, but the body is not a message.
    #[error("{0}")]
    Malformed(String),
}

/// Error of any other operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(pub String);
