//! Classifies code fences that contain a tool call.
//!
//! Ordinary fences stay, even with calls in them: people talk about tools and JSON, and use fences for it.

use super::json::{JsonEnd, JsonShape, ToolMatch, scan_json_value};
use super::markdown_code::FenceOpener;
use super::reply_scanner::{RemovalRule, ReplyScanner, SpanClass};
use super::tags::{TagClass, TagMatch, match_tag};

/// Fence languages that occur only where a model writes its calls as text.
const PROTOCOL_LANGUAGES: [&str; 6] = ["tool_call", "tool_calls", "toolcall", "tool-call", "invoke", "function_call"];

/// What the language of a fence says about its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FenceKind {
    Protocol,
    /// The arguments of a tool that exists.
    Arguments,
    /// Data: a call only if the reply contains nothing else.
    Data,
    Ordinary,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FenceBody {
    Call,
    Text,
    /// More text can still make it a call.
    Undecided,
}

impl ReplyScanner<'_> {
    /// Classifies the fence whose opening line ends at `line_end`.
    pub(super) fn classify_fence(&self, opener: FenceOpener<'_>, line_end: usize) -> SpanClass {
        let length = self.text.len();
        let kind = if opener.at_line_start { self.fence_kind(opener.info) } else { FenceKind::Ordinary };
        if line_end == length {
            // The rest of the line can still name a protocol language, or contain a backtick, which makes it no opener.
            return self.undecided_or(SpanClass::Text(length));
        }
        let closed = opener.find_closing_fence(self.text, line_end + 1);
        let (body_end, end) = closed.unwrap_or((length, length));
        if kind == FenceKind::Ordinary || (kind == FenceKind::Data && self.has_text()) {
            return SpanClass::Text(end);
        }
        let removal = if kind == FenceKind::Data { RemovalRule::OnlyWithoutText } else { RemovalRule::Always };
        match (self.classify_fence_body(kind, line_end + 1, body_end), closed) {
            (FenceBody::Text, _) => SpanClass::Text(end),
            (FenceBody::Undecided, Some(_)) => SpanClass::Text(end),
            (FenceBody::Undecided, None) => self.undecided_or(SpanClass::Text(end)),
            // Without a line break after it, a closing fence can still become a line of text.
            (FenceBody::Call, Some(_)) if end < length => SpanClass::removed(end, removal),
            (FenceBody::Call, _) => self.undecided_or(SpanClass::removed(end, removal)),
        }
    }

    fn fence_kind(&self, info: &str) -> FenceKind {
        let info = info.to_lowercase();
        if PROTOCOL_LANGUAGES.contains(&info.as_str()) {
            return FenceKind::Protocol;
        }
        match info.strip_prefix("tool ") {
            Some(name) if self.rules.is_known_tool(name.trim()) => FenceKind::Arguments,
            _ if matches!(info.as_str(), "" | "json") => FenceKind::Data,
            _ => FenceKind::Ordinary,
        }
    }

    fn classify_fence_body(&self, kind: FenceKind, from: usize, to: usize) -> FenceBody {
        let inside = &self.text[from.min(to)..to];
        let start = to - inside.trim_start().len();
        match self.byte_at(start).filter(|_| start < to) {
            None => FenceBody::Undecided,
            Some(b'{' | b'[') => self.classify_json_body(kind, start, to),
            Some(b'<') if kind == FenceKind::Protocol => match match_tag(&self.text[..to], start) {
                TagMatch::Tag(tag) if !matches!(tag.class, TagClass::Think | TagClass::Result) && !tag.closing => {
                    FenceBody::Call
                }
                TagMatch::Partial => FenceBody::Undecided,
                TagMatch::Tag(_) | TagMatch::Text => FenceBody::Text,
            },
            Some(_) => FenceBody::Text,
        }
    }

    fn classify_json_body(&self, kind: FenceKind, start: usize, to: usize) -> FenceBody {
        let body = &self.text[..to];
        let value = scan_json_value(body, start, self.rules);
        let is_named = kind == FenceKind::Protocol && !value.has_foreign_keys && value.has_name && value.has_arguments;
        let is_torn = is_named || value.is_torn_protocol();
        match value.end {
            JsonEnd::Complete(end) => {
                let is_call = match (kind, value.shape) {
                    (FenceKind::Arguments, _) => body[start..].starts_with('{'),
                    (FenceKind::Protocol, JsonShape::Call(_)) => true,
                    (FenceKind::Data, JsonShape::Call(ToolMatch::Known) | JsonShape::ToolResult) => true,
                    (FenceKind::Protocol | FenceKind::Data, JsonShape::Message(..)) => true,
                    _ => false,
                };
                let rest = body[end..].trim();
                match is_call {
                    true if rest.is_empty() => FenceBody::Call,
                    // These characters can become the closing fence.
                    true if rest.bytes().all(|byte| matches!(byte, b'`' | b'~')) => FenceBody::Undecided,
                    _ => FenceBody::Text,
                }
            }
            JsonEnd::Unfinished if is_torn => FenceBody::Call,
            JsonEnd::Unfinished if value.has_foreign_keys && kind != FenceKind::Arguments => FenceBody::Text,
            JsonEnd::Unfinished => FenceBody::Undecided,
            JsonEnd::Invalid(_) if is_torn => FenceBody::Call,
            JsonEnd::Invalid(_) => FenceBody::Text,
        }
    }
}
