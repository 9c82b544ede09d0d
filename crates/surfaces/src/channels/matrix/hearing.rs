//! From an event to a message that is heard. Nothing here waits or asks.

use quell_protocol::{Attachment, AttachmentKind};

use super::events::{Event, Membership, MessageContent};
use super::rooms::Room;
use super::settings::{is_id, local_part};
use crate::channels::seam::{Heard, MessageId, Own, Place};

/// The longest text that is heard: no event of a sound server is longer (Matrix specification: size limits).
const LONGEST: usize = 65_536;
/// The longest name of a file.
const LONGEST_NAME: usize = 255;

/// Whom messages are for.
#[derive(Debug)]
pub(super) struct Hearing<'a> {
    pub(super) own: &'a Own,
    pub(super) mention_only: bool,
}

impl Hearing<'_> {
    /// The message in an event; none where there is none, or none for anybody else to answer.
    pub(super) fn message(&self, id: &str, room: &Room, event: &Event) -> Option<Heard> {
        if event.kind != "m.room.message" || event.sender == self.own.id {
            return None;
        }
        if !is_id(&event.event_id, '$') || !is_id(&event.sender, '@') {
            return None;
        }
        let content: MessageContent = serde::Deserialize::deserialize(&event.content).ok()?;
        if content.relation.rel_type.as_deref() == Some("m.replace") {
            return None;
        }
        let (text, attachments) = said(&content)?;
        let text = if content.relation.in_reply_to.is_some() { without_quote(text) } else { text };
        let is_named = self.is_named(&content);
        let (is_called, text) = self.without_name(text, is_named);
        let thread = thread(&content);
        Some(Heard {
            id: event.event_id.clone(),
            message: MessageId(event.event_id.clone()),
            sender: event.sender.clone(),
            sender_name: room.name_of(&event.sender).map(str::to_owned),
            place: Place { target: id.to_owned(), thread: thread.clone() },
            scope_id: thread,
            text: clipped(text, LONGEST).to_owned(),
            addressed: !self.mention_only || !room.is_group() || is_named || is_called,
            group: room.is_group(),
            attachments,
        })
    }

    /// Whether the message says in its data whom it names, and names this account. Older clients do so by a link alone.
    fn is_named(&self, content: &MessageContent) -> bool {
        let links = [
            format!("https://matrix.to/#/{}\"", self.own.id),
            format!("matrix:u/{}\"", self.own.id.trim_start_matches('@')),
        ];
        let is_linked = |html: &String| links.iter().any(|link| html.contains(link.as_str()));
        content.mentions.user_ids.contains(&self.own.id) || content.formatted_body.as_ref().is_some_and(is_linked)
    }

    /// Whether the text begins by calling this account, and the text after that.
    fn without_name<'t>(&self, text: &'t str, is_named: bool) -> (bool, &'t str) {
        let text = text.trim();
        let name = self.own.name.as_str();
        let calls = [self.own.id.as_str(), name, local_part(&self.own.id)].into_iter().filter(|call| !call.is_empty());
        for call in calls {
            let Some(rest) = after(text, call).or_else(|| after(text.strip_prefix('@')?, call)) else { continue };
            // A name alone may be the subject of a sentence; an id is not.
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

/// Where the account's own membership begins in a row of events, so that nothing is heard from before: at the invitation, where the
/// account has accepted one, because whoever has just invited it may have written already. 0 where it was a member all along.
pub(super) fn begin(events: &[Event], own: &str) -> Option<usize> {
    let changes = events.iter().enumerate().filter_map(|(index, event)| match event.membership() {
        Some((member, membership)) if member == own => Some((index, membership)),
        _ => None,
    });
    let mut invited = None;
    let mut begun = None;
    for (index, membership) in changes {
        match membership {
            Membership::Invited => invited = Some(index),
            Membership::Joined => begun = invited.take().or(Some(index)),
            Membership::Gone => invited = None,
            Membership::Changed => {}
        }
    }
    begun
}

/// The text of a message and what came with it; none of a kind that is not for answering, such as the notices of programs.
fn said(content: &MessageContent) -> Option<(&str, Vec<Attachment>)> {
    let kind = match content.msgtype.as_str() {
        "m.text" | "m.emote" => return Some((&content.body, Vec::new())),
        "m.image" => AttachmentKind::Image,
        "m.audio" => AttachmentKind::Audio,
        "m.video" => AttachmentKind::Video,
        "m.file" => AttachmentKind::File,
        _ => return None,
    };
    let source = content.url.clone().filter(|url| url.starts_with("mxc://") && url.len() <= LONGEST_NAME * 2)?;
    // With a name of its own the file has a caption, else its body is the name.
    let named = content.filename.as_deref().filter(|name| *name != content.body);
    let (name, text) = named.map_or((content.body.as_str(), ""), |name| (name, content.body.as_str()));
    let attachment = Attachment {
        kind,
        source,
        name: Some(clipped(name, LONGEST_NAME).to_owned()).filter(|name| !name.is_empty()),
        media_type: content.info["mimetype"].as_str().map(|media_type| clipped(media_type, LONGEST_NAME).to_owned()),
        bytes: content.info["size"].as_u64(),
    };
    Some((text, vec![attachment]))
}

fn thread(content: &MessageContent) -> Option<String> {
    let relation = &content.relation;
    let root = relation.event_id.as_ref().filter(|_| relation.rel_type.as_deref() == Some("m.thread"))?;
    Some(root.clone()).filter(|root| is_id(root, '$'))
}

/// The text without the quoted message that older clients put in front of a reply (Matrix specification until 1.12: fallbacks for rich
/// replies). A quote that the writer has made has no such head and stays.
fn without_quote(text: &str) -> &str {
    if !text.starts_with("> <@") && !text.starts_with("> * <@") {
        return text;
    }
    let quoted = text.split_inclusive('\n').take_while(|line| line.starts_with('>')).map(str::len).sum();
    text.get(quoted..).unwrap_or_default().trim_start_matches('\n')
}

/// The text after a name with which it begins, in whatever case.
fn after<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (head, rest) = text.split_at_checked(name.len())?;
    (head.to_lowercase() == name.to_lowercase()).then_some(rest)
}

/// The first bytes of a text, as many as make whole characters.
fn clipped(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}
