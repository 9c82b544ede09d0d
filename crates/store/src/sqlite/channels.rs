//! Cursors of channels, executed commands, pending replies.

use quell_protocol::RunId;
use rusqlite::{OptionalExtension, Row, params};

use super::SqliteStore;
use super::columns::{invalid_column, parse_id_column};
use crate::channels::MAX_EXECUTED_COMMANDS;
use crate::{ChannelStore, PendingReply, StaleReply, StoreFuture};

impl ChannelStore for SqliteStore {
    fn cursor(&self, channel: String) -> StoreFuture<'_, Option<String>> {
        self.read(move |db| {
            let sql = "SELECT cursor FROM channel_cursors WHERE channel = ?1";
            db.prepare_cached(sql)?.query_row([&channel], |row| row.get(0)).optional()
        })
    }

    fn save_cursor(&self, channel: String, cursor: String) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let sql = "INSERT OR REPLACE INTO channel_cursors (channel, cursor) VALUES (?1, ?2)";
            db.prepare_cached(sql)?.execute([&channel, &cursor]).map(drop)
        })
    }

    fn is_command_executed(&self, command: String) -> StoreFuture<'_, bool> {
        self.read(move |db| db.prepare_cached("SELECT 1 FROM obeyed_commands WHERE command = ?1")?.exists([&command]))
    }

    fn mark_command_executed(&self, command: String) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let sql = "INSERT INTO obeyed_commands (command) VALUES (?1) ON CONFLICT (command) DO NOTHING";
            db.prepare_cached(sql)?.execute([&command])?;
            let sql = "DELETE FROM obeyed_commands WHERE number <= (SELECT max(number) FROM obeyed_commands) - ?1";
            db.prepare_cached(sql)?.execute([MAX_EXECUTED_COMMANDS]).map(drop)
        })
    }

    fn save_pending_reply(&self, pending_reply: PendingReply) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let PendingReply { run, channel, target, thread, request_message: asked, draft_message: draft } =
                &pending_reply;
            let sql = "INSERT OR REPLACE INTO channel_traces (run, boot, channel, target, thread, asked, draft)
                       SELECT ?1, number, ?2, ?3, ?4, ?5, ?6 FROM boot";
            db.prepare_cached(sql)?.execute(params![run.as_str(), channel, target, thread, asked, draft]).map(drop)
        })
    }

    fn save_pending_reply_draft(&self, run: RunId, draft: Option<String>) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let sql = "UPDATE channel_traces SET draft = ?2 WHERE run = ?1";
            db.prepare_cached(sql)?.execute(params![run.as_str(), draft]).map(drop)
        })
    }

    fn mark_outcome_sent(&self, run: RunId) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            db.prepare_cached("UPDATE channel_traces SET told = 1 WHERE run = ?1")?.execute([run.as_str()]).map(drop)
        })
    }

    fn delete_pending_reply(&self, run: RunId) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            db.prepare_cached("DELETE FROM channel_traces WHERE run = ?1")?.execute([run.as_str()]).map(drop)
        })
    }

    fn has_pending_reply(&self, run: RunId) -> StoreFuture<'_, bool> {
        self.read(move |db| db.prepare_cached("SELECT 1 FROM channel_traces WHERE run = ?1")?.exists([run.as_str()]))
    }

    fn delete_stale_replies_except(&self, channels: Vec<String>) -> StoreFuture<'_, usize> {
        let channels = serde_json::to_string(&channels).unwrap_or_else(|_| "[]".to_owned());
        self.write(move |db| {
            let sql = "DELETE FROM channel_traces WHERE boot < (SELECT number FROM boot)
                       AND channel NOT IN (SELECT value FROM json_each(?1))";
            db.prepare_cached(sql)?.execute([&channels])
        })
    }

    fn list_stale_replies(&self) -> StoreFuture<'_, Vec<StaleReply>> {
        self.read(|db| {
            let sql = "SELECT run, channel, target, thread, asked, draft,
                              (SELECT steered_into FROM runs WHERE id = run), told
                       FROM channel_traces WHERE boot < (SELECT number FROM boot) ORDER BY run";
            db.prepare_cached(sql)?.query_map([], stale_reply_from_row)?.collect()
        })
    }

    fn take_stale_replies(&self, channel: String) -> StoreFuture<'_, Vec<StaleReply>> {
        self.write(move |db| {
            let sql = "SELECT run, channel, target, thread, asked, draft,
                              (SELECT steered_into FROM runs WHERE id = run), told
                       FROM channel_traces WHERE boot < (SELECT number FROM boot) AND channel = ?1 ORDER BY run";
            let taken = db.prepare_cached(sql)?.query_map([&channel], stale_reply_from_row)?.collect();
            let sql = "UPDATE channel_traces SET boot = (SELECT number FROM boot)
                       WHERE boot < (SELECT number FROM boot) AND channel = ?1";
            db.prepare_cached(sql)?.execute([&channel])?;
            taken
        })
    }
}

fn stale_reply_from_row(row: &Row<'_>) -> rusqlite::Result<StaleReply> {
    let pending_reply = PendingReply {
        run: parse_id_column(row, 0, RunId::parse)?,
        channel: row.get(1)?,
        target: row.get(2)?,
        thread: row.get(3)?,
        request_message: row.get(4)?,
        draft_message: row.get(5)?,
    };
    let into: Option<String> = row.get(6)?;
    let steered_into = into.map(RunId::parse).transpose().map_err(|error| invalid_column(6, error))?;
    Ok(StaleReply { pending_reply, steered_into, outcome_sent: row.get(7)? })
}
