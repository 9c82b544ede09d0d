//! Schedules and their firings.

use quell_protocol::Principal;
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{Text, get, parse_id, text};
use super::connection::PgConnection;
use super::hold;
use super::runs::insert_accepted_run;
use crate::{
    AcceptRunOutcome, CreateScheduleOutcome, RunRow, ScheduleQuota, ScheduleStore, StoreError, StoreFuture,
    StoredSchedule,
};

/// Other nodes wait with their new schedules, so that the counts are right.
const LOCK: &str = "LOCK TABLE schedules IN SHARE ROW EXCLUSIVE MODE";

/// A hold is set before a firing or after it, never in between.
const LOCK_HOLD: &str = "LOCK TABLE hold IN SHARE MODE";

impl ScheduleStore for PostgresStore {
    fn create(&self, schedule: StoredSchedule, quota: ScheduleQuota) -> StoreFuture<'_, CreateScheduleOutcome> {
        self.write(move |db| {
            db.run(LOCK)?;
            let owner = schedule.owner.as_str();
            let row = db.query_row("SELECT count(*) FILTER (WHERE owner = $1), count(*) FROM schedules", &[&owner])?;
            let (of_owner, total) = (count(&row, 0)?, count(&row, 1)?);
            if of_owner >= quota.per_owner {
                return Ok(CreateScheduleOutcome::OwnerHasTooMany);
            }
            if total >= quota.total {
                return Ok(CreateScheduleOutcome::TooMany);
            }
            insert(db, &schedule)?;
            Ok(CreateScheduleOutcome::Created)
        })
    }

    fn list(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        self.read(|db| {
            let sql = "SELECT id, owner, revision, definition FROM schedules ORDER BY id";
            db.query(sql, &[])?.iter().map(schedule_from_row).collect()
        })
    }

    fn find(&self, id: String) -> StoreFuture<'_, Option<StoredSchedule>> {
        self.read(move |db| {
            let sql = "SELECT id, owner, revision, definition FROM schedules WHERE id = $1";
            db.query(sql, &[&id])?.first().map(schedule_from_row).transpose()
        })
    }

    fn replace(&self, schedule: StoredSchedule) -> StoreFuture<'_, bool> {
        self.write(move |db| replace(db, &schedule))
    }

    fn replace_many(&self, schedules: Vec<StoredSchedule>) -> StoreFuture<'_, Vec<String>> {
        self.write(move |db| {
            // Locked in the order of their ids, so that two stops at once do not wait for each other.
            let sql = "WITH locked AS (SELECT id, revision FROM schedules WHERE id = ANY($1) ORDER BY id FOR UPDATE)
                       UPDATE schedules SET revision = changed.revision, definition = changed.definition
                       FROM unnest($1::text[], $2::bigint[], $3::text[]) AS changed (id, revision, definition)
                       JOIN locked ON locked.id = changed.id AND locked.revision = changed.revision - 1
                       WHERE schedules.id = changed.id RETURNING schedules.id";
            let ids: Vec<&str> = schedules.iter().map(|schedule| schedule.id.as_str()).collect();
            let revisions: Vec<i64> = schedules.iter().map(|schedule| schedule.revision).collect();
            let definitions: Vec<Text<'_>> = schedules.iter().map(|schedule| Text(&schedule.definition)).collect();
            db.query(sql, &[&ids, &revisions, &definitions])?.iter().map(|row| get(row, 0)).collect()
        })
    }

    fn fire(&self, schedule: StoredSchedule, run: RunRow) -> StoreFuture<'_, AcceptRunOutcome> {
        self.write(move |db| {
            db.run(LOCK_HOLD)?;
            if hold::read_hold(db)?.held || !replace(db, &schedule)? {
                return Ok(AcceptRunOutcome::NotDue);
            }
            insert_accepted_run(db, &run)
        })
    }

    fn delete(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| Ok(db.execute("DELETE FROM schedules WHERE id = $1", &[&id])? > 0))
    }
}

fn replace(db: &PgConnection, schedule: &StoredSchedule) -> Result<bool, StoreError> {
    let sql = "UPDATE schedules SET revision = $2::bigint, definition = $3 WHERE id = $1 AND revision = $2::bigint - 1";
    Ok(db.execute(sql, &[&schedule.id, &schedule.revision, &Text(&schedule.definition)])? > 0)
}

fn insert(db: &PgConnection, schedule: &StoredSchedule) -> Result<(), StoreError> {
    let sql = "INSERT INTO schedules (id, owner, revision, definition) VALUES ($1, $2, $3, $4)";
    let owner = schedule.owner.as_str();
    db.execute(sql, &[&schedule.id, &owner, &schedule.revision, &Text(&schedule.definition)]).map(drop)
}

fn count(row: &Row, at: usize) -> Result<usize, StoreError> {
    Ok(usize::try_from(get::<i64>(row, at)?).unwrap_or(0))
}

fn schedule_from_row(row: &Row) -> Result<StoredSchedule, StoreError> {
    Ok(StoredSchedule {
        id: get(row, 0)?,
        owner: parse_id(row, 1, Principal::parse)?,
        revision: get(row, 2)?,
        definition: text(row, 3)?,
    })
}
