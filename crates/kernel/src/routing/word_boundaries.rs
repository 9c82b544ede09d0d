//! Case folding and word boundaries for several scripts.

use crate::memory::is_cjk;

/// Folds upper and lower case, and both forms of the Greek sigma.
pub(super) fn fold_case(text: &str) -> String {
    let lower = text.chars().flat_map(char::to_lowercase);
    lower.map(|c| if c == 'ς' { 'σ' } else { c }).collect()
}

/// True when two adjacent characters belong to the same word. In scripts without spaces, each sign is a word of its
/// own.
pub(super) fn are_in_same_word(left: char, right: char) -> bool {
    is_word_letter(left) && is_word_letter(right)
}

fn is_word_letter(c: char) -> bool {
    (c.is_alphanumeric() || is_combining_mark(c)) && !is_cjk(c)
}

/// Marks that belong to a letter but are no letters in Unicode: combining accents, and the signs of Indian scripts that
/// join consonants. The full stops of those scripts do not count.
fn is_combining_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{200c}' | '\u{200d}')
        || matches!(c, '\u{900}'..='\u{dff}' if !matches!(c, '\u{964}' | '\u{965}' | '\u{970}'))
}
