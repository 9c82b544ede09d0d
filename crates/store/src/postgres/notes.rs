//! Notes: save, search, list, delete.
//!
//! A key is unique in its scope. The words of a note are a column of its row, so that they are written and deleted with
//! it. They are split by this program, so that the rules do not depend on the server's dictionaries.

mod search;
mod senders;

use quell_kernel::memory::parse_query_words;
use quell_protocol::memory::SenderRow;
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{Text, get, text};
use super::connection::PgConnection;
use crate::cursor::{PagedList, limit_plus_one};
use crate::{
    FoundNote, Note, NoteScope, NoteStore, NoteWriteCheck, SaveNoteOutcome, StoreError, StoreFuture, StorePage,
};
use search::NoteSearch;
pub(super) use search::indexed_words;

impl NoteStore for PostgresStore {
    fn save(&self, scope: NoteScope, note: Note) -> StoreFuture<'_, SaveNoteOutcome> {
        self.write(move |db| insert_note(db, &scope, &note))
    }

    fn save_if(&self, scope: NoteScope, note: Note, wanted: NoteWriteCheck) -> StoreFuture<'_, SaveNoteOutcome> {
        self.write(
            move |db| if wanted(&scope) { insert_note(db, &scope, &note) } else { Ok(SaveNoteOutcome::Cancelled) },
        )
    }

    fn search(&self, scopes: Vec<NoteScope>, query: &str, limit: usize) -> StoreFuture<'_, Vec<Vec<FoundNote>>> {
        let search = NoteSearch::new(parse_query_words(query));
        self.read_snapshot(move |db| {
            let found = |scope| match find_scope_id(db, scope)? {
                Some(scope) => search.best_matches(db, scope, limit),
                None => Ok(Vec::new()),
            };
            scopes.iter().map(found).collect()
        })
    }

    fn list(&self, scope: NoteScope, limit: usize, cursor: Option<String>) -> StoreFuture<'_, StorePage<Note>> {
        Box::pin(async move {
            let before = PagedList::Notes.parse_cursor(cursor.as_deref())?;
            let rows = self.read_snapshot(move |db| query_notes(db, &scope, before, limit)).await?;
            Ok(PagedList::Notes.split_page(rows, limit))
        })
    }

    fn forget(&self, scope: NoteScope, key: String) -> StoreFuture<'_, bool> {
        self.write(move |db| match find_scope_id(db, &scope)? {
            Some(scope) => {
                let forgotten = delete_note(db, scope, &key)?;
                senders::delete_unused_sender(db, scope)?;
                Ok(forgotten)
            }
            None => Ok(false),
        })
    }

    fn list_senders(&self, limit: usize, cursor: Option<String>) -> StoreFuture<'_, StorePage<SenderRow>> {
        Box::pin(async move {
            let before = PagedList::Senders.parse_cursor(cursor.as_deref())?;
            let rows = self.read(move |db| senders::query_senders(db, before, limit)).await?;
            Ok(PagedList::Senders.split_page(rows, limit))
        })
    }

    fn forget_sender(&self, sender: String) -> StoreFuture<'_, u64> {
        let sender = NoteScope::Sender(sender);
        self.write(move |db| {
            let Some(scope) = find_scope_id(db, &sender)? else { return Ok(0) };
            senders::delete_sender(db, scope)
        })
    }
}

/// Lists all notes of a scope in the order in which they were saved, so that an import can save them in the same order.
pub(super) fn query_all_notes(db: &PgConnection, scope: &NoteScope) -> Result<Vec<Note>, StoreError> {
    let Some(scope) = find_scope_id(db, scope)? else { return Ok(Vec::new()) };
    let sql = "SELECT key, category, text, at FROM notes WHERE scope = $1 ORDER BY id";
    db.query(sql, &[&scope])?.iter().map(|row| note_from_row(row, 0)).collect()
}

/// Writes a note as part of a transaction. Replaces the note with the same key.
pub(super) fn insert_note(db: &PgConnection, scope: &NoteScope, note: &Note) -> Result<SaveNoteOutcome, StoreError> {
    let Some(scope) = find_or_create_scope_id(db, scope)? else { return Ok(SaveNoteOutcome::NoSession) };
    // Deleted and not changed: a note that is saved again is the newest.
    let replaced = delete_note(db, scope, &note.key)?;
    let sql =
        "INSERT INTO notes (scope, key, category, text, at, words) VALUES ($1, $2, $3, $4, $5, $6::text::tsvector)";
    let words = indexed_words(&note.searchable_text());
    db.execute(sql, &[&scope, &Text(&note.key), &Text(&note.category), &Text(&note.text), &note.at, &words])?;
    Ok(if replaced { SaveNoteOutcome::Replaced } else { SaveNoteOutcome::New })
}

pub(super) fn delete_notes(db: &PgConnection, scope: &NoteScope) -> Result<(), StoreError> {
    match find_scope_id(db, scope)? {
        Some(scope) => db.execute("DELETE FROM notes WHERE scope = $1", &[&scope]).map(drop),
        None => Ok(()),
    }
}

fn delete_note(db: &PgConnection, scope: i64, key: &str) -> Result<bool, StoreError> {
    Ok(db.execute("DELETE FROM notes WHERE scope = $1 AND key = $2", &[&scope, &Text(key)])? > 0)
}

/// Returns the row id of a scope that has had notes.
fn find_scope_id(db: &PgConnection, scope: &NoteScope) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT id FROM note_scopes WHERE kind = $1 AND name = $2";
    db.query_optional(sql, &[&scope.kind(), &Text(scope.name())])?.map(|row| get(&row, 0)).transpose()
}

/// Returns the row id of a scope; `None` for a session that does not exist.
fn find_or_create_scope_id(db: &PgConnection, scope: &NoteScope) -> Result<Option<i64>, StoreError> {
    if let Some(number) = find_scope_id(db, scope)? {
        return Ok(Some(number));
    }
    let made = match scope {
        NoteScope::Session(key) => db.query_optional(
            "INSERT INTO note_scopes (kind, name, session) SELECT 'session', key, key FROM sessions WHERE key = $1
             RETURNING id",
            &[&key.as_str()],
        ),
        NoteScope::Agent(_) | NoteScope::Sender(_) => db.query_optional(
            "INSERT INTO note_scopes (kind, name) VALUES ($1, $2) RETURNING id",
            &[&scope.kind(), &Text(scope.name())],
        ),
    };
    made?.map(|row| get(&row, 0)).transpose()
}

fn query_notes(
    db: &PgConnection,
    scope: &NoteScope,
    before: i64,
    limit: usize,
) -> Result<Vec<(i64, Note)>, StoreError> {
    let Some(scope) = find_scope_id(db, scope)? else { return Ok(Vec::new()) };
    let sql = "SELECT id, key, category, text, at FROM notes WHERE scope = $1 AND id < $2 ORDER BY id DESC LIMIT $3";
    let rows = db.query(sql, &[&scope, &before, &limit_plus_one(limit)])?;
    rows.iter().map(|row| Ok((get(row, 0)?, note_from_row(row, 1)?))).collect()
}

/// Four columns, the first at `at`.
fn note_from_row(row: &Row, at: usize) -> Result<Note, StoreError> {
    Ok(Note { key: text(row, at)?, category: text(row, at + 1)?, text: text(row, at + 2)?, at: get(row, at + 3)? })
}
