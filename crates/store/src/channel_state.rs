//! State that channels need after a restart: the cursor of each channel, and the ids of executed commands.

use rusqlite::OptionalExtension;

use super::{Store, StoreError};

/// Executed commands that are kept: far more than a network repeats after a restart.
const MAX_EXECUTED_COMMANDS: u32 = 1000;

impl Store {
    /// Returns the last saved cursor of a channel.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn channel_cursor(&self, channel: String) -> Result<Option<String>, StoreError> {
        self.read(move |db| {
            let sql = "SELECT cursor FROM channel_cursors WHERE channel = ?1";
            db.prepare_cached(sql)?.query_row([&channel], |row| row.get(0)).optional()
        })
        .await
    }

    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn save_channel_cursor(&self, channel: String, cursor: String) -> Result<(), StoreError> {
        let saved = self.write(move |db| {
            let sql = "INSERT OR REPLACE INTO channel_cursors (channel, cursor) VALUES (?1, ?2)";
            db.prepare_cached(sql)?.execute([&channel, &cursor])
        });
        saved.await.map(drop)
    }

    /// True when the command with this id was executed.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn is_command_executed(&self, command: String) -> Result<bool, StoreError> {
        self.read(move |db| db.prepare_cached("SELECT 1 FROM obeyed_commands WHERE command = ?1")?.exists([&command]))
            .await
    }

    /// Records that a command was executed. Keeps the newest [`MAX_EXECUTED_COMMANDS`].
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn mark_command_executed(&self, command: String) -> Result<(), StoreError> {
        let marked = self.write(move |db| {
            let sql = "INSERT INTO obeyed_commands (command) VALUES (?1) ON CONFLICT (command) DO NOTHING";
            db.prepare_cached(sql)?.execute([&command])?;
            let sql = "DELETE FROM obeyed_commands WHERE number <= (SELECT max(number) FROM obeyed_commands) - ?1";
            db.prepare_cached(sql)?.execute([MAX_EXECUTED_COMMANDS])
        });
        marked.await.map(drop)
    }
}
