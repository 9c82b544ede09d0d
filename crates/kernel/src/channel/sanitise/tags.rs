//! The tags by which models write calls, results and thoughts into their text: which there are, and where one ends.

use super::work::count;

/// What a tag is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Around calls.
    Call,
    /// Around one call, which it names.
    Invoke,
    /// Around one call, by a word that has other uses.
    Tool,
    /// Around what a tool gave back.
    Result,
    /// Around thoughts.
    Think,
    /// Inside a call.
    Part,
}

/// A tag in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag<'a> {
    /// Which of the names it has.
    pub(super) name: Name,
    /// What it is for.
    pub(super) class: Class,
    /// True for `</...>`.
    pub(super) closing: bool,
    /// What stands between its name and its end: empty for a bare one.
    pub(super) attributes: &'a str,
    /// Where it ends.
    pub(super) end: usize,
}

/// A name in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name(usize);

/// What stands at a `<`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// A tag of protocol.
    Tag(Tag<'a>),
    /// What can become one with more text.
    Partial,
    /// Something else.
    Text,
}

const NAMES: [(&str, Class); 20] = [
    ("function_calls", Class::Call),
    ("function_call", Class::Call),
    ("tool_calls", Class::Call),
    ("tool_call", Class::Call),
    ("tool-call", Class::Call),
    ("toolcall", Class::Call),
    ("invoke", Class::Invoke),
    ("function", Class::Invoke),
    ("tool", Class::Tool),
    ("tool_result", Class::Result),
    ("tool_results", Class::Result),
    ("function_results", Class::Result),
    ("think", Class::Think),
    ("thinking", Class::Think),
    ("parameter", Class::Part),
    ("parameters", Class::Part),
    ("arguments", Class::Part),
    ("tool_name", Class::Part),
    ("arg_key", Class::Part),
    ("arg_value", Class::Part),
];
/// Some models put their maker's name before these.
const NAMESPACES: [&str; 2] = ["antml:", "minimax:"];
/// A longer run of letters is no name of these.
const LONGEST_NAME: usize = 24;

/// Looks at the `<` at `at`. Reads no further than the next `<`, line break or end.
pub(super) fn find(text: &str, at: usize) -> Found<'_> {
    let bytes = text.as_bytes();
    let closing = bytes.get(at + 1) == Some(&b'/');
    let from = at + 1 + usize::from(closing);
    let is_letter = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b':');
    let length = bytes[from..].iter().take(LONGEST_NAME + 1).take_while(is_letter).count();
    count(length + 2);
    let name_end = from + length;
    let written = text[from..name_end].to_ascii_lowercase();
    let Some(next) = bytes.get(name_end) else {
        return if can_become_name(&written) { Found::Partial } else { Found::Text };
    };
    let bare = NAMESPACES.iter().find_map(|space| written.strip_prefix(space)).unwrap_or(&written);
    let Some(name) = NAMES.iter().position(|(name, _)| *name == bare) else {
        return Found::Text;
    };
    let class = NAMES[name].1;
    let tag = |attributes, end| Tag { name: Name(name), class, closing, attributes, end };
    match next {
        b'>' => Found::Tag(tag("", name_end + 1)),
        b'=' if matches!(class, Class::Invoke | Class::Part) && !closing => attributes(text, name_end, tag),
        b' ' | b'\t' if !closing => attributes(text, name_end, tag),
        _ => Found::Text,
    }
}

/// A tag that ends with attributes; `<tool name>` has none, it is a place holder of prose.
fn attributes<'a>(text: &'a str, from: usize, tag: impl Fn(&'a str, usize) -> Tag<'a>) -> Found<'a> {
    let length = text.as_bytes()[from..].iter().take_while(|byte| !matches!(byte, b'<' | b'>' | b'\n')).count();
    count(length);
    let end = from + length;
    let inside = &text[from..end];
    match text.as_bytes().get(end) {
        Some(b'>') if inside.contains('=') && !inside.ends_with('/') => Found::Tag(tag(inside.trim(), end + 1)),
        Some(_) => Found::Text,
        None => Found::Partial,
    }
}

fn can_become_name(written: &str) -> bool {
    let is_start = |name: &str| NAMES.iter().any(|(whole, _)| whole.starts_with(name));
    is_start(written)
        || NAMESPACES
            .iter()
            .any(|space| space.starts_with(written) || written.strip_prefix(space).is_some_and(is_start))
}

/// Where the closing tags of a text are, by name. Made in one pass; asked from left to right, so that all questions together
/// are one pass too.
#[derive(Debug)]
pub(super) struct Closers {
    by_name: [Vec<(usize, usize)>; NAMES.len()],
    asked: [usize; NAMES.len()],
}

impl Closers {
    /// Those of a text.
    pub(super) fn of(text: &str) -> Self {
        let mut by_name = [const { Vec::new() }; NAMES.len()];
        count(text.len());
        for (at, _) in text.match_indices("</") {
            if let Found::Tag(tag) = find(text, at) {
                by_name[tag.name.0].push((at, tag.end));
            }
        }
        Self { by_name, asked: [0; NAMES.len()] }
    }

    /// The first of a name that begins at `from` or later. `from` must not be less than it was for this name before.
    pub(super) fn next(&mut self, name: Name, from: usize) -> Option<(usize, usize)> {
        let (all, asked) = (&self.by_name[name.0], &mut self.asked[name.0]);
        while all.get(*asked).is_some_and(|(start, _)| *start < from) {
            count(1);
            *asked += 1;
        }
        all.get(*asked).copied()
    }
}
