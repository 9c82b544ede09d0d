//! Receivers of the notifications of runs.

use quell_protocol::{Principal, RunId};
use tokio_postgres::Row;

use super::PostgresStore;
use super::channels::is_stale;
use super::columns::{Text, get, parse_id, text, to_limit};
use crate::{PushTargetKey, PushTargetStore, PutPushTargetOutcome, StoreError, StoreFuture, StoredPushTarget};

impl PushTargetStore for PostgresStore {
    fn put(&self, key: PushTargetKey, sealed: Vec<u8>, limit: u32) -> StoreFuture<'_, PutPushTargetOutcome> {
        self.write(move |db| {
            let PushTargetKey { run, owner, id } = &key;
            let (run, owner, id) = (run.as_str(), owner.as_str(), Text(id));
            // The lock is that of a reference to the run: it is not deleted meanwhile.
            if db.query_optional("SELECT 1 FROM runs WHERE id = $1 FOR KEY SHARE", &[&run])?.is_none() {
                return Ok(PutPushTargetOutcome::NoSuchRun);
            }
            let sql = "SELECT count(*) >= $4 FROM push_targets WHERE run = $1 AND owner = $2 AND id <> $3";
            if get(&db.query_row(sql, &[&run, &owner, &id, &i64::from(limit)])?, 0)? {
                return Ok(PutPushTargetOutcome::TooMany);
            }
            let sql = "DELETE FROM push_targets WHERE run = $1 AND owner = $2 AND id = $3";
            db.execute(sql, &[&run, &owner, &id])?;
            let sql = "INSERT INTO push_targets (run, owner, id, sealed, boot, settled)
                       VALUES ($1, $2, $3, $4, $5, false) RETURNING seq";
            let row = db.query_row(sql, &[&run, &owner, &id, &sealed, &db.writer()?.number()])?;
            Ok(PutPushTargetOutcome::Stored(get(&row, 0)?))
        })
    }

    fn list(&self, run: RunId, owner: Principal) -> StoreFuture<'_, Vec<StoredPushTarget>> {
        self.read(move |db| {
            let sql = "SELECT seq, run, owner, id, sealed FROM push_targets WHERE run = $1 AND owner = $2 ORDER BY seq";
            db.query(sql, &[&run.as_str(), &owner.as_str()])?.iter().map(target_from_row).collect()
        })
    }

    fn exists(&self, number: i64) -> StoreFuture<'_, bool> {
        self.read(move |db| Ok(db.query_optional("SELECT 1 FROM push_targets WHERE seq = $1", &[&number])?.is_some()))
    }

    fn delete(&self, key: PushTargetKey) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let sql = "DELETE FROM push_targets WHERE run = $1 AND owner = $2 AND id = $3";
            Ok(db.execute(sql, &[&key.run.as_str(), &key.owner.as_str(), &Text(&key.id)])? > 0)
        })
    }

    fn delete_of_owner(&self, owner: Principal) -> StoreFuture<'_, u64> {
        self.write(move |db| db.execute("DELETE FROM push_targets WHERE owner = $1", &[&owner.as_str()]))
    }

    fn settle(&self, number: i64) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            db.execute("UPDATE push_targets SET settled = true WHERE seq = $1", &[&number]).map(drop)
        })
    }

    fn take_over_ended(&self, limit: usize) -> StoreFuture<'_, Vec<StoredPushTarget>> {
        self.write(move |db| {
            let sql = concat!(
                "WITH taken AS (
                     UPDATE push_targets SET boot = $2 WHERE seq IN (
                         SELECT seq FROM push_targets WHERE NOT settled AND ",
                is_stale!(),
                "            AND run IN (SELECT id FROM runs WHERE state = 'ended')
                         ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED)
                     RETURNING seq, run, owner, id, sealed)
                 SELECT seq, run, owner, id, sealed FROM taken ORDER BY seq"
            );
            db.query(sql, &[&to_limit(limit), &db.writer()?.number()])?.iter().map(target_from_row).collect()
        })
    }
}

fn target_from_row(row: &Row) -> Result<StoredPushTarget, StoreError> {
    let key = PushTargetKey {
        run: parse_id(row, 1, RunId::parse)?,
        owner: parse_id(row, 2, Principal::parse)?,
        id: text(row, 3)?,
    };
    Ok(StoredPushTarget { number: get(row, 0)?, key, sealed: get(row, 4)? })
}
