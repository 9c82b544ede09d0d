//! Notes of a session, an agent or a sender: save, search, list, delete.
//!
//! A key is unique in its scope. The indexed words of a note are written and deleted with it, in one transaction.

mod search;
mod senders;

use std::fmt;

use quell_kernel::memory::{self, parse_query_words};
use quell_protocol::{AgentId, SessionKey};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::cursor::{PagedList, limit_plus_one};
use super::{Store, StoreError};
use search::NoteSearch;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NoteScope {
    /// A session; deleted with its history.
    Session(SessionKey),
    /// An agent, in all its sessions.
    Agent(AgentId),
    /// A sender in a channel: `CHANNEL:SENDER`.
    Sender(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Unique in the scope: saving it again replaces the note.
    pub key: String,
    /// Free text, such as `core` or `conversation`.
    pub category: String,
    pub text: String,
    /// RFC 3339.
    pub at: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FoundNote {
    pub note: Note,
    /// Relevance from 0 to 1, see [`quell_kernel::memory::WordWeights`].
    pub score: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveNoteOutcome {
    New,
    /// The note replaced the one with the same key.
    Replaced,
    /// The session does not exist, or does not any more; nothing was written.
    NoSession,
    /// The note was cancelled while the write was queued.
    Cancelled,
}

impl NoteScope {
    fn kind(&self) -> &'static str {
        match self {
            Self::Session(_) => "session",
            Self::Agent(_) => "agent",
            Self::Sender(_) => "sender",
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Session(key) => key.as_str(),
            Self::Agent(agent) => agent.as_str(),
            Self::Sender(sender) => sender,
        }
    }
}

impl fmt::Display for NoteScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind(), self.name())
    }
}

impl Store {
    /// Saves a note. Replaces the note with the same key.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn save_note(&self, scope: NoteScope, note: Note) -> Result<SaveNoteOutcome, StoreError> {
        self.write(move |db| insert_note(db, &scope, &note)).await
    }

    /// As [`Store::save_note`], but skips the write if `wanted` is false when the write runs. A caller that cancels a
    /// note and then deletes its scope can so be sure that no queued write brings it back.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn save_note_if(
        &self,
        (scope, note): (NoteScope, Note),
        wanted: impl Fn(&NoteScope) -> bool + Send + 'static,
    ) -> Result<SaveNoteOutcome, StoreError> {
        self.write(
            move |db| if wanted(&scope) { insert_note(db, &scope, &note) } else { Ok(SaveNoteOutcome::Cancelled) },
        )
        .await
    }

    /// Finds the notes of each scope that contain words of the query, at most `limit` for each scope, the most
    /// relevant first.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn search_notes(
        &self,
        scopes: Vec<NoteScope>,
        query: &str,
        limit: usize,
    ) -> Result<Vec<Vec<FoundNote>>, StoreError> {
        let words = parse_query_words(query);
        self.read(move |db| {
            let search = NoteSearch::new(db, &words);
            scopes.iter().map(|scope| search_scope(db, &search, scope, limit)).collect()
        })
        .await
    }

    /// Lists the notes of a scope, last saved first, and the cursor of the next page.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn note_page(
        &self,
        scope: NoteScope,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<(Vec<Note>, Option<String>), StoreError> {
        let before = PagedList::Notes.parse_cursor(cursor.as_deref())?;
        let rows = self.read(move |db| query_notes(db, &scope, before, limit)).await?;
        Ok(PagedList::Notes.split_page(rows, limit))
    }

    /// Deletes a note. False when there is none with this key.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn forget_note(&self, scope: NoteScope, key: String) -> Result<bool, StoreError> {
        self.write(move |db| match find_scope_id(db, &scope)? {
            Some(scope) => {
                let forgotten = delete_note(db, scope, &key)?;
                senders::delete_unused_sender(db, scope)?;
                Ok(forgotten)
            }
            None => Ok(false),
        })
        .await
    }
}

/// Lists all notes of a scope in the order in which they were saved, so that an import can save them in the same order.
pub(super) fn query_all_notes(db: &Connection, scope: &NoteScope) -> rusqlite::Result<Vec<Note>> {
    let Some(scope) = find_scope_id(db, scope)? else { return Ok(Vec::new()) };
    let sql = "SELECT key, category, text, at FROM notes WHERE scope = ?1 ORDER BY id";
    db.prepare_cached(sql)?.query_map([scope], note_from_row)?.collect()
}

/// Writes a note as part of a transaction. Replaces the note with the same key.
pub(super) fn insert_note(db: &Connection, scope: &NoteScope, note: &Note) -> rusqlite::Result<SaveNoteOutcome> {
    let Some(scope) = find_or_create_scope_id(db, scope)? else { return Ok(SaveNoteOutcome::NoSession) };
    let replaced = delete_note(db, scope, &note.key)?;
    db.prepare_cached("INSERT INTO notes (scope, key, category, text, at) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![scope, note.key, note.category, note.text, note.at])?;
    let id = db.last_insert_rowid();
    db.prepare_cached("INSERT INTO note_words (rowid, scope, words) VALUES (?1, ?2, ?3)")?.execute(params![
        id,
        scope.to_string(),
        memory::space_cjk_signs(&indexed_text(note))
    ])?;
    Ok(if replaced { SaveNoteOutcome::Replaced } else { SaveNoteOutcome::New })
}

pub(super) fn delete_notes(db: &Connection, scope: &NoteScope) -> rusqlite::Result<()> {
    if let Some(scope) = find_scope_id(db, scope)? {
        db.prepare_cached("DELETE FROM notes WHERE scope = ?1")?.execute([scope])?;
    }
    Ok(())
}

/// The text that a search looks in. The key of a saved message consists of ids and is left out: it is no part of the
/// text.
fn indexed_text(note: &Note) -> String {
    if note.category == memory::CATEGORY_CONVERSATION {
        note.text.clone()
    } else {
        format!("{}\n{}", note.key, note.text)
    }
}

fn delete_note(db: &Connection, scope: i64, key: &str) -> rusqlite::Result<bool> {
    // A trigger deletes its words.
    let deleted = db.prepare_cached("DELETE FROM notes WHERE scope = ?1 AND key = ?2")?.execute(params![scope, key])?;
    Ok(deleted > 0)
}

/// Returns the row id of a scope that has had notes.
fn find_scope_id(db: &Connection, scope: &NoteScope) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT id FROM note_scopes WHERE kind = ?1 AND name = ?2";
    db.prepare_cached(sql)?.query_row(params![scope.kind(), scope.name()], |row| row.get(0)).optional()
}

/// Returns the row id of a scope; `None` for a session that does not exist.
fn find_or_create_scope_id(db: &Connection, scope: &NoteScope) -> rusqlite::Result<Option<i64>> {
    if let Some(number) = find_scope_id(db, scope)? {
        return Ok(Some(number));
    }
    let made = match scope {
        NoteScope::Session(key) => db
            .prepare_cached(
                "INSERT INTO note_scopes (kind, name, session) SELECT 'session', key, key FROM sessions WHERE key = ?1",
            )?
            .execute([key.as_str()])?,
        NoteScope::Agent(_) | NoteScope::Sender(_) => db
            .prepare_cached("INSERT INTO note_scopes (kind, name) VALUES (?1, ?2)")?
            .execute(params![scope.kind(), scope.name()])?,
    };
    Ok((made > 0).then(|| db.last_insert_rowid()))
}

fn query_notes(db: &Connection, scope: &NoteScope, before: i64, limit: usize) -> rusqlite::Result<Vec<(i64, Note)>> {
    let Some(scope) = find_scope_id(db, scope)? else { return Ok(Vec::new()) };
    let sql = "SELECT key, category, text, at, id FROM notes WHERE scope = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement
        .query_map(params![scope, before, limit_plus_one(limit)], |row| Ok((row.get(4)?, note_from_row(row)?)))?;
    rows.collect()
}

fn search_scope(
    db: &Connection,
    search: &NoteSearch<'_>,
    scope: &NoteScope,
    limit: usize,
) -> rusqlite::Result<Vec<FoundNote>> {
    let Some(scope) = find_scope_id(db, scope)? else { return Ok(Vec::new()) };
    let mut note = db.prepare_cached("SELECT key, category, text, at FROM notes WHERE id = ?1")?;
    let best = search.best_matches(scope, limit)?;
    best.into_iter().map(|(id, score)| Ok(FoundNote { note: note.query_row([id], note_from_row)?, score })).collect()
}

fn note_from_row(row: &Row<'_>) -> rusqlite::Result<Note> {
    Ok(Note { key: row.get(0)?, category: row.get(1)?, text: row.get(2)?, at: row.get(3)? })
}
