//! What stands between tags: a call, a tool's result, a thought, or a sentence that mentions the tag.
//!
//! A tag alone proves nothing. An element is taken for protocol by what it holds and by how it stands in its line.

use super::call::{Shape, shape};
use super::json::{self, End};
use super::scan::{Judged, Left, Scan, When};
use super::tags::{Class, Found, Tag, find};
use super::work::count;

/// A tool's name is not longer.
const LONGEST_NAME: usize = 256;

/// What comes after an opening tag.
#[derive(Debug)]
enum Inside<'a> {
    Nothing,
    Json(usize),
    Element(usize, Tag<'a>),
    /// The sentence goes on: it is about the tag.
    Mention,
    Words(usize),
    /// Half a tag.
    Unclear,
}

impl<'a> Scan<'a> {
    /// A thought stands at the beginning of the reply, or on lines of its own.
    pub(super) fn think(&mut self, start: usize, tag: &Tag<'_>) -> Judged {
        let text = Judged::Text(tag.end);
        let is_first = !self.has_text();
        if !is_first && !self.opens_line(start) {
            return text;
        }
        let rest = self.text[tag.end..].trim_start_matches([' ', '\t']);
        count(self.text.len() - tag.end - rest.len());
        let is_spaced = rest.len() < self.text.len() - tag.end;
        let Some(first) = rest.chars().next() else {
            return self.pending(if is_first {
                Judged::Cut(self.text.len(), When::Always, Left::Protocol)
            } else {
                text
            });
        };
        let is_block = matches!(first, '\n' | '\r');
        if (is_spaced && first.is_ascii_lowercase()) || is_mention_mark(first) {
            return text;
        }
        let Some((closer, end)) = self.closers.next(tag.name, tag.end) else {
            let all = Judged::Cut(self.text.len(), When::Always, Left::Protocol);
            return self.pending(if is_first && (is_block || !is_spaced) { all } else { text });
        };
        let cut = Judged::Cut(end, When::Always, Left::Protocol);
        if is_placeholder(&self.text[tag.end..closer]) {
            return text;
        }
        match self.text[end..].chars().next() {
            _ if is_block || (is_first && !is_spaced) => cut,
            // With blanks inside and the answer on the same line, only a whole sentence is a thought.
            _ if is_first && !is_sentence(&self.text[tag.end..closer]) => text,
            None => self.pending(cut),
            Some('\n' | '\r') => cut,
            Some(after) if is_first && after.is_whitespace() => cut,
            Some(_) => text,
        }
    }

    /// A result is set off from the sentence around it, and holds something.
    pub(super) fn result(&mut self, start: usize, tag: &Tag<'_>) -> Judged {
        let text = Judged::Text(tag.end);
        let opens = self.opens_line(start);
        let is_set_off = opens || self.byte(start.wrapping_sub(1)).is_some_and(|byte| byte.is_ascii_whitespace());
        let Some(first) = self.text[tag.end..].chars().next() else {
            return self.pending(text);
        };
        let is_block = matches!(first, '\n' | '\r');
        let is_sure = !tag.attributes.is_empty() || (opens && is_block);
        if !is_set_off || (!is_sure && (matches!(first, ' ' | '\t') || is_mention_mark(first))) {
            return text;
        }
        let Some((closer, end)) = self.closers.next(tag.name, tag.end) else {
            return self.pending(text);
        };
        let after = self.text[end..].chars().next();
        if after.is_none() && !is_sure && self.has_more() {
            return Judged::Wait;
        }
        let content = &self.text[tag.end..closer];
        let is_particle = content.len() <= 6 && !content.is_empty() && !content.is_ascii();
        let is_closed_off = !content.ends_with([' ', '\t']) && after.is_none_or(|c| c.is_whitespace() || c == '<');
        let is_empty = content.is_empty() && !opens;
        if is_sure || (is_closed_off && !is_particle && !is_empty && !is_placeholder(content)) {
            return Judged::Cut(end, When::Always, Left::Protocol);
        }
        text
    }

    /// A call holds JSON, further tags, or the name of a tool.
    pub(super) fn call(&mut self, start: usize, tag: &Tag<'a>) -> Judged {
        match self.what_follows(tag.end) {
            Inside::Nothing if self.opens_line(start) => {
                self.pending(Judged::Cut(self.text.len(), When::Always, Left::Call))
            }
            Inside::Nothing | Inside::Unclear => self.pending(Judged::Text(tag.end)),
            Inside::Mention => Judged::Text(tag.end),
            Inside::Json(at) => self.call_of_json(start, tag, at),
            Inside::Element(at, inner) => self.call_of_elements(start, tag, (at, inner)),
            Inside::Words(at) => self.call_of_words(start, tag, at),
        }
    }

    fn what_follows(&self, from: usize) -> Inside<'a> {
        let rest = self.text[from..].trim_start();
        let at = self.text.len() - rest.len();
        count(at - from);
        match rest.chars().next() {
            None => Inside::Nothing,
            Some('{' | '[') => Inside::Json(at),
            Some('<') => match find(self.text, at) {
                Found::Partial => Inside::Unclear,
                Found::Tag(tag) if !tag.closing && !matches!(tag.class, Class::Think | Class::Result) => {
                    Inside::Element(at, tag)
                }
                Found::Tag(_) | Found::Text => Inside::Words(at),
            },
            Some(first) if is_mention_mark(first) => Inside::Mention,
            Some(_) if at > from && !self.text[from..at].contains('\n') => Inside::Mention,
            Some(_) => Inside::Words(at),
        }
    }

    fn call_of_json(&mut self, start: usize, tag: &Tag<'_>, at: usize) -> Judged {
        let value = json::read(self.text, at, self.rules);
        let (length, opens) = (self.text.len(), self.opens_line(start) && tag.class != Class::Tool);
        let is_named = opens && !tag.attributes.is_empty();
        let is_evident = value.is_torn_protocol() || is_named || (opens && (value.name || value.arguments));
        match value.end {
            End::Complete(end) => {
                let is_call = match shape(&self.text[at..end], &value, self.rules) {
                    Shape::Call(_) | Shape::Message(..) => true,
                    Shape::Answer | Shape::Output | Shape::Other => opens && self.byte(at) == Some(b'{'),
                };
                if is_call { self.further_calls(end) } else { Judged::Text(end) }
            }
            End::Unfinished if is_evident => self.pending(Judged::Cut(length, When::Always, Left::Call)),
            End::Unfinished if value.foreign && !opens => Judged::Text(length),
            End::Unfinished => self.pending(Judged::Text(length)),
            End::Broken(broken) if is_evident => match self.closers.next(tag.name, broken) {
                Some((_, end)) => Judged::Cut(end, When::Always, Left::Call),
                None => self.pending(self.torn(broken)),
            },
            End::Broken(broken) => Judged::Text(broken.max(at + 1)),
        }
    }

    /// Several values can stand between the same tags. The tags that close them go by themselves, being left over.
    fn further_calls(&self, mut end: usize) -> Judged {
        loop {
            let rest = self.text[end..].trim_start();
            let at = self.text.len() - rest.len();
            count(at - end);
            let value = rest.starts_with('{').then(|| json::read(self.text, at, self.rules));
            match value.map(|value| (value.end, value)) {
                Some((End::Complete(next), value)) => match shape(&self.text[at..next], &value, self.rules) {
                    Shape::Call(_) | Shape::Message(..) => end = next,
                    Shape::Answer | Shape::Output | Shape::Other => break,
                },
                Some((End::Unfinished, value)) if !value.foreign && self.has_more() => return Judged::Wait,
                _ => break,
            }
        }
        Judged::Cut(end, When::Always, Left::Call)
    }

    fn call_of_elements(&mut self, start: usize, tag: &Tag<'_>, (at, inner): (usize, Tag<'a>)) -> Judged {
        if let Some((_, end)) = self.closers.next(tag.name, tag.end) {
            return Judged::Cut(end, When::Always, Left::Call);
        }
        if self.has_more() {
            return Judged::Wait;
        }
        if !self.opens_line(start) {
            return Judged::Text(at);
        }
        Judged::Cut(self.chain_end(inner), When::Always, Left::Call)
    }

    /// Where elements that follow each other end: the text's end when one of them is not closed.
    fn chain_end(&mut self, mut tag: Tag<'a>) -> usize {
        loop {
            let Some((_, end)) = self.closers.next(tag.name, tag.end) else {
                return self.text.len();
            };
            let mut end = end;
            loop {
                let rest = self.text[end..].trim_start();
                let at = self.text.len() - rest.len();
                count(at - end);
                match find_if_tag(self.text, at) {
                    Some(next) if next.closing => end = next.end,
                    Some(next) => {
                        tag = next;
                        break;
                    }
                    None => return end,
                }
            }
        }
    }

    fn call_of_words(&mut self, start: usize, tag: &Tag<'_>, at: usize) -> Judged {
        let text = Judged::Text(tag.end);
        if !self.opens_line(start) || tag.class == Class::Tool {
            return text;
        }
        let word = self.word(at);
        let is_cut_short = at + word.len() == self.text.len();
        let is_known = match tag.class {
            Class::Call => self.rules.knows(word),
            _ => self.rules.knows(named(tag.attributes)),
        };
        let may_be_alone = tag.class == Class::Call && !self.has_text();
        if !is_known && !may_be_alone {
            return if is_cut_short && tag.class == Class::Call { self.pending(text) } else { text };
        }
        match self.closers.next(tag.name, tag.end) {
            Some((_, end)) if is_known => Judged::Cut(end, When::Always, Left::Call),
            Some((_, end)) => Judged::Cut(end, When::Alone, Left::Call),
            None => self.pending(text),
        }
    }

    fn word(&self, at: usize) -> &'a str {
        let rest = &self.text[at..];
        let is_end = |c: char| c.is_whitespace() || matches!(c, '<' | '{' | '(');
        let ends = rest.char_indices().take(LONGEST_NAME).find(|(_, c)| is_end(*c)).map(|(end, _)| end);
        let word = &rest[..ends.unwrap_or(rest.len())];
        count(word.len().min(LONGEST_NAME));
        word
    }
}

fn find_if_tag(text: &str, at: usize) -> Option<Tag<'_>> {
    match text.as_bytes().get(at) {
        Some(b'<') => match find(text, at) {
            Found::Tag(tag) if !matches!(tag.class, Class::Think | Class::Result) => Some(tag),
            Found::Tag(_) | Found::Partial | Found::Text => None,
        },
        _ => None,
    }
}

/// The name in `name="shell"` or `=shell`.
fn named(attributes: &str) -> &str {
    let value = attributes.rsplit_once("name=").map_or(attributes, |(_, value)| value);
    let value = value.trim_start_matches(['=', '"', '\'']);
    value.split(['"', '\'', ' ']).next().unwrap_or_default()
}

/// What follows a tag that a sentence mentions.
fn is_mention_mark(first: char) -> bool {
    matches!(first, ',' | '.' | ';' | ':' | ')' | '!' | '?' | '`' | '、' | '，' | '。' | '；' | '：' | '）')
}

/// `<think>...</think>` in a sentence: something, but nothing that says anything.
fn is_placeholder(content: &str) -> bool {
    let mut alike = content.chars().inspect(|c| count(c.len_utf8())).filter(|c| !c.is_whitespace());
    let first = alike.next();
    first.is_some_and(|c| !c.is_alphanumeric()) && !alike.any(char::is_alphanumeric)
}

fn is_sentence(content: &str) -> bool {
    content.trim_end().ends_with(['.', '!', '?', '…', '。', '！', '？'])
}
