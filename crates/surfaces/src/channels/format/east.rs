//! Bold letters in Chinese, Japanese and Korean. CommonMark decides by spaces and punctuation whether `**` begins or ends
//! something, so that in `**"안녕"**이라고` it ends nothing, and in `这是**“重点”**内容` it ends before it begins: these languages
//! put no space there. A joint between the punctuation and the stars, which no font has and nobody is shown, makes it plain.

use std::borrow::Cow;

/// What is put there, and taken out of all words that come back: a "noncharacter" of Unicode, for the inside of programs only.
pub(super) const JOINT: char = '\u{fdd0}';

/// Puts joints where they are needed.
pub(super) fn joined(markdown: &str) -> Cow<'_, str> {
    if !(markdown.contains("**") || markdown.contains("~~")) || !markdown.chars().any(is_eastern) {
        return Cow::Borrowed(markdown);
    }
    let mut out = String::with_capacity(markdown.len() + 16);
    let (mut rest, mut before) = (markdown, ' ');
    while let Some(c) = rest.chars().next() {
        let run = if matches!(c, '*' | '~') { rest.len() - rest.trim_start_matches(c).len() } else { c.len_utf8() };
        let after = rest[run..].chars().next().unwrap_or(' ');
        let joint = run > 1 && matches!(c, '*' | '~') && before != '\\';
        if joint && is_punctuation(before) && is_eastern(after) {
            out.push(JOINT);
        }
        out.push_str(&rest[..run]);
        if joint && is_eastern(before) && is_punctuation(after) {
            out.push(JOINT);
        }
        (before, rest) = (c, &rest[run..]);
    }
    Cow::Owned(out)
}

/// Letters of languages that put no space, or not everywhere, between words.
fn is_eastern(c: char) -> bool {
    matches!(c, '\u{1100}'..='\u{11ff}' | '\u{3040}'..='\u{30ff}' | '\u{3130}'..='\u{318f}' | '\u{3400}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

fn is_punctuation(c: char) -> bool {
    !(c.is_alphanumeric() || c.is_whitespace() || c.is_control() || c == '\\')
}
