//! Export a session as archive lines, and import one in a single transaction.

use std::io::{BufWriter, Write};
use std::path::Path;

use quell_protocol::{Principal, RunId, SessionKey};

use super::PostgresStore;
use super::columns::{Text, get, optional_text, parse_id};
use super::connection::PgConnection;
use super::notes::{insert_note, query_all_notes};
use super::runs::{insert_run, run_from_row};
use super::sessions::query_session;
use crate::archive::ArchiveWriter;
use crate::temp_file::TempFileWriter;
use crate::{
    ArchiveStore, ArchivedHistoryItem, ImportOutcome, NoteScope, SessionArchive, StoreError, StoreFuture, TempFile,
};

impl ArchiveStore for PostgresStore {
    fn export(&self, key: SessionKey) -> StoreFuture<'_, Option<TempFile>> {
        let data_dir = self.0.data_dir.clone();
        self.run_on_copier(move |db| export_session(db, &data_dir, &key))
    }

    fn import(&self, archive: SessionArchive, at: String) -> StoreFuture<'_, ImportOutcome> {
        self.write(move |db| insert_archive(db, &archive, &at))
    }
}

fn export_session(db: &PgConnection, data_dir: &Path, key: &SessionKey) -> Result<Option<TempFile>, StoreError> {
    let file_error = |error: &std::io::Error| StoreError::from_io(data_dir, error);
    let file = TempFileWriter::new(data_dir).map_err(|error| file_error(&error))?;
    let mut lines = ArchiveWriter(BufWriter::new(file.file()));
    if !write_archive(&mut lines, db, key)? {
        return Ok(None);
    }
    lines.0.flush().map_err(|error| file_error(&error))?;
    drop(lines);
    Ok(Some(file.finish().map_err(|error| file_error(&error))?))
}

/// Returns false when there is no such session.
fn write_archive<W: Write>(
    lines: &mut ArchiveWriter<W>,
    db: &PgConnection,
    key: &SessionKey,
) -> Result<bool, StoreError> {
    let Some(session) = query_session(db, key)? else { return Ok(false) };
    let key = lines.write_session(session)?;
    let sql = "SELECT id, session, agent, principal, fingerprint, state, steered_into, accepted_at, view FROM runs
               WHERE session = $1 AND state IN ('ended', 'steered') ORDER BY seq";
    db.query_each(sql, &[&key.as_str()], &mut |row| lines.write_run(run_from_row(&row)?))?;
    write_history(lines, db, &key)?;
    for note in query_all_notes(db, &NoteScope::Session(key))? {
        lines.write_note(note)?;
    }
    Ok(true)
}

/// Leaves out a turn whose run has not ended: the next archive has both.
fn write_history<W: Write>(
    lines: &mut ArchiveWriter<W>,
    db: &PgConnection,
    key: &SessionKey,
) -> Result<(), StoreError> {
    let sql = "SELECT history.run, history.turn, history.reset_at
               FROM history LEFT JOIN runs ON runs.id = history.run
               WHERE history.session = $1 AND (history.run IS NULL OR runs.state IN ('ended', 'steered'))
               ORDER BY history.seq";
    db.query_each(sql, &[&key.as_str()], &mut |row| {
        lines.write_history_item(match optional_text(&row, 1)? {
            Some(turn) => ArchivedHistoryItem::Turn { run: parse_id(&row, 0, RunId::parse)?, turn },
            None => ArchivedHistoryItem::Reset { at: get(&row, 2)? },
        })
    })
}

/// Checks everything before the first write: a refused import shares its transaction with the writes of others.
fn insert_archive(db: &PgConnection, archive: &SessionArchive, at: &str) -> Result<ImportOutcome, StoreError> {
    let key = archive.session.key.as_str();
    if db.exists("SELECT 1 FROM sessions WHERE key = $1", &[&key])? {
        return Ok(ImportOutcome::SessionExists);
    }
    for run in &archive.runs {
        if db.exists("SELECT 1 FROM runs WHERE id = $1", &[&run.id.as_str()])? {
            return Ok(ImportOutcome::RunExists(run.id.clone()));
        }
    }
    for run in &archive.runs {
        insert_run(db, run)?;
    }
    let turns = insert_session(db, archive, at)?;
    for past in &archive.history {
        match past {
            ArchivedHistoryItem::Turn { run, turn } => {
                let sql = "INSERT INTO history (session, run, turn) VALUES ($1, $2, $3)";
                db.execute(sql, &[&key, &run.as_str(), &Text(turn)])?
            }
            ArchivedHistoryItem::Reset { at } => {
                db.execute("INSERT INTO history (session, reset_at) VALUES ($1, $2)", &[&key, at])?
            }
        };
    }
    let scope = NoteScope::Session(archive.session.key.clone());
    for note in &archive.notes {
        insert_note(db, &scope, note)?;
    }
    Ok(ImportOutcome::Imported { turns })
}

fn insert_session(db: &PgConnection, archive: &SessionArchive, at: &str) -> Result<u64, StoreError> {
    let session = &archive.session;
    let turns = archive.count_turns();
    let sql = "INSERT INTO sessions (key, agent, created_at, last_used_at, use_order, turns, imported_at, config, owner,
                                     private_base_url, private_mcp_url)
               VALUES ($1, $2, $3, $4, (SELECT coalesce(max(use_order), 0) + 1 FROM sessions), $5, $6, $7, $8, $9, $10)";
    db.execute(
        sql,
        &[
            &session.key.as_str(),
            &session.agent.as_str(),
            &session.created_at,
            &session.last_used_at,
            &i64::try_from(turns).unwrap_or(i64::MAX),
            &at,
            &session.config.as_deref().map(Text),
            &session.owner.as_ref().map(Principal::as_str),
            &session.private_endpoints.base_url,
            &session.private_endpoints.mcp_url,
        ],
    )?;
    Ok(turns as u64)
}
