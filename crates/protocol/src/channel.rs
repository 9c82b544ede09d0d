//! Words of the chat networks: a message as it came, and where its answer goes.

use serde::{Deserialize, Serialize};

/// A message that a person wrote in a chat network, as every hook and every door of Quell knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChannelMessage {
    /// The configured name of the channel, such as `telegram`.
    pub channel: String,
    /// The network's own id of the message, unique in this channel.
    pub id: String,
    /// Who wrote it: the network's own id, or the name where there are no ids.
    pub sender: String,
    /// The name that people see, where the network tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_name: Option<String>,
    /// Where an answer goes: a chat, a room, a person.
    pub reply_target: String,
    /// The text.
    pub content: String,
    /// The thread in which it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// What an interruption is confined to besides sender and reply target, where the network knows such a thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_id: Option<String>,
    /// True when more than two can read it.
    #[serde(default)]
    pub group: bool,
    /// What came with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// A file that came with a message, or goes with an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// What it is.
    pub kind: AttachmentKind,
    /// By which the network finds it again: its own id, or a URL.
    pub source: String,
    /// Its name, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its media type, such as `image/png`, where the network tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Its size in bytes, where the network tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// What an attachment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttachmentKind {
    /// A picture.
    Image,
    /// A sound or a spoken message.
    Audio,
    /// A film.
    Video,
    /// Anything else.
    File,
}

/// What an interruption is confined to (row D3): a new message or a stop there touches nothing else. Compared part by part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterruptionScope {
    /// The configured name of the channel.
    pub channel: String,
    /// Where answers go.
    pub reply_target: String,
    /// Who writes: nobody interrupts what somebody else asked for.
    pub sender: String,
    /// What the network confines it to besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_id: Option<String>,
}

impl ChannelMessage {
    /// What an interruption by this message is confined to.
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
