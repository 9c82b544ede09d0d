//! List the senders that have notes; delete all data of a sender.

use quell_protocol::memory::SenderRow;
use rusqlite::{Connection, params};

use crate::cursor::limit_plus_one;

/// Deletes all notes of a sender, and the sender's name. Returns the number of deleted notes.
pub(super) fn delete_sender(db: &Connection, scope: i64) -> rusqlite::Result<u64> {
    // No deleted text may stay readable: neither in free pages, nor in the index, which keeps deleted words until it
    // is merged.
    db.execute_batch("PRAGMA secure_delete = ON")?;
    let notes = db.prepare_cached("DELETE FROM notes WHERE scope = ?1")?.execute([scope])?;
    delete_unused_sender(db, scope)?;
    db.execute_batch("INSERT INTO note_words (note_words) VALUES ('optimize'); PRAGMA secure_delete = FAST")?;
    Ok(notes as u64)
}

/// Deletes the name of a sender that has no notes left: the database has no other use for it.
pub(super) fn delete_unused_sender(db: &Connection, scope: i64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM note_scopes WHERE id = ?1 AND kind = 'sender'
               AND NOT EXISTS (SELECT 1 FROM notes WHERE scope = ?1)";
    db.prepare_cached(sql)?.execute([scope]).map(drop)
}

pub(super) fn query_senders(db: &Connection, before: i64, limit: usize) -> rusqlite::Result<Vec<(i64, SenderRow)>> {
    let sql = "SELECT name, (SELECT count(*) FROM notes WHERE scope = note_scopes.id), newest.at, newest.id
               FROM note_scopes
               JOIN notes AS newest ON newest.id = (SELECT max(id) FROM notes WHERE scope = note_scopes.id)
               WHERE kind = 'sender' AND newest.id < ?1 ORDER BY newest.id DESC LIMIT ?2";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![before, limit_plus_one(limit)], |row| {
        let notes = u64::from(row.get::<_, u32>(1)?);
        Ok((row.get(3)?, SenderRow { sender: row.get(0)?, notes, newest_at: row.get(2)? }))
    })?;
    rows.collect()
}
