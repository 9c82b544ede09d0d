//! Fences that hold protocol. Ordinary fences are shown, calls in them too: people talk about tools and JSON, and a fence is
//! how that is done.

use super::call::{Shape, Tool, shape};
use super::code::Opener;
use super::json::{self, End};
use super::scan::{Judged, Left, Scan, When};
use super::tags::{Class, Found, find};
use super::work::count;

/// Languages that only a model names which writes its calls as text.
const LANGUAGES: [&str; 6] = ["tool_call", "tool_calls", "toolcall", "tool-call", "invoke", "function_call"];

/// What a fence's language says of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A call.
    Protocol,
    /// The arguments of a tool that exists.
    Arguments,
    /// Data: a call only if the reply is nothing else.
    Data,
    /// Anything.
    Ordinary,
}

/// Whether a body is a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Call,
    Text,
    /// It can still become one.
    Open,
}

impl Scan<'_> {
    /// Judges the fence whose opening line ends at `line_end`.
    pub(super) fn fence(&self, opener: Opener<'_>, line_end: usize) -> Judged {
        let length = self.text.len();
        let kind = if opener.plain { self.kind(opener.info) } else { Kind::Ordinary };
        if line_end == length {
            // The rest of the line can name a language of protocol, or hold a backtick: then it opens nothing.
            return self.pending(Judged::Text(length));
        }
        let closed = opener.closed(self.text, line_end + 1);
        let (body_end, end) = closed.unwrap_or((length, length));
        if kind == Kind::Ordinary || (kind == Kind::Data && self.has_text()) {
            return Judged::Text(end);
        }
        let when = if kind == Kind::Data { When::Alone } else { When::Always };
        match (self.body(kind, line_end + 1, body_end), closed) {
            (Body::Text, _) => Judged::Text(end),
            (Body::Open, Some(_)) => Judged::Text(end),
            (Body::Open, None) => self.pending(Judged::Text(end)),
            // A closing fence that is not followed by a line break can still grow into a line of text.
            (Body::Call, Some(_)) if end < length => Judged::Cut(end, when, Left::Call),
            (Body::Call, _) => self.pending(Judged::Cut(end, when, Left::Call)),
        }
    }

    fn kind(&self, info: &str) -> Kind {
        let info = info.to_lowercase();
        if LANGUAGES.contains(&info.as_str()) {
            return Kind::Protocol;
        }
        match info.strip_prefix("tool ") {
            Some(name) if self.rules.knows(name.trim()) => Kind::Arguments,
            _ if matches!(info.as_str(), "" | "json") => Kind::Data,
            _ => Kind::Ordinary,
        }
    }

    fn body(&self, kind: Kind, from: usize, to: usize) -> Body {
        let inside = &self.text[from.min(to)..to];
        let start = to - inside.trim_start().len();
        count(start - from.min(to));
        match self.byte(start).filter(|_| start < to) {
            None => Body::Open,
            Some(b'{' | b'[') => self.json_body(kind, start, to),
            Some(b'<') if kind == Kind::Protocol => match find(&self.text[..to], start) {
                Found::Tag(tag) if !matches!(tag.class, Class::Think | Class::Result) && !tag.closing => Body::Call,
                Found::Partial => Body::Open,
                Found::Tag(_) | Found::Text => Body::Text,
            },
            Some(_) => Body::Text,
        }
    }

    fn json_body(&self, kind: Kind, start: usize, to: usize) -> Body {
        let body = &self.text[..to];
        let value = json::read(body, start, self.rules);
        let is_named = kind == Kind::Protocol && !value.foreign && value.name && value.arguments;
        let is_torn = is_named || value.is_torn_protocol();
        match value.end {
            End::Complete(end) => {
                let is_call = match (kind, shape(&body[start..end], &value, self.rules)) {
                    (Kind::Arguments, _) => body[start..].starts_with('{'),
                    (Kind::Protocol, Shape::Call(_) | Shape::Message(..)) => true,
                    (Kind::Data, Shape::Call(Tool::Known) | Shape::Message(..) | Shape::Answer) => true,
                    _ => false,
                };
                let rest = body[end..].trim();
                match is_call {
                    true if rest.is_empty() => Body::Call,
                    // They can become the closing fence.
                    true if rest.bytes().all(|byte| matches!(byte, b'`' | b'~')) => Body::Open,
                    _ => Body::Text,
                }
            }
            End::Unfinished if is_torn => Body::Call,
            End::Unfinished if value.foreign && kind != Kind::Arguments => Body::Text,
            End::Unfinished => Body::Open,
            End::Broken(_) if is_torn => Body::Call,
            End::Broken(_) => Body::Text,
        }
    }
}
