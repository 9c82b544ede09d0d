//! Pause the schedules that a stop covers: in memory at once, then in the database, all in one write.
//!
//! Of a stop and a resumption the later one counts, by the revisions of the schedule: the stop has seen one, and the
//! resumption has made one. The pause of a stop that has seen an older one is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_kernel::StopRequester;
use quell_kernel::registry::StopScope;
use quell_kernel::schedule::stop_outlasts_resumption;
use quell_protocol::schedule::SchedulePause;
use quell_protocol::{Principal, RunId};
use quell_store::{StoreError, StoredSchedule};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{MAX_ATTEMPTS, ScheduleRecord, ScheduleTable, Schedules, changed_by_others, to_stored};

/// How long the answer to a stop waits for the database. The pauses are in force on this node before.
const STORE_PAUSES_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a pause is tried to be stored for a schedule that the database does not have.
const UNKNOWN_PAUSE_TIME: Duration = Duration::from_secs(60);

/// A pause that is in force on this node.
#[derive(Debug, Clone)]
pub(super) struct UnstoredPause {
    pub(super) pause: SchedulePause,
    since: Instant,
    /// The revision of the schedule that the stop has seen.
    seen: i64,
}

impl UnstoredPause {
    /// False if the schedule was resumed after the stop.
    pub(super) fn stands(&self, record: &ScheduleRecord) -> bool {
        stop_outlasts_resumption(self.seen, record.resumed_in)
    }
}

/// What a stop has paused on this node.
#[derive(Debug, Default)]
pub(crate) struct StoppedSchedules {
    pub(crate) ids: Vec<String>,
    /// Firings that are being accepted, with the principals of their runs. The caller stops them, too.
    pub(crate) firing: Vec<(RunId, Principal)>,
}

/// The schedules that a stop has paused, for its answer. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct PausedSchedules(Vec<watch::Receiver<PauseProgress>>);

#[derive(Debug, Clone, Default)]
pub(crate) struct PauseProgress {
    pub(crate) ids: BTreeSet<String>,
    pub(crate) is_stored: bool,
}

impl PausedSchedules {
    pub(crate) fn follow(progress: watch::Receiver<PauseProgress>) -> Self {
        Self(vec![progress])
    }

    /// Adds what an earlier stop has paused, where one answer is given for both.
    pub fn add_earlier(&mut self, earlier: Self) {
        self.0.extend(earlier.0);
    }

    /// The ids of those that are known so far.
    pub fn ids(&self) -> Vec<String> {
        let ids: BTreeSet<String> = self.0.iter().flat_map(|progress| progress.borrow().ids.clone()).collect();
        ids.into_iter().collect()
    }

    /// True once a restart of any node keeps the pauses, and if there are none.
    pub fn is_stored(&self) -> bool {
        self.0.iter().all(|progress| progress.borrow().is_stored)
    }

    /// Waits until the pauses are stored, or for a second if the database does not answer.
    ///
    /// # Cancel safety
    /// Safe: they are stored by a task of the engine.
    pub async fn wait_stored(&self) {
        self.wait_stored_within(STORE_PAUSES_TIMEOUT).await;
    }

    /// As [`Self::wait_stored`], for another limit.
    ///
    /// # Cancel safety
    /// Safe: they are stored by a task of the engine.
    pub(crate) async fn wait_stored_within(&self, limit: Duration) {
        let all_stored = async {
            for progress in &self.0 {
                let _ = progress.clone().wait_for(|progress| progress.is_stored).await;
            }
        };
        let _ = timeout(limit, all_stored).await;
    }
}

impl ScheduleTable {
    /// The schedules that a stop pauses: those that it reaches, and those that runs of their firings have made.
    fn covered_by(&self, stop: &ScheduleStop) -> Vec<String> {
        let records: Vec<ScheduleRecord> = self.records.keys().filter_map(|id| self.current(id)).collect();
        let is_reached = |record: &&ScheduleRecord| stop.reaches(record);
        let mut reached: BTreeSet<&str> = records.iter().filter(is_reached).map(|it| it.view.id.as_str()).collect();
        loop {
            let is_next = |record: &&ScheduleRecord| {
                let maker = record.view.created_by_run.as_ref().and_then(schedule_of_run);
                maker.is_some_and(|maker| reached.contains(maker)) && stop.may_pause(record)
            };
            let next: Vec<&str> = records.iter().filter(is_next).map(|record| record.view.id.as_str()).collect();
            let known = reached.len();
            reached.extend(next);
            if reached.len() == known {
                break;
            }
        }
        let is_waiting = |it: &&ScheduleRecord| it.view.paused.is_none() && it.view.next_at.is_some();
        let waiting = records.iter().filter(is_waiting).map(|record| record.view.id.as_str());
        waiting.filter(|id| reached.contains(id)).map(str::to_owned).collect()
    }

    /// Pauses schedules in memory.
    fn pause(&mut self, ids: &[String], stop: &ScheduleStop) {
        for id in ids {
            let pause = SchedulePause { reason: stop.reason(), by: stop.requester.principal.clone() };
            let seen = self.records.get(id).map_or(0, |known| known.revision);
            self.pauses.insert(id.clone(), UnstoredPause { pause, since: Instant::now(), seen });
        }
    }

    /// Forgets a pause that is stored, or that counts no more, unless another stop has paused the schedule again.
    fn settle_pause(&mut self, id: &str, settled: &UnstoredPause) {
        if self.pauses.get(id).is_some_and(|unstored| unstored.since == settled.since) {
            self.pauses.remove(id);
        }
    }
}

impl Schedules {
    /// Pauses what a stop covers: the schedules that the stopped runs and sessions made; all of them if everything was
    /// stopped and is held. In force on this node when this returns; [`Schedules::store_stop`] stores it.
    pub(crate) fn pause_for_stop(&self, stop: &ScheduleStop) -> StoppedSchedules {
        let mut table = self.lock();
        let ids = table.covered_by(stop);
        table.pause(&ids, stop);
        let firing = ids.iter().filter_map(|id| {
            let owner = table.records.get(id)?.record.view.created_by.clone();
            Some((table.firing.get(id)?.clone(), owner))
        });
        let firing = firing.collect();
        drop(table);
        if !ids.is_empty() {
            self.notify_changed();
        }
        StoppedSchedules { ids, firing }
    }

    /// Reads all schedules and pauses those that a stop covers and this node did not know, besides the `known` ones.
    /// The node that was asked takes what it reads here for what its stop has seen: its copy was older.
    pub(crate) async fn pause_unknown(
        &self,
        stop: &ScheduleStop,
        known: &BTreeSet<String>,
    ) -> Result<Vec<String>, StoreError> {
        self.reload().await?;
        let mut table = self.lock();
        let revisions: BTreeMap<String, i64> =
            known.iter().filter_map(|id| Some((id.clone(), table.records.get(id)?.revision))).collect();
        if stop.origin == ScheduleStopOrigin::ThisNode {
            for (id, revision) in revisions {
                if let Some(unstored) = table.pauses.get_mut(&id) {
                    unstored.seen = unstored.seen.max(revision);
                }
            }
        }
        let found: Vec<String> = table.covered_by(stop).into_iter().filter(|id| !known.contains(id)).collect();
        table.pause(&found, stop);
        Ok(found)
    }

    /// Stores the pauses of a stop. When this returns, none of these schedules fires on any node.
    pub(crate) async fn store_stop(&self, ids: &BTreeSet<String>) -> Result<(), StoreError> {
        self.wait_until_made(ids).await;
        self.store_pauses_of(ids).await
    }

    /// Waits until none of these schedules is being stored for the first time.
    async fn wait_until_made(&self, ids: &BTreeSet<String>) {
        let mut made = self.0.made.subscribe();
        let is_none_pending = |_: &u64| {
            let table = self.lock();
            !ids.iter().any(|id| table.is_pending(id))
        };
        let _ = made.wait_for(is_none_pending).await;
    }

    /// True while the pauses of a stop are in force and not stored yet.
    pub fn has_unstored_pauses(&self) -> bool {
        !self.lock().pauses.is_empty()
    }

    /// Stores the pauses of stops. Those that cannot be stored stay in force, and are tried again.
    pub(crate) async fn store_pauses(&self) {
        let ids = self.lock().pauses.keys().cloned().collect();
        if let Err(error) = self.store_pauses_of(&ids).await {
            tracing::error!(%error, "the pauses of stops could not be stored: a restart would lift them");
        }
    }

    /// Stores the pauses of these schedules in one write, and again those that others change at this moment.
    pub(super) async fn store_pauses_of(&self, ids: &BTreeSet<String>) -> Result<(), StoreError> {
        let mut left: BTreeMap<String, UnstoredPause> = {
            let table = self.lock();
            ids.iter().filter_map(|id| Some((id.clone(), table.pauses.get(id)?.clone()))).collect()
        };
        for _ in 0..MAX_ATTEMPTS {
            if left.is_empty() {
                return Ok(());
            }
            let changes = self.build_pauses(&mut left).await?;
            if changes.is_empty() {
                return Ok(());
            }
            let stored: Result<Vec<StoredSchedule>, StoreError> =
                changes.values().map(|(record, revision)| to_stored(record, *revision)).collect();
            let replaced = self.0.store.schedules().replace_many(stored?).await?;
            for id in &replaced {
                if let (Some((record, revision)), Some(unstored)) = (changes.get(id), left.remove(id)) {
                    self.note_stored(record, *revision);
                    self.lock().settle_pause(id, &unstored);
                }
            }
        }
        left.keys().next().map_or(Ok(()), |id| Err(changed_by_others(id)))
    }

    /// The paused schedules of `left`, with their new revisions. Removes from `left` what need not be stored: it is
    /// paused already, was resumed after the stop, or is gone.
    async fn build_pauses(
        &self,
        left: &mut BTreeMap<String, UnstoredPause>,
    ) -> Result<BTreeMap<String, (ScheduleRecord, i64)>, StoreError> {
        let schedules = self.0.store.schedules();
        let stored = match left.keys().next() {
            Some(only) if left.len() == 1 => schedules.find(only.clone()).await?.into_iter().collect(),
            _ => schedules.list().await?,
        };
        let mut stored: BTreeMap<String, StoredSchedule> = stored.into_iter().map(|it| (it.id.clone(), it)).collect();
        let mut changes = BTreeMap::new();
        for (id, unstored) in std::mem::take(left) {
            let Some(StoredSchedule { definition, revision, .. }) = stored.remove(&id) else {
                if unstored.since.elapsed() > UNKNOWN_PAUSE_TIME {
                    self.lock().settle_pause(&id, &unstored);
                }
                continue;
            };
            let parsed = serde_json::from_str::<ScheduleRecord>(&definition);
            let mut record = parsed.map_err(|error| StoreError::Corrupt(error.to_string()))?;
            if record.view.paused.is_some() || !unstored.stands(&record) {
                self.note_stored(&record, revision);
                self.lock().settle_pause(&id, &unstored);
            } else {
                record.pause(unstored.pause.clone());
                changes.insert(id.clone(), (record, revision + 1));
                left.insert(id, unstored);
            }
        }
        Ok(changes)
    }
}

/// The schedule whose firing is this run: its run has the id `ID:UNIXTIME`.
fn schedule_of_run(run: &RunId) -> Option<&str> {
    run.as_str().rsplit_once(':').map(|(schedule, _)| schedule)
}

/// A stop, as far as it concerns schedules.
#[derive(Debug)]
pub(crate) struct ScheduleStop {
    pub(crate) scope: StopScope,
    pub(crate) requester: StopRequester,
    /// The runs that it covers.
    pub(crate) runs: BTreeSet<RunId>,
    /// New runs are refused now.
    pub(crate) is_held: bool,
    pub(crate) origin: ScheduleStopOrigin,
}

/// The node that was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScheduleStopOrigin {
    ThisNode,
    OtherNode,
}

impl ScheduleStop {
    fn may_pause(&self, record: &ScheduleRecord) -> bool {
        self.requester.admin || self.requester.principal == record.view.created_by
    }

    /// True if the stop concerns this schedule itself, paused or not.
    fn reaches(&self, record: &ScheduleRecord) -> bool {
        let view = &record.view;
        if !self.may_pause(record) {
            return false;
        }
        let is_of_run = view.created_by_run.as_ref().is_some_and(|run| self.runs.contains(run));
        is_of_run
            || match &self.scope {
                StopScope::Run { id, session, agent } => {
                    view.created_by_run.as_ref() == Some(id)
                        && agent.as_ref().zip(view.agent.as_ref()).is_none_or(|(named, own)| named == own)
                        && session.as_ref().is_none_or(|session| view.created_by_session.as_ref() == Some(session))
                }
                StopScope::Session { key, .. } | StopScope::Conversation { session: key, .. } => {
                    view.created_by_session.as_ref() == Some(key)
                }
                StopScope::Everything => self.is_held,
                StopScope::Agent { .. } | StopScope::Agents { .. } | StopScope::Channel { .. } => false,
            }
    }

    /// True if it may cover schedules that runs of other nodes made, and that this node does not know.
    pub(crate) fn reaches_other_nodes(&self) -> bool {
        match self.scope {
            StopScope::Run { .. } | StopScope::Session { .. } | StopScope::Conversation { .. } => true,
            StopScope::Everything => self.is_held,
            StopScope::Agent { .. } | StopScope::Agents { .. } | StopScope::Channel { .. } => false,
        }
    }

    fn reason(&self) -> String {
        match &self.scope {
            StopScope::Run { id, .. } => format!("the run {id} was stopped"),
            StopScope::Session { key, .. } | StopScope::Conversation { session: key, .. } => {
                format!("the session {key} was stopped")
            }
            StopScope::Everything if self.is_held => "everything was stopped and is held".to_owned(),
            StopScope::Agent { .. } | StopScope::Agents { .. } | StopScope::Channel { .. } | StopScope::Everything => {
                "the run that made it was stopped".to_owned()
            }
        }
    }
}
