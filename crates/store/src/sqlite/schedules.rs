//! Schedules and their firings.

use quell_protocol::Principal;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::SqliteStore;
use super::columns::parse_id_column;
use super::hold;
use super::runs::insert_accepted_run;
use crate::{
    AcceptRunOutcome, CreateScheduleOutcome, RunRow, ScheduleQuota, ScheduleStore, StoreFuture, StoredSchedule,
};

impl ScheduleStore for SqliteStore {
    fn create(&self, schedule: StoredSchedule, quota: ScheduleQuota) -> StoreFuture<'_, CreateScheduleOutcome> {
        self.write(move |db| {
            let owner = schedule.owner.as_str();
            if count(db, "SELECT count(*) FROM schedules WHERE owner = ?1", &[&owner])? >= quota.per_owner {
                return Ok(CreateScheduleOutcome::OwnerHasTooMany);
            }
            if count(db, "SELECT count(*) FROM schedules", &[])? >= quota.total {
                return Ok(CreateScheduleOutcome::TooMany);
            }
            let sql = "INSERT INTO schedules (id, owner, revision, definition) VALUES (?1, ?2, ?3, ?4)";
            let values = params![schedule.id, owner, schedule.revision, schedule.definition];
            db.prepare_cached(sql)?.execute(values)?;
            Ok(CreateScheduleOutcome::Created)
        })
    }

    fn list(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        self.read(|db| {
            let sql = "SELECT id, owner, revision, definition FROM schedules ORDER BY id";
            db.prepare_cached(sql)?.query_map([], schedule_from_row)?.collect()
        })
    }

    fn find(&self, id: String) -> StoreFuture<'_, Option<StoredSchedule>> {
        self.read(move |db| {
            let sql = "SELECT id, owner, revision, definition FROM schedules WHERE id = ?1";
            db.prepare_cached(sql)?.query_row([&id], schedule_from_row).optional()
        })
    }

    fn replace(&self, schedule: StoredSchedule) -> StoreFuture<'_, bool> {
        self.write(move |db| replace(db, &schedule))
    }

    fn replace_many(&self, schedules: Vec<StoredSchedule>) -> StoreFuture<'_, Vec<String>> {
        self.write(move |db| {
            let mut replaced = Vec::new();
            for schedule in &schedules {
                if replace(db, schedule)? {
                    replaced.push(schedule.id.clone());
                }
            }
            Ok(replaced)
        })
    }

    fn fire(&self, schedule: StoredSchedule, run: RunRow) -> StoreFuture<'_, AcceptRunOutcome> {
        self.write(move |db| {
            if hold::read_hold(db)?.held || !replace(db, &schedule)? {
                return Ok(AcceptRunOutcome::NotDue);
            }
            insert_accepted_run(db, &run)
        })
    }

    fn delete(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| Ok(db.prepare_cached("DELETE FROM schedules WHERE id = ?1")?.execute([&id])? > 0))
    }
}

fn replace(db: &Connection, schedule: &StoredSchedule) -> rusqlite::Result<bool> {
    let sql = "UPDATE schedules SET revision = ?2, definition = ?3 WHERE id = ?1 AND revision = ?2 - 1";
    let values = params![schedule.id, schedule.revision, schedule.definition];
    Ok(db.prepare_cached(sql)?.execute(values)? > 0)
}

fn count(db: &Connection, sql: &str, values: &[&dyn rusqlite::ToSql]) -> rusqlite::Result<usize> {
    db.prepare_cached(sql)?.query_row(values, |row| row.get::<_, i64>(0)).map(|rows| usize::try_from(rows).unwrap_or(0))
}

fn schedule_from_row(row: &Row<'_>) -> rusqlite::Result<StoredSchedule> {
    Ok(StoredSchedule {
        id: row.get(0)?,
        owner: parse_id_column(row, 1, Principal::parse)?,
        revision: row.get(2)?,
        definition: row.get(3)?,
    })
}
