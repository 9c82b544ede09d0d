//! Of whom in chat networks something is remembered, and how somebody there is forgotten.

use quell_protocol::memory::SenderRow;
use rusqlite::{Connection, params};

use super::{NoteScope, number};
use crate::store::cursor::{Listing, ask_for};
use crate::store::{Store, StoreError};

impl Store {
    /// The senders who have notes, the one with the newest note first, and the cursor of the next page.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read, or the cursor is not one.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn sender_page(
        &self,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<(Vec<SenderRow>, Option<String>), StoreError> {
        let before = Listing::Senders.before(cursor.as_deref())?;
        let rows = self.read(move |db| newest(db, before, limit)).await?;
        Ok(Listing::Senders.page(rows, limit))
    }

    /// Forgets all notes of a sender, and the name with them. Answers how many notes there were.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then all are there.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn forget_sender(&self, sender: String) -> Result<u64, StoreError> {
        let sender = NoteScope::Sender(sender);
        self.write(move |db| {
            let Some(scope) = number(db, &sender)? else { return Ok(0) };
            // Nothing of it stays legible in pages that are free, nor in the index, which keeps the words of what was deleted until
            // it is merged.
            db.execute_batch("PRAGMA secure_delete = ON")?;
            let notes = db.prepare_cached("DELETE FROM notes WHERE scope = ?1")?.execute([scope])?;
            forget_name(db, scope)?;
            db.execute_batch("INSERT INTO note_words (note_words) VALUES ('optimize'); PRAGMA secure_delete = FAST")?;
            Ok(notes as u64)
        })
        .await
    }
}

/// Forgets the name of a sender with the last note: nothing else knows it here.
pub(super) fn forget_name(db: &Connection, scope: i64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM note_scopes WHERE id = ?1 AND kind = 'sender'
               AND NOT EXISTS (SELECT 1 FROM notes WHERE scope = ?1)";
    db.prepare_cached(sql)?.execute([scope]).map(drop)
}

fn newest(db: &Connection, before: i64, limit: usize) -> rusqlite::Result<Vec<(i64, SenderRow)>> {
    let sql = "SELECT name, (SELECT count(*) FROM notes WHERE scope = note_scopes.id), newest.at, newest.id
               FROM note_scopes
               JOIN notes AS newest ON newest.id = (SELECT max(id) FROM notes WHERE scope = note_scopes.id)
               WHERE kind = 'sender' AND newest.id < ?1 ORDER BY newest.id DESC LIMIT ?2";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![before, ask_for(limit)], |row| {
        let notes = u64::from(row.get::<_, u32>(1)?);
        Ok((row.get(3)?, SenderRow { sender: row.get(0)?, notes, newest_at: row.get(2)? }))
    })?;
    rows.collect()
}
