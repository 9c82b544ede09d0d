//! Export a session as archive lines, and import one in a single transaction.

use std::io::{BufWriter, Write};

use quell_protocol::archive::{
    ARCHIVE_VERSION, ArchiveHeader, ArchiveLineKind, ArchivedRunState, ConfigLine, NoteLine, ResetLine, RunLine,
    SESSION_ARCHIVE, TurnLine, VerbatimJson,
};
use quell_protocol::{Principal, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;

use super::notes::{insert_note, query_all_notes};
use super::runs::{insert_run, parse_id_column, run_from_row};
use super::sessions::session_from_row;
use super::temp_file::{TempFile, TempFileWriter};
use super::{Note, NoteScope, RunRow, Store, StoreError, StoredRunState, StoredSession};

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
    /// A sealed turn.
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

/// Result of an import.
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

impl Store {
    /// Reads a session with its ended runs and their turns, as lines of an archive. `None` when there is no such
    /// session.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read, or the disk has no room for the lines.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn export_session(&self, key: SessionKey) -> Result<Option<TempFile>, StoreError> {
        let data_dir = self.0.data_dir.clone();
        self.run_on_copier(move |connection| {
            // One transaction, so that all lines show the same state of the database.
            let transaction = connection.transaction()?;
            let file_error = |error: &std::io::Error| StoreError::from_io(&data_dir, error);
            let file = TempFileWriter::new(&data_dir).map_err(|error| file_error(&error))?;
            let mut lines = ArchiveWriter(BufWriter::new(file.file()));
            if !lines.write_archive(&transaction, &key)? {
                return Ok(None);
            }
            lines.0.flush().map_err(|error| file_error(&error))?;
            drop(lines);
            Ok(Some(file.finish().map_err(|error| file_error(&error))?))
        })
        .await
    }

    /// Writes a session that does not exist yet, with all its data. `at` is the time of the import, RFC 3339.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then nothing is written.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn import_session(&self, archive: SessionArchive, at: String) -> Result<ImportOutcome, StoreError> {
        self.write(move |db| insert_archive(db, &archive, &at)).await
    }
}

/// Writes the lines of an archive.
struct ArchiveWriter<W: Write>(W);

impl<W: Write> ArchiveWriter<W> {
    /// Returns false when there is no such session.
    fn write_archive(&mut self, db: &Transaction<'_>, key: &SessionKey) -> Result<bool, StoreError> {
        let sql = "SELECT key, agent, created_at, last_used_at, turns, config, secrets, private_base_url,
                   private_mcp_url, owner, imported_at FROM sessions
                   WHERE key = ?1";
        let session = db.prepare_cached(sql)?.query_row([key.as_str()], session_from_row).optional()?;
        let Some(session) = session else { return Ok(false) };
        let StoredSession { key, agent, created_at, last_used_at, config, .. } = session;
        let quell = SESSION_ARCHIVE.to_owned();
        self.write_line(&ArchiveHeader {
            quell,
            version: ARCHIVE_VERSION,
            key: key.clone(),
            agent,
            created_at,
            last_used_at,
        })?;
        if let Some(config) = config {
            self.write_line(&ConfigLine { kind: ArchiveLineKind::Config, config: VerbatimJson::new(&config) })?;
        }
        self.write_runs(db, &key)?;
        self.write_history(db, &key)?;
        for Note { key, category, text, at } in query_all_notes(db, &NoteScope::Session(key))? {
            self.write_line(&NoteLine { kind: ArchiveLineKind::Note, key, category, text, at })?;
        }
        Ok(true)
    }

    fn write_runs(&mut self, db: &Transaction<'_>, key: &SessionKey) -> Result<(), StoreError> {
        let sql = "SELECT id, session, agent, principal, fingerprint, state, steered_into, accepted_at, view FROM runs
                   WHERE session = ?1 AND state IN ('ended', 'steered') ORDER BY seq";
        let mut statement = db.prepare_cached(sql)?;
        for row in statement.query_map([key.as_str()], run_from_row)? {
            let RunRow { id, agent, principal, fingerprint, state, accepted_at, view, .. } = row?;
            let (state, steered_into) = match state {
                StoredRunState::Steered { into } => (ArchivedRunState::Steered, Some(into)),
                StoredRunState::Accepted | StoredRunState::Started | StoredRunState::Ended => {
                    (ArchivedRunState::Ended, None)
                }
            };
            let view = VerbatimJson::new(&view);
            let kind = ArchiveLineKind::Run;
            self.write_line(&RunLine {
                kind,
                id,
                agent,
                principal,
                fingerprint,
                state,
                steered_into,
                accepted_at,
                view,
            })?;
        }
        Ok(())
    }

    /// Leaves out a turn whose run has not ended: the next archive has both.
    fn write_history(&mut self, db: &Transaction<'_>, key: &SessionKey) -> Result<(), StoreError> {
        let sql = "SELECT history.run, history.turn, history.reset_at
                   FROM history LEFT JOIN runs ON runs.id = history.run
                   WHERE history.session = ?1 AND (history.run IS NULL OR runs.state IN ('ended', 'steered'))
                   ORDER BY history.seq";
        let mut statement = db.prepare_cached(sql)?;
        let mut rows = statement.query([key.as_str()])?;
        while let Some(row) = rows.next()? {
            if let Some(turn) = row.get::<_, Option<String>>(1)? {
                let run = parse_id_column(row, 0, RunId::parse)?;
                self.write_line(&TurnLine { kind: ArchiveLineKind::Turn, run, turn: VerbatimJson::new(&turn) })?;
            } else {
                self.write_line(&ResetLine { kind: ArchiveLineKind::Reset, at: row.get(2)? })?;
            }
        }
        Ok(())
    }

    fn write_line(&mut self, line: &impl Serialize) -> Result<(), StoreError> {
        let unwritable = |error: String| StoreError::Unwritable(format!("the export cannot be kept: {error}"));
        serde_json::to_writer(&mut self.0, line).map_err(|error| unwritable(error.to_string()))?;
        self.0.write_all(b"\n").map_err(|error| unwritable(error.to_string()))
    }
}

/// Checks everything before the first write: a refused import shares its transaction with the writes of others.
fn insert_archive(db: &Connection, archive: &SessionArchive, at: &str) -> rusqlite::Result<ImportOutcome> {
    let key = archive.session.key.as_str();
    if db.prepare_cached("SELECT 1 FROM sessions WHERE key = ?1")?.exists([key])? {
        return Ok(ImportOutcome::SessionExists);
    }
    for run in &archive.runs {
        if db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([run.id.as_str()])? {
            return Ok(ImportOutcome::RunExists(run.id.clone()));
        }
    }
    for run in &archive.runs {
        insert_run(db, run)?;
    }
    let turns = insert_session(db, archive, at)?;
    for past in &archive.history {
        match past {
            ArchivedHistoryItem::Turn { run, turn } => db
                .prepare_cached("INSERT INTO history (session, run, turn) VALUES (?1, ?2, ?3)")?
                .execute(params![key, run.as_str(), turn])?,
            ArchivedHistoryItem::Reset { at } => {
                db.prepare_cached("INSERT INTO history (session, reset_at) VALUES (?1, ?2)")?.execute([key, at])?
            }
        };
    }
    let scope = NoteScope::Session(archive.session.key.clone());
    for note in &archive.notes {
        insert_note(db, &scope, note)?;
    }
    Ok(ImportOutcome::Imported { turns })
}

fn insert_session(db: &Connection, archive: &SessionArchive, at: &str) -> rusqlite::Result<u64> {
    let session = &archive.session;
    let turns =
        archive.history.iter().rev().take_while(|past| matches!(past, ArchivedHistoryItem::Turn { .. })).count();
    db.prepare_cached(
        "INSERT INTO sessions (key, agent, created_at, last_used_at, use_order, turns, imported_at, config, owner,
                               private_base_url, private_mcp_url)
         VALUES (?1, ?2, ?3, ?4, (SELECT ifnull(max(use_order), 0) + 1 FROM sessions), ?5, ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        session.key.as_str(),
        session.agent.as_str(),
        session.created_at,
        session.last_used_at,
        i64::try_from(turns).unwrap_or(i64::MAX),
        at,
        session.config,
        session.owner.as_ref().map(Principal::as_str),
        session.private_endpoints.base_url,
        session.private_endpoints.mcp_url
    ])?;
    Ok(turns as u64)
}
