//! Bot API update types and their conversion into inbound messages.

use quell_protocol::{Attachment, AttachmentKind};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::addressed_text::{AddressedText, TelegramBot, TelegramMessageEntity};
use crate::network::{ButtonPress, ChatAddress, InboundMessage, MessageId};

/// Bot API: `Update`. The message is parsed later, so that an unknown form of it does not block the update.
#[derive(Debug, Deserialize)]
pub(super) struct TelegramUpdate {
    #[serde(rename = "update_id")]
    pub(super) id: i64,
    pub(super) message: Option<Value>,
    pub(super) callback_query: Option<Value>,
}

/// Bot API: `CallbackQuery`.
#[derive(Debug, Deserialize)]
struct TelegramCallbackQuery {
    id: String,
    from: TelegramUser,
    /// Always there for buttons below messages of the bot.
    message: PressedMessage,
    /// "Be aware that the message originated the query can contain no callback buttons with this data."
    data: Option<String>,
}

/// Bot API: `MaybeInaccessibleMessage`.
#[derive(Debug, Deserialize)]
struct PressedMessage {
    message_id: i64,
    chat: PressedChat,
    message_thread_id: Option<i64>,
    #[serde(default)]
    is_topic_message: bool,
}

#[derive(Debug, Deserialize)]
struct PressedChat {
    id: i64,
}

/// Bot API: `Message`.
#[derive(Debug, Deserialize)]
pub(super) struct TelegramMessage {
    message_id: i64,
    chat: TelegramChat,
    from: Option<TelegramUser>,
    /// The channel or group on behalf of which it was written; `from` is then a placeholder.
    sender_chat: Option<IgnoredAny>,
    message_thread_id: Option<i64>,
    #[serde(default)]
    is_topic_message: bool,
    reply_to_message: Option<RepliedMessage>,
    text: Option<String>,
    #[serde(default)]
    entities: Vec<TelegramMessageEntity>,
    caption: Option<String>,
    #[serde(default)]
    caption_entities: Vec<TelegramMessageEntity>,
    /// One picture in several sizes.
    #[serde(default)]
    photo: Vec<TelegramFile>,
    document: Option<TelegramFile>,
    voice: Option<TelegramFile>,
    audio: Option<TelegramFile>,
    video: Option<TelegramFile>,
    video_note: Option<TelegramFile>,
}

#[derive(Debug, Deserialize)]
struct TelegramChat {
    id: i64,
    #[serde(rename = "type")]
    kind: TelegramChatKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TelegramChatKind {
    Private,
    Group,
    Supergroup,
}

#[derive(Debug, Deserialize)]
struct TelegramUser {
    id: i64,
    is_bot: bool,
    first_name: String,
    username: Option<String>,
}

/// The message that is replied to.
#[derive(Debug, Deserialize)]
struct RepliedMessage {
    from: Option<MessageAuthor>,
    /// Set on the message that opened a topic. Every message in the topic is formally a reply to it.
    forum_topic_created: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct MessageAuthor {
    id: i64,
}

/// A file of any kind (Bot API: `PhotoSize`, `Document`, `Voice`, `Audio`, `Video`, `VideoNote`).
#[derive(Debug, Deserialize)]
struct TelegramFile {
    file_id: String,
    file_name: Option<String>,
    mime_type: Option<String>,
    file_size: Option<u64>,
    #[serde(default)]
    width: u64,
}

/// Converts a message, if a person wrote it and it has content.
pub(super) fn parse_message(
    message: TelegramMessage,
    account: &TelegramBot,
    mention_only: bool,
) -> Option<InboundMessage> {
    let sender = message.from.as_ref().filter(|user| !user.is_bot && message.sender_chat.is_none())?;
    let (sender, sender_name) = (sender.id.to_string(), sender.username.clone().unwrap_or(sender.first_name.clone()));
    let (text, entities) = match (&message.text, &message.caption) {
        (Some(text), _) => (text.as_str(), &message.entities),
        (None, Some(caption)) => (caption.as_str(), &message.caption_entities),
        (None, None) => ("", &message.entities),
    };
    let addressed_text = AddressedText::parse(text, entities, account);
    let is_group = message.chat.kind != TelegramChatKind::Private;
    let is_reply_to_bot = message.reply_to_message.as_ref().is_some_and(|answered| answered.is_from_bot(account));
    let is_mentioned = addressed_text.mentions_bot || is_reply_to_bot;
    let is_addressed = !is_group || is_mentioned || (!mention_only && !addressed_text.is_for_other_bot);
    let (chat, number) = (message.chat.id.to_string(), message.message_id.to_string());
    // In groups without topics, replies to one message have a thread id, too.
    let thread = message.message_thread_id.filter(|_| message.is_topic_message).map(|thread| thread.to_string());
    let attachments = collect_attachments(message);
    if addressed_text.text.is_empty() && attachments.is_empty() {
        return None;
    }
    Some(InboundMessage {
        id: format!("{chat}:{number}"),
        message_id: MessageId(number),
        sender,
        sender_name: Some(sender_name),
        // A topic is a conversation of its own.
        scope_id: thread.clone(),
        address: ChatAddress { target: chat, thread },
        text: addressed_text.text,
        is_addressed,
        is_group,
        attachments,
    })
}

/// Converts the press of a button, if a person pressed it.
pub(super) fn parse_press(query: Value) -> Result<Option<ButtonPress>, serde_json::Error> {
    let TelegramCallbackQuery { id, from, message, data } = serde_json::from_value(query)?;
    let thread = message.message_thread_id.filter(|_| message.is_topic_message);
    let press = ButtonPress {
        sender: from.id.to_string(),
        address: ChatAddress { target: message.chat.id.to_string(), thread: thread.map(|thread| thread.to_string()) },
        message_id: MessageId(message.message_id.to_string()),
        data: data.unwrap_or_default(),
        reply_token: id.into(),
    };
    Ok((!from.is_bot).then_some(press))
}

impl RepliedMessage {
    fn is_from_bot(&self, account: &TelegramBot) -> bool {
        self.forum_topic_created.is_none() && self.from.as_ref().is_some_and(|author| author.id == account.id)
    }
}

fn collect_attachments(message: TelegramMessage) -> Vec<Attachment> {
    let largest = message.photo.into_iter().max_by_key(|size| (size.width, size.file_size));
    // Photos have no media type; Telegram converts each of them to JPEG.
    let photo = largest.map(|size| TelegramFile { mime_type: Some("image/jpeg".to_owned()), ..size });
    let files = [
        (AttachmentKind::Image, photo),
        (AttachmentKind::File, message.document),
        (AttachmentKind::Audio, message.voice),
        (AttachmentKind::Audio, message.audio),
        (AttachmentKind::Video, message.video),
        (AttachmentKind::Video, message.video_note),
    ];
    files.into_iter().filter_map(|(kind, file)| Some(to_attachment(kind, file?))).collect()
}

fn to_attachment(kind: AttachmentKind, file: TelegramFile) -> Attachment {
    // A picture that was sent as a file is still a picture.
    let is_image = file.mime_type.as_deref().is_some_and(|kind| kind.starts_with("image/"));
    let kind = if kind == AttachmentKind::File && is_image { AttachmentKind::Image } else { kind };
    let TelegramFile { file_id, file_name, mime_type, file_size, .. } = file;
    Attachment { kind, source: file_id, name: file_name, media_type: mime_type, bytes: file_size }
}
