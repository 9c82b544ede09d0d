//! Schedules: make, list, change and delete them; pause those that a stop covers. The engine fires them
//! (`engine/schedules.rs`).
//!
//! The database has the schedules. This node keeps a copy of them, so that a stop pauses them in its own synchronous
//! call; the pause is stored right after. A change is made to one revision of a schedule and fails if another node was
//! faster.

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
use tokio::sync::Notify;

use crate::channel_origin::{ScheduleCreator, ScheduledDelivery};

/// Attempts of a change when others change the same schedule.
const MAX_ATTEMPTS: usize = 20;
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
    /// The firing that was claimed and is not known to be accepted.
    pub claimed: Option<RunId>,
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
}

#[derive(Debug, Default)]
struct ScheduleTable {
    records: BTreeMap<String, ScheduleRecord>,
    /// Schedules that are being stored for the first time.
    new: BTreeSet<String>,
    /// Pauses that are in force and not stored yet.
    pauses: BTreeMap<String, UnstoredPause>,
    /// Firings between their claim and their acceptance.
    firing: BTreeMap<String, RunId>,
}

#[derive(Debug, Clone)]
struct UnstoredPause {
    pause: SchedulePause,
    since: tokio::time::Instant,
}

impl ScheduleTable {
    /// A schedule as it is now: a pause counts before it is stored.
    fn current(&self, id: &str) -> Option<ScheduleRecord> {
        let mut record = self.records.get(id)?.clone();
        if let Some(unstored) = self.pauses.get(id) {
            record.pause(unstored.pause.clone());
        }
        Some(record)
    }
}

/// What a stop has paused.
#[derive(Debug, Default)]
pub struct StoppedSchedules {
    pub ids: Vec<String>,
    /// Firings that are not accepted yet, with the principals of their runs. The caller stops them, too.
    pub firing: Vec<(RunId, Principal)>,
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

    /// Makes a schedule.
    ///
    /// # Errors
    /// [`ScheduleChangeError`]; there is no new schedule then.
    ///
    /// # Cancel safety
    /// Dropped, it may have made the schedule or not. A stop of its run pauses it in either case.
    pub async fn create(
        &self,
        creator: ScheduleCreator,
        request: ScheduleRequest,
    ) -> Result<ScheduleView, ScheduleChangeError> {
        let record = self.build_record(creator, request)?;
        let view = record.view.clone();
        let stored = to_stored(&record, 1)?;
        // Before it is stored, so that a stop finds it.
        {
            let mut table = self.lock();
            table.new.insert(view.id.clone());
            table.records.insert(view.id.clone(), record);
        }
        let quota = ScheduleQuota { per_owner: self.0.settings.max_per_principal, total: self.0.settings.max_total };
        let created = self.0.store.schedules().create(stored, quota).await;
        let mut table = self.lock();
        table.new.remove(&view.id);
        if created != Ok(CreateScheduleOutcome::Created) {
            table.records.remove(&view.id);
            table.pauses.remove(&view.id);
        }
        drop(table);
        self.notify_changed();
        match created? {
            CreateScheduleOutcome::Created => Ok(self.find(&view.id).map_or(view, |record| record.view)),
            CreateScheduleOutcome::OwnerHasTooMany => {
                Err(ScheduleChangeError::OwnerHasTooMany(view.created_by, quota.per_owner))
            }
            CreateScheduleOutcome::TooMany => Err(ScheduleChangeError::TooMany(quota.total)),
        }
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
        Ok(ScheduleRecord { view, scope: creator.scope, surface: creator.surface, claimed: None })
    }

    fn rate(&self) -> ScheduleRate {
        ScheduleRate { min_interval: Duration::from_secs(self.0.settings.min_interval_s) }
    }

    /// Reads all schedules from the database.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn reload(&self) -> Result<Vec<ScheduleRecord>, StoreError> {
        let listed = self.0.store.schedules().list().await?;
        let mut records = BTreeMap::new();
        for stored in listed {
            match serde_json::from_str::<ScheduleRecord>(&stored.definition) {
                Ok(record) => drop(records.insert(stored.id, record)),
                Err(error) => tracing::error!(schedule = stored.id, %error, "a stored schedule cannot be read"),
            }
        }
        let mut table = self.lock();
        let new: Vec<_> = table.new.iter().filter_map(|id| table.records.get_key_value(id)).collect();
        let new: Vec<_> = new.into_iter().map(|(id, record)| (id.clone(), record.clone())).collect();
        for (id, record) in new {
            records.entry(id).or_insert(record);
        }
        table.records = records;
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
        by: &Principal,
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
            }
            record.view.missed = patch.missed.unwrap_or(record.view.missed);
            match patch.paused {
                Some(true) => record.pause(SchedulePause { reason: "by hand".to_owned(), by: by.clone() }),
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
            self.lock().records.insert(record.view.id.clone(), record.clone());
        }
        Ok(replaced)
    }

    /// Records how a claimed firing went on.
    pub(crate) async fn settle_firing(&self, run: &RunId, id: &str, refusal: Option<String>) -> Result<(), StoreError> {
        let settled = self.modify(id, |record| {
            if record.claimed.as_ref() != Some(run) {
                return;
            }
            record.claimed = None;
            if let Some(why) = &refusal {
                record.view.fired = record.view.fired.saturating_sub(1);
                record.view.missed_count += 1;
                record.view.problem = Some(why.clone());
            }
        });
        settled.await.map(drop)
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

    /// True while no stop has paused the schedule since its firing began.
    pub(crate) fn may_fire(&self, id: &str) -> bool {
        self.lock().current(id).is_some_and(|record| record.view.paused.is_none())
    }

    pub(crate) fn end_firing(&self, id: &str) {
        self.lock().firing.remove(id);
    }

    /// Pauses what a stop covers: the schedules that the stopped runs and sessions made; all of them if everything was
    /// stopped and is held. In force when this returns, and stored right after.
    pub(crate) fn pause_for_stop(&self, stop: &ScheduleStop<'_>) -> StoppedSchedules {
        let mut table = self.lock();
        let ids = table.records.keys().filter(|id| table.current(id).is_some_and(|record| stop.covers(&record)));
        let ids: Vec<String> = ids.cloned().collect();
        let reason = stop.reason();
        for id in &ids {
            let pause = SchedulePause { reason: reason.clone(), by: stop.requester.principal.clone() };
            let since = tokio::time::Instant::now();
            table.pauses.insert(id.clone(), UnstoredPause { pause, since });
        }
        let firing = ids.iter().filter_map(|id| {
            let owner = table.records.get(id)?.view.created_by.clone();
            Some((table.firing.get(id)?.clone(), owner))
        });
        let firing = firing.collect();
        drop(table);
        if !ids.is_empty() {
            self.notify_changed();
        }
        StoppedSchedules { ids, firing }
    }

    /// True while the pauses of a stop are in force and not stored yet.
    pub fn has_unstored_pauses(&self) -> bool {
        !self.lock().pauses.is_empty()
    }

    /// Stores the pauses of stops. One that cannot be stored stays in force, and is tried again.
    pub(crate) async fn store_pauses(&self) {
        let pauses = self.lock().pauses.clone();
        for (id, UnstoredPause { pause, since }) in pauses {
            match self.modify(&id, |record| record.pause(pause.clone())).await {
                Ok(None) if since.elapsed() < UNKNOWN_PAUSE_TIME => {}
                Ok(_) => drop(self.lock().pauses.remove(&id)),
                Err(error) => {
                    tracing::error!(schedule = id, %error, "a pause could not be stored: a restart would lift it")
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ScheduleTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stop, as far as it concerns schedules.
pub(crate) struct ScheduleStop<'a> {
    pub(crate) scope: &'a StopScope,
    pub(crate) requester: &'a StopRequester,
    /// The runs that it covers.
    pub(crate) runs: BTreeSet<&'a RunId>,
    /// New runs are refused now.
    pub(crate) is_held: bool,
}

impl ScheduleStop<'_> {
    fn covers(&self, record: &ScheduleRecord) -> bool {
        let view = &record.view;
        if view.paused.is_some() || view.next_at.is_none() && record.claimed.is_none() {
            return false;
        }
        if !self.requester.admin && self.requester.principal != view.created_by {
            return false;
        }
        let is_of_run = view.created_by_run.as_ref().is_some_and(|run| self.runs.contains(run));
        is_of_run
            || match self.scope {
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

    fn reason(&self) -> String {
        match self.scope {
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

fn to_stored(record: &ScheduleRecord, revision: i64) -> Result<StoredSchedule, StoreError> {
    let definition = serde_json::to_string(record).map_err(|error| StoreError::Bug(error.to_string()))?;
    Ok(StoredSchedule { id: record.view.id.clone(), owner: record.view.created_by.clone(), revision, definition })
}
