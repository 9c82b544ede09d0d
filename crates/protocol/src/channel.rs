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

/// How a channel fares.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "state", content = "detail", rename_all = "snake_case")]
pub enum ChannelHealth {
    /// It has not been connected yet.
    #[default]
    Connecting,
    /// It is connected and hears.
    Connected,
    /// The connection was lost, for this reason; it is tried again.
    Lost(String),
    /// The network does not take the account, for this reason; it is tried seldom.
    Refused(String),
    /// It listens no longer.
    Stopped,
}

/// A channel, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChannelRow {
    /// Its configured name.
    pub name: String,
    /// Its network.
    pub kind: String,
    /// How it fares.
    #[serde(flatten)]
    pub health: ChannelHealth,
    /// Since when, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The account, as people see it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Messages that were heard from those who may write.
    pub heard: u64,
    /// Answers that were delivered.
    pub answered: u64,
    /// Answers and notices that were not.
    pub undelivered: u64,
}

/// What a network said when it was asked who the account of a channel is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChannelTest {
    /// True when it takes the account.
    pub ok: bool,
    /// One line for people: the account, or what is wrong.
    pub detail: String,
}

/// A text for a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChannelSend {
    /// `CHANNEL:PLACE`: the configured name, and the network's own name of the chat, the room or the person. The first colon
    /// parts them; a place may have more.
    pub to: String,
    /// What is said, as Markdown.
    pub text: String,
}

/// What became of a text for a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChannelDelivery {
    /// In a word.
    pub delivery: DeliveryState,
    /// Messages of it that the network has taken.
    pub sent: usize,
    /// Messages that it makes: long texts are cut.
    pub of: usize,
    /// What happened, where it was not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What became of a text for a chat, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// All of it is shown.
    Delivered,
    /// Its beginning is shown, and it is certain that the rest is not.
    Partly,
    /// It is certain that nothing of it is shown.
    Undelivered,
    /// The network took a message and never said what became of it.
    Unknown,
}

/// The answer to a message that was posted to a channel of signed HTTP.
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
