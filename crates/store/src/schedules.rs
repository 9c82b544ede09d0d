//! Schedules: runs that start at a time.

use quell_protocol::Principal;

use crate::{AcceptRunOutcome, RunRow, StoreFuture};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSchedule {
    pub id: String,
    /// Who made it.
    pub owner: Principal,
    /// 1 for a new one. Each change adds 1.
    pub revision: i64,
    /// JSON.
    pub definition: String,
}

/// Most schedules that there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleQuota {
    pub per_owner: usize,
    pub total: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateScheduleOutcome {
    Created,
    OwnerHasTooMany,
    TooMany,
}

pub trait ScheduleStore: Send + Sync {
    /// Stores a new schedule, unless there are as many as the quota admits. Fails if its id is in use.
    fn create(&self, schedule: StoredSchedule, quota: ScheduleQuota) -> StoreFuture<'_, CreateScheduleOutcome>;

    /// Lists all schedules, ordered by id.
    fn list(&self) -> StoreFuture<'_, Vec<StoredSchedule>>;

    /// The schedule of this id.
    fn find(&self, id: String) -> StoreFuture<'_, Option<StoredSchedule>>;

    /// Replaces the schedule of this id if its revision is one less. False if it has another one, or is gone: then
    /// somebody else has changed it.
    fn replace(&self, schedule: StoredSchedule) -> StoreFuture<'_, bool>;

    /// As [`Self::replace`], for many schedules in one transaction. Returns the ids of those that it has replaced.
    fn replace_many(&self, schedules: Vec<StoredSchedule>) -> StoreFuture<'_, Vec<String>>;

    /// Accepts the run of a firing and replaces its schedule, in one transaction: both happen, or nothing. Refused as
    /// [`AcceptRunOutcome::NotDue`] if the schedule has another revision or is gone, or if new runs are held.
    /// If a run with this id exists, the schedule is replaced all the same.
    fn fire(&self, schedule: StoredSchedule, run: RunRow) -> StoreFuture<'_, AcceptRunOutcome>;

    /// False if there is none of this id.
    fn delete(&self, id: String) -> StoreFuture<'_, bool>;
}
