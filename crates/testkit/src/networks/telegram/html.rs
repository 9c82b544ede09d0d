//! Parse the HTML that Telegram accepts (Bot API: HTML style), with the error texts of its own parser.

/// A formatted part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedEntity {
    /// As the API names it: `bold`, `text_link`, ...
    pub kind: String,
    /// In UTF-16 units.
    pub offset: usize,
    /// In UTF-16 units.
    pub length: usize,
    /// The URL of a link, or the language of code.
    pub value: Option<String>,
}

struct OpenTag {
    tag: String,
    kind: &'static str,
    value: Option<String>,
    offset: usize,
}

/// Parses formatted text into plain text and entities, or returns the error.
pub(super) fn parse_html(source: &str) -> Result<(String, Vec<ParsedEntity>), String> {
    let (mut text, mut entities, mut open) = (String::new(), Vec::new(), Vec::<OpenTag>::new());
    let (mut at, mut length) = (0, 0);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        match first {
            '<' => {
                let end = rest.find('>').ok_or_else(|| unclosed_tag_error(rest, at))?;
                match rest[1..end].strip_prefix('/') {
                    Some(name) => entities.extend(close_tag(&mut open, name.trim(), length, at)?),
                    None => open.push(open_tag(&rest[1..end], length, at)?),
                }
                at += end + 1;
            }
            _ => {
                let (character, taken) = if first == '&' { parse_escape(rest) } else { (first, first.len_utf8()) };
                text.push(character);
                length += character.len_utf16();
                at += taken;
            }
        }
    }
    if let Some(left) = open.last() {
        return Err(format!("Can't find end tag corresponding to start tag \"{}\"", left.tag));
    }
    entities.retain(|entity: &ParsedEntity| entity.length > 0);
    entities.sort_by_key(|entity| entity.offset);
    Ok((text, entities))
}

fn unclosed_tag_error(rest: &str, at: usize) -> String {
    let which = if rest.starts_with("</") { "end" } else { "start" };
    format!("Unclosed {which} tag at byte offset {at}")
}

fn close_tag(open: &mut Vec<OpenTag>, name: &str, length: usize, at: usize) -> Result<Option<ParsedEntity>, String> {
    let Some(last) = open.pop() else { return Err(format!("Unexpected end tag at byte offset {at}")) };
    if !name.is_empty() && !name.eq_ignore_ascii_case(&last.tag) {
        let expected = &last.tag;
        return Err(format!("Unmatched end tag at byte offset {at}, expected \"</{expected}>\", found \"</{name}>\""));
    }
    // `<code class="language-x">` inside `<pre>` only gives the language.
    let kind = last.kind.to_owned();
    Ok(Some(ParsedEntity { kind, offset: last.offset, length: length - last.offset, value: last.value }))
}

fn open_tag(inside: &str, offset: usize, at: usize) -> Result<OpenTag, String> {
    let (name, attributes) = inside.split_once(char::is_whitespace).unwrap_or((inside, ""));
    let tag = name.to_ascii_lowercase();
    let attribute = |wanted: &str| attribute_value(attributes, wanted);
    let unsupported = || format!("Unsupported start tag \"{tag}\" at byte offset {at}");
    let (kind, value) = match tag.as_str() {
        "b" | "strong" => ("bold", None),
        "i" | "em" => ("italic", None),
        "u" | "ins" => ("underline", None),
        "s" | "strike" | "del" => ("strikethrough", None),
        "tg-spoiler" => ("spoiler", None),
        "span" if attribute("class").as_deref() == Some("tg-spoiler") => ("spoiler", None),
        "span" => return Err(format!("Tag \"span\" must have class \"tg-spoiler\" at byte offset {at}")),
        "a" => ("text_link", attribute("href")),
        "tg-emoji" => ("custom_emoji", attribute("emoji-id")),
        "code" => ("code", attribute("class")),
        "pre" => ("pre", None),
        "blockquote" => ("blockquote", None),
        _ => return Err(unsupported()),
    };
    Ok(OpenTag { tag, kind, value, offset })
}

/// The value of an attribute, unescaped.
fn attribute_value(attributes: &str, wanted: &str) -> Option<String> {
    let mut rest = attributes.trim_start();
    while let Some((name, after)) = rest.split_once('=') {
        let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (value, left) = after[1..].split_once(quote)?;
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(unescape(value));
        }
        rest = left.trim_start();
    }
    None
}

fn unescape(mut text: &str) -> String {
    let mut plain = String::new();
    while let Some(first) = text.chars().next() {
        let (character, taken) = if first == '&' { parse_escape(text) } else { (first, first.len_utf8()) };
        plain.push(character);
        text = &text[taken..];
    }
    plain
}

/// The character of an `&...;` at the beginning. Only these four names are escapes.
fn parse_escape(text: &str) -> (char, usize) {
    for (name, character) in [("&lt;", '<'), ("&gt;", '>'), ("&amp;", '&'), ("&quot;", '"')] {
        if text.starts_with(name) {
            return (character, name.len());
        }
    }
    let number = text.strip_prefix("&#").and_then(|rest| rest.split_once(';')).map(|(number, _)| number);
    let Some(number) = number else { return ('&', 1) };
    let code = match number.strip_prefix(['x', 'X']) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => number.parse(),
    };
    match code.ok().and_then(char::from_u32) {
        Some(character) => (character, number.len() + 3),
        None => ('&', 1),
    }
}
