//! List the senders that have notes; delete all data of a sender.

use quell_protocol::memory::SenderRow;

use super::super::columns::{get, text, to_unsigned};
use super::super::connection::PgConnection;
use crate::StoreError;
use crate::cursor::limit_plus_one;

/// Deletes all notes of a sender, and the sender's name. Returns the number of deleted notes. The server overwrites
/// deleted rows when it vacuums the table.
pub(super) fn delete_sender(db: &PgConnection, scope: i64) -> Result<u64, StoreError> {
    let notes = db.execute("DELETE FROM notes WHERE scope = $1", &[&scope])?;
    delete_unused_sender(db, scope)?;
    Ok(notes)
}

/// Deletes the name of a sender that has no notes left: the database has no other use for it.
pub(super) fn delete_unused_sender(db: &PgConnection, scope: i64) -> Result<(), StoreError> {
    let sql = "DELETE FROM note_scopes WHERE id = $1 AND kind = 'sender'
               AND NOT EXISTS (SELECT 1 FROM notes WHERE scope = $1)";
    db.execute(sql, &[&scope]).map(drop)
}

pub(super) fn query_senders(db: &PgConnection, before: i64, limit: usize) -> Result<Vec<(i64, SenderRow)>, StoreError> {
    let sql = "SELECT name, (SELECT count(*) FROM notes WHERE scope = note_scopes.id), newest.at, newest.id
               FROM note_scopes
               JOIN notes AS newest ON newest.id = (SELECT max(id) FROM notes WHERE scope = note_scopes.id)
               WHERE kind = 'sender' AND newest.id < $1 ORDER BY newest.id DESC LIMIT $2";
    let rows = db.query(sql, &[&before, &limit_plus_one(limit)])?;
    let sender = |row| {
        let notes = to_unsigned(get(row, 1)?);
        Ok((get(row, 3)?, SenderRow { sender: text(row, 0)?, notes, newest_at: get(row, 2)? }))
    };
    rows.iter().map(sender).collect()
}
