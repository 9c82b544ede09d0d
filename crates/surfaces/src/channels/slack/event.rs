//! What Socket Mode tells, as the flow wants to hear it. Pure; what it reads is hostile.

use quell_protocol::{Attachment, AttachmentKind};
use serde_json::Value;

use super::text;
use crate::channels::seam::{Heard, MessageId, Own, Place};

/// Slack's ids have about eleven characters, and it promises no length.
const LONGEST_ID: usize = 64;
const LONGEST_LINE: usize = 200;
const LONGEST_URL: usize = 4096;
/// Slack: a message has ten files at the most.
const MOST_FILES: usize = 10;
/// Subtypes of messages that a person wrote. All others are changes, joins and what apps say.
const WRITTEN: &[&str] = &["file_share", "thread_broadcast"];

/// What one frame says.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Frame {
    /// The connection is ready.
    Hello,
    /// Slack wants this connection to end.
    Disconnect {
        /// Why.
        reason: String,
    },
    /// Something happened, which wants to be acknowledged.
    Told(Envelope),
    /// Nothing that is known here.
    Other,
}

/// Something that wants to be acknowledged.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Envelope {
    /// By which it is acknowledged.
    pub(super) id: String,
    kind: String,
    payload: Value,
}

/// Reads a frame.
pub(super) fn read(frame: &str) -> Frame {
    let Ok(mut told) = serde_json::from_str::<Value>(frame) else {
        return Frame::Other;
    };
    let kind = told["type"].as_str().unwrap_or_default().to_owned();
    match (kind.as_str(), told["envelope_id"].as_str()) {
        ("hello", None) => Frame::Hello,
        ("disconnect", None) => Frame::Disconnect { reason: line(told["reason"].as_str().unwrap_or_default()) },
        (_, Some(id)) if id.len() <= LONGEST_ID && !id.is_empty() => {
            Frame::Told(Envelope { id: id.to_owned(), payload: told["payload"].take(), kind })
        }
        _ => Frame::Other,
    }
}

impl Envelope {
    /// The message in it, if a person wrote one.
    pub(super) fn heard(&self, own: &Own, mention_only: bool) -> Option<Heard> {
        match self.kind.as_str() {
            "events_api" => message(&self.payload["event"], own, mention_only),
            "slash_commands" => command(&self.id, &self.payload),
            _ => None,
        }
    }
}

fn message(event: &Value, own: &Own, mention_only: bool) -> Option<Heard> {
    let is_mention = event["type"] == "app_mention";
    let is_written = match &event["subtype"] {
        Value::Null => true,
        subtype => subtype.as_str().is_some_and(|subtype| WRITTEN.contains(&subtype)),
    };
    let is_by_a_program = !event["bot_id"].is_null() || !event["app_id"].is_null();
    if !(is_mention || event["type"] == "message") || !is_written || is_by_a_program || event["hidden"] == true {
        return None;
    }
    let sender = event["user"].as_str().filter(|id| is_person(id) && *id != own.id)?;
    let target = event["channel"].as_str().filter(|id| is_id(id))?;
    let ts = event["ts"].as_str().filter(|ts| is_timestamp(ts))?;
    let thread = event["thread_ts"].as_str().filter(|ts| is_timestamp(ts)).map(str::to_owned);
    let written = event["text"].as_str().unwrap_or_default();
    let (text, attachments) = (text::readable(written, &own.id), attachments(&event["files"]));
    // A bare mention or a message of blocks alone: there is nothing to answer.
    if text.is_empty() && attachments.is_empty() {
        return None;
    }
    let group = is_group(target);
    let is_named = is_mention || text::names(written, &own.id);
    Some(Heard {
        id: format!("{target}:{ts}"),
        message: MessageId(ts.to_owned()),
        sender: sender.to_owned(),
        sender_name: None,
        place: Place { target: target.to_owned(), thread: thread.clone() },
        scope_id: thread,
        text,
        addressed: !group || !mention_only || is_named,
        group,
        attachments,
    })
}

/// A slash command of the app. It is no message, so nothing can be put on it.
fn command(envelope: &str, payload: &Value) -> Option<Heard> {
    let sender = payload["user_id"].as_str().filter(|id| is_person(id))?;
    let target = payload["channel_id"].as_str().filter(|id| is_id(id))?;
    let command = payload["command"].as_str().filter(|command| command.starts_with('/'))?;
    let words = text::unescaped(payload["text"].as_str().unwrap_or_default());
    let name = payload["user_name"].as_str().map(line).filter(|name| !name.is_empty());
    Some(Heard {
        id: format!("{target}:{envelope}"),
        message: MessageId(format!("command {envelope}")),
        sender: sender.to_owned(),
        sender_name: name,
        place: Place { target: target.to_owned(), thread: None },
        scope_id: None,
        text: format!("{} {}", line(command), words.trim()).trim().to_owned(),
        addressed: true,
        group: is_group(target),
        attachments: Vec::new(),
    })
}

/// Slack: ids of direct chats of two begin with a D; all others can have more people in them.
fn is_group(channel: &str) -> bool {
    !channel.starts_with('D')
}

/// An id of Slack.
fn is_id(text: &str) -> bool {
    (1..=LONGEST_ID).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
}

/// An id of a person, or of an app's own account.
pub(super) fn is_person(text: &str) -> bool {
    is_id(text) && text.starts_with(['U', 'W'])
}

/// What Slack numbers the messages of a channel with: `1503435956.000247`.
pub(super) fn is_timestamp(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= LONGEST_ID
        && text.split_once('.').is_some_and(|(before, after)| is_number(before) && is_number(after))
}

/// A text from the network in one line that can be shown.
pub(super) fn line(text: &str) -> String {
    let shown = text.chars().take(LONGEST_LINE).map(|c| if c.is_control() { ' ' } else { c });
    shown.collect::<String>().trim().to_owned()
}

fn attachments(told: &Value) -> Vec<Attachment> {
    let files = told.as_array().map_or(&[][..], Vec::as_slice);
    files.iter().take(MOST_FILES).filter_map(attachment).collect()
}

fn attachment(file: &Value) -> Option<Attachment> {
    let url = file["url_private_download"].as_str().or_else(|| file["url_private"].as_str());
    let source = url.filter(|url| url.len() <= LONGEST_URL)?.to_owned();
    let media_type = file["mimetype"].as_str().map(line).filter(|kind| !kind.is_empty());
    let kind = match media_type.as_deref().and_then(|kind| kind.split('/').next()) {
        Some("image") => AttachmentKind::Image,
        Some("audio") => AttachmentKind::Audio,
        Some("video") => AttachmentKind::Video,
        _ => AttachmentKind::File,
    };
    let name = file["name"].as_str().map(line).filter(|name| !name.is_empty());
    Some(Attachment { kind, source, name, media_type, bytes: file["size"].as_u64() })
}
