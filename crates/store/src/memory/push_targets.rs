//! Receivers of the notifications of runs.

use quell_protocol::{Principal, RunId};

use super::{Data, MemoryStore};
use crate::{PushTargetKey, PushTargetStore, PutPushTargetOutcome, StoreFuture, StoredPushTarget, StoredRunState};

#[derive(Debug)]
pub(super) struct PushTargetEntry {
    boot: u64,
    is_settled: bool,
    target: StoredPushTarget,
}

impl Data {
    pub(super) fn delete_push_targets(&mut self, runs: &[String]) {
        self.push_targets.retain(|entry| !runs.iter().any(|run| run == entry.target.key.run.as_str()));
    }

    fn has_ended(&self, run: &RunId) -> bool {
        self.runs.iter().any(|entry| entry.row.id == *run && entry.row.state == StoredRunState::Ended)
    }
}

impl PushTargetStore for MemoryStore {
    fn put(&self, key: PushTargetKey, sealed: Vec<u8>, limit: u32) -> StoreFuture<'_, PutPushTargetOutcome> {
        let boot = self.boot;
        self.write(move |data| {
            if !data.runs.iter().any(|entry| entry.row.id == key.run) {
                return Ok(PutPushTargetOutcome::NoSuchRun);
            }
            let is_other =
                |other: &PushTargetKey| other.run == key.run && other.owner == key.owner && other.id != key.id;
            if data.push_targets.iter().filter(|entry| is_other(&entry.target.key)).count() >= limit as usize {
                return Ok(PutPushTargetOutcome::TooMany);
            }
            let number = data.next_number();
            data.push_targets.retain(|entry| entry.target.key != key);
            let target = StoredPushTarget { number, key, sealed };
            data.push_targets.push(PushTargetEntry { boot, is_settled: false, target });
            Ok(PutPushTargetOutcome::Stored(number))
        })
    }

    fn list(&self, run: RunId, owner: Principal) -> StoreFuture<'_, Vec<StoredPushTarget>> {
        self.read(move |data| {
            let targets = data.push_targets.iter().map(|entry| &entry.target);
            Ok(targets.filter(|target| target.key.run == run && target.key.owner == owner).cloned().collect())
        })
    }

    fn exists(&self, number: i64) -> StoreFuture<'_, bool> {
        self.read(move |data| Ok(data.push_targets.iter().any(|entry| entry.target.number == number)))
    }

    fn delete(&self, key: PushTargetKey) -> StoreFuture<'_, bool> {
        self.write(move |data| Ok(data.push_targets.extract_if(.., |entry| entry.target.key == key).count() > 0))
    }

    fn delete_of_owner(&self, owner: Principal) -> StoreFuture<'_, u64> {
        self.write(move |data| {
            Ok(data.push_targets.extract_if(.., |entry| entry.target.key.owner == owner).count() as u64)
        })
    }

    fn settle(&self, number: i64) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            let settled = data.push_targets.iter_mut().filter(|entry| entry.target.number == number);
            settled.for_each(|entry| entry.is_settled = true);
        })
    }

    fn take_over_ended(&self, limit: usize) -> StoreFuture<'_, Vec<StoredPushTarget>> {
        let boot = self.boot;
        self.write(move |data| {
            let is_left = |entry: &&PushTargetEntry| {
                !entry.is_settled && entry.boot < boot && data.has_ended(&entry.target.key.run)
            };
            let taken: Vec<StoredPushTarget> =
                data.push_targets.iter().filter(is_left).take(limit).map(|entry| entry.target.clone()).collect();
            for entry in &mut data.push_targets {
                if taken.iter().any(|target| target.number == entry.target.number) {
                    entry.boot = boot;
                }
            }
            Ok(taken)
        })
    }
}
