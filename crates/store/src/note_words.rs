//! The words of notes and queries, for stores without a full-text index of their own rules.

use quell_kernel::memory::{SearchWord, space_cjk_signs};
use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

/// Splits a text into lower-case words without accents. Each CJK character is a word.
pub(crate) fn split_words(text: &str) -> Vec<String> {
    let text: String = space_cjk_signs(text).to_lowercase().nfd().filter(|c| !is_combining_mark(*c)).nfc().collect();
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// How a note answers a query.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QueryMatch {
    /// The words of the query that it contains.
    pub(crate) words: Vec<usize>,
    /// Share of its words that are words of the query.
    pub(crate) density: f64,
}

impl QueryMatch {
    pub(crate) fn new(searchable_text: &str, query: &[SearchWord]) -> Self {
        let words = split_words(searchable_text);
        let counts: Vec<usize> = query.iter().map(|word| count_matches(&words, word)).collect();
        let matches = counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(word, _)| word).collect();
        let density = counts.iter().sum::<usize>() as f64 / words.len().max(1) as f64;
        Self { words: matches, density }
    }
}

/// Counts the places where a word of a query stands. It can consist of several words of the text: CJK characters.
fn count_matches(words: &[String], word: &SearchWord) -> usize {
    let wanted = split_words(word.as_str());
    let Some((last, first)) = wanted.split_last() else { return 0 };
    let is_prefix = matches!(word, SearchWord::Prefix(_));
    let places = words.windows(wanted.len()).filter(|place| {
        place
            .split_last()
            .is_some_and(|(end, begin)| begin == first && (end == last || is_prefix && end.starts_with(last.as_str())))
    });
    places.count()
}
