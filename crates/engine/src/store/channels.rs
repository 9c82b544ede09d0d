//! What channels know after a restart: where each goes on listening, and which commands have acted.

use rusqlite::OptionalExtension;

use super::{Store, StoreError};

/// Commands that are remembered: far more than a network tells again after a restart.
const COMMANDS: u32 = 1000;

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

    /// True when a command with this id has acted.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn is_obeyed(&self, command: String) -> Result<bool, StoreError> {
        self.read(move |db| db.prepare_cached("SELECT 1 FROM obeyed_commands WHERE command = ?1")?.exists([&command]))
            .await
    }

    /// Keeps that a command has acted; of many the newest.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn keep_obeyed(&self, command: String) -> Result<(), StoreError> {
        let kept = self.write(move |db| {
            let sql = "INSERT INTO obeyed_commands (command) VALUES (?1) ON CONFLICT (command) DO NOTHING";
            db.prepare_cached(sql)?.execute([&command])?;
            let sql = "DELETE FROM obeyed_commands WHERE number <= (SELECT max(number) FROM obeyed_commands) - ?1";
            db.prepare_cached(sql)?.execute([COMMANDS])
        });
        kept.await.map(drop)
    }
}
