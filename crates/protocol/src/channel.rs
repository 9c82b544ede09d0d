//! Chat messages, attachments, interruption scopes, and the state of channels.

use serde::{Deserialize, Serialize};

/// A message that a person wrote in a chat network, in the form that hooks and all surfaces use.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChannelMessage {
    /// The configured name of the channel, such as `telegram`.
    pub channel: String,
    /// The network's own id of the message, unique in this channel.
    pub id: String,
    /// The author: the network's own id, or the name if the network has no ids.
    pub sender: String,
    /// The displayed name of the author, if the network gives it.
    pub sender_name: Option<String>,
    /// The destination of an answer: a chat, a room or a person.
    pub reply_target: String,
    pub content: String,
    /// The thread that the message belongs to.
    pub thread: Option<String>,
    /// Limits an interruption further than sender and reply target do, on networks that have such an id.
    pub scope_id: Option<String>,
    /// True if more than two people can read the message.
    #[serde(default)]
    pub group: bool,
    /// Files that came with the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// A file that came with a message or is sent with an answer.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    pub kind: AttachmentKind,
    /// The identifier by which the network finds the file: its own id, or a URL.
    pub source: String,
    /// The name of the file, if it has one.
    pub name: Option<String>,
    /// The media type, such as `image/png`, if the network gives it.
    pub media_type: Option<String>,
    /// The size in bytes, if the network gives it.
    pub bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttachmentKind {
    Image,
    /// A sound or a voice message.
    Audio,
    Video,
    /// Any other file.
    File,
}

/// Interruption scope of chat messages: a new message or a stop affects only runs of the same scope. Scopes are
/// compared field by field.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterruptionScope {
    /// The configured name of the channel.
    pub channel: String,
    pub reply_target: String,
    /// The author: nobody can interrupt the run of another person.
    pub sender: String,
    /// A further limit of the scope, on networks that have one.
    pub scope_id: Option<String>,
}

impl ChannelMessage {
    #[must_use]
    pub fn interruption_scope(&self) -> InterruptionScope {
        InterruptionScope {
            channel: self.channel.clone(),
            reply_target: self.reply_target.clone(),
            sender: self.sender.clone(),
            scope_id: self.scope_id.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "state", content = "detail", rename_all = "snake_case")]
pub enum ChannelHealth {
    /// The channel has not been connected yet.
    #[default]
    Connecting,
    /// The channel is connected and receives messages.
    Connected,
    /// The connection was lost for this reason. The channel tries to reconnect.
    Lost(String),
    /// The network refuses the account for this reason. The channel tries again at long intervals.
    Refused(String),
    Stopped,
}

/// A channel and its state.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChannelRow {
    /// The configured name of the channel.
    pub name: String,
    /// The chat network, such as `irc`.
    pub kind: String,
    #[serde(flatten)]
    pub health: ChannelHealth,
    /// Start of this state, RFC 3339.
    pub since: Option<String>,
    /// The name of the account in the network.
    pub account: Option<String>,
    /// Messages that were received from senders who are allowed to write.
    pub heard: u64,
    /// Answers that were delivered.
    pub answered: u64,
    /// Answers and notices that were not delivered.
    pub undelivered: u64,
}

/// Result of checking the account of a channel with its network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChannelTest {
    /// True if the network accepts the account.
    pub ok: bool,
    /// One line for people: the account, or the problem.
    pub detail: String,
}

/// A text to send to a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChannelSend {
    /// `CHANNEL:PLACE`: the configured name of the channel, and the network's own id of the chat, the room or the
    /// person. The first colon separates them; the second part may contain further colons.
    pub to: String,
    /// The text, as Markdown.
    pub text: String,
}

/// Result of sending a text to a chat.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChannelDelivery {
    /// The result in one word.
    pub delivery: DeliveryState,
    /// Number of parts that the network has accepted.
    pub sent: usize,
    /// Number of parts in all: long texts are split.
    pub of: usize,
    /// The reason, if the text was not delivered.
    pub detail: Option<String>,
}

/// Result of sending a text to a chat, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// All of the text is shown.
    Delivered,
    /// The beginning is shown, and it is certain that the rest is not.
    Partly,
    /// It is certain that nothing is shown.
    Undelivered,
    /// The network accepted a request and never reported its result.
    Unknown,
}

/// Answer to a message that was posted to a channel of kind `webhook`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChannelReceived {
    /// The id of the message, as it was posted.
    pub id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written_whatever_its_state() {
        let states = [
            (ChannelHealth::Connecting, "connecting", None),
            (ChannelHealth::Lost("reset".to_owned()), "lost", Some("reset")),
            (ChannelHealth::Refused("401".to_owned()), "refused", Some("401")),
        ];
        for (health, word, detail) in states {
            let row = ChannelRow {
                name: "shop".to_owned(),
                kind: "webhook".to_owned(),
                health,
                since: None,
                account: None,
                heard: 1,
                answered: 2,
                undelivered: 3,
            };
            let value = serde_json::to_value(&row).unwrap();
            assert_eq!((value["state"].as_str(), value["detail"].as_str()), (Some(word), detail), "{value}");
            assert_eq!(serde_json::from_value::<ChannelRow>(value).unwrap(), row);
        }
    }
}
