//! Finding the notes of a scope by words. SQLite's bm25 chooses the candidates and decides between equals; the score is a rule of
//! its own ([`Weights`]), because bm25 has no scale: it grows with the number of words, and falls to nothing where a scope has
//! two notes.

use std::collections::HashMap;

use quell_kernel::memory::{Weights, Word};
use rusqlite::{Connection, params};

/// Notes of a scope that are looked at closely, the first of bm25's order.
const CANDIDATES: usize = 200;

/// A search for words.
pub(super) struct Search<'a> {
    db: &'a Connection,
    /// Each as FTS5 spells it. In quotes nothing is a sign of its language, so that no query can be a wrong one.
    words: Vec<String>,
}

impl<'a> Search<'a> {
    pub(super) fn new(db: &'a Connection, words: &[Word]) -> Self {
        let spelled = |word: &Word| match word {
            Word::Exact(text) => format!("\"{text}\""),
            Word::Beginning(text) => format!("\"{text}\" *"),
        };
        Self { db, words: words.iter().map(spelled).collect() }
    }

    /// The best notes of a scope with their scores, best first.
    pub(super) fn best(&self, scope: i64, limit: usize) -> rusqlite::Result<Vec<(i64, f64)>> {
        if self.words.is_empty() {
            return Ok(Vec::new());
        }
        let candidates = self.candidates(scope, limit.max(CANDIDATES))?;
        let at: HashMap<i64, usize> = candidates.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        let mut has: Vec<Vec<usize>> = vec![Vec::new(); candidates.len()];
        let mut found_in = Vec::with_capacity(self.words.len());
        let mut statement = self.db.prepare_cached("SELECT rowid FROM note_words WHERE note_words MATCH ?1")?;
        for (number, word) in self.words.iter().enumerate() {
            let mut notes = 0;
            let mut rows = statement.query([within(scope, word)])?;
            while let Some(row) = rows.next()? {
                notes += 1;
                if let Some(has) = at.get(&row.get(0)?).and_then(|at| has.get_mut(*at)) {
                    has.push(number);
                }
            }
            found_in.push(notes);
        }
        let weights = Weights::of(&found_in, self.notes(scope)?);
        let scores = has.into_iter().map(|has| weights.score(has));
        let mut best: Vec<(i64, f64)> = candidates.into_iter().zip(scores).collect();
        // Stable, so that bm25's order stays among equals.
        best.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        best.truncate(limit);
        Ok(best)
    }

    fn candidates(&self, scope: i64, most: usize) -> rusqlite::Result<Vec<i64>> {
        // The column of the scope counts for nothing.
        let sql = "SELECT rowid FROM note_words WHERE note_words MATCH ?1
                   ORDER BY bm25(note_words, 0.0, 1.0), rowid DESC LIMIT ?2";
        let any = within(scope, &format!("({})", self.words.join(" OR ")));
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.db.prepare_cached(sql)?.query_map(params![any, most], |row| row.get(0))?.collect()
    }

    fn notes(&self, scope: i64) -> rusqlite::Result<u32> {
        let sql = "SELECT count(*) FROM notes WHERE scope = ?1";
        self.db.prepare_cached(sql)?.query_row([scope], |row| row.get(0))
    }
}

fn within(scope: i64, words: &str) -> String {
    format!("scope : \"{scope}\" AND words : {words}")
}
