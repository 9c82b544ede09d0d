//! Parse a room event into an inbound message. Pure.

use quell_protocol::{Attachment, AttachmentKind};

use super::events::{MatrixEvent, MatrixMessageContent, MembershipChange};
use super::known_rooms::KnownRoom;
use super::settings::{is_matrix_id, local_part};
use crate::network::{ChatAddress, InboundMessage, MessageId, OwnAccount};

/// Longest text that is accepted: no event of a correct server is longer (Matrix specification: size limits).
const MAX_TEXT_BYTES: usize = 65_536;
/// Longest name of a file, in bytes.
const MAX_FILE_NAME_BYTES: usize = 255;

#[derive(Debug)]
pub(super) struct MatrixMessageParser<'a> {
    pub(super) account: &'a OwnAccount,
    pub(super) mention_only: bool,
}

impl MatrixMessageParser<'_> {
    /// The message in an event. None if the event is no message, or is from the account itself.
    pub(super) fn parse_message(&self, room_id: &str, room: &KnownRoom, event: &MatrixEvent) -> Option<InboundMessage> {
        if event.kind != "m.room.message" || event.sender == self.account.id {
            return None;
        }
        if !is_matrix_id(&event.event_id, '$') || !is_matrix_id(&event.sender, '@') {
            return None;
        }
        let content: MatrixMessageContent = serde::Deserialize::deserialize(&event.content).ok()?;
        if content.relation.rel_type.as_deref() == Some("m.replace") {
            return None;
        }
        let (text, attachments) = parse_content(&content)?;
        let text = if content.relation.in_reply_to.is_some() { strip_reply_quote(text) } else { text };
        let is_named = self.is_mentioned(&content);
        let (is_called, text) = self.strip_leading_name(text, is_named);
        let thread = thread_root(&content);
        Some(InboundMessage {
            id: event.event_id.clone(),
            message_id: MessageId(event.event_id.clone()),
            sender: event.sender.clone(),
            sender_name: room.display_name(&event.sender).map(str::to_owned),
            address: ChatAddress { target: room_id.to_owned(), thread: thread.clone() },
            scope_id: thread,
            text: truncate(text, MAX_TEXT_BYTES).to_owned(),
            is_addressed: !self.mention_only || !room.is_group() || is_named || is_called,
            is_group: room.is_group(),
            attachments,
        })
    }

    /// True if the mentions of the message contain this account. Older clients mention by a link alone.
    fn is_mentioned(&self, content: &MatrixMessageContent) -> bool {
        let links = [
            format!("https://matrix.to/#/{}\"", self.account.id),
            format!("matrix:u/{}\"", self.account.id.trim_start_matches('@')),
        ];
        let is_linked = |html: &String| links.iter().any(|link| html.contains(link.as_str()));
        content.mentions.user_ids.contains(&self.account.id) || content.formatted_body.as_ref().is_some_and(is_linked)
    }

    /// Whether the text begins with a name of this account, and the text after it.
    fn strip_leading_name<'t>(&self, text: &'t str, is_named: bool) -> (bool, &'t str) {
        let text = text.trim();
        let name = self.account.name.as_str();
        let calls =
            [self.account.id.as_str(), name, local_part(&self.account.id)].into_iter().filter(|call| !call.is_empty());
        for call in calls {
            let Some(rest) = strip_name_prefix(text, call).or_else(|| strip_name_prefix(text.strip_prefix('@')?, call))
            else {
                continue;
            };
            // A name alone may be the subject of a sentence; an id cannot.
            let is_certain = is_named || call.starts_with('@') || text.starts_with('@');
            match rest.strip_prefix([':', ',']) {
                Some(rest) => return (true, rest.trim_start()),
                None if rest.is_empty() => return (true, rest),
                None if is_certain && rest.starts_with(char::is_whitespace) => return (true, rest.trim_start()),
                None => {}
            }
        }
        (false, text)
    }
}

/// Index at which the account's own membership begins, so that earlier events are ignored; none if it was a member all
/// along. After an accepted invitation it is the index of the invitation, because the inviter may have written already.
pub(super) fn own_membership_start(events: &[MatrixEvent], own_id: &str) -> Option<usize> {
    let changes = events.iter().enumerate().filter_map(|(index, event)| match event.membership_change() {
        Some((member, membership)) if member == own_id => Some((index, membership)),
        _ => None,
    });
    let mut invited = None;
    let mut start = None;
    for (index, membership) in changes {
        match membership {
            MembershipChange::Invited => invited = Some(index),
            MembershipChange::Joined => start = invited.take().or(Some(index)),
            MembershipChange::Left => invited = None,
            MembershipChange::ProfileChanged => {}
        }
    }
    start
}

/// The text and the attachments of a message. None for a kind that is not answered, such as notices of programs.
fn parse_content(content: &MatrixMessageContent) -> Option<(&str, Vec<Attachment>)> {
    let kind = match content.msgtype.as_str() {
        "m.text" | "m.emote" => return Some((&content.body, Vec::new())),
        "m.image" => AttachmentKind::Image,
        "m.audio" => AttachmentKind::Audio,
        "m.video" => AttachmentKind::Video,
        "m.file" => AttachmentKind::File,
        _ => return None,
    };
    let source = content.url.clone().filter(|url| url.starts_with("mxc://") && url.len() <= MAX_FILE_NAME_BYTES * 2)?;
    // With a separate file name the body is a caption, else the body is the file name.
    let named = content.filename.as_deref().filter(|name| *name != content.body);
    let (name, text) = named.map_or((content.body.as_str(), ""), |name| (name, content.body.as_str()));
    let attachment = Attachment {
        kind,
        source,
        name: Some(truncate(name, MAX_FILE_NAME_BYTES).to_owned()).filter(|name| !name.is_empty()),
        media_type: content.info["mimetype"]
            .as_str()
            .map(|media_type| truncate(media_type, MAX_FILE_NAME_BYTES).to_owned()),
        bytes: content.info["size"].as_u64(),
    };
    Some((text, vec![attachment]))
}

fn thread_root(content: &MatrixMessageContent) -> Option<String> {
    let relation = &content.relation;
    let root = relation.event_id.as_ref().filter(|_| relation.rel_type.as_deref() == Some("m.thread"))?;
    Some(root.clone()).filter(|root| is_matrix_id(root, '$'))
}

/// Removes the quoted message that older clients put in front of a reply (Matrix specification until 1.12: fallbacks
/// for rich replies). A quote by the writer has no such header and stays.
fn strip_reply_quote(text: &str) -> &str {
    if !text.starts_with("> <@") && !text.starts_with("> * <@") {
        return text;
    }
    let quoted = text.split_inclusive('\n').take_while(|line| line.starts_with('>')).map(str::len).sum();
    text.get(quoted..).unwrap_or_default().trim_start_matches('\n')
}

/// The text after a name at its beginning, ignoring case.
fn strip_name_prefix<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (head, rest) = text.split_at_checked(name.len())?;
    (head.to_lowercase() == name.to_lowercase()).then_some(rest)
}

/// The longest beginning of a text with at most `max_bytes` bytes that ends between characters.
fn truncate(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or(text)
}
