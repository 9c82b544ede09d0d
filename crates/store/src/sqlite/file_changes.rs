//! Files as they were before a run's file tools changed them.

use quell_protocol::{NodeName, RunId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::SqliteStore;
use super::columns::invalid_column;
use crate::file_changes::{join_lineage, split_lineage};
use crate::{FileBefore, FileChange, FileChangeStore, StoreError, StoreFuture, StoredFileChange};

impl FileChangeStore for SqliteStore {
    fn add(&self, run: RunId, changes: Vec<FileChange>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let id = run.clone();
            let known = self.write(move |db| insert_changes(db, &id, &changes)).await?;
            if known { Ok(()) } else { Err(StoreError::NoSuchRun(run)) }
        })
    }

    fn list_tree(&self, root: RunId) -> StoreFuture<'_, Vec<StoredFileChange>> {
        self.read(move |db| {
            let sql = "SELECT seq, lineage, workdir, path, owner, at, before_sha256, before_mode, content IS NOT NULL, after_sha256,
                              undone_at, node
                       FROM file_changes WHERE tree = ?1 ORDER BY seq";
            db.prepare_cached(sql)?.query_map([root.as_str()], stored_change)?.collect()
        })
    }

    fn read_content(&self, number: i64) -> StoreFuture<'_, Option<Vec<u8>>> {
        self.read(move |db| {
            let sql = "SELECT content FROM file_changes WHERE seq = ?1";
            Ok(db.prepare_cached(sql)?.query_row([number], |row| row.get(0)).optional()?.flatten())
        })
    }

    fn mark_undone(&self, numbers: Vec<i64>, at: String) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let mut update =
                db.prepare_cached("UPDATE file_changes SET undone_at = ?2, content = NULL WHERE seq = ?1")?;
            for number in &numbers {
                update.execute(params![number, at])?;
            }
            Ok(())
        })
    }
}

/// Returns whether the run exists.
fn insert_changes(db: &Connection, run: &RunId, changes: &[FileChange]) -> rusqlite::Result<bool> {
    let mut insert = db.prepare_cached(
        "INSERT INTO file_changes (run, tree, lineage, workdir, path, owner, at, before_sha256, before_mode, content, after_sha256,
                                   node)
         SELECT id, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12 FROM runs WHERE id = ?1",
    )?;
    for change in changes {
        let FileChange { lineage, workdir, path, owner, node, at, before, after_sha256 } = change;
        let inserted = insert.execute(params![
            run.as_str(),
            lineage.first().unwrap_or(run).as_str(),
            join_lineage(lineage),
            workdir,
            path,
            owner,
            at,
            before.as_ref().map(|before| &before.sha256),
            before.as_ref().map(|before| before.mode),
            before.as_ref().and_then(|before| before.content.as_ref()),
            after_sha256,
            node.as_ref().map(NodeName::as_str),
        ])?;
        if inserted == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn stored_change(row: &Row<'_>) -> rusqlite::Result<StoredFileChange> {
    let lineage: String = row.get(1)?;
    let sha256: Option<String> = row.get(6)?;
    let mode: Option<u32> = row.get(7)?;
    let node: Option<String> = row.get(11)?;
    let change = FileChange {
        lineage: split_lineage(&lineage).map_err(|problem| invalid_column(1, problem))?,
        workdir: row.get(2)?,
        path: row.get(3)?,
        owner: row.get(4)?,
        node: node.map(NodeName::parse).transpose().map_err(|problem| invalid_column(11, problem))?,
        at: row.get(5)?,
        before: sha256.zip(mode).map(|(sha256, mode)| FileBefore { sha256, mode, content: None }),
        after_sha256: row.get(9)?,
    };
    Ok(StoredFileChange { number: row.get(0)?, change, has_content: row.get(8)?, undone_at: row.get(10)? })
}
