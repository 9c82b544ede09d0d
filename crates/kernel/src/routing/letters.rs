//! Letters of every script, as far as comparing words needs to know them.

use crate::memory::is_sign;

/// A text in which upper and lower case are the same, and both forms of the Greek sigma.
pub(super) fn fold(text: &str) -> String {
    let lower = text.chars().flat_map(char::to_lowercase);
    lower.map(|c| if c == 'ς' { 'σ' } else { c }).collect()
}

/// True when two neighbours belong to the same word. Signs of scripts that put no spaces between words stand alone.
pub(super) fn stand_together(left: char, right: char) -> bool {
    is_letter(left) && is_letter(right)
}

fn is_letter(c: char) -> bool {
    (c.is_alphanumeric() || is_mark(c)) && !is_sign(c)
}

/// Marks on letters that Unicode does not count among the letters: accents of texts that come taken apart, and the signs of
/// Indian scripts that join consonants. Their full stops are not among them.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{200c}' | '\u{200d}')
        || matches!(c, '\u{900}'..='\u{dff}' if !matches!(c, '\u{964}' | '\u{965}' | '\u{970}'))
}
