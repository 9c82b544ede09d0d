//! Where each channel goes on listening after a restart.

use rusqlite::OptionalExtension;

use super::{Store, StoreError};

impl Store {
    /// The cursor that a channel kept last.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn channel_cursor(&self, channel: String) -> Result<Option<String>, StoreError> {
        self.read(move |db| {
            let sql = "SELECT cursor FROM channel_cursors WHERE channel = ?1";
            db.prepare_cached(sql)?.query_row([&channel], |row| row.get(0)).optional()
        })
        .await
    }

    /// Keeps the cursor of a channel.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn keep_channel_cursor(&self, channel: String, cursor: String) -> Result<(), StoreError> {
        let kept = self.write(move |db| {
            let sql = "INSERT OR REPLACE INTO channel_cursors (channel, cursor) VALUES (?1, ?2)";
            db.prepare_cached(sql)?.execute([&channel, &cursor])
        });
        kept.await.map(drop)
    }
}
