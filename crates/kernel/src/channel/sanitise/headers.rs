//! Recognises imitated headers: `[Used tools: ...]`, which names the tools of an answer in a plain-text history, and
//! `[Tool results]`, the heading of results.

use super::reply_scanner::{ReplyScanner, SpanClass};
use super::tags::{TagClass, TagMatch, match_tag};
use super::work_counter::count_bytes;

/// Prefix before the tool names, in lower case.
const USED_TOOLS: &str = "[used tools:";
/// Heading of results, in lower case.
const TOOL_RESULTS: &str = "[tool results]";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PrefixMatch {
    Full,
    /// The text ends within the header.
    Partial,
    Mismatch,
}

impl ReplyScanner<'_> {
    /// Classifies a header at `start`, if there is one.
    pub(super) fn classify_header(&self, start: usize) -> Option<SpanClass> {
        self.classify_used_tools_header(start).or_else(|| self.classify_results_header(start))
    }

    /// Matches only before any text, and only if the items can be tool names.
    fn classify_used_tools_header(&self, start: usize) -> Option<SpanClass> {
        if self.has_text() {
            return None;
        }
        let rest = &self.text[start..];
        match match_prefix(rest, USED_TOOLS) {
            PrefixMatch::Mismatch => return None,
            PrefixMatch::Partial => return self.undecided_if_partial(),
            PrefixMatch::Full => {}
        }
        let inside = &rest[USED_TOOLS.len()..];
        let end = inside.find([']', '\n']);
        count_bytes(end.unwrap_or(inside.len()));
        let Some(end) = end else {
            return self.undecided_if_partial();
        };
        let are_names = inside[end..].starts_with(']') && inside[..end].split(',').all(is_tool_name_list_item);
        let cut = SpanClass::other_protocol(start + USED_TOOLS.len() + end + 1);
        are_names.then_some(cut)
    }

    /// Matches only directly before a result. Elsewhere it is an ordinary heading.
    fn classify_results_header(&self, start: usize) -> Option<SpanClass> {
        let rest = &self.text[start..];
        match match_prefix(rest, TOOL_RESULTS) {
            PrefixMatch::Mismatch => return None,
            PrefixMatch::Partial => return self.undecided_if_partial(),
            PrefixMatch::Full => {}
        }
        let following = rest[TOOL_RESULTS.len()..].trim_start();
        let at = self.text.len() - following.len();
        count_bytes(at - start);
        if following.is_empty() {
            return self.undecided_if_partial();
        }
        if !following.starts_with('<') {
            return None;
        }
        match match_tag(self.text, at) {
            TagMatch::Tag(tag) if tag.class == TagClass::Result && !tag.closing => {
                Some(SpanClass::other_protocol(start + TOOL_RESULTS.len()))
            }
            TagMatch::Partial => self.undecided_if_partial(),
            TagMatch::Tag(_) | TagMatch::Text => None,
        }
    }

    fn undecided_if_partial(&self) -> Option<SpanClass> {
        self.is_partial().then_some(SpanClass::Undecided)
    }
}

fn match_prefix(text: &str, header: &str) -> PrefixMatch {
    let matched = text.bytes().zip(header.bytes()).take_while(|(a, b)| a.to_ascii_lowercase() == *b).count();
    match matched {
        _ if matched == header.len() => PrefixMatch::Full,
        _ if matched == text.len() => PrefixMatch::Partial,
        _ => PrefixMatch::Mismatch,
    }
}

fn is_tool_name_list_item(name: &str) -> bool {
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | ':' | '/');
    name.chars().all(is_allowed) && name.chars().any(char::is_alphanumeric)
}
