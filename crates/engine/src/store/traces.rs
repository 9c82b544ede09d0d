//! Runs whose end is not told in their chats yet, and what is shown of them there. Of a daemon that is killed this is all that the
//! next one knows of it.

use quell_protocol::RunId;
use rusqlite::{Row, params};

use super::runs::{id, unfit};
use super::{Store, StoreError};

/// What a chat shows of a run, in the words of its network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The run.
    pub run: RunId,
    /// The channel.
    pub channel: String,
    /// Chat, room or person.
    pub target: String,
    /// Thread in it.
    pub thread: Option<String>,
    /// The message that was asked, which may have a sign.
    pub asked: String,
    /// The message that is the draft, once that is known and until the answer takes its place.
    pub draft: Option<String>,
}

/// What an earlier daemon left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftTrace {
    /// As it was kept.
    pub trace: Trace,
    /// The run that took its message in, if one did.
    pub steered_into: Option<RunId>,
    /// What became of it is said; signs may be left to be put right.
    pub told: bool,
}

impl Store {
    /// Keeps that somebody waits for a run in a chat, and what is about to be shown of it there.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn keep_trace(&self, trace: Trace) -> Result<(), StoreError> {
        let kept = self.write(move |db| {
            let Trace { run, channel, target, thread, asked, draft } = &trace;
            let sql = "INSERT OR REPLACE INTO channel_traces (run, boot, channel, target, thread, asked, draft)
                       SELECT ?1, number, ?2, ?3, ?4, ?5, ?6 FROM boot";
            db.prepare_cached(sql)?.execute(params![run.as_str(), channel, target, thread, asked, draft])
        });
        kept.await.map(drop)
    }

    /// Keeps which message is the draft of a run, or that none is any more. It may come late: of a run of which nothing is kept,
    /// nothing is kept by this.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn keep_draft(&self, run: RunId, draft: Option<String>) -> Result<(), StoreError> {
        let kept = self.write(move |db| {
            let sql = "UPDATE channel_traces SET draft = ?2 WHERE run = ?1";
            db.prepare_cached(sql)?.execute(params![run.as_str(), draft])
        });
        kept.await.map(drop)
    }

    /// Keeps that what became of a run is said.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn keep_told(&self, run: RunId) -> Result<(), StoreError> {
        let kept = self.write_relaxed(move |db| {
            db.prepare_cached("UPDATE channel_traces SET told = 1 WHERE run = ?1")?.execute([run.as_str()])
        });
        kept.await.map(drop)
    }

    /// Forgets what is kept of a run: its end is told, or nobody can be told.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn forget_trace(&self, run: RunId) -> Result<(), StoreError> {
        // What comes back with the power is told once more, which does no harm.
        let forgotten = self.write_relaxed(move |db| {
            db.prepare_cached("DELETE FROM channel_traces WHERE run = ?1")?.execute([run.as_str()])
        });
        forgotten.await.map(drop)
    }

    /// Forgets what earlier daemons left in all channels but these. Answers how much that was.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn keep_traces_in(&self, channels: Vec<String>) -> Result<usize, StoreError> {
        let channels = serde_json::to_string(&channels).unwrap_or_else(|_| "[]".to_owned());
        self.write(move |db| {
            let sql = "DELETE FROM channel_traces WHERE boot < (SELECT number FROM boot)
                       AND channel NOT IN (SELECT value FROM json_each(?1))";
            db.prepare_cached(sql)?.execute([&channels])
        })
        .await
    }

    /// What earlier daemons left.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn left_traces(&self) -> Result<Vec<LeftTrace>, StoreError> {
        self.read(|db| {
            let sql = "SELECT run, channel, target, thread, asked, draft,
                              (SELECT steered_into FROM runs WHERE id = run), told
                       FROM channel_traces WHERE boot < (SELECT number FROM boot) ORDER BY run";
            db.prepare_cached(sql)?.query_map([], left_trace)?.collect()
        })
        .await
    }
}

fn left_trace(row: &Row<'_>) -> rusqlite::Result<LeftTrace> {
    let trace = Trace {
        run: id(row, 0, RunId::parse)?,
        channel: row.get(1)?,
        target: row.get(2)?,
        thread: row.get(3)?,
        asked: row.get(4)?,
        draft: row.get(5)?,
    };
    let into: Option<String> = row.get(6)?;
    let steered_into = into.map(RunId::parse).transpose().map_err(|bad| unfit(6, bad))?;
    Ok(LeftTrace { trace, steered_into, told: row.get(7)? })
}
