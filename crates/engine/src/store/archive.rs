//! A session on its way out of one database and into another: read as one state of it, written whole or not at all.

use std::io::{BufWriter, Write};

use quell_protocol::archive::{
    ConfigLine, Head, Kind, NoteLine, ResetLine, RunLine, RunState, SESSION, TurnLine, VERSION, Verbatim,
};
use quell_protocol::{Principal, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;

use super::notes::{insert_note, notes_of};
use super::runs::{id, insert, run_row};
use super::sessions::session_row;
use super::spool::{Draft, Spool};
use super::{Note, NoteScope, RunRow, Store, StoreError, StoredSession, StoredState};

/// A session as it was read from an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// The session. Its turns are counted anew.
    pub session: StoredSession,
    /// Its runs, all over, in the order of their acceptance.
    pub runs: Vec<RunRow>,
    /// Its past, the oldest first.
    pub past: Vec<Archived>,
    /// What is remembered of it, in the order in which it was.
    pub notes: Vec<Note>,
}

/// A piece of a session's past, with the run that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Archived {
    /// A sealed turn.
    Turn {
        /// The run that left it, which is one of the archive's.
        run: RunId,
        /// As it is stored.
        turn: String,
    },
    /// The session was reset here.
    Reset {
        /// RFC 3339.
        at: String,
    },
}

/// What came of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Imported {
    /// The session is there.
    Yes {
        /// Its turns after the last reset.
        turns: u64,
    },
    /// There is a session of that key; nothing was written.
    SessionExists,
    /// There is a run of that id; nothing was written.
    RunExists(RunId),
}

impl Store {
    /// Reads a session with its runs that are over and their turns, as the lines of an archive. None when there is none.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read, or there is no room for the lines.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn export_session(&self, key: SessionKey) -> Result<Option<Spool>, StoreError> {
        let ground = self.0.ground.clone();
        self.copy(move |connection| {
            // One transaction, so that the lines are of one moment whatever is written meanwhile.
            let transaction = connection.transaction()?;
            let refused = |error: &std::io::Error| StoreError::file(&ground, error);
            let draft = Draft::new(&ground).map_err(|error| refused(&error))?;
            let mut lines = Lines(BufWriter::new(draft.file()));
            if !lines.all(&transaction, &key)? {
                return Ok(None);
            }
            lines.0.flush().map_err(|error| refused(&error))?;
            drop(lines);
            Ok(Some(draft.finish().map_err(|error| refused(&error))?))
        })
        .await
    }

    /// Writes a session that is not there, with everything it has. `at` is the time for people, RFC 3339.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then nothing was.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn import_session(&self, archive: Archive, at: String) -> Result<Imported, StoreError> {
        self.write(move |db| import(db, &archive, &at)).await
    }
}

/// The lines of an archive, on their way into a file.
struct Lines<W: Write>(W);

impl<W: Write> Lines<W> {
    /// False when there is no such session.
    fn all(&mut self, db: &Transaction<'_>, key: &SessionKey) -> Result<bool, StoreError> {
        let sql = "SELECT key, agent, created_at, last_used_at, turns, config, secrets, private_base_url,
                   private_mcp_url, owner, imported_at FROM sessions
                   WHERE key = ?1";
        let session = db.prepare_cached(sql)?.query_row([key.as_str()], session_row).optional()?;
        let Some(session) = session else { return Ok(false) };
        let StoredSession { key, agent, created_at, last_used_at, config, .. } = session;
        let quell = SESSION.to_owned();
        self.line(&Head { quell, version: VERSION, key: key.clone(), agent, created_at, last_used_at })?;
        if let Some(config) = config {
            self.line(&ConfigLine { kind: Kind::Config, config: Verbatim::of(&config) })?;
        }
        self.runs(db, &key)?;
        self.past(db, &key)?;
        for Note { key, category, text, at } in notes_of(db, &NoteScope::Session(key))? {
            self.line(&NoteLine { kind: Kind::Note, key, category, text, at })?;
        }
        Ok(true)
    }

    fn runs(&mut self, db: &Transaction<'_>, key: &SessionKey) -> Result<(), StoreError> {
        let sql = "SELECT id, session, agent, principal, fingerprint, state, steered_into, accepted_at, view FROM runs
                   WHERE session = ?1 AND state IN ('ended', 'steered') ORDER BY seq";
        let mut statement = db.prepare_cached(sql)?;
        for row in statement.query_map([key.as_str()], run_row)? {
            let RunRow { id, agent, principal, fingerprint, state, accepted_at, view, .. } = row?;
            let (state, steered_into) = match state {
                StoredState::Steered { into } => (RunState::Steered, Some(into)),
                StoredState::Accepted | StoredState::Started | StoredState::Ended => (RunState::Ended, None),
            };
            let view = Verbatim::of(&view);
            let kind = Kind::Run;
            self.line(&RunLine { kind, id, agent, principal, fingerprint, state, steered_into, accepted_at, view })?;
        }
        Ok(())
    }

    /// A turn whose run is not over yet is left to the next archive, together with its run.
    fn past(&mut self, db: &Transaction<'_>, key: &SessionKey) -> Result<(), StoreError> {
        let sql = "SELECT history.run, history.turn, history.reset_at
                   FROM history LEFT JOIN runs ON runs.id = history.run
                   WHERE history.session = ?1 AND (history.run IS NULL OR runs.state IN ('ended', 'steered'))
                   ORDER BY history.seq";
        let mut statement = db.prepare_cached(sql)?;
        let mut rows = statement.query([key.as_str()])?;
        while let Some(row) = rows.next()? {
            if let Some(turn) = row.get::<_, Option<String>>(1)? {
                let run = id(row, 0, RunId::parse)?;
                self.line(&TurnLine { kind: Kind::Turn, run, turn: Verbatim::of(&turn) })?;
            } else {
                self.line(&ResetLine { kind: Kind::Reset, at: row.get(2)? })?;
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &impl Serialize) -> Result<(), StoreError> {
        let unwritable = |error: String| StoreError::Unwritable(format!("the export cannot be kept: {error}"));
        serde_json::to_writer(&mut self.0, line).map_err(|error| unwritable(error.to_string()))?;
        self.0.write_all(b"\n").map_err(|error| unwritable(error.to_string()))
    }
}

/// Looks at everything before it writes anything: what is refused shares its transaction with the writes of others.
fn import(db: &Connection, archive: &Archive, at: &str) -> rusqlite::Result<Imported> {
    let key = archive.session.key.as_str();
    if db.prepare_cached("SELECT 1 FROM sessions WHERE key = ?1")?.exists([key])? {
        return Ok(Imported::SessionExists);
    }
    for run in &archive.runs {
        if db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([run.id.as_str()])? {
            return Ok(Imported::RunExists(run.id.clone()));
        }
    }
    for run in &archive.runs {
        insert(db, run)?;
    }
    let turns = write_session(db, archive, at)?;
    for past in &archive.past {
        match past {
            Archived::Turn { run, turn } => db
                .prepare_cached("INSERT INTO history (session, run, turn) VALUES (?1, ?2, ?3)")?
                .execute(params![key, run.as_str(), turn])?,
            Archived::Reset { at } => {
                db.prepare_cached("INSERT INTO history (session, reset_at) VALUES (?1, ?2)")?.execute([key, at])?
            }
        };
    }
    let scope = NoteScope::Session(archive.session.key.clone());
    for note in &archive.notes {
        insert_note(db, &scope, note)?;
    }
    Ok(Imported::Yes { turns })
}

fn write_session(db: &Connection, archive: &Archive, at: &str) -> rusqlite::Result<u64> {
    let session = &archive.session;
    let turns = archive.past.iter().rev().take_while(|past| matches!(past, Archived::Turn { .. })).count();
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
        session.private.base_url,
        session.private.mcp_url
    ])?;
    Ok(turns as u64)
}
