//! Recognises imitated headers: `[Used tools: ...]`, which names the tools of an answer in a plain-text history, and
//! `[Tool results]`, the heading of results.

use super::reply_scanner::{ReplyScanner, SpanClass};
use super::tags::{TagClass, TagMatch, match_tag};

/// Prefix before the tool names, in lower case.
const USED_TOOLS: &str = "[used tools:";
/// Heading of results, in lower case.
const TOOL_RESULTS: &str = "[tool results]";

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
        let inside = match match_header(&self.text[start..], USED_TOOLS) {
            HeaderMatch::Whole(inside) => inside,
            HeaderMatch::Partial => return self.undecided_if_partial(),
            HeaderMatch::None => return None,
        };
        let Some(end) = inside.find([']', '\n']) else { return self.undecided_if_partial() };
        let are_names = inside[end..].starts_with(']') && inside[..end].split(',').all(is_tool_name_list_item);
        are_names.then(|| SpanClass::other_protocol(start + USED_TOOLS.len() + end + 1))
    }

    /// Matches only directly before a result. Elsewhere it is an ordinary heading.
    fn classify_results_header(&self, start: usize) -> Option<SpanClass> {
        match match_header(&self.text[start..], TOOL_RESULTS) {
            HeaderMatch::Whole(_) => {}
            HeaderMatch::Partial => return self.undecided_if_partial(),
            HeaderMatch::None => return None,
        }
        let end = start + TOOL_RESULTS.len();
        let at = self.skip_whitespace(end);
        match self.byte_at(at) {
            None => self.undecided_if_partial(),
            Some(b'<') => match match_tag(self.text, at) {
                TagMatch::Tag(tag) if tag.class == TagClass::Result && !tag.closing => {
                    Some(SpanClass::other_protocol(end))
                }
                TagMatch::Partial => self.undecided_if_partial(),
                TagMatch::Tag(_) | TagMatch::Text => None,
            },
            Some(_) => None,
        }
    }

    fn undecided_if_partial(&self) -> Option<SpanClass> {
        self.is_partial().then_some(SpanClass::Undecided)
    }
}

enum HeaderMatch<'a> {
    /// With the text behind the header.
    Whole(&'a str),
    /// The text ends within the header.
    Partial,
    None,
}

fn match_header<'a>(text: &'a str, header: &str) -> HeaderMatch<'a> {
    let matched = text.bytes().zip(header.bytes()).take_while(|(a, b)| a.to_ascii_lowercase() == *b).count();
    match matched {
        _ if matched == header.len() => HeaderMatch::Whole(&text[matched..]),
        _ if matched == text.len() => HeaderMatch::Partial,
        _ => HeaderMatch::None,
    }
}

fn is_tool_name_list_item(name: &str) -> bool {
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | ':' | '/');
    name.chars().all(is_allowed) && name.chars().any(char::is_alphanumeric)
}
