//! Cursors of channels, executed commands, pending replies.

use quell_protocol::RunId;
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{Text, get, invalid_column, optional_text, parse_id, text};
use super::runs::to_count;
use crate::channels::MAX_EXECUTED_COMMANDS;
use crate::{ChannelStore, PendingReply, StaleReply, StoreError, StoreFuture};

/// True for what an earlier daemon left. In a cluster, all memberships that are not settled may still be at work: the
/// numbers say nothing there.
macro_rules! is_stale {
    () => {
        "(boot < (SELECT number FROM boot) OR (SELECT cluster FROM boot)) AND boot NOT IN (SELECT epoch FROM nodes)"
    };
}
pub(super) use is_stale;

impl ChannelStore for PostgresStore {
    fn cursor(&self, channel: String) -> StoreFuture<'_, Option<String>> {
        self.read(move |db| {
            let sql = "SELECT cursor FROM channel_cursors WHERE channel = $1";
            db.query_optional(sql, &[&Text(&channel)])?.map(|row| text(&row, 0)).transpose()
        })
    }

    fn save_cursor(&self, channel: String, cursor: String) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let sql = "INSERT INTO channel_cursors (channel, cursor) VALUES ($1, $2)
                       ON CONFLICT (channel) DO UPDATE SET cursor = excluded.cursor";
            db.execute(sql, &[&Text(&channel), &Text(&cursor)]).map(drop)
        })
    }

    fn is_command_executed(&self, command: String) -> StoreFuture<'_, bool> {
        self.read(move |db| db.exists("SELECT 1 FROM obeyed_commands WHERE command = $1", &[&Text(&command)]))
    }

    fn mark_command_executed(&self, command: String) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let sql = "INSERT INTO obeyed_commands (command) VALUES ($1) ON CONFLICT (command) DO NOTHING";
            db.execute(sql, &[&Text(&command)])?;
            // By their number and not by a difference of numbers: a sequence has gaps.
            let sql = "DELETE FROM obeyed_commands WHERE number <=
                       (SELECT number FROM obeyed_commands ORDER BY number DESC OFFSET $1 LIMIT 1)";
            db.execute(sql, &[&i64::from(MAX_EXECUTED_COMMANDS)]).map(drop)
        })
    }

    fn save_pending_reply(&self, pending_reply: PendingReply) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let PendingReply { run, channel, target, thread, request_message: asked, draft_message: draft } =
                &pending_reply;
            let sql = "INSERT INTO channel_traces (run, boot, channel, target, thread, asked, draft)
                       VALUES ($1, $7, $2, $3, $4, $5, $6)
                       ON CONFLICT (run) DO UPDATE SET
                           boot = excluded.boot, channel = excluded.channel, target = excluded.target,
                           thread = excluded.thread, asked = excluded.asked, draft = excluded.draft, told = false";
            let (thread, draft) = (thread.as_deref().map(Text), draft.as_deref().map(Text));
            db.execute(
                sql,
                &[&run.as_str(), &Text(channel), &Text(target), &thread, &Text(asked), &draft, &db.writer()?.number()],
            )
            .map(drop)
        })
    }

    fn save_pending_reply_draft(&self, run: RunId, draft: Option<String>) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let sql = "UPDATE channel_traces SET draft = $2 WHERE run = $1";
            db.execute(sql, &[&run.as_str(), &draft.as_deref().map(Text)]).map(drop)
        })
    }

    fn mark_outcome_sent(&self, run: RunId) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            db.execute("UPDATE channel_traces SET told = true WHERE run = $1", &[&run.as_str()]).map(drop)
        })
    }

    fn delete_pending_reply(&self, run: RunId) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            db.execute("DELETE FROM channel_traces WHERE run = $1", &[&run.as_str()]).map(drop)
        })
    }

    fn has_pending_reply(&self, run: RunId) -> StoreFuture<'_, bool> {
        self.read(move |db| db.exists("SELECT 1 FROM channel_traces WHERE run = $1", &[&run.as_str()]))
    }

    fn delete_stale_replies_except(&self, channels: Vec<String>) -> StoreFuture<'_, usize> {
        self.write(move |db| {
            let sql = concat!("DELETE FROM channel_traces WHERE ", is_stale!(), " AND channel <> ALL ($1)");
            let channels: Vec<Text<'_>> = channels.iter().map(|channel| Text(channel)).collect();
            db.execute(sql, &[&channels]).map(to_count)
        })
    }

    fn list_stale_replies(&self) -> StoreFuture<'_, Vec<StaleReply>> {
        self.read(|db| {
            let sql = concat!(
                "SELECT run, channel, target, thread, asked, draft,
                        (SELECT steered_into FROM runs WHERE id = run), told
                 FROM channel_traces WHERE ",
                is_stale!(),
                " ORDER BY run"
            );
            db.query(sql, &[])?.iter().map(stale_reply_from_row).collect()
        })
    }

    fn take_stale_replies(&self, channel: String) -> StoreFuture<'_, Vec<StaleReply>> {
        self.write(move |db| {
            let sql = concat!(
                "WITH taken AS (
                     UPDATE channel_traces SET boot = $2 WHERE channel = $1 AND ",
                is_stale!(),
                " RETURNING run, channel, target, thread, asked, draft, told)
                 SELECT run, channel, target, thread, asked, draft,
                        (SELECT steered_into FROM runs WHERE id = run), told
                 FROM taken ORDER BY run"
            );
            db.query(sql, &[&Text(&channel), &db.writer()?.number()])?.iter().map(stale_reply_from_row).collect()
        })
    }
}

fn stale_reply_from_row(row: &Row) -> Result<StaleReply, StoreError> {
    let pending_reply = PendingReply {
        run: parse_id(row, 0, RunId::parse)?,
        channel: text(row, 1)?,
        target: text(row, 2)?,
        thread: optional_text(row, 3)?,
        request_message: text(row, 4)?,
        draft_message: optional_text(row, 5)?,
    };
    let into: Option<String> = get(row, 6)?;
    let steered_into = into.map(RunId::parse).transpose().map_err(invalid_column)?;
    Ok(StaleReply { pending_reply, steered_into, outcome_sent: get(row, 7)? })
}
