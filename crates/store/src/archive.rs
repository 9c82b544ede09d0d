//! Archives of sessions: export and import.

use std::io::Write;

use quell_protocol::archive::{
    ARCHIVE_VERSION, ArchiveHeader, ArchiveLineKind, ArchivedRunState, ConfigLine, NoteLine, ResetLine, RunLine,
    SESSION_ARCHIVE, TurnLine, VerbatimJson,
};
use quell_protocol::{RunId, SessionKey};
use serde::Serialize;

use crate::{Note, RunRow, StoreError, StoreFuture, StoredRunState, StoredSession, TempFile};

/// A session as parsed from an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionArchive {
    /// Its count of turns is ignored: the import counts them again.
    pub session: StoredSession,
    /// All ended, in the order of acceptance.
    pub runs: Vec<RunRow>,
    /// Oldest first.
    pub history: Vec<ArchivedHistoryItem>,
    /// In the order in which they were saved.
    pub notes: Vec<Note>,
}

/// An item of a session's history, with the run that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchivedHistoryItem {
    Turn {
        /// The run that left the turn; it is one of the archive's runs.
        run: RunId,
        /// JSON, as stored.
        turn: String,
    },
    /// The session was reset here.
    Reset {
        /// RFC 3339.
        at: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportOutcome {
    Imported {
        /// Turns after the last reset.
        turns: u64,
    },
    /// A session with this key exists; nothing was written.
    SessionExists,
    /// A run with this id exists; nothing was written.
    RunExists(RunId),
}

pub trait ArchiveStore: Send + Sync {
    /// Reads a session with its ended runs and their turns, as lines of an archive that all show one moment. `None`
    /// when there is no such session.
    fn export(&self, key: SessionKey) -> StoreFuture<'_, Option<TempFile>>;

    /// Writes a session that does not exist yet, with all its data. `at` is the time of the import, RFC 3339.
    fn import(&self, archive: SessionArchive, at: String) -> StoreFuture<'_, ImportOutcome>;
}

impl SessionArchive {
    /// Counts the turns after the last reset.
    pub(crate) fn count_turns(&self) -> usize {
        self.history.iter().rev().take_while(|item| matches!(item, ArchivedHistoryItem::Turn { .. })).count()
    }
}

/// Writes the lines of an archive: the session, then its runs, its history and its notes.
pub(crate) struct ArchiveWriter<W: Write>(pub(crate) W);

impl<W: Write> ArchiveWriter<W> {
    /// Writes the header, and the session's own settings.
    pub(crate) fn write_session(&mut self, session: StoredSession) -> Result<SessionKey, StoreError> {
        let StoredSession { key, agent, created_at, last_used_at, config, .. } = session;
        let quell = SESSION_ARCHIVE.to_owned();
        let (version, name) = (ARCHIVE_VERSION, key.clone());
        self.write_line(&ArchiveHeader { quell, version, key: name, agent, created_at, last_used_at })?;
        if let Some(config) = config {
            self.write_line(&ConfigLine { kind: ArchiveLineKind::Config, config: VerbatimJson::new(&config) })?;
        }
        Ok(key)
    }

    pub(crate) fn write_run(&mut self, run: RunRow) -> Result<(), StoreError> {
        let RunRow { id, agent, principal, fingerprint, state, accepted_at, view, .. } = run;
        let (state, steered_into) = match state {
            StoredRunState::Steered { into } => (ArchivedRunState::Steered, Some(into)),
            StoredRunState::Accepted | StoredRunState::Started | StoredRunState::Ended => {
                (ArchivedRunState::Ended, None)
            }
        };
        let (kind, view) = (ArchiveLineKind::Run, VerbatimJson::new(&view));
        self.write_line(&RunLine { kind, id, agent, principal, fingerprint, state, steered_into, accepted_at, view })
    }

    pub(crate) fn write_history_item(&mut self, item: ArchivedHistoryItem) -> Result<(), StoreError> {
        match item {
            ArchivedHistoryItem::Turn { run, turn } => {
                self.write_line(&TurnLine { kind: ArchiveLineKind::Turn, run, turn: VerbatimJson::new(&turn) })
            }
            ArchivedHistoryItem::Reset { at } => self.write_line(&ResetLine { kind: ArchiveLineKind::Reset, at }),
        }
    }

    pub(crate) fn write_note(&mut self, note: Note) -> Result<(), StoreError> {
        let Note { key, category, text, at } = note;
        self.write_line(&NoteLine { kind: ArchiveLineKind::Note, key, category, text, at })
    }

    fn write_line(&mut self, line: &impl Serialize) -> Result<(), StoreError> {
        let unwritable = |error: String| StoreError::Unwritable(format!("the export cannot be kept: {error}"));
        serde_json::to_writer(&mut self.0, line).map_err(|error| unwritable(error.to_string()))?;
        self.0.write_all(b"\n").map_err(|error| unwritable(error.to_string()))
    }
}
