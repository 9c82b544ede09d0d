//! A message as Telegram tells it, and as the flow hears it.

use std::fmt;

use quell_protocol::{Attachment, AttachmentKind};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::words::{Entity, Words};
use crate::channels::seam::{Heard, MessageId, Own, Place};

/// Bot API: `Update`. What the message is, is looked at when the update is counted.
#[derive(Debug, Deserialize)]
pub(super) struct Update {
    #[serde(rename = "update_id")]
    pub(super) id: i64,
    pub(super) message: Option<Value>,
}

/// The bot itself (Bot API: `User`, as getMe answers it).
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Account {
    pub(super) id: i64,
    pub(super) username: String,
    #[serde(default)]
    can_read_all_group_messages: bool,
}

/// What is heard in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    /// Everything that Telegram tells.
    Always,
    /// What names the bot or answers it.
    WhenNamed,
}

/// Bot API: `Message`.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    message_id: i64,
    chat: Chat,
    from: Option<User>,
    /// The channel or group on behalf of which it was written; `from` is a stand-in then.
    sender_chat: Option<IgnoredAny>,
    message_thread_id: Option<i64>,
    #[serde(default)]
    is_topic_message: bool,
    reply_to_message: Option<Answered>,
    text: Option<String>,
    #[serde(default)]
    entities: Vec<Entity>,
    caption: Option<String>,
    #[serde(default)]
    caption_entities: Vec<Entity>,
    /// One picture in several sizes.
    #[serde(default)]
    photo: Vec<Carried>,
    document: Option<Carried>,
    voice: Option<Carried>,
    audio: Option<Carried>,
    video: Option<Carried>,
    video_note: Option<Carried>,
}

#[derive(Debug, Deserialize)]
struct Chat {
    id: i64,
    #[serde(rename = "type")]
    kind: ChatKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChatKind {
    Private,
    Group,
    Supergroup,
}

#[derive(Debug, Deserialize)]
struct User {
    id: i64,
    is_bot: bool,
    first_name: String,
    username: Option<String>,
}

/// The message that a message answers.
#[derive(Debug, Deserialize)]
struct Answered {
    from: Option<Author>,
    /// Every message in a topic answers the one that opened the topic, though nobody meant to.
    forum_topic_created: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Author {
    id: i64,
}

/// A file of any kind (Bot API: `PhotoSize`, `Document`, `Voice`, `Audio`, `Video`, `VideoNote`).
#[derive(Debug, Deserialize)]
struct Carried {
    file_id: String,
    file_name: Option<String>,
    mime_type: Option<String>,
    file_size: Option<u64>,
    #[serde(default)]
    width: u64,
}

impl Account {
    /// As the flow knows it.
    pub(super) fn own(&self) -> Own {
        Own { id: self.id.to_string(), name: self.username.clone() }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{} (id {})", self.username, self.id)?;
        if !self.can_read_all_group_messages {
            f.write_str(", in groups it hears only commands, mentions and answers to it (@BotFather: /setprivacy)")?;
        }
        Ok(())
    }
}

/// What the flow hears of a message, if anything.
pub(super) fn heard(message: Message, account: &Account, groups: Groups) -> Option<Heard> {
    let sender = message.from.as_ref().filter(|user| !user.is_bot && message.sender_chat.is_none())?;
    let (sender, sender_name) = (sender.id.to_string(), sender.username.clone().unwrap_or(sender.first_name.clone()));
    let (text, entities) = match (&message.text, &message.caption) {
        (Some(text), _) => (text.as_str(), &message.entities),
        (None, Some(caption)) => (caption.as_str(), &message.caption_entities),
        (None, None) => ("", &message.entities),
    };
    let words = Words::read(text, entities, account);
    let group = message.chat.kind != ChatKind::Private;
    let answers = message.reply_to_message.as_ref().is_some_and(|answered| answered.is_by(account));
    let named = words.names_bot || answers;
    let addressed = !group || named || (groups == Groups::Always && !words.names_other);
    let (chat, number) = (message.chat.id.to_string(), message.message_id.to_string());
    // A thread is also told for the answers to one message of a group without topics.
    let thread = message.message_thread_id.filter(|_| message.is_topic_message).map(|thread| thread.to_string());
    let attachments = attachments(message);
    if words.text.is_empty() && attachments.is_empty() {
        return None;
    }
    Some(Heard {
        id: format!("{chat}:{number}"),
        message: MessageId(number),
        sender,
        sender_name: Some(sender_name),
        // A topic is a conversation of its own.
        scope_id: thread.clone(),
        place: Place { target: chat, thread },
        text: words.text,
        addressed,
        group,
        attachments,
    })
}

impl Answered {
    fn is_by(&self, account: &Account) -> bool {
        self.forum_topic_created.is_none() && self.from.as_ref().is_some_and(|author| author.id == account.id)
    }
}

fn attachments(message: Message) -> Vec<Attachment> {
    let largest = message.photo.into_iter().max_by_key(|size| (size.width, size.file_size));
    // Photos are told without a type; Telegram makes each of them a JPEG.
    let photo = largest.map(|size| Carried { mime_type: Some("image/jpeg".to_owned()), ..size });
    let carried = [
        (AttachmentKind::Image, photo),
        (AttachmentKind::File, message.document),
        (AttachmentKind::Audio, message.voice),
        (AttachmentKind::Audio, message.audio),
        (AttachmentKind::Video, message.video),
        (AttachmentKind::Video, message.video_note),
    ];
    carried.into_iter().filter_map(|(kind, carried)| Some(attachment(kind, carried?))).collect()
}

fn attachment(kind: AttachmentKind, carried: Carried) -> Attachment {
    // A picture that is sent as a file keeps its quality, and is a picture all the same.
    let pictured = carried.mime_type.as_deref().is_some_and(|kind| kind.starts_with("image/"));
    let kind = if kind == AttachmentKind::File && pictured { AttachmentKind::Image } else { kind };
    let Carried { file_id, file_name, mime_type, file_size, .. } = carried;
    Attachment { kind, source: file_id, name: file_name, media_type: mime_type, bytes: file_size }
}
