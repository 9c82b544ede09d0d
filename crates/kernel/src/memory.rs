//! Scores, selects and formats remembered notes for a prompt (docs/design/requirements.md, D8). The module does not
//! access the database.

pub mod consolidation;
mod search_words;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use crate::channel::session_keys::escape_key_part;
pub(crate) use search_words::is_cjk;
pub use search_words::{MAX_QUERY_WORDS, SearchWord, parse_query_words, space_cjk_signs};

pub const MAX_SHOWN_NOTES: usize = 4;

/// Maximum length in characters of a note that recall puts into a prompt.
pub const MAX_SHOWN_CHARS: usize = 4000;

/// Category of messages that were saved automatically.
pub const CATEGORY_CONVERSATION: &str = "conversation";

/// Category of notes that were stored on purpose.
pub const CATEGORY_CORE: &str = "core";

const HEADING: &str = "[Memory context]";

/// Texts with these markers are not recalled: images are not text, and results of tools belong to their calls.
const EXCLUDED_MARKERS: [&str; 2] = ["[IMAGE:", "<tool_result"];

/// End of keys under which whole conversations are stored.
const HISTORY_KEY_SUFFIX: &str = "_history";

/// Number of imaginary notes without the word that are added to the count, so that no word counts as common among three
/// notes.
const SMOOTHING_NOTES: f64 = 8.0;

/// Weight of each word of a query among the notes of one scope.
#[derive(Debug, Clone, PartialEq)]
pub struct WordWeights(Vec<f64>);

impl WordWeights {
    /// Computes the weights from the number of notes that contain each word, and the number of all notes.
    ///
    /// The weight is the inverse document frequency of BM25, in the form that is never negative: the rarer the word,
    /// the higher the weight. A word that no note contains weighs as much as one that half of the notes contain: it
    /// shows that the query is about something else, too, but not how much.
    pub fn new(found_in: &[u32], notes: u32) -> Self {
        let all = f64::from(notes) + SMOOTHING_NOTES;
        let weight = |found_in: &u32| match *found_in {
            0 => std::f64::consts::LN_2,
            found_in => {
                let found_in = f64::from(found_in);
                ((all - found_in).max(0.0) + 0.5).mul_add((found_in + 0.5).recip(), 1.0).ln()
            }
        };
        Self(found_in.iter().map(weight).collect())
    }

    /// Relevance of a note that contains these words of the query, given by index: their share of the weight of all
    /// words, from 0 (none) to 1 (all). So scores are comparable between short and long queries, and between few and
    /// many notes.
    pub fn score(&self, has: impl IntoIterator<Item = usize>) -> f64 {
        let total: f64 = self.0.iter().sum();
        let has: HashSet<usize> = has.into_iter().collect();
        let found: f64 =
            self.0.iter().enumerate().filter(|(word, _)| has.contains(word)).map(|(_, weight)| weight).sum();
        if total > 0.0 { (found / total).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// A note that was found by a search.
#[derive(Debug, Clone, PartialEq)]
pub struct RecalledNote {
    pub key: String,
    pub text: String,
    /// Relevance, from 0 to 1.
    pub score: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecallLimits<'a> {
    pub min_score: f64,
    /// Number of notes of each scope that are considered, best first.
    pub max_per_scope: usize,
    /// Key of the message that is being answered, if it was saved: it is not a memory yet.
    pub answered_key: &'a str,
}

/// Selects the notes for a prompt from those found in each scope, the most relevant first. Of two notes with the same
/// key or the same text only the one of the earlier scope is selected.
pub fn select_notes<'n>(scopes: &'n [Vec<RecalledNote>], limits: &RecallLimits<'_>) -> Vec<&'n RecalledNote> {
    let (mut keys, mut texts) = (HashSet::new(), HashSet::new());
    let is_other = |found: &&RecalledNote| found.key != limits.answered_key;
    let considered = scopes.iter().flat_map(|found| found.iter().filter(is_other).take(limits.max_per_scope));
    let fits = |found: &&RecalledNote| found.score >= limits.min_score && !found.key.ends_with(HISTORY_KEY_SUFFIX);
    let mut shown: Vec<&RecalledNote> = considered
        .filter(fits)
        .filter(|found| is_promptable(&found.text))
        .filter(|found| {
            let new = !keys.contains(found.key.as_str()) && !texts.contains(found.text.as_str());
            new && keys.insert(found.key.as_str()) && texts.insert(found.text.as_str())
        })
        .collect();
    shown.sort_by(|one, other| other.score.total_cmp(&one.score));
    shown.truncate(MAX_SHOWN_NOTES);
    shown
}

/// True if recall may put this text into a prompt. Other messages are not saved automatically either.
pub fn is_promptable(text: &str) -> bool {
    !text.trim().is_empty()
        && !EXCLUDED_MARKERS.iter().any(|marker| text.contains(marker))
        && text.chars().nth(MAX_SHOWN_CHARS).is_none()
}

/// Formats the notes as the block before a message; none if there are no notes.
pub fn format_notes(shown: &[&RecalledNote]) -> Option<String> {
    if shown.is_empty() {
        return None;
    }
    let mut block = HEADING.to_owned();
    for note in shown {
        // Each note has one line, whatever its text, so that its text cannot pass for another note.
        block.push_str(&format!("\n- {}: {}", one_line(&note.key), one_line(&note.text)));
    }
    Some(block)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A user's message whose text is saved as a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedMessage<'a> {
    /// The name of the channel or surface.
    pub channel: &'a str,
    /// The thread of the message, if the channel has threads.
    pub thread: Option<&'a str>,
    pub sender: &'a str,
    pub id: &'a str,
}

impl SavedMessage<'_> {
    /// The key of the note: `{channel}_{sender}_{id}`, in a thread `{channel}_{thread}_{sender}_{id}`. `_` and `%`
    /// inside a part are percent-escaped, so that different messages have different keys.
    pub fn key(&self) -> String {
        let parts = [Some(self.channel), self.thread, Some(self.sender), Some(self.id)];
        parts.into_iter().flatten().map(escape_key_part).collect::<Vec<_>>().join("_")
    }
}

/// Makes a key for a text that was stored without one: its first words and a hash. The same text has the same key, and
/// another text has another key.
pub fn generate_note_key(text: &str) -> String {
    const WORDS: usize = 5;
    const LETTERS: usize = 40;
    let split = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let words = split.take(WORDS).map(str::to_lowercase).collect::<Vec<_>>().join("-");
    let words: String = words.chars().take(LETTERS).collect();
    let hash: String = Sha256::digest(text.as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let words = words.trim_end_matches('-');
    if words.is_empty() { hash } else { format!("{words}-{hash}") }
}
