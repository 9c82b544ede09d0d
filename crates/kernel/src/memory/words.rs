//! Words to search by, the same for every script: what stands between spaces in most, and one sign after the other where a
//! script has no spaces between words.

use std::collections::HashSet;

/// Words of a query that count. More say nothing new about what it is about.
pub const MOST_WORDS: usize = 64;

/// From this many letters on a word also finds the longer ones that begin with it.
const BEGINNING: usize = 4;

/// One word of a query.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Word {
    /// To be found as it is: a short word, or neighbouring signs with spaces between them.
    Exact(String),
    /// To be found at the beginning of words, so that `colour` finds `colours`.
    Beginning(String),
}

impl Word {
    /// Letters, digits, marks, and single spaces between signs.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Beginning(text) => text,
        }
    }
}

/// A text with every sign of a script without spaces set apart, for an index that breaks words where letters end.
#[must_use]
pub fn searchable(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len() + text.len() / 2);
    for c in text.chars() {
        if is_sign(c) {
            spaced.extend([' ', c, ' ']);
        } else {
            spaced.push(c);
        }
    }
    spaced
}

/// The different words of a query in their order, [`MOST_WORDS`] of them at the most.
///
/// Signs become overlapping pairs: nobody puts spaces between the words of a Chinese sentence, so the whole of it would be found
/// only where it stands word for word, and single signs nearly everywhere.
#[must_use]
pub fn words(query: &str) -> Vec<Word> {
    let mut known = HashSet::new();
    let runs = Runs { rest: query };
    let all = runs.flat_map(|run| match run {
        Run::Letters(letters) => vec![of_letters(letters)],
        Run::Signs(signs) => pairs(signs),
    });
    all.filter(|word| known.insert(word.clone())).take(MOST_WORDS).collect()
}

fn of_letters(letters: &str) -> Word {
    let text = letters.to_lowercase();
    // Digits are names: 12 and 1200 have nothing to do with each other.
    let is_long = text.chars().filter(|c| c.is_alphabetic()).count() >= BEGINNING;
    if is_long { Word::Beginning(text) } else { Word::Exact(text) }
}

fn pairs(signs: &str) -> Vec<Word> {
    let signs: Vec<char> = signs.chars().collect();
    match signs.as_slice() {
        [only] => vec![Word::Exact(only.to_string())],
        signs => signs.windows(2).map(|pair| Word::Exact(format!("{} {}", pair[0], pair[1]))).collect(),
    }
}

/// Neighbours of one kind.
enum Run<'a> {
    Letters(&'a str),
    Signs(&'a str),
}

struct Runs<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        let begin = self.rest.find(|c| is_sign(c) || c.is_alphanumeric())?;
        let rest = &self.rest[begin..];
        let of_signs = rest.starts_with(is_sign);
        let belongs = |c: char| if of_signs { is_sign(c) } else { is_letter(c) };
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        let (run, rest) = rest.split_at(end);
        self.rest = rest;
        Some(if of_signs { Run::Signs(run) } else { Run::Letters(run) })
    }
}

/// A mark over a letter is part of its word.
fn is_letter(c: char) -> bool {
    (c.is_alphanumeric() || matches!(c, '\u{300}'..='\u{36f}')) && !is_sign(c)
}

/// Han, kana, bopomofo and Hangul.
pub(crate) fn is_sign(c: char) -> bool {
    let of_these_scripts = matches!(c,
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
    of_these_scripts && c.is_alphanumeric()
}
