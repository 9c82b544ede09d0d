//! Protocol tag names, tag matching and an index of closing tags.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TagClass {
    /// Encloses calls.
    Call,
    /// Encloses one call, and names its tool.
    Invoke,
    /// Encloses one call; the tag name has other uses too.
    Tool,
    Result,
    Think,
    /// Encloses a part of a call.
    CallPart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag<'a> {
    /// Index into [`TAG_NAMES`].
    pub(super) name: usize,
    pub(super) class: TagClass,
    pub(super) closing: bool,
    /// Text between the name and the end of the tag. Empty without attributes.
    pub(super) attributes: &'a str,
    /// Offset behind the `>`.
    pub(super) end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TagMatch<'a> {
    Tag(Tag<'a>),
    /// More text can make it a protocol tag.
    Partial,
    Text,
}

const TAG_NAMES: [(&str, TagClass); 20] = [
    ("function_calls", TagClass::Call),
    ("function_call", TagClass::Call),
    ("tool_calls", TagClass::Call),
    ("tool_call", TagClass::Call),
    ("tool-call", TagClass::Call),
    ("toolcall", TagClass::Call),
    ("invoke", TagClass::Invoke),
    ("function", TagClass::Invoke),
    ("tool", TagClass::Tool),
    ("tool_result", TagClass::Result),
    ("tool_results", TagClass::Result),
    ("function_results", TagClass::Result),
    ("think", TagClass::Think),
    ("thinking", TagClass::Think),
    ("parameter", TagClass::CallPart),
    ("parameters", TagClass::CallPart),
    ("arguments", TagClass::CallPart),
    ("tool_name", TagClass::CallPart),
    ("arg_key", TagClass::CallPart),
    ("arg_value", TagClass::CallPart),
];
/// Prefixes that some models put before these names.
const TAG_NAMESPACES: [&str; 2] = ["antml:", "minimax:"];
/// Maximum length of a tag name with its prefix.
const MAX_TAG_NAME_BYTES: usize = 24;

/// Matches the `<` at `at`. Reads no further than the next `<`, line break or end.
pub(super) fn match_tag(text: &str, at: usize) -> TagMatch<'_> {
    let bytes = text.as_bytes();
    let closing = bytes.get(at + 1) == Some(&b'/');
    let from = at + 1 + usize::from(closing);
    let is_letter = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b':');
    let length = bytes[from..].iter().take(MAX_TAG_NAME_BYTES + 1).take_while(is_letter).count();
    let name_end = from + length;
    let written = text[from..name_end].to_ascii_lowercase();
    let Some(next) = bytes.get(name_end) else {
        return if is_tag_name_prefix(&written) { TagMatch::Partial } else { TagMatch::Text };
    };
    let bare = TAG_NAMESPACES.iter().find_map(|space| written.strip_prefix(space)).unwrap_or(&written);
    let Some(name) = TAG_NAMES.iter().position(|(name, _)| *name == bare) else {
        return TagMatch::Text;
    };
    let class = TAG_NAMES[name].1;
    let tag = |attributes, end| Tag { name, class, closing, attributes, end };
    match next {
        b'>' => TagMatch::Tag(tag("", name_end + 1)),
        b'=' if matches!(class, TagClass::Invoke | TagClass::CallPart) && !closing => {
            match_tag_attributes(text, name_end, tag)
        }
        b' ' | b'\t' if !closing => match_tag_attributes(text, name_end, tag),
        _ => TagMatch::Text,
    }
}

/// Matches a tag with attributes. `<tool name>` has none: it is a placeholder in prose.
fn match_tag_attributes<'a>(text: &'a str, from: usize, tag: impl Fn(&'a str, usize) -> Tag<'a>) -> TagMatch<'a> {
    let length = text.as_bytes()[from..].iter().take_while(|byte| !matches!(byte, b'<' | b'>' | b'\n')).count();
    let end = from + length;
    let inside = &text[from..end];
    match text.as_bytes().get(end) {
        Some(b'>') if inside.contains('=') && !inside.ends_with('/') => TagMatch::Tag(tag(inside.trim(), end + 1)),
        Some(_) => TagMatch::Text,
        None => TagMatch::Partial,
    }
}

fn is_tag_name_prefix(written: &str) -> bool {
    let is_start = |name: &str| TAG_NAMES.iter().any(|(whole, _)| whole.starts_with(name));
    is_start(written)
        || TAG_NAMESPACES
            .iter()
            .any(|space| space.starts_with(written) || written.strip_prefix(space).is_some_and(is_start))
}

/// Index of the closing tags of a text, by name.
#[derive(Debug)]
pub(super) struct ClosingTags([Vec<(usize, usize)>; TAG_NAMES.len()]);

impl ClosingTags {
    pub(super) fn new(text: &str) -> Self {
        let mut by_name = [const { Vec::new() }; TAG_NAMES.len()];
        for (at, _) in text.match_indices("</") {
            if let TagMatch::Tag(tag) = match_tag(text, at) {
                by_name[tag.name].push((at, tag.end));
            }
        }
        Self(by_name)
    }

    /// The first closing tag of a name that begins at `from` or later.
    pub(super) fn next_at_or_after(&self, name: usize, from: usize) -> Option<(usize, usize)> {
        let tags = &self.0[name];
        tags.get(tags.partition_point(|(start, _)| *start < from)).copied()
    }
}
