//! Notes: save, search, list, delete.
//!
//! A key is unique in its scope. The indexed words of a note are written and deleted with it, in one transaction.

mod search;
mod senders;

use quell_kernel::memory::{parse_query_words, space_cjk_signs};
use quell_protocol::memory::SenderRow;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::SqliteStore;
use crate::cursor::{PagedList, limit_plus_one};
use crate::{FoundNote, Note, NoteScope, NoteStore, NoteWriteCheck, SaveNoteOutcome, StoreFuture, StorePage};
use search::NoteSearch;

impl NoteStore for SqliteStore {
    fn save(&self, scope: NoteScope, note: Note) -> StoreFuture<'_, SaveNoteOutcome> {
        self.write(move |db| insert_note(db, &scope, &note))
    }

    fn save_if(&self, scope: NoteScope, note: Note, wanted: NoteWriteCheck) -> StoreFuture<'_, SaveNoteOutcome> {
        self.write(
            move |db| if wanted(&scope) { insert_note(db, &scope, &note) } else { Ok(SaveNoteOutcome::Cancelled) },
        )
    }

    fn search(&self, scopes: Vec<NoteScope>, query: &str, limit: usize) -> StoreFuture<'_, Vec<Vec<FoundNote>>> {
        let words = parse_query_words(query);
        self.read(move |db| {
            let search = NoteSearch::new(db, &words);
            scopes.iter().map(|scope| search_scope(db, &search, scope, limit)).collect()
        })
    }

    fn list(&self, scope: NoteScope, limit: usize, cursor: Option<String>) -> StoreFuture<'_, StorePage<Note>> {
        Box::pin(async move {
            let before = PagedList::Notes.parse_cursor(cursor.as_deref())?;
            let rows = self.read(move |db| query_notes(db, &scope, before, limit)).await?;
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
pub(super) fn query_all_notes(db: &Connection, scope: &NoteScope) -> rusqlite::Result<Vec<Note>> {
    let Some(scope) = find_scope_id(db, scope)? else { return Ok(Vec::new()) };
    let sql = "SELECT key, category, text, at FROM notes WHERE scope = ?1 ORDER BY id";
    db.prepare_cached(sql)?.query_map([scope], note_from_row)?.collect()
}

/// Writes a note as part of a transaction. Replaces the note with the same key.
pub(crate) fn insert_note(db: &Connection, scope: &NoteScope, note: &Note) -> rusqlite::Result<SaveNoteOutcome> {
    let Some(scope) = find_or_create_scope_id(db, scope)? else { return Ok(SaveNoteOutcome::NoSession) };
    let replaced = delete_note(db, scope, &note.key)?;
    db.prepare_cached("INSERT INTO notes (scope, key, category, text, at) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![scope, note.key, note.category, note.text, note.at])?;
    let id = db.last_insert_rowid();
    db.prepare_cached("INSERT INTO note_words (rowid, scope, words) VALUES (?1, ?2, ?3)")?.execute(params![
        id,
        scope.to_string(),
        space_cjk_signs(&note.searchable_text())
    ])?;
    Ok(if replaced { SaveNoteOutcome::Replaced } else { SaveNoteOutcome::New })
}

pub(super) fn delete_notes(db: &Connection, scope: &NoteScope) -> rusqlite::Result<()> {
    if let Some(scope) = find_scope_id(db, scope)? {
        db.prepare_cached("DELETE FROM notes WHERE scope = ?1")?.execute([scope])?;
    }
    Ok(())
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
