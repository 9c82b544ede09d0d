//! Files as they were before a run's file tools changed them.

use quell_protocol::{NodeName, RunId};
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{Text, get, invalid_column, text};
use super::connection::PgConnection;
use crate::file_changes::{join_lineage, split_lineage};
use crate::{FileBefore, FileChange, FileChangeStore, StoreError, StoreFuture, StoredFileChange};

impl FileChangeStore for PostgresStore {
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
                       FROM file_changes WHERE tree = $1 ORDER BY seq";
            db.query(sql, &[&root.as_str()])?.iter().map(stored_change).collect()
        })
    }

    fn read_content(&self, number: i64) -> StoreFuture<'_, Option<Vec<u8>>> {
        self.read(move |db| {
            let row = db.query_optional("SELECT content FROM file_changes WHERE seq = $1", &[&number])?;
            Ok(row.map(|row| get(&row, 0)).transpose()?.flatten())
        })
    }

    fn mark_undone(&self, numbers: Vec<i64>, at: String) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let sql = "UPDATE file_changes SET undone_at = $2, content = NULL WHERE seq = $1";
            numbers.iter().try_for_each(|number| db.execute(sql, &[number, &at]).map(drop))
        })
    }
}

/// Returns whether the run exists.
fn insert_changes(db: &PgConnection, run: &RunId, changes: &[FileChange]) -> Result<bool, StoreError> {
    let sql = "INSERT INTO file_changes
                   (run, tree, lineage, workdir, path, owner, at, before_sha256, before_mode, content, after_sha256, node)
               SELECT id, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12 FROM runs WHERE id = $1";
    for change in changes {
        let FileChange { lineage, workdir, path, owner, node, at, before, after_sha256 } = change;
        let (tree, lineage) = (lineage.first().unwrap_or(run).as_str(), join_lineage(lineage));
        let before_sha256 = before.as_ref().map(|before| &before.sha256);
        let before_mode = before.as_ref().map(|before| i64::from(before.mode));
        let content = before.as_ref().and_then(|before| before.content.as_ref());
        let owner = owner.map(i64::from);
        let node = node.as_ref().map(NodeName::as_str);
        let inserted = db.execute(
            sql,
            &[
                &run.as_str(),
                &tree,
                &lineage,
                &Text(workdir),
                &Text(path),
                &owner,
                at,
                &before_sha256,
                &before_mode,
                &content,
                after_sha256,
                &node,
            ],
        )?;
        if inserted == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn stored_change(row: &Row) -> Result<StoredFileChange, StoreError> {
    let small_number = |at| get::<Option<i64>>(row, at)?.map(u32::try_from).transpose().map_err(invalid_column);
    let (sha256, mode) = (get::<Option<String>>(row, 6)?, small_number(7)?);
    let change = FileChange {
        lineage: split_lineage(&get::<String>(row, 1)?).map_err(invalid_column)?,
        workdir: text(row, 2)?,
        path: text(row, 3)?,
        owner: small_number(4)?,
        node: get::<Option<String>>(row, 11)?.map(NodeName::parse).transpose().map_err(invalid_column)?,
        at: get(row, 5)?,
        before: sha256.zip(mode).map(|(sha256, mode)| FileBefore { sha256, mode, content: None }),
        after_sha256: get(row, 9)?,
    };
    Ok(StoredFileChange { number: get(row, 0)?, change, has_content: get(row, 8)?, undone_at: get(row, 10)? })
}
