//! Full-text search of notes: FTS5's bm25 chooses the candidates and orders equal scores.
//!
//! The score itself comes from [`WordWeights`], because bm25 has no fixed scale: it grows with the number of words,
//! and is close to zero in a scope with two notes.

use std::collections::HashMap;

use quell_kernel::memory::{SearchWord, WordWeights};
use rusqlite::{Connection, params};

/// Notes of a scope that are scored: the best ones by bm25.
const CANDIDATES: usize = 200;

pub(super) struct NoteSearch<'a> {
    db: &'a Connection,
    /// Each word in the syntax of FTS5. Inside quotes nothing is an operator, so no query can have a syntax error.
    words: Vec<String>,
}

impl<'a> NoteSearch<'a> {
    pub(super) fn new(db: &'a Connection, words: &[SearchWord]) -> Self {
        let spelled = |word: &SearchWord| match word {
            SearchWord::Exact(text) => format!("\"{text}\""),
            SearchWord::Prefix(text) => format!("\"{text}\" *"),
        };
        Self { db, words: words.iter().map(spelled).collect() }
    }

    /// Returns the best notes of a scope with their scores, best first.
    pub(super) fn best_matches(&self, scope: i64, limit: usize) -> rusqlite::Result<Vec<(i64, f64)>> {
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
            let mut rows = statement.query([scoped_query(scope, word)])?;
            while let Some(row) = rows.next()? {
                notes += 1;
                if let Some(has) = at.get(&row.get(0)?).and_then(|at| has.get_mut(*at)) {
                    has.push(number);
                }
            }
            found_in.push(notes);
        }
        let weights = WordWeights::new(&found_in, self.count_notes(scope)?);
        let scores = has.into_iter().map(|has| weights.score(has));
        let mut best: Vec<(i64, f64)> = candidates.into_iter().zip(scores).collect();
        // The sort is stable, so that notes with equal scores keep bm25's order.
        best.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        best.truncate(limit);
        Ok(best)
    }

    fn candidates(&self, scope: i64, limit: usize) -> rusqlite::Result<Vec<i64>> {
        // The scope column has weight 0.
        let sql = "SELECT rowid FROM note_words WHERE note_words MATCH ?1
                   ORDER BY bm25(note_words, 0.0, 1.0), rowid DESC LIMIT ?2";
        let any = scoped_query(scope, &format!("({})", self.words.join(" OR ")));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.db.prepare_cached(sql)?.query_map(params![any, limit], |row| row.get(0))?.collect()
    }

    fn count_notes(&self, scope: i64) -> rusqlite::Result<u32> {
        let sql = "SELECT count(*) FROM notes WHERE scope = ?1";
        self.db.prepare_cached(sql)?.query_row([scope], |row| row.get(0))
    }
}

fn scoped_query(scope: i64, words: &str) -> String {
    format!("scope : \"{scope}\" AND words : {words}")
}
