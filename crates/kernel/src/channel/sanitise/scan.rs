//! The one pass over a reply: from left to right, each place is text, protocol, or not yet decided.

use std::ops::Range;

use super::Rules;
use super::call::{Shape, Tool, shape};
use super::code::{Span, Spans, can_become_opener, line_end, opener};
use super::json::{self, End};
use super::tags::{Class, Closers, Found, find};
use super::work::count;

/// Whether the text goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum More {
    /// This is all of it.
    No,
    /// It is still being written.
    MayCome,
}

/// What the pass found.
#[derive(Debug)]
pub(super) struct Seen {
    /// What is protocol, in its order.
    pub(super) cuts: Vec<Cut>,
    /// From here on it is not decided. The text's length when all of it is.
    pub(super) until: usize,
    /// There is something besides blanks and protocol.
    pub(super) has_text: bool,
}

/// A piece of protocol.
#[derive(Debug)]
pub(super) struct Cut {
    /// Where it stands.
    pub(super) range: Range<usize>,
    /// When it is taken out.
    pub(super) when: When,
    /// What it says besides: that takes its place.
    pub(super) instead: Option<String>,
}

/// When protocol is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// In any reply.
    Always,
    /// In a reply that is nothing else. Where a person is told something too, it is an example.
    Alone,
}

/// What a place turned out to be.
#[derive(Debug)]
pub(super) enum Judged {
    /// Text, up to there.
    Text(usize),
    /// Protocol, up to there.
    Cut(usize, When, Left),
    /// Protocol that also says something, up to there.
    Said(usize, String),
    /// It depends on what comes.
    Wait,
}

/// What stands before a place, apart from blanks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Text, or nothing.
    Text,
    /// Protocol that holds no call.
    Protocol,
    /// A call.
    Call,
}

/// Looks through a text. Linear in its length: whatever is read ahead is also stepped over, and what closes a tag, a fence or a
/// span was found once, before.
pub(super) fn look(text: &str, rules: &Rules<'_>, more: More) -> Seen {
    let mut scan = Scan {
        text,
        rules,
        more,
        closers: Closers::of(text),
        spans: Spans::of(text, more),
        at: 0,
        opens: 0,
        left: Left::Text,
        behind_blank: true,
        open_span: false,
        seen: Seen { cuts: Vec::new(), until: text.len(), has_text: false },
    };
    while scan.at < scan.seen.until {
        scan.step();
    }
    scan.seen
}

pub(super) struct Scan<'a> {
    pub(super) text: &'a str,
    pub(super) rules: &'a Rules<'a>,
    more: More,
    pub(super) closers: Closers,
    spans: Spans,
    at: usize,
    /// Where the text of this line begins, or goes on behind a cut.
    opens: usize,
    left: Left,
    /// The line before was blank, or indented code.
    behind_blank: bool,
    /// A span between backticks began and may still end.
    open_span: bool,
    seen: Seen,
}

impl Scan<'_> {
    fn step(&mut self) {
        if self.at == 0 || self.text.as_bytes()[self.at - 1] == b'\n' {
            self.line();
        } else {
            self.inside();
        }
    }

    pub(super) fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    /// True when only blanks or protocol stand before it on its line.
    pub(super) fn opens_line(&self, at: usize) -> bool {
        self.opens == at
    }

    /// True when something else than protocol was seen.
    pub(super) fn has_text(&self) -> bool {
        self.seen.has_text
    }

    /// True while text may come.
    pub(super) fn has_more(&self) -> bool {
        self.more == More::MayCome
    }

    /// Undecided while text may come.
    pub(super) fn pending(&self, otherwise: Judged) -> Judged {
        if self.has_more() { Judged::Wait } else { otherwise }
    }

    fn apply(&mut self, start: usize, judged: Judged) {
        match judged {
            Judged::Text(to) => {
                self.seen.has_text = true;
                self.left = Left::Text;
                self.at = to;
            }
            // While a span of code may still come about around it, it is not decided either.
            Judged::Cut(..) | Judged::Said(..) if self.open_span => self.seen.until = start,
            Judged::Cut(to, when, left) => {
                self.seen.cuts.push(Cut { range: start..to, when, instead: None });
                (self.at, self.opens, self.left) = (to, to, left);
            }
            Judged::Said(to, said) => {
                self.seen.has_text = true;
                self.seen.cuts.push(Cut { range: start..to, when: When::Always, instead: Some(said) });
                (self.at, self.opens, self.left) = (to, to, Left::Call);
            }
            Judged::Wait => self.seen.until = start,
        }
    }

    fn line(&mut self) {
        let (start, end) = (self.at, line_end(self.text, self.at));
        let line = &self.text[start..end];
        let inner = line.trim_start();
        let indentation = line.len() - inner.len();
        let is_code = indentation >= 4 || line.starts_with('\t');
        if inner.is_empty() {
            self.behind_blank = true;
            self.at = (end + 1).min(self.text.len());
        } else if let Some(opener) = opener(line) {
            self.behind_blank = false;
            let judged = self.fence(opener, end);
            self.apply(start, judged);
        } else if end == self.text.len() && self.has_more() && can_become_opener(line) {
            self.seen.until = start;
        } else if is_code && self.behind_blank && self.seen.has_text {
            self.apply(start, Judged::Text(end));
        } else {
            self.behind_blank = false;
            self.at = start + indentation;
            self.opens = self.at;
            match self.byte(self.at) {
                Some(b'{' | b'[') => self.bracket(),
                _ => self.inside(),
            }
        }
    }

    fn inside(&mut self) {
        let start = self.at;
        count(1);
        match self.byte(start) {
            Some(b'\n') => self.at += 1,
            Some(byte) if byte.is_ascii_whitespace() => {
                self.opens += usize::from(self.opens == start);
                self.at += 1;
            }
            Some(b'{' | b'[') if self.opens_line(start) && self.left != Left::Text => self.bracket(),
            Some(b'\\') if matches!(self.byte(start + 1), Some(b'`' | b'<')) => {
                self.apply(start, Judged::Text(start + 2))
            }
            Some(b'`') => self.backticks(),
            Some(b'<') => self.tag(),
            _ => {
                let rest = &self.text.as_bytes()[start + 1..];
                let length = rest.iter().take_while(|byte| !matches!(byte, b'\n' | b'\\' | b'`' | b'<')).count();
                count(length);
                self.apply(start, Judged::Text(start + 1 + length));
            }
        }
    }

    fn backticks(&mut self) {
        let to = match self.spans.at(self.at) {
            Span::Closed(to) | Span::Never(to) => to,
            Span::NotYet(to) => {
                self.open_span = self.has_more();
                to
            }
        };
        self.apply(self.at, Judged::Text(to));
    }

    fn tag(&mut self) {
        let start = self.at;
        let judged = match find(self.text, start) {
            Found::Text => Judged::Text(start + 1),
            Found::Partial => self.pending(Judged::Text(start + 1)),
            // What closes nothing that was seen to open is left over from what was taken out just before.
            Found::Tag(tag) if tag.closing && self.left != Left::Text => Judged::Cut(tag.end, When::Always, self.left),
            Found::Tag(tag) if tag.closing => Judged::Text(tag.end),
            Found::Tag(tag) => match tag.class {
                Class::Think => self.think(start, &tag),
                Class::Result => self.result(start, &tag),
                Class::Call | Class::Invoke | Class::Tool => self.call(start, &tag),
                Class::Part => Judged::Text(tag.end),
            },
        };
        self.apply(start, judged);
    }

    /// A bracket that begins a line: a header, or a JSON value of its own.
    fn bracket(&mut self) {
        let start = self.at;
        let judged = self.header(start).unwrap_or_else(|| self.bare_json(start));
        self.apply(start, judged);
    }

    fn bare_json(&self, start: usize) -> Judged {
        let value = json::read(self.text, start, self.rules);
        match value.end {
            End::Complete(end) => self.whole_json(start, end, &value),
            End::Unfinished if value.is_torn_protocol() => {
                self.pending(Judged::Cut(self.text.len(), When::Always, Left::Call))
            }
            End::Unfinished if value.foreign => Judged::Text(self.text.len()),
            End::Unfinished => self.pending(Judged::Text(self.text.len())),
            End::Broken(at) if value.is_torn_protocol() => self.torn(at),
            End::Broken(at) => Judged::Text(at.max(start + 1)),
        }
    }

    fn whole_json(&self, start: usize, end: usize, value: &json::Value) -> Judged {
        let shape = shape(&self.text[start..end], value, self.rules);
        let is_protocol = match shape {
            Shape::Call(Tool::Known) | Shape::Message(..) | Shape::Answer => true,
            Shape::Output => self.left == Left::Call,
            Shape::Call(Tool::Unknown) | Shape::Other => false,
        };
        if !is_protocol {
            return Judged::Text(end);
        }
        let rest = self.text.as_bytes()[end..].iter();
        let blanks = rest.take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r')).count();
        match (self.byte(end + blanks), shape) {
            (None, _) if self.has_more() => Judged::Wait,
            (None | Some(b'\n' | b'{' | b'[' | b'<'), Shape::Message(Tool::Unknown, _)) => {
                Judged::Cut(end, When::Alone, Left::Call)
            }
            (None | Some(b'\n' | b'{' | b'[' | b'<'), Shape::Message(Tool::Known, Some(said)))
                // What it says is kept, unless it holds protocol again.
                if look(&said, self.rules, More::No).cuts.is_empty() =>
            {
                Judged::Said(end, said)
            }
            (None | Some(b'\n' | b'{' | b'[' | b'<'), _) => Judged::Cut(end, When::Always, Left::Call),
            _ => Judged::Text(end),
        }
    }

    /// A call that is no JSON from `at` on: it goes on to the end of that line, and over the lines that look like more of it.
    pub(super) fn torn(&self, at: usize) -> Judged {
        let mut end = line_end(self.text, at);
        while end < self.text.len() {
            let next = line_end(self.text, end + 1);
            let line = self.text[end + 1..next].trim_start();
            if !line.starts_with(['{', '}', '[', ']', '"', ',', ':']) {
                return Judged::Cut(end, When::Always, Left::Call);
            }
            end = next;
        }
        self.pending(Judged::Cut(end, When::Always, Left::Call))
    }
}
