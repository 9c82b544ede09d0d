//! Parse Socket Mode frames and events into inbound messages. Pure; the input is untrusted.

use serde_json::Value;

use super::{buttons, text};
use crate::network::{ButtonPress, ChatAddress, InboundMessage, MessageId, OwnAccount};
use crate::wire::attachments::{AttachmentKeys, parse_attachments};
use crate::wire::text::single_line;

/// Slack's ids have about eleven characters, but no length is guaranteed.
const MAX_ID_BYTES: usize = 64;
/// Slack: file object.
const ATTACHMENT_KEYS: AttachmentKeys =
    AttachmentKeys { url: &["url_private_download", "url_private"], media_type: "mimetype", name: "name" };
/// Subtypes of messages that a person wrote. All others are edits, joins and messages of apps.
const USER_MESSAGE_SUBTYPES: &[&str] = &["file_share", "thread_broadcast"];

#[derive(Debug, Clone, PartialEq)]
pub(super) enum SocketModeFrame {
    /// The connection is ready.
    Hello,
    /// Slack wants this connection to end.
    Disconnect { reason: String },
    /// An event that must be acknowledged.
    Envelope(SocketModeEnvelope),
    /// Any other frame; ignored.
    Other,
}

/// An event that must be acknowledged.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SocketModeEnvelope {
    /// The id by which it is acknowledged.
    pub(super) id: String,
    kind: String,
    payload: Value,
}

pub(super) fn parse_frame(frame: &str) -> SocketModeFrame {
    let Ok(mut frame_json) = serde_json::from_str::<Value>(frame) else {
        return SocketModeFrame::Other;
    };
    let kind = frame_json["type"].as_str().unwrap_or_default().to_owned();
    match (kind.as_str(), frame_json["envelope_id"].as_str()) {
        ("hello", None) => SocketModeFrame::Hello,
        ("disconnect", None) => {
            SocketModeFrame::Disconnect { reason: single_line(frame_json["reason"].as_str().unwrap_or_default()) }
        }
        (_, Some(id)) if id.len() <= MAX_ID_BYTES && !id.is_empty() => SocketModeFrame::Envelope(SocketModeEnvelope {
            id: id.to_owned(),
            payload: frame_json["payload"].take(),
            kind,
        }),
        _ => SocketModeFrame::Other,
    }
}

impl SocketModeEnvelope {
    /// The message in it, if a person wrote one.
    pub(super) fn parse_inbound(&self, account: &OwnAccount, mention_only: bool) -> Option<InboundMessage> {
        match self.kind.as_str() {
            "events_api" => parse_message_event(&self.payload["event"], account, mention_only),
            "slash_commands" => parse_slash_command(&self.id, &self.payload),
            _ => None,
        }
    }

    /// The press of a button in it.
    pub(super) fn parse_press(&self) -> Option<ButtonPress> {
        (self.kind == "interactive").then(|| buttons::parse_press(&self.payload))?
    }
}

fn parse_message_event(event: &Value, account: &OwnAccount, mention_only: bool) -> Option<InboundMessage> {
    let is_mention = event["type"] == "app_mention";
    let is_user_message = match &event["subtype"] {
        Value::Null => true,
        subtype => subtype.as_str().is_some_and(|subtype| USER_MESSAGE_SUBTYPES.contains(&subtype)),
    };
    let is_by_a_program = !event["bot_id"].is_null() || !event["app_id"].is_null();
    if !(is_mention || event["type"] == "message") || !is_user_message || is_by_a_program || event["hidden"] == true {
        return None;
    }
    let sender = event["user"].as_str().filter(|id| is_user_id(id) && *id != account.id)?;
    let target = event["channel"].as_str().filter(|id| is_slack_id(id))?;
    let ts = event["ts"].as_str().filter(|ts| is_message_timestamp(ts))?;
    let thread = event["thread_ts"].as_str().filter(|ts| is_message_timestamp(ts)).map(str::to_owned);
    let raw_text = event["text"].as_str().unwrap_or_default();
    let (text, attachments) =
        (text::to_readable_text(raw_text, &account.id), parse_attachments(&event["files"], &ATTACHMENT_KEYS));
    // A mention alone or a message of blocks alone has nothing to answer.
    if text.is_empty() && attachments.is_empty() {
        return None;
    }
    let is_group = is_group_channel(target);
    let is_mentioned = is_mention || text::mentions_account(raw_text, &account.id);
    Some(InboundMessage {
        id: format!("{target}:{ts}"),
        message_id: MessageId(ts.to_owned()),
        sender: sender.to_owned(),
        sender_name: None,
        address: ChatAddress { target: target.to_owned(), thread: thread.clone() },
        scope_id: thread,
        text,
        is_addressed: !is_group || !mention_only || is_mentioned,
        is_group,
        attachments,
    })
}

/// Parses a slash command of the app. It is not a message, so it cannot have reactions.
fn parse_slash_command(envelope: &str, payload: &Value) -> Option<InboundMessage> {
    let sender = payload["user_id"].as_str().filter(|id| is_user_id(id))?;
    let target = payload["channel_id"].as_str().filter(|id| is_slack_id(id))?;
    let command = payload["command"].as_str().filter(|command| command.starts_with('/'))?;
    let words = text::unescape(payload["text"].as_str().unwrap_or_default());
    let name = payload["user_name"].as_str().map(single_line).filter(|name| !name.is_empty());
    Some(InboundMessage {
        id: format!("{target}:{envelope}"),
        message_id: MessageId(format!("command {envelope}")),
        sender: sender.to_owned(),
        sender_name: name,
        address: ChatAddress { target: target.to_owned(), thread: None },
        scope_id: None,
        text: format!("{} {}", single_line(command), words.trim()).trim().to_owned(),
        is_addressed: true,
        is_group: is_group_channel(target),
        attachments: Vec::new(),
    })
}

/// Slack: ids of direct chats of two begin with a D. All others may have more people.
fn is_group_channel(channel: &str) -> bool {
    !channel.starts_with('D')
}

pub(super) fn is_slack_id(text: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
}

/// An id of a person, or of an app's own account.
pub(super) fn is_user_id(text: &str) -> bool {
    is_slack_id(text) && text.starts_with(['U', 'W'])
}

/// Slack's id of a message in its channel: `1503435956.000247`.
pub(super) fn is_message_timestamp(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= MAX_ID_BYTES
        && text.split_once('.').is_some_and(|(before, after)| is_number(before) && is_number(after))
}
