//! Insert joiners so that CommonMark emphasis works next to Chinese, Japanese and Korean text.
//!
//! CommonMark decides by spaces and punctuation whether `**` opens or closes emphasis. These languages put no space
//! there, so in `**"안녕"**이라고` it does not close, and in `这是**“重点”**内容` it closes before it opens. A joiner between the
//! punctuation and the stars makes the case clear. The joiner is an invisible character that is removed again.

use std::borrow::Cow;

/// The joiner, removed from all text of the parser: a "noncharacter" of Unicode, reserved for internal use.
pub(super) const JOINER: char = '\u{fdd0}';

/// Inserts joiners between punctuation and `**` or `~~` next to CJK letters.
pub(super) fn insert_joiners(markdown: &str) -> Cow<'_, str> {
    if !(markdown.contains("**") || markdown.contains("~~")) || !markdown.chars().any(is_cjk) {
        return Cow::Borrowed(markdown);
    }
    let mut out = String::with_capacity(markdown.len() + 16);
    let (mut rest, mut before) = (markdown, ' ');
    while let Some(c) = rest.chars().next() {
        let run = if matches!(c, '*' | '~') { rest.len() - rest.trim_start_matches(c).len() } else { c.len_utf8() };
        let after = rest[run..].chars().next().unwrap_or(' ');
        let is_delimiter = run > 1 && matches!(c, '*' | '~') && before != '\\';
        if is_delimiter && is_punctuation(before) && is_cjk(after) {
            out.push(JOINER);
        }
        out.push_str(&rest[..run]);
        if is_delimiter && is_cjk(before) && is_punctuation(after) {
            out.push(JOINER);
        }
        (before, rest) = (c, &rest[run..]);
    }
    Cow::Owned(out)
}

/// Letters of languages that do not always put a space between words.
fn is_cjk(c: char) -> bool {
    matches!(c, '\u{1100}'..='\u{11ff}' | '\u{3040}'..='\u{30ff}' | '\u{3130}'..='\u{318f}' | '\u{3400}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

fn is_punctuation(c: char) -> bool {
    !(c.is_alphanumeric() || c.is_whitespace() || c.is_control() || c == '\\')
}
