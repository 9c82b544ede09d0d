//! Splits text into search words: at spaces and punctuation, and into bigrams for Chinese, Japanese and Korean, which
//! have no spaces between words.

use std::collections::HashSet;

/// Maximum number of words of a query. More words do not make a query more specific.
pub const MAX_QUERY_WORDS: usize = 64;

/// A word with at least this many letters also matches longer words that begin with it.
const MIN_PREFIX_LETTERS: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SearchWord {
    /// Matches exactly: a short word, or neighbouring CJK characters with spaces between them.
    Exact(String),
    /// Matches the beginning of words, so that `colour` finds `colours`.
    Prefix(String),
}

impl SearchWord {
    /// Letters, digits, marks, and single spaces between CJK characters.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Prefix(text) => text,
        }
    }
}

/// Puts spaces around every CJK character, for an index that splits words where letters end.
#[must_use]
pub fn space_cjk_signs(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len() + text.len() / 2);
    for c in text.chars() {
        if is_cjk(c) {
            spaced.extend([' ', c, ' ']);
        } else {
            spaced.push(c);
        }
    }
    spaced
}

/// The distinct words of a query in their order, at most [`MAX_QUERY_WORDS`].
///
/// CJK characters become overlapping pairs. A Chinese sentence has no spaces between its words: as a whole it would
/// match only its exact text, and single characters would match nearly everywhere.
pub fn parse_query_words(query: &str) -> Vec<SearchWord> {
    let mut known = HashSet::new();
    let runs = ScriptRuns { rest: query };
    let all = runs.flat_map(|run| match run {
        ScriptRun::Letters(letters) => vec![letters_to_word(letters)],
        ScriptRun::Cjk(characters) => cjk_bigrams(characters),
    });
    all.filter(|word| known.insert(word.clone())).take(MAX_QUERY_WORDS).collect()
}

fn letters_to_word(letters: &str) -> SearchWord {
    let text = letters.to_lowercase();
    // Digits are names: 12 and 1200 have nothing to do with each other.
    let is_long = text.chars().filter(|c| c.is_alphabetic()).count() >= MIN_PREFIX_LETTERS;
    if is_long { SearchWord::Prefix(text) } else { SearchWord::Exact(text) }
}

fn cjk_bigrams(characters: &str) -> Vec<SearchWord> {
    let characters: Vec<char> = characters.chars().collect();
    match characters.as_slice() {
        [only] => vec![SearchWord::Exact(only.to_string())],
        characters => characters.windows(2).map(|pair| SearchWord::Exact(format!("{} {}", pair[0], pair[1]))).collect(),
    }
}

/// A sequence of characters of the same kind.
enum ScriptRun<'a> {
    Letters(&'a str),
    Cjk(&'a str),
}

struct ScriptRuns<'a> {
    rest: &'a str,
}

impl<'a> Iterator for ScriptRuns<'a> {
    type Item = ScriptRun<'a>;

    fn next(&mut self) -> Option<ScriptRun<'a>> {
        let begin = self.rest.find(|c| is_cjk(c) || c.is_alphanumeric())?;
        let rest = &self.rest[begin..];
        let is_cjk_run = rest.starts_with(is_cjk);
        let belongs = |c: char| if is_cjk_run { is_cjk(c) } else { is_letter(c) };
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        let (run, rest) = rest.split_at(end);
        self.rest = rest;
        Some(if is_cjk_run { ScriptRun::Cjk(run) } else { ScriptRun::Letters(run) })
    }
}

/// Combining marks are part of the word.
fn is_letter(c: char) -> bool {
    (c.is_alphanumeric() || matches!(c, '\u{300}'..='\u{36f}')) && !is_cjk(c)
}

/// True for Han, kana, bopomofo and Hangul.
pub(crate) fn is_cjk(c: char) -> bool {
    let in_cjk_block = matches!(c,
        '\u{1100}'..='\u{11ff}'
        | '\u{2e80}'..='\u{2fdf}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3021}'..='\u{30ff}'
        | '\u{3105}'..='\u{31bf}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{a960}'..='\u{a97f}'
        | '\u{ac00}'..='\u{d7ff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{ff66}'..='\u{ffdc}'
        | '\u{20000}'..='\u{3ffff}'
    );
    in_cjk_block && c.is_alphanumeric()
}
