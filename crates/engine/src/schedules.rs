//! Schedules: make, list, change and delete them; pause those that a stop covers. The engine fires them
//! (`engine/schedules.rs`).
//!
//! The database has the schedules. This node keeps a copy of them, so that a stop pauses them in its own synchronous
//! call (`stops`); the pause is stored before the stop is answered. A change is made to one revision of a schedule and
//! fails if another node was faster, and a firing is such a change: so none comes after a pause that is stored.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use quell_kernel::api_key::KeyRefusal;
use quell_kernel::schedule::{ScheduleError, ScheduleRate, ScheduleTiming, default_missed_policy};
use quell_protocol::api::AccessLevel;
use quell_protocol::schedule::{SchedulePatch, SchedulePause, ScheduleRequest, ScheduleView};
use quell_protocol::{Principal, RunId, SessionKey, Surface};
use quell_scope::clock::Clock;
use quell_store::{CreateScheduleOutcome, ScheduleQuota, Store, StoreError, StoredSchedule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use crate::channel_origin::{ScheduleCreator, ScheduledDelivery};

mod stops;

pub use stops::PausedSchedules;
use stops::UnstoredPause;
pub(crate) use stops::{PauseProgress, ScheduleStop, ScheduleStopOrigin, StoppedSchedules};

/// Attempts of a change when others change the same schedule.
const MAX_ATTEMPTS: usize = 20;
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
    #[error("new runs are held, and only admins resume schedules then; resume it when the hold is lifted")]
    Held,
    /// The token of the caller is not for the agent.
    #[error(transparent)]
    Forbidden(#[from] KeyRefusal),
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
    /// The revision in which it was last resumed; 0 if it never was.
    #[serde(default)]
    pub resumed_in: i64,
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
    /// Firings that are being accepted, see [`Firing`].
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

/// A firing that is being accepted: a stop that pauses its schedule covers its run, too. Dropped, it is over, also if
/// the node has lost the duty in the middle.
#[derive(Debug)]
pub(crate) struct Firing {
    schedules: Schedules,
    id: String,
}

impl Drop for Firing {
    fn drop(&mut self) {
        self.schedules.lock().firing.remove(&self.id);
    }
}

impl ScheduleTable {
    /// A schedule as it is now: a pause counts before it is stored.
    fn current(&self, id: &str) -> Option<ScheduleRecord> {
        let mut record = self.records.get(id)?.record.clone();
        if let Some(unstored) = self.pauses.get(id).filter(|unstored| unstored.stands(&record)) {
            record.pause(unstored.pause.clone());
        }
        Some(record)
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
        Ok(ScheduleRecord { view, scope: creator.scope, surface: creator.surface, resumed_in: 0 })
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
            // A pause of an earlier stop must not follow the resumption.
            self.store_pauses_of(&BTreeSet::from([id.to_owned()])).await?;
        }
        let (now, mut is_over) = (self.now(), false);
        let changed = self.modify(id, |record, revision| {
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
                        record.resumed_in = revision;
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
    /// `change` gets the revision that it makes.
    async fn modify(
        &self,
        id: &str,
        mut change: impl FnMut(&mut ScheduleRecord, i64),
    ) -> Result<Option<ScheduleRecord>, StoreError> {
        for _ in 0..MAX_ATTEMPTS {
            let Some((mut record, revision)) = self.read(id).await? else { return Ok(None) };
            change(&mut record, revision + 1);
            if self.replace(&record, revision).await? {
                return Ok(Some(record));
            }
        }
        Err(changed_by_others(id))
    }

    /// The schedule with its revision, from the database.
    pub(crate) async fn read(&self, id: &str) -> Result<Option<(ScheduleRecord, i64)>, StoreError> {
        let Some(stored) = self.0.store.schedules().find(id.to_owned()).await? else { return Ok(None) };
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

    /// Takes over a revision that was stored, unless a later one or the deletion of the schedule is known.
    pub(crate) fn note_stored(&self, record: &ScheduleRecord, revision: i64) {
        if let Some(known) = self.lock().records.get_mut(&record.view.id).filter(|known| known.revision < revision) {
            *known = KnownSchedule { record: record.clone(), revision };
        }
    }

    /// Begins a firing. From now on a stop that pauses the schedule covers the run, too. `None` if it is paused.
    pub(crate) fn begin_firing(&self, id: &str, run: &RunId) -> Option<Firing> {
        let mut table = self.lock();
        table.current(id).filter(|record| record.view.paused.is_none())?;
        table.firing.insert(id.to_owned(), run.clone());
        Some(Firing { schedules: self.clone(), id: id.to_owned() })
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

fn changed_by_others(id: &str) -> StoreError {
    StoreError::Locked(format!("the schedule {id} is changed by others all the time"))
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

#[cfg(test)]
mod tests;
