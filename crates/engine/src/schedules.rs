//! Schedules: make, list, change and delete them; pause those that a stop covers. The engine fires them
//! (`engine/schedules.rs`).
//!
//! The database has the schedules. This node keeps a copy of them, so that a stop pauses them in its own synchronous
//! call; the pause is stored before the stop is answered. A change is made to one revision of a schedule and fails if
//! another node was faster, and a firing is such a change: so none comes after a pause that is stored.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use quell_kernel::StopRequester;
use quell_kernel::registry::StopScope;
use quell_kernel::schedule::{ScheduleError, ScheduleRate, ScheduleTiming, default_missed_policy};
use quell_protocol::api::AccessLevel;
use quell_protocol::schedule::{SchedulePatch, SchedulePause, ScheduleRequest, ScheduleView};
use quell_protocol::{Principal, RunId, SessionKey, Surface};
use quell_scope::clock::Clock;
use quell_store::{CreateScheduleOutcome, ScheduleQuota, Store, StoreError, StoredSchedule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::channel_origin::{ScheduleCreator, ScheduledDelivery};

/// Attempts of a change when others change the same schedule.
const MAX_ATTEMPTS: usize = 20;
/// How long the answer to a stop waits for the database. The pauses are in force on this node before.
const STORE_PAUSES_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a pause is tried to be stored for a schedule that the database does not have.
const UNKNOWN_PAUSE_TIME: Duration = Duration::from_secs(60);
/// The longest text of a schedule, in bytes.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// `[schedules]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSettings {
    /// The time zone of schedules that name none, such as `Europe/Berlin`.
    pub timezone: String,
    /// The smallest distance between two firings of a schedule, in seconds.
    pub min_interval_s: u64,
    /// Most schedules of one principal.
    pub max_per_principal: usize,
    /// Most schedules of all together.
    pub max_total: usize,
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self { timezone: "UTC".to_owned(), min_interval_s: 60, max_per_principal: 50, max_total: 1000 }
    }
}

/// Why a schedule was not made or changed.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleChangeError {
    #[error(transparent)]
    Invalid(#[from] ScheduleError),
    #[error("the text has {0} bytes, and {MAX_TEXT_BYTES} are the most")]
    TooLong(usize),
    #[error("{0}")]
    Delivery(String),
    #[error("{0} has {1} schedules, which are the most (`[schedules] max_per_principal`); remove one first")]
    OwnerHasTooMany(Principal, usize),
    #[error("there are {0} schedules, which are the most (`[schedules] max_total`); remove one first")]
    TooMany(usize),
    #[error("the schedule is over; make a new one")]
    Over,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A schedule as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRecord {
    pub view: ScheduleView,
    /// The rights of its creator; its runs never have more.
    pub scope: AccessLevel,
    pub surface: Surface,
}

impl ScheduleRecord {
    /// The times of a schedule. Fails only for a record of another version of Quell.
    pub fn timing(&self) -> Result<ScheduleTiming, ScheduleError> {
        let ScheduleView { cron, every, at, timezone, .. } = self.view.clone();
        let request = ScheduleRequest { cron, every, at, timezone: Some(timezone), ..ScheduleRequest::default() };
        ScheduleTiming::parse(&request, "UTC")
    }

    pub fn next_at(&self) -> Option<Timestamp> {
        self.view.next_at.as_ref()?.parse().ok()
    }

    fn pause(&mut self, pause: SchedulePause) {
        if self.view.paused.is_none() {
            self.view.paused = Some(pause);
        }
        self.view.next_at = None;
    }
}

/// The schedules of one engine. Clones share them.
#[derive(Debug, Clone)]
pub struct Schedules(Arc<SchedulesInner>);

#[derive(Debug)]
struct SchedulesInner {
    store: Store,
    clock: Clock,
    settings: ScheduleSettings,
    table: Mutex<ScheduleTable>,
    delivery: Mutex<Option<Arc<dyn ScheduledDelivery>>>,
    changed: Notify,
    /// Counts the schedules that were stored for the first time, or could not be.
    made: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct ScheduleTable {
    records: BTreeMap<String, KnownSchedule>,
    /// Schedules of this node that are being stored for the first time, or that a list which is being read may lack.
    new: BTreeMap<String, NewState>,
    /// Pauses that are in force and not stored yet.
    pauses: BTreeMap<String, UnstoredPause>,
    /// Firings that are being accepted.
    firing: BTreeMap<String, RunId>,
    /// The number of the last reading of the list.
    reading: u64,
}

#[derive(Debug, Clone)]
struct KnownSchedule {
    record: ScheduleRecord,
    revision: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewState {
    /// It is being stored.
    Pending,
    /// Readings that begin later have it.
    StoredDuring(u64),
}

#[derive(Debug, Clone)]
struct UnstoredPause {
    pause: SchedulePause,
    since: tokio::time::Instant,
}

impl ScheduleTable {
    /// A schedule as it is now: a pause counts before it is stored.
    fn current(&self, id: &str) -> Option<ScheduleRecord> {
        let mut record = self.records.get(id)?.record.clone();
        if let Some(unstored) = self.pauses.get(id) {
            record.pause(unstored.pause.clone());
        }
        Some(record)
    }

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

    fn is_pending(&self, id: &str) -> bool {
        self.new.get(id) == Some(&NewState::Pending)
    }

    /// Takes over what a reading has found. What was changed since it began stays.
    fn merge(&mut self, reading: u64, mut found: BTreeMap<String, KnownSchedule>) {
        self.new.retain(|_, state| match state {
            NewState::Pending => true,
            NewState::StoredDuring(other) => *other >= reading,
        });
        for (id, known) in std::mem::take(&mut self.records) {
            match found.entry(id) {
                Entry::Occupied(mut entry) if entry.get().revision < known.revision => drop(entry.insert(known)),
                Entry::Occupied(_) => {}
                Entry::Vacant(entry) if self.new.contains_key(entry.key()) => drop(entry.insert(known)),
                Entry::Vacant(_) => {}
            }
        }
        self.records = found;
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

/// A schedule that a stop finds, and that is not stored yet. Dropped, it is forgotten.
#[derive(Debug)]
pub(crate) struct NewSchedule {
    schedules: Schedules,
    record: ScheduleRecord,
}

impl Drop for NewSchedule {
    fn drop(&mut self) {
        let id = &self.record.view.id;
        let mut table = self.schedules.lock();
        if table.is_pending(id) {
            table.new.remove(id);
            table.records.remove(id);
        }
        drop(table);
        self.schedules.0.made.send_modify(|made| *made += 1);
    }
}

impl Schedules {
    pub fn new(store: Store, clock: Clock, settings: ScheduleSettings) -> Self {
        Self(Arc::new(SchedulesInner {
            store,
            clock,
            settings,
            table: Mutex::default(),
            delivery: Mutex::default(),
            changed: Notify::new(),
            made: watch::Sender::default(),
        }))
    }

    /// Sets who sends the answers of firings into chats.
    pub fn set_delivery(&self, delivery: Arc<dyn ScheduledDelivery>) {
        *self.0.delivery.lock().unwrap_or_else(PoisonError::into_inner) = Some(delivery);
    }

    pub fn delivery(&self) -> Option<Arc<dyn ScheduledDelivery>> {
        self.0.delivery.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The wall clock.
    pub fn now(&self) -> Timestamp {
        self.0.clock.timestamp(self.0.clock.now())
    }

    /// Waits until a schedule may be due earlier than before.
    ///
    /// # Cancel safety
    /// Safe: a change in between is kept.
    pub async fn wait_for_change(&self) {
        self.0.changed.notified().await;
    }

    /// Has the timer look at all schedules again.
    pub fn notify_changed(&self) {
        self.0.changed.notify_one();
    }

    /// Begins to make a schedule. From now on a stop pauses it.
    ///
    /// # Errors
    /// [`ScheduleChangeError`]; there is no new schedule then.
    pub(crate) fn begin_creation(
        &self,
        creator: ScheduleCreator,
        request: ScheduleRequest,
    ) -> Result<NewSchedule, ScheduleChangeError> {
        let record = self.build_record(creator, request)?;
        let id = record.view.id.clone();
        let mut table = self.lock();
        table.new.insert(id.clone(), NewState::Pending);
        table.records.insert(id, KnownSchedule { record: record.clone(), revision: 1 });
        drop(table);
        Ok(NewSchedule { schedules: self.clone(), record })
    }

    /// Stores a new schedule.
    ///
    /// # Errors
    /// [`ScheduleChangeError`]; there is no new schedule then.
    ///
    /// # Cancel safety
    /// Must not be dropped: a stop waits for it, and the schedule may be stored or not.
    pub(crate) async fn store_new(&self, new: NewSchedule) -> Result<ScheduleView, ScheduleChangeError> {
        let quota = ScheduleQuota { per_owner: self.0.settings.max_per_principal, total: self.0.settings.max_total };
        let created = self.0.store.schedules().create(to_stored(&new.record, 1)?, quota).await?;
        let view = &new.record.view;
        match created {
            CreateScheduleOutcome::Created => {
                let mut table = self.lock();
                let reading = table.reading;
                table.new.insert(view.id.clone(), NewState::StoredDuring(reading));
                drop(table);
                self.notify_changed();
                Ok(self.find(&view.id).map_or(view.clone(), |record| record.view))
            }
            CreateScheduleOutcome::OwnerHasTooMany => {
                Err(ScheduleChangeError::OwnerHasTooMany(view.created_by.clone(), quota.per_owner))
            }
            CreateScheduleOutcome::TooMany => Err(ScheduleChangeError::TooMany(quota.total)),
        }
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

    fn build_record(
        &self,
        creator: ScheduleCreator,
        request: ScheduleRequest,
    ) -> Result<ScheduleRecord, ScheduleChangeError> {
        check_text(&request.text)?;
        let settings = &self.0.settings;
        let timing = ScheduleTiming::parse(&request, &settings.timezone)?;
        let now = self.now();
        let next = timing.first_after(now, self.rate())?;
        if let Some(delivery) = &request.delivery {
            let channels = self.delivery().ok_or_else(|| no_channels(&delivery.channel))?;
            channels.check_delivery(delivery, &creator).map_err(ScheduleChangeError::Delivery)?;
        }
        let missed = request.missed.unwrap_or_else(|| default_missed_policy(&request));
        let random = uuid::Uuid::now_v7().simple().to_string();
        let id = random.get(20..).unwrap_or(&random).to_owned();
        let own_session = SessionKey::parse(format!("schedule:{id}"));
        let session_key = request.session_key.clone().map_or(own_session, Ok);
        let (created_by_run, created_by_session) = creator.run.unzip();
        let view = ScheduleView {
            session_key: session_key.map_err(|error| StoreError::Bug(error.to_string()))?,
            id,
            cron: request.cron,
            every: request.every,
            at: request.at,
            timezone: request.timezone.unwrap_or_else(|| settings.timezone.clone()),
            text: request.text,
            agent: request.agent,
            delivery: request.delivery,
            missed,
            paused: None,
            created_by: creator.principal,
            created_at: now.to_string(),
            created_by_run,
            created_by_session,
            next_at: Some(next.to_string()),
            last_at: None,
            last_run: None,
            problem: None,
            fired: 0,
            missed_count: 0,
            skipped_count: 0,
        };
        Ok(ScheduleRecord { view, scope: creator.scope, surface: creator.surface })
    }

    fn rate(&self) -> ScheduleRate {
        ScheduleRate { min_interval: Duration::from_secs(self.0.settings.min_interval_s) }
    }

    /// Reads all schedules from the database.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn reload(&self) -> Result<Vec<ScheduleRecord>, StoreError> {
        let reading = {
            let mut table = self.lock();
            table.reading += 1;
            table.reading
        };
        let listed = self.0.store.schedules().list().await?;
        let mut found = BTreeMap::new();
        for stored in listed {
            match serde_json::from_str::<ScheduleRecord>(&stored.definition) {
                Ok(record) => drop(found.insert(stored.id, KnownSchedule { record, revision: stored.revision })),
                Err(error) => tracing::error!(schedule = stored.id, %error, "a stored schedule cannot be read"),
            }
        }
        let mut table = self.lock();
        table.merge(reading, found);
        Ok(table.records.keys().filter_map(|id| table.current(id)).collect())
    }

    /// The schedule of this id, as this node knows it.
    pub fn find(&self, id: &str) -> Option<ScheduleRecord> {
        self.lock().current(id)
    }

    /// Changes a schedule as `patch` says. `None` if there is none of this id.
    ///
    /// # Errors
    /// [`ScheduleChangeError`]; nothing has changed then.
    ///
    /// # Cancel safety
    /// Safe: it is changed, or not.
    pub async fn patch(
        &self,
        author: PatchAuthor<'_>,
        id: &str,
        patch: &SchedulePatch,
    ) -> Result<Option<ScheduleView>, ScheduleChangeError> {
        if let Some(text) = &patch.text {
            check_text(text)?;
        }
        if patch.paused == Some(false) {
            self.store_pauses().await;
        }
        let (now, mut is_over) = (self.now(), false);
        let changed = self.modify(id, |record| {
            if let Some(text) = &patch.text {
                record.view.text.clone_from(text);
                // A text runs with no more rights than those of its author.
                record.scope = record.scope.min(author.scope);
            }
            record.view.missed = patch.missed.unwrap_or(record.view.missed);
            match patch.paused {
                Some(true) => {
                    record.pause(SchedulePause { reason: "by hand".to_owned(), by: author.principal.clone() })
                }
                Some(false) if record.view.paused.is_some() => {
                    let next = record.timing().ok().and_then(|timing| timing.next_after(now, now));
                    is_over = next.is_none();
                    if next.is_some() {
                        record.view.paused = None;
                        record.view.next_at = next.map(|next| next.to_string());
                    }
                }
                Some(false) | None => {}
            }
        });
        let changed = changed.await?;
        self.notify_changed();
        if is_over { Err(ScheduleChangeError::Over) } else { Ok(changed.map(|record| record.view)) }
    }

    /// Deletes a schedule. False if there is none of this id. A run that it has started goes on.
    ///
    /// # Cancel safety
    /// Safe: it is deleted, or not.
    pub async fn delete(&self, id: &str) -> Result<bool, StoreError> {
        let deleted = self.0.store.schedules().delete(id.to_owned()).await?;
        let mut table = self.lock();
        table.records.remove(id);
        table.pauses.remove(id);
        Ok(deleted)
    }

    /// Changes a stored schedule, again if another change was faster. `None` if there is none of this id.
    async fn modify(
        &self,
        id: &str,
        mut change: impl FnMut(&mut ScheduleRecord),
    ) -> Result<Option<ScheduleRecord>, StoreError> {
        for _ in 0..MAX_ATTEMPTS {
            let Some((mut record, revision)) = self.read(id).await? else { return Ok(None) };
            change(&mut record);
            if self.replace(&record, revision).await? {
                return Ok(Some(record));
            }
        }
        Err(StoreError::Locked(format!("the schedule {id} is changed by others all the time")))
    }

    /// The schedule with its revision, from the database.
    pub(crate) async fn read(&self, id: &str) -> Result<Option<(ScheduleRecord, i64)>, StoreError> {
        let listed = self.0.store.schedules().list().await?;
        let Some(stored) = listed.into_iter().find(|stored| stored.id == id) else { return Ok(None) };
        let record = serde_json::from_str(&stored.definition);
        record.map(|record| Some((record, stored.revision))).map_err(|error| StoreError::Corrupt(error.to_string()))
    }

    /// Stores a changed schedule, if it still has this revision.
    pub(crate) async fn replace(&self, record: &ScheduleRecord, revision: i64) -> Result<bool, StoreError> {
        let replaced = self.0.store.schedules().replace(to_stored(record, revision + 1)?).await?;
        if replaced {
            self.note_stored(record, revision + 1);
        }
        Ok(replaced)
    }

    /// Takes over a revision that was stored.
    pub(crate) fn note_stored(&self, record: &ScheduleRecord, revision: i64) {
        let known = KnownSchedule { record: record.clone(), revision };
        self.lock().records.insert(record.view.id.clone(), known);
    }

    /// Begins a firing, unless the schedule is paused. From now on a stop that pauses it covers the run, too.
    pub(crate) fn begin_firing(&self, id: &str, run: &RunId) -> bool {
        let mut table = self.lock();
        let is_paused = table.current(id).is_none_or(|record| record.view.paused.is_some());
        if !is_paused {
            table.firing.insert(id.to_owned(), run.clone());
        }
        !is_paused
    }

    pub(crate) fn end_firing(&self, id: &str) {
        self.lock().firing.remove(id);
    }

    /// Pauses what a stop covers: the schedules that the stopped runs and sessions made; all of them if everything was
    /// stopped and is held. In force on this node when this returns; [`Schedules::store_stop`] stores it.
    pub(crate) fn pause_for_stop(&self, stop: &ScheduleStop) -> StoppedSchedules {
        let mut table = self.lock();
        let ids = table.covered_by(stop);
        for id in &ids {
            let pause = SchedulePause { reason: stop.reason(), by: stop.requester.principal.clone() };
            let since = tokio::time::Instant::now();
            table.pauses.insert(id.clone(), UnstoredPause { pause, since });
        }
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

    /// Stores the pauses of a stop. When this returns, none of these schedules fires on any node.
    pub(crate) async fn store_stop(&self, ids: &BTreeSet<String>) -> Result<(), StoreError> {
        self.wait_until_made(ids).await;
        for id in ids {
            self.store_pause(id).await?;
        }
        Ok(())
    }

    /// True while the pauses of a stop are in force and not stored yet.
    pub fn has_unstored_pauses(&self) -> bool {
        !self.lock().pauses.is_empty()
    }

    /// Stores the pauses of stops. One that cannot be stored stays in force, and is tried again.
    pub(crate) async fn store_pauses(&self) {
        let ids: Vec<String> = self.lock().pauses.keys().cloned().collect();
        for id in ids {
            if let Err(error) = self.store_pause(&id).await {
                tracing::error!(schedule = id, %error, "a pause could not be stored: a restart would lift it");
            }
        }
    }

    async fn store_pause(&self, id: &str) -> Result<(), StoreError> {
        let unstored = self.lock().pauses.get(id).cloned();
        let Some(UnstoredPause { pause, since }) = unstored else { return Ok(()) };
        let stored = self.modify(id, |record| record.pause(pause.clone())).await?;
        if stored.is_some() || since.elapsed() > UNKNOWN_PAUSE_TIME {
            let mut table = self.lock();
            // Another stop may have paused it again.
            if table.pauses.get(id).is_some_and(|unstored| unstored.since == since) {
                table.pauses.remove(id);
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ScheduleTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who changes a schedule, and with which rights.
#[derive(Debug, Clone, Copy)]
pub struct PatchAuthor<'a> {
    pub principal: &'a Principal,
    pub scope: AccessLevel,
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
                StopScope::Run { id, session } => {
                    view.created_by_run.as_ref() == Some(id)
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

fn check_text(text: &str) -> Result<(), ScheduleChangeError> {
    if text.trim().is_empty() {
        return Err(ScheduleError::EmptyText.into());
    }
    if text.len() > MAX_TEXT_BYTES { Err(ScheduleChangeError::TooLong(text.len())) } else { Ok(()) }
}

fn no_channels(name: &str) -> ScheduleChangeError {
    ScheduleChangeError::Delivery(format!("there is no channel {name:?}; none is configured"))
}

pub(crate) fn to_stored(record: &ScheduleRecord, revision: i64) -> Result<StoredSchedule, StoreError> {
    let definition = serde_json::to_string(record).map_err(|error| StoreError::Bug(error.to_string()))?;
    Ok(StoredSchedule { id: record.view.id.clone(), owner: record.view.created_by.clone(), revision, definition })
}
