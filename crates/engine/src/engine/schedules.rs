//! Fire schedules: one task waits until the next one is due. In a cluster the node with the duty does this for all.
//!
//! A firing is claimed in the database before its run is submitted, and its run has an id of its own. So it happens at
//! most once: a firing that was claimed and not accepted, because the daemon was killed, counts as missed.

use std::time::Duration;

use jiff::Timestamp;
use quell_kernel::registry::{AdmissionGate, StopRequest, StopScope};
use quell_kernel::schedule::{DueDecision, decide_due};
use quell_protocol::api::OnBusy;
use quell_protocol::audit::Action;
use quell_protocol::schedule::{MissedPolicy, SchedulePatch, SchedulePause, ScheduleRequest, ScheduleView};
use quell_protocol::{ErrorCode, RunId};
use quell_store::{StoreError, StoredRunState};
use tokio::time::sleep;

use super::{
    AuditAction, Caller, DutyPermit, Engine, StopResult, StopTextMode, Submission, SubmitError, SubmitOutcome,
};
use crate::access::RequestOrigin;
use crate::channel_origin::ScheduleCreator;
use crate::schedules::{ScheduleChangeError, ScheduleRecord, ScheduleStop, Schedules, StoppedSchedules};

/// The name of the duty in a cluster.
const SCHEDULES_DUTY: &str = "schedules";
/// The longest wait, so that a changed wall clock is noticed.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The longest wait in a cluster, where other nodes make schedules, and after an error of the database.
const SHORT_WAIT: Duration = Duration::from_secs(2);

impl Engine {
    pub fn schedules(&self) -> &Schedules {
        &self.inner().services.schedules
    }

    /// Makes a schedule whose runs are the caller's.
    ///
    /// # Errors
    /// [`ScheduleChangeError`]; there is no new schedule then.
    ///
    /// # Cancel safety
    /// Dropped, it may have made the schedule or not.
    pub async fn create_schedule(
        &self,
        caller: &Caller,
        request: ScheduleRequest,
    ) -> Result<ScheduleView, ScheduleChangeError> {
        let (principal, scope, surface) = (caller.principal.clone(), caller.scope, caller.surface);
        let creator = ScheduleCreator { principal, scope, surface, run: None, chat: None };
        let view = self.schedules().create(creator, request).await?;
        self.audit(caller, AuditAction::on_target(Action::CreateSchedule, "schedule", &view.id));
        Ok(view)
    }

    /// The schedules that a caller may see: their own, or all.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_schedules(&self, caller: &Caller) -> Result<Vec<ScheduleView>, StoreError> {
        let records = self.schedules().reload().await?;
        Ok(records.into_iter().map(|record| record.view).filter(|view| may_see(caller, view)).collect())
    }

    /// A schedule that a caller may see.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn find_schedule(&self, caller: &Caller, id: &str) -> Result<Option<ScheduleView>, StoreError> {
        Ok(self.list_schedules(caller).await?.into_iter().find(|view| view.id == id))
    }

    /// Changes a schedule that the caller may manage. `None` if there is none for them.
    ///
    /// # Errors
    /// [`ScheduleChangeError`]; nothing has changed then.
    ///
    /// # Cancel safety
    /// Safe: it is changed, or not.
    pub async fn patch_schedule(
        &self,
        caller: &Caller,
        id: &str,
        patch: &SchedulePatch,
    ) -> Result<Option<ScheduleView>, ScheduleChangeError> {
        if !self.find_schedule(caller, id).await?.is_some_and(|view| may_manage(caller, &view)) {
            return Ok(None);
        }
        let changed = self.schedules().patch(&caller.principal, id, patch).await?;
        let action = match patch.paused {
            Some(true) => Action::PauseSchedule,
            Some(false) => Action::ResumeSchedule,
            None => Action::ChangeSchedule,
        };
        self.audit(caller, AuditAction::on_target(action, "schedule", id));
        Ok(changed)
    }

    /// Deletes a schedule that the caller may manage. False if there is none for them.
    ///
    /// # Cancel safety
    /// Safe: it is deleted, or not.
    pub async fn delete_schedule(&self, caller: &Caller, id: &str) -> Result<bool, StoreError> {
        if !self.find_schedule(caller, id).await?.is_some_and(|view| may_manage(caller, &view)) {
            return Ok(false);
        }
        let deleted = self.schedules().delete(id).await?;
        self.audit(caller, AuditAction::on_target(Action::DeleteSchedule, "schedule", id));
        Ok(deleted)
    }

    /// Pauses the schedules that a stop covers and stops their firings. Not async, as [`Engine::stop`].
    pub(super) fn stop_schedules(
        &self,
        scope: &StopScope,
        requester: &quell_kernel::StopRequester,
        request: &StopRequest,
        stop_result: &mut StopResult,
    ) {
        let runs = stop_result.aborted.iter().chain(&stop_result.already_ending).collect();
        let stop = ScheduleStop { scope, requester, runs, is_held: self.is_held() };
        let StoppedSchedules { ids, firing } = self.schedules().pause_for_stop(&stop);
        stop_result.paused_schedules = ids;
        for (run, owner) in firing {
            let of_firing = self.inner().runs.stop_run_of_owner(&run, &owner, requester, request);
            let is_known = |run: &RunId| stop_result.aborted.contains(run) || stop_result.already_ending.contains(run);
            let (aborted, ending) = (of_firing.aborted, of_firing.already_ending);
            let aborted: Vec<RunId> = aborted.into_iter().filter(|run| !is_known(run)).collect();
            let ending: Vec<RunId> = ending.into_iter().filter(|run| !is_known(run)).collect();
            if !aborted.is_empty() || !ending.is_empty() {
                stop_result.tickets.extend(of_firing.tickets);
            }
            stop_result.aborted.extend(aborted);
            stop_result.already_ending.extend(ending);
        }
    }

    /// Fires what is due, one schedule after the other.
    async fn fire_due_schedules(&self, permit: &DutyPermit) -> Result<(), StoreError> {
        self.schedules().store_pauses().await;
        for record in self.schedules().reload().await? {
            let (Some(next_at), None) = (record.next_at(), &record.view.paused) else { continue };
            if !permit.permits_work() || !self.permits_work() || !self.is_open() {
                return Ok(());
            }
            if next_at <= self.schedules().now() {
                self.fire_if_due(&record.view.id).await?;
            }
        }
        Ok(())
    }

    async fn fire_if_due(&self, id: &str) -> Result<(), StoreError> {
        let Some((mut record, revision)) = self.schedules().read(id).await? else { return Ok(()) };
        let (Some(next_at), None) = (record.next_at(), &record.view.paused) else { return Ok(()) };
        let Ok(timing) = record.timing() else { return Ok(()) };
        match decide_due(&timing, next_at, self.schedules().now(), record.view.missed) {
            DueDecision::Wait => Ok(()),
            DueDecision::Skip { missed, next } => {
                record.view.missed_count += missed;
                record.view.problem = Some("it was due while the daemon was not running, or held".to_owned());
                set_next(&mut record, next);
                self.schedules().replace(&record, revision).await.map(drop)
            }
            DueDecision::Fire { due, missed, next } => {
                if let Some(problem) = self.refusal_of_firing(&record).await? {
                    return self.count_refused(record, revision, problem, next).await;
                }
                record.view.missed_count += missed;
                set_next(&mut record, next);
                self.claim_and_fire(record, revision, due).await
            }
        }
    }

    /// Why a firing that is due does not happen.
    async fn refusal_of_firing(&self, record: &ScheduleRecord) -> Result<Option<FiringRefusal>, StoreError> {
        if self.inner().runs.gate() != AdmissionGate::Open {
            return Ok(Some(FiringRefusal::Held));
        }
        if record.scope_now(self).is_none() {
            return Ok(Some(FiringRefusal::NoRights));
        }
        let Some(last) = record.view.last_run.clone() else { return Ok(None) };
        let last = self.inner().store.runs().find(last).await?;
        let is_open = last.is_some_and(|run| matches!(run.state, StoredRunState::Accepted | StoredRunState::Started));
        Ok(is_open.then_some(FiringRefusal::StillRuns))
    }

    async fn count_refused(
        &self,
        mut record: ScheduleRecord,
        revision: i64,
        refusal: FiringRefusal,
        next: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let view = &mut record.view;
        match refusal {
            // The gate closes for a shutdown, too: the next daemon decides then.
            FiringRefusal::Held if !self.is_open() => return Ok(()),
            FiringRefusal::Held => {
                let problem = Some("new runs are held".to_owned());
                if view.missed == MissedPolicy::Once {
                    if view.problem == problem {
                        return Ok(());
                    }
                    view.problem = problem;
                    return self.schedules().replace(&record, revision).await.map(drop);
                }
                view.missed_count += 1;
                view.problem = problem;
            }
            FiringRefusal::StillRuns => {
                view.skipped_count += 1;
                view.problem = Some("the run of the firing before has not ended".to_owned());
            }
            FiringRefusal::NoRights => {
                let (reason, by) = ("its creator has no valid token any more".to_owned(), view.created_by.clone());
                view.paused = Some(SchedulePause { reason, by });
                view.next_at = None;
                return self.schedules().replace(&record, revision).await.map(drop);
            }
        }
        set_next(&mut record, next);
        self.schedules().replace(&record, revision).await.map(drop)
    }

    /// Claims the firing, and submits its run if no other node was faster and no stop came in between.
    async fn claim_and_fire(
        &self,
        mut record: ScheduleRecord,
        revision: i64,
        due: Timestamp,
    ) -> Result<(), StoreError> {
        let id = record.view.id.clone();
        let run =
            RunId::parse(format!("{id}:{}", due.as_second())).map_err(|error| StoreError::Bug(error.to_string()))?;
        record.view.last_at = Some(due.to_string());
        record.view.last_run = Some(run.clone());
        record.view.problem = None;
        record.view.fired += 1;
        record.claimed = Some(run.clone());
        if !self.schedules().begin_firing(&id, &run) {
            return Ok(());
        }
        let claimed = self.schedules().replace(&record, revision).await;
        let refusal = match claimed {
            Ok(true) if self.schedules().may_fire(&id) => self.submit_firing(&record, run.clone()).await,
            Ok(true) => Some("it was paused at the moment of its firing".to_owned()),
            Ok(false) | Err(_) => {
                self.schedules().end_firing(&id);
                return claimed.map(drop);
            }
        };
        self.schedules().end_firing(&id);
        if let Some(why) = &refusal {
            tracing::warn!(schedule = id, %run, why, "a firing did not become a run");
        }
        self.schedules().settle_firing(&run, &id, refusal).await
    }

    /// Submits the run of a firing. Returns why it was refused.
    async fn submit_firing(&self, record: &ScheduleRecord, run: RunId) -> Option<String> {
        let view = &record.view;
        let scope = record.scope_now(self)?;
        let caller = Caller {
            principal: view.created_by.clone(),
            scope,
            grants: self.access().grants_of(&view.created_by, scope),
            verified_person: false,
            surface: record.surface,
            origin: RequestOrigin::internal(),
        };
        let channel_origin = match &view.delivery {
            None => None,
            Some(delivery) => match self.schedules().delivery() {
                None => return Some(format!("there is no channel {:?} any more", delivery.channel)),
                Some(channels) => match channels.new_origin(delivery, view, &run) {
                    Ok(origin) => Some(origin),
                    Err(why) => return Some(why),
                },
            },
        };
        if let Err(error) = self.acquire_session(&view.session_key).await {
            return Some(error.to_string());
        }
        let submission = Submission {
            session: view.session_key.clone(),
            text: view.text.clone(),
            agent: view.agent.clone(),
            idempotency_key: Some(run),
            on_busy: OnBusy::Queue,
            timeout: None,
            stop_text_mode: StopTextMode::Literal,
            channel_origin,
        };
        match self.submit(&caller, submission).await {
            Ok(SubmitOutcome::Accepted(_) | SubmitOutcome::Duplicate(_) | SubmitOutcome::Stopped(_)) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    /// Counts the firings that an earlier daemon claimed and did not make runs of.
    async fn settle_claimed_firings(&self) -> Result<(), StoreError> {
        for record in self.schedules().reload().await? {
            let Some(run) = record.claimed else { continue };
            let is_known = self.inner().store.runs().find(run.clone()).await?.is_some();
            let refusal = (!is_known).then(|| "the daemon ended at the moment of its firing".to_owned());
            self.schedules().settle_firing(&run, &record.view.id, refusal).await?;
        }
        Ok(())
    }

    /// Until the next schedule is due, as far as this node knows.
    fn time_to_next_schedule(&self, records: &[ScheduleRecord]) -> Duration {
        let now = self.schedules().now();
        let next =
            records.iter().filter(|record| record.view.paused.is_none()).filter_map(ScheduleRecord::next_at).min();
        let wait = next.map_or(MAX_WAIT, |next| Duration::try_from(next.duration_since(now)).unwrap_or_default());
        let longest = if self.cluster().is_some() { SHORT_WAIT } else { MAX_WAIT };
        // What is due and was not fired waits for the hold to be lifted.
        if wait.is_zero() { SHORT_WAIT } else { wait.min(longest) }
    }
}

/// Why a firing that is due does not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FiringRefusal {
    /// New runs are held, or the daemon is shutting down.
    Held,
    /// The run of the firing before has not ended.
    StillRuns,
    /// The token of its creator has ended.
    NoRights,
}

impl ScheduleRecord {
    /// The rights of its creator now: those at its creation, unless they have shrunk. `None` if there are none left.
    fn scope_now(&self, engine: &Engine) -> Option<quell_protocol::api::AccessLevel> {
        if self.surface == quell_protocol::Surface::Channel {
            return Some(self.scope);
        }
        engine.access().level_of(&self.view.created_by).map(|level| level.min(self.scope))
    }
}

impl ScheduleChangeError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid(_) | Self::Delivery(_) | Self::Over => ErrorCode::InvalidRequest,
            Self::TooLong(_) => ErrorCode::BodyTooLarge,
            Self::OwnerHasTooMany(..) | Self::TooMany(_) => ErrorCode::Conflict,
            Self::Store(_) => SubmitError::Store(StoreError::Closed).code(),
        }
    }
}

fn set_next(record: &mut ScheduleRecord, next: Option<Timestamp>) {
    record.view.next_at = next.map(|next| next.to_string());
}

fn may_see(caller: &Caller, view: &ScheduleView) -> bool {
    caller.is_admin() || caller.principal == view.created_by
}

fn may_manage(caller: &Caller, view: &ScheduleView) -> bool {
    caller.is_admin() || caller.may_write() && caller.principal == view.created_by
}

/// Fires schedules while this node has the duty, until the engine closes.
///
/// # Cancel safety
/// Must not be dropped while the engine is open: schedules would not fire.
pub(super) async fn run_schedules(engine: Engine) {
    tokio::join!(engine.run_duty(SCHEDULES_DUTY, |permit| fire_repeatedly(&engine, permit)), follow_pauses(&engine));
}

async fn fire_repeatedly(engine: &Engine, permit: DutyPermit) {
    // After an error nobody knows whether a firing was claimed.
    let mut has_failed = true;
    loop {
        let fired = async {
            if has_failed {
                engine.settle_claimed_firings().await?;
            }
            engine.fire_due_schedules(&permit).await
        };
        let fired = fired.await;
        has_failed = fired.is_err();
        let wait = match fired {
            Ok(()) => match engine.schedules().reload().await {
                Ok(records) => engine.time_to_next_schedule(&records),
                Err(_) => SHORT_WAIT,
            },
            Err(error) => {
                tracing::warn!(%error, "schedules could not be fired; they are tried again");
                SHORT_WAIT
            }
        };
        tokio::select! {
            () = engine.inner().closing.cancelled() => return,
            () = engine.schedules().wait_for_change() => {}
            () = sleep(wait) => {}
        }
    }
}

/// Stores the pauses of stops on a node that does not fire, and follows what other nodes change.
async fn follow_pauses(engine: &Engine) {
    if engine.cluster().is_none() {
        return;
    }
    loop {
        tokio::select! {
            () = engine.inner().closing.cancelled() => return,
            () = sleep(SHORT_WAIT) => {}
        }
        if engine.schedules().has_unstored_pauses() {
            engine.schedules().store_pauses().await;
        }
        if let Err(error) = engine.schedules().reload().await {
            tracing::debug!(%error, "the schedules could not be read");
        }
    }
}
