//! Schedules and their firings.

use super::{Data, MemoryStore};
use crate::{
    AcceptRunOutcome, CreateScheduleOutcome, RunRow, ScheduleQuota, ScheduleStore, StoreError, StoreFuture,
    StoredSchedule,
};

impl ScheduleStore for MemoryStore {
    fn create(&self, schedule: StoredSchedule, quota: ScheduleQuota) -> StoreFuture<'_, CreateScheduleOutcome> {
        self.write(move |data| {
            if data.schedules.values().filter(|stored| stored.owner == schedule.owner).count() >= quota.per_owner {
                return Ok(CreateScheduleOutcome::OwnerHasTooMany);
            }
            if data.schedules.len() >= quota.total {
                return Ok(CreateScheduleOutcome::TooMany);
            }
            if data.schedules.contains_key(&schedule.id) {
                return Err(StoreError::Bug(format!("the schedule {} exists", schedule.id)));
            }
            data.schedules.insert(schedule.id.clone(), schedule);
            Ok(CreateScheduleOutcome::Created)
        })
    }

    fn list(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        self.read(|data| Ok(data.schedules.values().cloned().collect()))
    }

    fn find(&self, id: String) -> StoreFuture<'_, Option<StoredSchedule>> {
        self.read(move |data| Ok(data.schedules.get(&id).cloned()))
    }

    fn replace(&self, schedule: StoredSchedule) -> StoreFuture<'_, bool> {
        self.write(move |data| Ok(replace(data, schedule)))
    }

    fn replace_many(&self, schedules: Vec<StoredSchedule>) -> StoreFuture<'_, Vec<String>> {
        self.write(move |data| {
            let replaced = schedules.into_iter().filter_map(|schedule| {
                let id = schedule.id.clone();
                replace(data, schedule).then_some(id)
            });
            Ok(replaced.collect())
        })
    }

    fn fire(&self, schedule: StoredSchedule, run: RunRow) -> StoreFuture<'_, AcceptRunOutcome> {
        self.write(move |data| {
            if data.hold.held || !replace(data, schedule) {
                return Ok(AcceptRunOutcome::NotDue);
            }
            Ok(data.accept_run(run))
        })
    }

    fn delete(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |data| Ok(data.schedules.remove(&id).is_some()))
    }
}

fn replace(data: &mut Data, schedule: StoredSchedule) -> bool {
    let Some(stored) = data.schedules.get_mut(&schedule.id) else { return false };
    if stored.revision + 1 != schedule.revision {
        return false;
    }
    *stored = StoredSchedule { owner: stored.owner.clone(), ..schedule };
    true
}
