//! Full-text search of notes: an index of words chooses the candidates, and this program scores them.

use quell_kernel::memory::{SearchWord, WordWeights};

use super::super::columns::get;
use super::super::connection::PgConnection;
use super::note_from_row;
use crate::note_words::{QueryMatch, split_words};
use crate::{FoundNote, StoreError};

/// Notes of a scope that are scored: the best ones by the rank of the server.
const CANDIDATES: usize = 200;

/// The longest indexed part of a word, in bytes; the server permits 2046.
const MAX_WORD_BYTES: usize = 1024;

/// The last place in a text that the server can tell from others (`MAXENTRYPOS`).
const MAX_PLACES: usize = 16_383;

pub(super) struct NoteSearch {
    words: Vec<SearchWord>,
    /// Each word in the syntax of `tsquery`.
    queries: Vec<String>,
}

impl NoteSearch {
    pub(super) fn new(words: Vec<SearchWord>) -> Self {
        let queries = words.iter().map(word_query).collect();
        Self { words, queries }
    }

    /// Returns the best notes of a scope with their scores, best first.
    pub(super) fn best_matches(
        &self,
        db: &PgConnection,
        scope: i64,
        limit: usize,
    ) -> Result<Vec<FoundNote>, StoreError> {
        let any: Vec<&str> = self.queries.iter().map(String::as_str).filter(|query| !query.is_empty()).collect();
        if any.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT id, key, category, text, at FROM notes WHERE scope = $1 AND words @@ $2::text::tsquery
                   ORDER BY ts_rank(words, $2::text::tsquery, 2) DESC, id DESC LIMIT $3";
        let most = i64::try_from(limit.max(CANDIDATES)).unwrap_or(i64::MAX);
        let rows = db.query(sql, &[&scope, &any.join(" | "), &most])?;
        let weights = WordWeights::new(&self.count_notes_with(db, scope)?, count_notes(db, scope)?);
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            let (id, note) = (get::<i64>(row, 0)?, note_from_row(row, 1)?);
            let matched = QueryMatch::new(&note.searchable_text(), &self.words);
            let score = weights.score(matched.words.iter().copied());
            found.push((id, matched.density, FoundNote { note, score }));
        }
        found.sort_by(|(id, density, one), (other_id, other_density, other)| {
            let by_score = other.score.total_cmp(&one.score);
            by_score.then(other_density.total_cmp(density)).then(other_id.cmp(id))
        });
        found.truncate(limit);
        Ok(found.into_iter().map(|(_, _, note)| note).collect())
    }

    /// How many notes of the scope contain each word.
    fn count_notes_with(&self, db: &PgConnection, scope: i64) -> Result<Vec<u32>, StoreError> {
        let sql = "SELECT (SELECT count(*) FROM notes WHERE scope = $1 AND words @@ query::tsquery)
                   FROM unnest($2::text[]) WITH ORDINALITY AS queries (query, number) ORDER BY number";
        db.query(sql, &[&scope, &self.queries])?.iter().map(|row| get(row, 0).map(to_u32)).collect()
    }
}

fn count_notes(db: &PgConnection, scope: i64) -> Result<u32, StoreError> {
    get(&db.query_row("SELECT count(*) FROM notes WHERE scope = $1", &[&scope])?, 0).map(to_u32)
}

fn to_u32(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The words of a text with their places, in the syntax of `tsvector`.
pub(in super::super) fn indexed_words(searchable_text: &str) -> String {
    let words = split_words(searchable_text);
    let placed = words.iter().take(MAX_PLACES).enumerate().map(|(at, word)| format!("{}:{}", quoted(word), at + 1));
    placed.collect::<Vec<_>>().join(" ")
}

/// Several words of a text for one word of the query stand one after the other: CJK characters.
fn word_query(word: &SearchWord) -> String {
    let parts = split_words(word.as_str());
    let last = parts.len().saturating_sub(1);
    let is_prefix = matches!(word, SearchWord::Prefix(_));
    let spelled = parts.iter().enumerate().map(|(at, part)| {
        let end = if is_prefix && at == last { ":*" } else { "" };
        format!("{}{end}", quoted(part))
    });
    let phrase = spelled.collect::<Vec<_>>().join(" <-> ");
    if phrase.is_empty() { phrase } else { format!("({phrase})") }
}

/// Words are letters and digits, so nothing in them has to be escaped.
fn quoted(word: &str) -> String {
    let end = word.floor_char_boundary(MAX_WORD_BYTES);
    format!("'{}'", word.get(..end).unwrap_or_default())
}
