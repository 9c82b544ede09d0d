//! Parse a MESSAGE_CREATE event into an inbound message. Pure; the input is untrusted.

use std::collections::HashMap;

use serde_json::Value;

use crate::network::{ChatAddress, InboundMessage, MessageId};
use crate::wire::attachments::{AttachmentKeys, parse_attachments};
use crate::wire::text::single_line;

/// Discord: snowflakes are 64 bits.
const MAX_ID_DIGITS: usize = 20;
/// Discord: a message mentions at most 100 users; further mentions are not replaced.
const MAX_MENTIONS: usize = 100;
/// Discord: attachment object.
const ATTACHMENT_KEYS: AttachmentKeys = AttachmentKeys { url: &["url"], media_type: "content_type", name: "filename" };
/// Discord: message types. No other type is written by a user.
const MESSAGE_TYPE_DEFAULT: u64 = 0;
const MESSAGE_TYPE_REPLY: u64 = 19;

/// Parses a message, if a user wrote it and it has content. `own_id` is the id of the account.
pub(super) fn parse_message(event: &Value, own_id: &str, mention_only: bool) -> Option<InboundMessage> {
    let author = &event["author"];
    let sender = parse_snowflake(author["id"].as_str()?)?;
    let is_from_program = author["bot"] == true || author["system"] == true || !event["webhook_id"].is_null();
    let is_user_message = matches!(event["type"].as_u64(), Some(MESSAGE_TYPE_DEFAULT | MESSAGE_TYPE_REPLY));
    if sender == own_id || is_from_program || !is_user_message {
        return None;
    }
    let id = parse_snowflake(event["id"].as_str()?)?.to_owned();
    let target = parse_snowflake(event["channel_id"].as_str()?)?.to_owned();
    let mentions = event["mentions"].as_array().map_or(&[][..], Vec::as_slice);
    let names = mentions
        .iter()
        .take(MAX_MENTIONS)
        .filter_map(|user| Some((parse_snowflake(user["id"].as_str()?)?, display_name(user)?)));
    let names: HashMap<&str, String> = names.collect();
    let content = event["content"].as_str().unwrap_or_default();
    let text = replace_mentions(strip_leading_mentions(content, own_id), &names);
    let attachments = parse_attachments(&event["attachments"], &ATTACHMENT_KEYS);
    // A sticker, a forwarded message or a mention alone has nothing to answer.
    if text.is_empty() && attachments.is_empty() {
        return None;
    }
    let is_group = !event["guild_id"].is_null();
    let is_mentioned = names.contains_key(own_id) || event["referenced_message"]["author"]["id"] == own_id;
    let nick = event["member"]["nick"].as_str().map(single_line).filter(|nick| !nick.is_empty());
    Some(InboundMessage {
        message_id: MessageId(id.clone()),
        id,
        sender: sender.to_owned(),
        sender_name: nick.or_else(|| display_name(author)),
        address: ChatAddress { target, thread: None },
        scope_id: None,
        text,
        is_addressed: !is_group || !mention_only || is_mentioned,
        is_group,
        attachments,
    })
}

pub(super) fn parse_snowflake(text: &str) -> Option<&str> {
    let fits = (1..=MAX_ID_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then_some(text)
}

fn display_name(user: &Value) -> Option<String> {
    let names = [&user["global_name"], &user["username"]];
    names.into_iter().filter_map(Value::as_str).map(single_line).find(|name| !name.is_empty())
}

/// Removes the mentions of the account at the beginning of a text.
fn strip_leading_mentions<'a>(text: &'a str, own_id: &str) -> &'a str {
    let mut rest = text.trim();
    while let Some((id, after)) = parse_mention(rest)
        && id == own_id
    {
        rest = after.trim_start_matches([',', ':']).trim_start();
    }
    rest
}

/// Replaces the mentions of users by their names.
fn replace_mentions(text: &str, names: &HashMap<&str, String>) -> String {
    let (mut readable, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("<@") {
        readable.push_str(&rest[..at]);
        rest = &rest[at..];
        match parse_mention(rest).and_then(|(id, after)| Some((names.get(id)?, after))) {
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
    readable
}

/// Discord: message formatting, `<@id>` and its older form `<@!id>`. Returns the id and the rest of the text.
fn parse_mention(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix("<@")?;
    let inner = inner.strip_prefix('!').unwrap_or(inner);
    let end = inner.bytes().take(MAX_ID_DIGITS + 1).position(|byte| byte == b'>')?;
    Some((parse_snowflake(&inner[..end])?, &inner[end + 1..]))
}
