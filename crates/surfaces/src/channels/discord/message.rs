//! What the gateway tells of a message, as the flow wants to hear it. Pure; what it reads is hostile.

use std::borrow::Cow;
use std::collections::HashMap;

use quell_protocol::{Attachment, AttachmentKind};
use serde_json::Value;

use crate::channels::seam::{Heard, MessageId, Place};

/// Discord: snowflakes are 64 bits.
const LONGEST_ID: usize = 20;
/// Names are shown, and 32 characters is what Discord allows itself.
const LONGEST_LINE: usize = 200;
/// Discord: JSON error 30015, so many attachments at the most.
const MOST_FILES: usize = 10;
/// Discord: a message names 100 people at the most; more are left as they are.
const MOST_NAMED: usize = 100;
const LONGEST_URL: usize = 4096;
/// Discord: message types. All others are not what a person wrote.
const DEFAULT: u64 = 0;
const REPLY: u64 = 19;

/// A message, if a person wrote something in it. `own` is the account's id.
pub(super) fn heard(event: &Value, own: &str, mention_only: bool) -> Option<Heard> {
    let author = &event["author"];
    let sender = snowflake(author["id"].as_str()?)?;
    let by_a_program = author["bot"] == true || author["system"] == true || !event["webhook_id"].is_null();
    let written = matches!(event["type"].as_u64(), Some(DEFAULT | REPLY));
    if sender == own || by_a_program || !written {
        return None;
    }
    let id = snowflake(event["id"].as_str()?)?.to_owned();
    let target = snowflake(event["channel_id"].as_str()?)?.to_owned();
    let mentions = event["mentions"].as_array().map_or(&[][..], Vec::as_slice);
    let names =
        mentions.iter().take(MOST_NAMED).filter_map(|user| Some((snowflake(user["id"].as_str()?)?, name_of(user)?)));
    let names: HashMap<&str, String> = names.collect();
    let text = readable(without_address(event["content"].as_str().unwrap_or_default(), own), &names).into_owned();
    let attachments = attachments(&event["attachments"]);
    // A sticker, a forwarded message or a bare mention: there is nothing to answer.
    if text.is_empty() && attachments.is_empty() {
        return None;
    }
    let group = !event["guild_id"].is_null();
    let to_us = names.contains_key(own) || event["referenced_message"]["author"]["id"] == own;
    let nick = event["member"]["nick"].as_str().map(line).filter(|nick| !nick.is_empty());
    Some(Heard {
        message: MessageId(id.clone()),
        id,
        sender: sender.to_owned(),
        sender_name: nick.or_else(|| name_of(author)),
        place: Place { target, thread: None },
        scope_id: None,
        text,
        addressed: !group || !mention_only || to_us,
        group,
        attachments,
    })
}

/// An id of Discord.
pub(super) fn snowflake(text: &str) -> Option<&str> {
    let fits = (1..=LONGEST_ID).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then_some(text)
}

/// A text from the network in one line that can be shown.
pub(super) fn line(text: &str) -> String {
    let shown = text.chars().take(LONGEST_LINE).map(|c| if c.is_control() { ' ' } else { c });
    shown.collect::<String>().trim().to_owned()
}

fn name_of(user: &Value) -> Option<String> {
    let names = [&user["global_name"], &user["username"]];
    names.into_iter().filter_map(Value::as_str).map(line).find(|name| !name.is_empty())
}

/// The text without the mention of the account with which it begins.
fn without_address<'a>(text: &'a str, own: &str) -> &'a str {
    let mut rest = text.trim();
    while let Some((id, after)) = mention(rest)
        && id == own
    {
        rest = after.trim_start_matches([',', ':']).trim_start();
    }
    rest
}

/// The text with names instead of the numbers of people.
fn readable<'a>(text: &'a str, names: &HashMap<&str, String>) -> Cow<'a, str> {
    if names.is_empty() {
        return Cow::Borrowed(text);
    }
    let (mut readable, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("<@") {
        readable.push_str(&rest[..at]);
        rest = &rest[at..];
        match mention(rest).and_then(|(id, after)| Some((names.get(id)?, after))) {
            Some((name, after)) => {
                readable.push('@');
                readable.push_str(name);
                rest = after;
            }
            None => {
                readable.push_str("<@");
                rest = &rest[2..];
            }
        }
    }
    readable.push_str(rest);
    Cow::Owned(readable)
}

/// Discord: message formatting, `<@id>` and its older form `<@!id>`. Answers the id and what follows.
fn mention(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix("<@")?;
    let inner = inner.strip_prefix('!').unwrap_or(inner);
    let end = inner.bytes().take(LONGEST_ID + 1).position(|byte| byte == b'>')?;
    Some((snowflake(&inner[..end])?, &inner[end + 1..]))
}

fn attachments(told: &Value) -> Vec<Attachment> {
    let files = told.as_array().map_or(&[][..], Vec::as_slice);
    files.iter().take(MOST_FILES).filter_map(attachment).collect()
}

fn attachment(file: &Value) -> Option<Attachment> {
    let source = file["url"].as_str().filter(|url| url.len() <= LONGEST_URL)?.to_owned();
    let media_type = file["content_type"].as_str().map(line).filter(|kind| !kind.is_empty());
    let kind = match media_type.as_deref().and_then(|kind| kind.split('/').next()) {
        Some("image") => AttachmentKind::Image,
        Some("audio") => AttachmentKind::Audio,
        Some("video") => AttachmentKind::Video,
        _ => AttachmentKind::File,
    };
    let name = file["filename"].as_str().map(line).filter(|name| !name.is_empty());
    Some(Attachment { kind, source, name, media_type, bytes: file["size"].as_u64() })
}
