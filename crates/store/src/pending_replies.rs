//! Chat replies whose outcome is not sent yet, so that the next daemon can finish them after a crash.

use quell_protocol::RunId;
use rusqlite::{Row, params};

use super::runs::{invalid_column, parse_id_column};
use super::{Store, StoreError};

/// State of a reply in a chat, in the identifiers of its network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingReply {
    pub run: RunId,
    pub channel: String,
    /// Id of the chat, room or person.
    pub target: String,
    /// Id of the thread in it.
    pub thread: Option<String>,
    /// Id of the message that asked. It may carry a reaction.
    pub request_message: String,
    /// Id of the draft message: set once it is known, until the answer replaces it.
    pub draft_message: Option<String>,
}

/// A pending reply that an earlier daemon left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleReply {
    pub pending_reply: PendingReply,
    /// The run that took this run's message, if it was steered.
    pub steered_into: Option<RunId>,
    /// The outcome was sent. Reactions may still have to be corrected.
    pub outcome_sent: bool,
}

impl Store {
    /// Stores that a chat waits for the outcome of a run, before anything of the run is shown there.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn save_pending_reply(&self, pending_reply: PendingReply) -> Result<(), StoreError> {
        let saved = self.write(move |db| {
            let PendingReply { run, channel, target, thread, request_message: asked, draft_message: draft } =
                &pending_reply;
            let sql = "INSERT OR REPLACE INTO channel_traces (run, boot, channel, target, thread, asked, draft)
                       SELECT ?1, number, ?2, ?3, ?4, ?5, ?6 FROM boot";
            db.prepare_cached(sql)?.execute(params![run.as_str(), channel, target, thread, asked, draft])
        });
        saved.await.map(drop)
    }

    /// Stores the id of a run's draft message, or that there is none any more. Does nothing if the run has no pending
    /// reply, since this can come late.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn save_pending_reply_draft(&self, run: RunId, draft: Option<String>) -> Result<(), StoreError> {
        let saved = self.write(move |db| {
            let sql = "UPDATE channel_traces SET draft = ?2 WHERE run = ?1";
            db.prepare_cached(sql)?.execute(params![run.as_str(), draft])
        });
        saved.await.map(drop)
    }

    /// Records that the outcome of a run was sent.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn mark_outcome_sent(&self, run: RunId) -> Result<(), StoreError> {
        let saved = self.write_relaxed(move |db| {
            db.prepare_cached("UPDATE channel_traces SET told = 1 WHERE run = ?1")?.execute([run.as_str()])
        });
        saved.await.map(drop)
    }

    /// Deletes the pending reply of a run: its outcome was sent, or cannot be sent.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_pending_reply(&self, run: RunId) -> Result<(), StoreError> {
        // A deletion that is lost in a crash means that the outcome is sent twice, which does no harm.
        let deleted = self.write_relaxed(move |db| {
            db.prepare_cached("DELETE FROM channel_traces WHERE run = ?1")?.execute([run.as_str()])
        });
        deleted.await.map(drop)
    }

    /// Deletes what earlier daemons left in all channels except these. Returns the number of deleted replies.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_stale_replies_except(&self, channels: Vec<String>) -> Result<usize, StoreError> {
        let channels = serde_json::to_string(&channels).unwrap_or_else(|_| "[]".to_owned());
        self.write(move |db| {
            let sql = "DELETE FROM channel_traces WHERE boot < (SELECT number FROM boot)
                       AND channel NOT IN (SELECT value FROM json_each(?1))";
            db.prepare_cached(sql)?.execute([&channels])
        })
        .await
    }

    /// Lists the pending replies that earlier daemons left.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn list_stale_replies(&self) -> Result<Vec<StaleReply>, StoreError> {
        self.read(|db| {
            let sql = "SELECT run, channel, target, thread, asked, draft,
                              (SELECT steered_into FROM runs WHERE id = run), told
                       FROM channel_traces WHERE boot < (SELECT number FROM boot) ORDER BY run";
            db.prepare_cached(sql)?.query_map([], stale_reply_from_row)?.collect()
        })
        .await
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
