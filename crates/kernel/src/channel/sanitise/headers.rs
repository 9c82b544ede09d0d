//! Headers that models imitate: `[Used tools: ...]`, which notes in a history of plain text what an answer used, and
//! `[Tool results]`, which stands over results.

use super::scan::{Judged, Left, Scan, When};
use super::tags::{Class, Found, find};
use super::work::count;

/// In front of the names, in lower case.
const USED_TOOLS: &str = "[used tools:";
/// Over results, in lower case.
const RESULTS: &str = "[tool results]";

/// How much of a header stands at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// All of it.
    Wholly,
    /// As much as the text goes on.
    Partly,
    /// Something else.
    Not,
}

impl Scan<'_> {
    /// Judges a header, if one stands there.
    pub(super) fn header(&self, start: usize) -> Option<Judged> {
        self.used_tools(start).or_else(|| self.results_header(start))
    }

    /// Only in front of everything else, and only with what can be names in it.
    fn used_tools(&self, start: usize) -> Option<Judged> {
        if self.has_text() {
            return None;
        }
        let rest = &self.text[start..];
        match begun(rest, USED_TOOLS) {
            Begun::Not => return None,
            Begun::Partly => return self.undecided(),
            Begun::Wholly => {}
        }
        let inside = &rest[USED_TOOLS.len()..];
        let end = inside.find([']', '\n']);
        count(end.unwrap_or(inside.len()));
        let Some(end) = end else {
            return self.undecided();
        };
        let are_names = inside[end..].starts_with(']') && inside[..end].split(',').all(is_name);
        let cut = Judged::Cut(start + USED_TOOLS.len() + end + 1, When::Always, Left::Protocol);
        are_names.then_some(cut)
    }

    /// Only over a result: elsewhere it is a header like any other.
    fn results_header(&self, start: usize) -> Option<Judged> {
        let rest = &self.text[start..];
        match begun(rest, RESULTS) {
            Begun::Not => return None,
            Begun::Partly => return self.undecided(),
            Begun::Wholly => {}
        }
        let below = rest[RESULTS.len()..].trim_start();
        let at = self.text.len() - below.len();
        count(at - start);
        if below.is_empty() {
            return self.undecided();
        }
        if !below.starts_with('<') {
            return None;
        }
        match find(self.text, at) {
            Found::Tag(tag) if tag.class == Class::Result && !tag.closing => {
                Some(Judged::Cut(start + RESULTS.len(), When::Always, Left::Protocol))
            }
            Found::Partial => self.undecided(),
            Found::Tag(_) | Found::Text => None,
        }
    }

    fn undecided(&self) -> Option<Judged> {
        self.has_more().then_some(Judged::Wait)
    }
}

fn begun(text: &str, header: &str) -> Begun {
    let alike = text.bytes().zip(header.bytes()).take_while(|(a, b)| a.to_ascii_lowercase() == *b).count();
    match alike {
        _ if alike == header.len() => Begun::Wholly,
        _ if alike == text.len() => Begun::Partly,
        _ => Begun::Not,
    }
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | ':' | '/');
    name.chars().all(is_allowed) && name.chars().any(char::is_alphanumeric)
}
