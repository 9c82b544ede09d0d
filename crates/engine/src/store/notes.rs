//! Notes: what is remembered of a session, of an agent, of a sender. A key stands once in its scope, and the words of a note
//! come and go with it in one transaction.

mod search;
mod senders;

use std::fmt;

use quell_kernel::memory::{self, words};
use quell_protocol::{AgentId, SessionKey};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::cursor::{Listing, ask_for};
use super::{Store, StoreError};
use search::Search;

/// What a note is remembered of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NoteScope {
    /// A session: gone with its history.
    Session(SessionKey),
    /// An agent, in all its sessions.
    Agent(AgentId),
    /// Whoever writes under this name in a channel: `CHANNEL:SENDER`.
    Sender(String),
}

/// A note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Its key; remembering it again replaces the note.
    pub key: String,
    /// A free word, such as `core` or `conversation`.
    pub category: String,
    /// What is remembered.
    pub text: String,
    /// RFC 3339: when.
    pub at: String,
}

/// A note that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundNote {
    /// The note.
    pub note: Note,
    /// Its relevance, from 0 to 1, as [`quell_kernel::memory::Weights`] says.
    pub score: f64,
}

/// What came of remembering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remembered {
    /// It is a new note.
    New,
    /// It stands in place of the one that had its key.
    Replaced,
    /// There is no such session, or no more; nothing was written.
    NoSession,
    /// It was forgotten before it was written.
    Unwanted,
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
    /// Remembers a note, in place of the one that has its key.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says: handed over, the note is written whether or not the caller waits.
    pub async fn remember(&self, scope: NoteScope, note: Note) -> Result<Remembered, StoreError> {
        self.write(move |db| insert_note(db, &scope, &note)).await
    }

    /// As [`Store::remember`], if the note is still wanted when its turn has come among all that is written: whoever unwishes it
    /// and then has the scope cleared finds it neither before nor after.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe: once asked for, the note is written whether or not the caller waits.
    pub async fn remember_if(
        &self,
        (scope, note): (NoteScope, Note),
        wanted: impl Fn(&NoteScope) -> bool + Send + 'static,
    ) -> Result<Remembered, StoreError> {
        self.write(move |db| if wanted(&scope) { insert_note(db, &scope, &note) } else { Ok(Remembered::Unwanted) })
            .await
    }

    /// The notes of each scope that have words of the query, at most `limit` of each, the most relevant first.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn search_notes(
        &self,
        scopes: Vec<NoteScope>,
        query: &str,
        limit: usize,
    ) -> Result<Vec<Vec<FoundNote>>, StoreError> {
        let words = words(query);
        self.read(move |db| {
            let search = Search::new(db, &words);
            scopes.iter().map(|scope| found_in(db, &search, scope, limit)).collect()
        })
        .await
    }

    /// The notes of a scope, the one remembered last first, and the cursor of the next page.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read, or the cursor is not one.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn note_page(
        &self,
        scope: NoteScope,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<(Vec<Note>, Option<String>), StoreError> {
        let before = Listing::Notes.before(cursor.as_deref())?;
        let rows = self.read(move |db| newest(db, &scope, before, limit)).await?;
        Ok(Listing::Notes.page(rows, limit))
    }

    /// Forgets a note. False when there is none with that key.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn forget_note(&self, scope: NoteScope, key: String) -> Result<bool, StoreError> {
        self.write(move |db| match number(db, &scope)? {
            Some(scope) => {
                let forgotten = remove(db, scope, &key)?;
                senders::forget_name(db, scope)?;
                Ok(forgotten)
            }
            None => Ok(false),
        })
        .await
    }
}

/// All notes of a scope in the order in which they were remembered: inserted in that order elsewhere, they stand there as here.
pub(super) fn notes_of(db: &Connection, scope: &NoteScope) -> rusqlite::Result<Vec<Note>> {
    let Some(scope) = number(db, scope)? else { return Ok(Vec::new()) };
    let sql = "SELECT key, category, text, at FROM notes WHERE scope = ?1 ORDER BY id";
    db.prepare_cached(sql)?.query_map([scope], note_row)?.collect()
}

/// Writes a note into a transaction, in place of the one that has its key.
pub(super) fn insert_note(db: &Connection, scope: &NoteScope, note: &Note) -> rusqlite::Result<Remembered> {
    let Some(scope) = number_or_new(db, scope)? else { return Ok(Remembered::NoSession) };
    let replaced = remove(db, scope, &note.key)?;
    db.prepare_cached("INSERT INTO notes (scope, key, category, text, at) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![scope, note.key, note.category, note.text, note.at])?;
    let id = db.last_insert_rowid();
    db.prepare_cached("INSERT INTO note_words (rowid, scope, words) VALUES (?1, ?2, ?3)")?.execute(params![
        id,
        scope.to_string(),
        memory::searchable(&words_of(note))
    ])?;
    Ok(if replaced { Remembered::Replaced } else { Remembered::New })
}

/// Forgets all notes of a scope.
pub(super) fn clear(db: &Connection, scope: &NoteScope) -> rusqlite::Result<()> {
    if let Some(scope) = number(db, scope)? {
        db.prepare_cached("DELETE FROM notes WHERE scope = ?1")?.execute([scope])?;
    }
    Ok(())
}

/// What a note is found by. The key of a saved message is made of ids, and who wrote it is no word of what it says.
fn words_of(note: &Note) -> String {
    if note.category == memory::CONVERSATION { note.text.clone() } else { format!("{}\n{}", note.key, note.text) }
}

fn remove(db: &Connection, scope: i64, key: &str) -> rusqlite::Result<bool> {
    // Its words go by the trigger.
    let deleted = db.prepare_cached("DELETE FROM notes WHERE scope = ?1 AND key = ?2")?.execute(params![scope, key])?;
    Ok(deleted > 0)
}

/// The number of a scope that has had notes.
fn number(db: &Connection, scope: &NoteScope) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT id FROM note_scopes WHERE kind = ?1 AND name = ?2";
    db.prepare_cached(sql)?.query_row(params![scope.kind(), scope.name()], |row| row.get(0)).optional()
}

/// The number of a scope; none for a session that is not there.
fn number_or_new(db: &Connection, scope: &NoteScope) -> rusqlite::Result<Option<i64>> {
    if let Some(number) = number(db, scope)? {
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

fn newest(db: &Connection, scope: &NoteScope, before: i64, limit: usize) -> rusqlite::Result<Vec<(i64, Note)>> {
    let Some(scope) = number(db, scope)? else { return Ok(Vec::new()) };
    let sql = "SELECT key, category, text, at, id FROM notes WHERE scope = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![scope, before, ask_for(limit)], |row| Ok((row.get(4)?, note_row(row)?)))?;
    rows.collect()
}

fn found_in(db: &Connection, search: &Search<'_>, scope: &NoteScope, limit: usize) -> rusqlite::Result<Vec<FoundNote>> {
    let Some(scope) = number(db, scope)? else { return Ok(Vec::new()) };
    let mut note = db.prepare_cached("SELECT key, category, text, at FROM notes WHERE id = ?1")?;
    let best = search.best(scope, limit)?;
    best.into_iter().map(|(id, score)| Ok(FoundNote { note: note.query_row([id], note_row)?, score })).collect()
}

fn note_row(row: &Row<'_>) -> rusqlite::Result<Note> {
    Ok(Note { key: row.get(0)?, category: row.get(1)?, text: row.get(2)?, at: row.get(3)? })
}
