//! Classifies what follows an opening protocol tag: call, tool result, reasoning or prose that mentions the tag.
//!
//! A tag alone proves nothing. The content of an element and its position in the line decide whether it is protocol.

use super::json::{JsonEnd, JsonShape, scan_json_value};
use super::reply_scanner::{RemovalRule, ReplyScanner, SpanClass};
use super::tags::{Tag, TagClass, TagMatch, match_tag};

/// Maximum length of a tool name.
const MAX_TOOL_NAME_CHARS: usize = 256;

/// Content after an opening tag, with its offset.
#[derive(Debug)]
enum TagContent<'a> {
    EndOfText,
    Json(usize),
    Element(usize, Tag<'a>),
    /// The sentence continues: it mentions the tag.
    Mention,
    Text(usize),
    /// The text ends within a tag.
    PartialTag,
}

impl<'a> ReplyScanner<'a> {
    /// Classifies a reasoning tag. Reasoning is at the beginning of the reply, or on lines of its own.
    pub(super) fn classify_thought(&self, start: usize, tag: &Tag<'_>) -> SpanClass {
        let text = SpanClass::Text(tag.end);
        let is_first = !self.has_text();
        if !is_first && !self.is_line_content_start(start) {
            return text;
        }
        let rest = self.text[tag.end..].trim_start_matches([' ', '\t']);
        let is_spaced = rest.len() < self.text.len() - tag.end;
        let Some(first) = rest.chars().next() else {
            return self.undecided_or(if is_first { SpanClass::other_protocol(self.text.len()) } else { text });
        };
        let is_block = matches!(first, '\n' | '\r');
        if (is_spaced && first.is_ascii_lowercase()) || is_punctuation_after_mention(first) {
            return text;
        }
        let Some((closer, end)) = self.closing_tags.next_at_or_after(tag.name, tag.end) else {
            let all = SpanClass::other_protocol(self.text.len());
            return self.undecided_or(if is_first && (is_block || !is_spaced) { all } else { text });
        };
        let cut = SpanClass::other_protocol(end);
        if is_placeholder(&self.text[tag.end..closer]) {
            return text;
        }
        match self.text[end..].chars().next() {
            _ if is_block || (is_first && !is_spaced) => cut,
            // With whitespace inside and the answer on the same line, only a whole sentence is reasoning.
            _ if is_first && !is_sentence(&self.text[tag.end..closer]) => text,
            None => self.undecided_or(cut),
            Some('\n' | '\r') => cut,
            Some(after) if is_first && after.is_whitespace() => cut,
            Some(_) => text,
        }
    }

    /// Classifies a result tag. A result is set off from the sentence around it, and not empty.
    pub(super) fn classify_tool_result(&self, start: usize, tag: &Tag<'_>) -> SpanClass {
        let text = SpanClass::Text(tag.end);
        let opens = self.is_line_content_start(start);
        let is_set_off = opens || self.byte_at(start.wrapping_sub(1)).is_some_and(|byte| byte.is_ascii_whitespace());
        let Some(first) = self.text[tag.end..].chars().next() else {
            return self.undecided_or(text);
        };
        let is_block = matches!(first, '\n' | '\r');
        let is_sure = !tag.attributes.is_empty() || (opens && is_block);
        if !is_set_off || (!is_sure && (matches!(first, ' ' | '\t') || is_punctuation_after_mention(first))) {
            return text;
        }
        let Some((closer, end)) = self.closing_tags.next_at_or_after(tag.name, tag.end) else {
            return self.undecided_or(text);
        };
        let after = self.text[end..].chars().next();
        if after.is_none() && !is_sure && self.is_partial() {
            return SpanClass::Undecided;
        }
        let content = &self.text[tag.end..closer];
        let is_particle = content.len() <= 6 && !content.is_empty() && !content.is_ascii();
        let is_closed_off = !content.ends_with([' ', '\t']) && after.is_none_or(|c| c.is_whitespace() || c == '<');
        let is_empty = content.is_empty() && !opens;
        if is_sure || (is_closed_off && !is_particle && !is_empty && !is_placeholder(content)) {
            return SpanClass::other_protocol(end);
        }
        text
    }

    /// Classifies a call tag. A call contains JSON, further tags, or the name of a tool.
    pub(super) fn classify_call(&self, start: usize, tag: &Tag<'a>) -> SpanClass {
        match self.classify_tag_content(tag.end) {
            TagContent::EndOfText if self.is_line_content_start(start) => {
                self.undecided_or(SpanClass::call(self.text.len()))
            }
            TagContent::EndOfText | TagContent::PartialTag => self.undecided_or(SpanClass::Text(tag.end)),
            TagContent::Mention => SpanClass::Text(tag.end),
            TagContent::Json(at) => self.classify_json_call(start, tag, at),
            TagContent::Element(at, inner) => self.classify_nested_call(start, tag, at, inner),
            TagContent::Text(at) => self.classify_text_call(start, tag, at),
        }
    }

    fn classify_tag_content(&self, from: usize) -> TagContent<'a> {
        let at = self.skip_whitespace(from);
        match self.text[at..].chars().next() {
            None => TagContent::EndOfText,
            Some('{' | '[') => TagContent::Json(at),
            Some('<') => match match_tag(self.text, at) {
                TagMatch::Partial => TagContent::PartialTag,
                TagMatch::Tag(tag) if !tag.closing && !matches!(tag.class, TagClass::Think | TagClass::Result) => {
                    TagContent::Element(at, tag)
                }
                TagMatch::Tag(_) | TagMatch::Text => TagContent::Text(at),
            },
            Some(first) if is_punctuation_after_mention(first) => TagContent::Mention,
            Some(_) if at > from && !self.text[from..at].contains('\n') => TagContent::Mention,
            Some(_) => TagContent::Text(at),
        }
    }

    fn classify_json_call(&self, start: usize, tag: &Tag<'_>, at: usize) -> SpanClass {
        let value = scan_json_value(self.text, at, self.rules);
        let (length, opens) = (self.text.len(), self.is_line_content_start(start) && tag.class != TagClass::Tool);
        let is_named = opens && !tag.attributes.is_empty();
        let is_evident = value.is_torn_protocol() || is_named || (opens && (value.has_name || value.has_arguments));
        match value.end {
            JsonEnd::Complete(end) => {
                let is_call = match value.shape {
                    JsonShape::Call(_) | JsonShape::Message(..) => true,
                    JsonShape::ToolResult | JsonShape::BareOutput | JsonShape::Other => {
                        opens && self.byte_at(at) == Some(b'{')
                    }
                };
                if is_call { self.classify_call_list(end) } else { SpanClass::Text(end) }
            }
            JsonEnd::Unfinished if is_evident => self.undecided_or(SpanClass::call(length)),
            JsonEnd::Unfinished if value.has_foreign_keys && !opens => SpanClass::Text(length),
            JsonEnd::Unfinished => self.undecided_or(SpanClass::Text(length)),
            JsonEnd::Invalid(broken) if is_evident => match self.closing_tags.next_at_or_after(tag.name, broken) {
                Some((_, end)) => SpanClass::call(end),
                None => self.undecided_or(self.classify_broken_call(broken)),
            },
            JsonEnd::Invalid(broken) => SpanClass::Text(broken.max(at + 1)),
        }
    }

    /// Skips further calls between the same tags. Their closing tags are removed later, as remainders.
    fn classify_call_list(&self, mut end: usize) -> SpanClass {
        loop {
            let at = self.skip_whitespace(end);
            if self.byte_at(at) != Some(b'{') {
                return SpanClass::call(end);
            }
            let value = scan_json_value(self.text, at, self.rules);
            match (value.end, value.shape) {
                (JsonEnd::Complete(next), JsonShape::Call(_) | JsonShape::Message(..)) => end = next,
                (JsonEnd::Unfinished, _) if !value.has_foreign_keys && self.is_partial() => {
                    return SpanClass::Undecided;
                }
                _ => return SpanClass::call(end),
            }
        }
    }

    fn classify_nested_call(&self, start: usize, tag: &Tag<'_>, at: usize, inner: Tag<'a>) -> SpanClass {
        if let Some((_, end)) = self.closing_tags.next_at_or_after(tag.name, tag.end) {
            return SpanClass::call(end);
        }
        if self.is_partial() {
            return SpanClass::Undecided;
        }
        if !self.is_line_content_start(start) {
            return SpanClass::Text(at);
        }
        SpanClass::call(self.find_tag_chain_end(inner))
    }

    /// End of a sequence of call elements: the end of the text if one of them is not closed.
    fn find_tag_chain_end(&self, mut tag: Tag<'a>) -> usize {
        loop {
            let Some((_, end)) = self.closing_tags.next_at_or_after(tag.name, tag.end) else {
                return self.text.len();
            };
            let mut end = end;
            loop {
                match find_call_tag(self.text, self.skip_whitespace(end)) {
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

    fn classify_text_call(&self, start: usize, tag: &Tag<'_>, at: usize) -> SpanClass {
        let text = SpanClass::Text(tag.end);
        if !self.is_line_content_start(start) || tag.class == TagClass::Tool {
            return text;
        }
        let word = self.read_tool_name(at);
        let is_cut_short = at + word.len() == self.text.len();
        let is_known = match tag.class {
            TagClass::Call => self.rules.is_known_tool(word),
            _ => self.rules.is_known_tool(tool_name_attribute(tag.attributes)),
        };
        let may_be_alone = tag.class == TagClass::Call && !self.has_text();
        if !is_known && !may_be_alone {
            return if is_cut_short && tag.class == TagClass::Call { self.undecided_or(text) } else { text };
        }
        match self.closing_tags.next_at_or_after(tag.name, tag.end) {
            Some((_, end)) if is_known => SpanClass::call(end),
            Some((_, end)) => SpanClass::removed(end, RemovalRule::OnlyWithoutText),
            None => self.undecided_or(text),
        }
    }

    fn read_tool_name(&self, at: usize) -> &'a str {
        let rest = &self.text[at..];
        let is_end = |c: char| c.is_whitespace() || matches!(c, '<' | '{' | '(');
        let ends = rest.char_indices().take(MAX_TOOL_NAME_CHARS).find(|(_, c)| is_end(*c)).map(|(end, _)| end);
        &rest[..ends.unwrap_or(rest.len())]
    }
}

fn find_call_tag(text: &str, at: usize) -> Option<Tag<'_>> {
    match text.as_bytes().get(at) {
        Some(b'<') => match match_tag(text, at) {
            TagMatch::Tag(tag) if !matches!(tag.class, TagClass::Think | TagClass::Result) => Some(tag),
            TagMatch::Tag(_) | TagMatch::Partial | TagMatch::Text => None,
        },
        _ => None,
    }
}

/// Extracts the tool name from `name="shell"` or `=shell`.
fn tool_name_attribute(attributes: &str) -> &str {
    let value = attributes.rsplit_once("name=").map_or(attributes, |(_, value)| value);
    let value = value.trim_start_matches(['=', '"', '\'']);
    value.split(['"', '\'', ' ']).next().unwrap_or_default()
}

/// True for characters that follow a tag which a sentence only mentions.
fn is_punctuation_after_mention(first: char) -> bool {
    matches!(first, ',' | '.' | ';' | ':' | ')' | '!' | '?' | '`' | '、' | '，' | '。' | '；' | '：' | '）')
}

/// Recognises placeholder content such as the dots in `<think>...</think>`: no letters or digits.
fn is_placeholder(content: &str) -> bool {
    let mut visible = content.chars().filter(|c| !c.is_whitespace());
    let first = visible.next();
    first.is_some_and(|c| !c.is_alphanumeric()) && !visible.any(char::is_alphanumeric)
}

fn is_sentence(content: &str) -> bool {
    content.trim_end().ends_with(['.', '!', '?', '…', '。', '！', '？'])
}
