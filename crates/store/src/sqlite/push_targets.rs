//! Receivers of the notifications of runs.

use quell_protocol::{Principal, RunId};
use rusqlite::{OptionalExtension, Row, params};

use super::SqliteStore;
use super::columns::{parse_id_column, to_limit};
use crate::{PushTargetKey, PushTargetStore, PutPushTargetOutcome, StoreFuture, StoredPushTarget};

impl PushTargetStore for SqliteStore {
    fn put(&self, key: PushTargetKey, sealed: Vec<u8>, limit: u32) -> StoreFuture<'_, PutPushTargetOutcome> {
        self.write(move |db| {
            let PushTargetKey { run, owner, id } = &key;
            if !db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([run.as_str()])? {
                return Ok(PutPushTargetOutcome::NoSuchRun);
            }
            let sql = "SELECT count(*) >= ?4 FROM push_targets WHERE run = ?1 AND owner = ?2 AND id <> ?3";
            let is_full = db
                .prepare_cached(sql)?
                .query_row(params![run.as_str(), owner.as_str(), id, limit], |row| row.get(0))?;
            if is_full {
                return Ok(PutPushTargetOutcome::TooMany);
            }
            let sql = "DELETE FROM push_targets WHERE run = ?1 AND owner = ?2 AND id = ?3";
            db.prepare_cached(sql)?.execute(params![run.as_str(), owner.as_str(), id])?;
            let sql = "INSERT INTO push_targets (run, owner, id, sealed, boot, settled)
                       SELECT ?1, ?2, ?3, ?4, number, 0 FROM boot RETURNING seq";
            let number = db
                .prepare_cached(sql)?
                .query_row(params![run.as_str(), owner.as_str(), id, sealed], |row| row.get(0))?;
            Ok(PutPushTargetOutcome::Stored(number))
        })
    }

    fn list(&self, run: RunId, owner: Principal) -> StoreFuture<'_, Vec<StoredPushTarget>> {
        self.read(move |db| {
            let sql = "SELECT seq, run, owner, id, sealed FROM push_targets WHERE run = ?1 AND owner = ?2 ORDER BY seq";
            db.prepare_cached(sql)?.query_map([run.as_str(), owner.as_str()], target_from_row)?.collect()
        })
    }

    fn exists(&self, number: i64) -> StoreFuture<'_, bool> {
        self.read(move |db| db.prepare_cached("SELECT 1 FROM push_targets WHERE seq = ?1")?.exists([number]))
    }

    fn delete(&self, key: PushTargetKey) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let PushTargetKey { run, owner, id } = &key;
            let sql = "DELETE FROM push_targets WHERE run = ?1 AND owner = ?2 AND id = ?3";
            Ok(db.prepare_cached(sql)?.execute(params![run.as_str(), owner.as_str(), id])? > 0)
        })
    }

    fn delete_of_owner(&self, owner: Principal) -> StoreFuture<'_, u64> {
        self.write(move |db| {
            let deleted = db.prepare_cached("DELETE FROM push_targets WHERE owner = ?1")?.execute([owner.as_str()])?;
            Ok(deleted as u64)
        })
    }

    fn settle(&self, number: i64) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            db.prepare_cached("UPDATE push_targets SET settled = 1 WHERE seq = ?1")?.execute([number]).map(drop)
        })
    }

    fn take_over_ended(&self, limit: usize) -> StoreFuture<'_, Vec<StoredPushTarget>> {
        self.write(move |db| {
            // Most often there are none, and then nothing is written.
            let sql = "SELECT seq FROM push_targets WHERE settled = 0 AND boot < (SELECT number FROM boot)
                       AND run IN (SELECT id FROM runs WHERE state = 'ended') ORDER BY seq LIMIT ?1";
            let left: Vec<i64> =
                db.prepare_cached(sql)?.query_map([to_limit(limit)], |row| row.get(0))?.collect::<Result<_, _>>()?;
            let sql = "UPDATE push_targets SET boot = (SELECT number FROM boot) WHERE seq = ?1
                       RETURNING seq, run, owner, id, sealed";
            let mut take = db.prepare_cached(sql)?;
            let taken =
                left.iter().filter_map(|number| take.query_row([number], target_from_row).optional().transpose());
            taken.collect()
        })
    }
}

fn target_from_row(row: &Row<'_>) -> rusqlite::Result<StoredPushTarget> {
    let key = PushTargetKey {
        run: parse_id_column(row, 1, RunId::parse)?,
        owner: parse_id_column(row, 2, Principal::parse)?,
        id: row.get(3)?,
    };
    Ok(StoredPushTarget { number: row.get(0)?, key, sealed: row.get(4)? })
}
