//! Notes that are remembered and recalled: how they are searched, how relevant one is, which of them a model is shown and how
//! that reads (row D8). It knows no database.

pub mod consolidation;
#[cfg(test)]
mod tests;
mod words;

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use crate::channel::keys::escaped;
pub(crate) use words::is_sign;
pub use words::{MOST_WORDS, Word, searchable, words};

/// Notes in one prompt at the most.
pub const MOST_SHOWN: usize = 4;

/// Characters of a note that is put into a prompt unasked.
pub const LONGEST_SHOWN: usize = 4000;

/// The category of messages that were saved by themselves.
pub const CONVERSATION: &str = "conversation";

/// The category of what was remembered on purpose.
pub const CORE: &str = "core";

/// Stands above the notes in a prompt.
const HEADING: &str = "[Memory context]";

/// What no prompt shows unasked: pictures are no text, and results of tools belong to their calls.
const MARKS: [&str; 2] = ["[IMAGE:", "<tool_result"];

/// Keys under which whole conversations are kept end so.
const HISTORY: &str = "_history";

/// Notes that a word is thought to be missing from, besides those that there are: among three notes no word is a common one.
const FURTHER_NOTES: f64 = 8.0;

/// The words of one query, and what each is worth among the notes of one scope.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights(Vec<f64>);

impl Weights {
    /// Of words that stand in so many of `notes` notes.
    ///
    /// A word is worth its inverse document frequency as bm25 has it, in the form that is never negative: the rarer, the more. A
    /// word that no note has is worth as much as one that half of them have: it says that the query is about something else too,
    /// but not how much.
    #[must_use]
    pub fn of(found_in: &[u32], notes: u32) -> Self {
        let all = f64::from(notes) + FURTHER_NOTES;
        let worth = |found_in: &u32| match *found_in {
            0 => std::f64::consts::LN_2,
            found_in => {
                let found_in = f64::from(found_in);
                ((all - found_in).max(0.0) + 0.5).mul_add((found_in + 0.5).recip(), 1.0).ln()
            }
        };
        Self(found_in.iter().map(worth).collect())
    }

    /// How relevant a note is that has these of the words, by their number: their share in the worth of all words, from 0 (none
    /// of them) to 1 (all). So a score means the same for every query, long or short, and among few notes or many.
    #[must_use]
    pub fn score(&self, has: impl IntoIterator<Item = usize>) -> f64 {
        let total: f64 = self.0.iter().sum();
        let has: HashSet<usize> = has.into_iter().collect();
        let found: f64 = self.0.iter().enumerate().filter(|(word, _)| has.contains(word)).map(|(_, worth)| worth).sum();
        if total > 0.0 { (found / total).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// A note that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Recalled {
    /// Its key.
    pub key: String,
    /// Its text.
    pub text: String,
    /// Its relevance.
    pub score: f64,
}

/// Which notes a prompt shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Showing<'a> {
    /// The least relevance.
    pub least_score: f64,
    /// Notes of each scope that are looked at, best first.
    pub of_each_scope: usize,
    /// The key of the message that is being answered, if that was saved: it is no memory yet.
    pub answered: &'a str,
}

/// The notes that a prompt shows of those that were found in each scope, the most relevant first. Where two have the same key or
/// the same text, that of the earlier scope stands for both.
#[must_use]
pub fn shown<'n>(scopes: &'n [Vec<Recalled>], showing: &Showing<'_>) -> Vec<&'n Recalled> {
    let (mut keys, mut texts) = (HashSet::new(), HashSet::new());
    let others = |found: &&Recalled| found.key != showing.answered;
    let looked_at = scopes.iter().flat_map(|found| found.iter().filter(others).take(showing.of_each_scope));
    let fits = |found: &&Recalled| found.score >= showing.least_score && !found.key.ends_with(HISTORY);
    let mut shown: Vec<&Recalled> = looked_at
        .filter(fits)
        .filter(|found| may_be_shown(&found.text))
        .filter(|found| {
            let new = !keys.contains(found.key.as_str()) && !texts.contains(found.text.as_str());
            new && keys.insert(found.key.as_str()) && texts.insert(found.text.as_str())
        })
        .collect();
    shown.sort_by(|one, other| other.score.total_cmp(&one.score));
    shown.truncate(MOST_SHOWN);
    shown
}

/// Whether a text may stand in a prompt unasked. A message that may not is not saved by itself either.
#[must_use]
pub fn may_be_shown(text: &str) -> bool {
    !text.trim().is_empty()
        && !MARKS.iter().any(|mark| text.contains(mark))
        && text.chars().nth(LONGEST_SHOWN).is_none()
}

/// The notes as they stand before a message; none when there is nothing to show.
#[must_use]
pub fn block(shown: &[&Recalled]) -> Option<String> {
    if shown.is_empty() {
        return None;
    }
    let mut block = HEADING.to_owned();
    for note in shown {
        // A note has one line, whatever it says, so that none can pass for another.
        block.push_str(&format!("\n- {}: {}", one_line(&note.key), one_line(&note.text)));
    }
    Some(block)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A message whose text is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The channel or door through which it came.
    pub channel: &'a str,
    /// The thread in which it stands, where the channel has any.
    pub thread: Option<&'a str>,
    /// Who sent it.
    pub sender: &'a str,
    /// Its id.
    pub id: &'a str,
}

impl Message<'_> {
    /// Its key: `{channel}_{sender}_{id}`, in a thread `{channel}_{thread}_{sender}_{id}`. `_` and `%` inside a part are
    /// percent-escaped, so that no two messages share one.
    #[must_use]
    pub fn key(&self) -> String {
        let parts = [Some(self.channel), self.thread, Some(self.sender), Some(self.id)];
        parts.into_iter().flatten().map(escaped).collect::<Vec<_>>().join("_")
    }
}

/// A key for a text that was remembered without one: its first words, and a mark by which the same text is the same note and
/// another one is not.
#[must_use]
pub fn key_of(text: &str) -> String {
    const WORDS: usize = 5;
    const LETTERS: usize = 40;
    let split = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let words = split.take(WORDS).map(str::to_lowercase).collect::<Vec<_>>().join("-");
    let words: String = words.chars().take(LETTERS).collect();
    let mark: String = Sha256::digest(text.as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let words = words.trim_end_matches('-');
    if words.is_empty() { mark } else { format!("{words}-{mark}") }
}
