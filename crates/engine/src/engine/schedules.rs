//! Fire schedules: one task waits until the next one is due. In a cluster the node with the duty does this for all.
//!
//! A firing is one write: the database accepts its run and moves the schedule to its next time, unless the schedule was
//! paused or changed, or new runs are held. So it happens once, and never after a stop or a hold that is stored.

use std::time::Duration;

use jiff::Timestamp;
use quell_kernel::admission::AdmissionError;
use quell_kernel::registry::{AdmissionGate, StopRequest, StopRequester, StopScope};
use quell_kernel::schedule::{DueDecision, decide_due};
use quell_protocol::api::{AccessLevel, OnBusy};
use quell_protocol::audit::Action;
use quell_protocol::schedule::{MissedPolicy, SchedulePatch, SchedulePause, ScheduleRequest, ScheduleView};
use quell_protocol::{ErrorCode, RunId, Surface};
use quell_store::{StoreError, StoredRunState};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{
    AuditAction, Caller, DutyPermit, Engine, SessionTransferError, StopResult, StopTextMode, Submission, SubmitError,
    SubmitOutcome,
};
use crate::access::RequestOrigin;
use crate::channel_origin::{ScheduleCreator, SenderRights};
use crate::live_run::RunWork;
use crate::schedules::{
    PatchAuthor, PauseProgress, PausedSchedules, ScheduleChangeError, ScheduleRecord, ScheduleStop, ScheduleStopOrigin,
    Schedules, StoppedSchedules, to_stored,
};

/// The name of the duty in a cluster.
const SCHEDULES_DUTY: &str = "schedules";
/// The longest wait, so that a changed wall clock is noticed.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The longest wait in a cluster, where other nodes make schedules, and after an error of the database.
const SHORT_WAIT: Duration = Duration::from_secs(2);
/// Until the pauses of a stop are stored again that the database refused.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

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
    /// Safe: it goes on in a task of the engine.
    pub async fn create_schedule(
        &self,
        caller: &Caller,
        request: ScheduleRequest,
    ) -> Result<ScheduleView, ScheduleChangeError> {
        self.check_schedule_agent(caller, &request).await?;
        let (principal, scope, surface) = (caller.principal.clone(), caller.scope, caller.surface);
        let creator = ScheduleCreator { principal, scope, surface, run: None, chat: None };
        let new = self.schedules().begin_creation(creator, request)?;
        let schedules = self.schedules().clone();
        let stored = self.run_detached(async move { schedules.store_new(new).await });
        let view = stored.await.unwrap_or(Err(StoreError::Closed.into()))?;
        self.audit(caller, AuditAction::on_target(Action::CreateSchedule, "schedule", &view.id));
        Ok(view)
    }

    /// Checks that the token of the caller is for the agent of the first firing, which would be refused otherwise.
    async fn check_schedule_agent(
        &self,
        caller: &Caller,
        request: &ScheduleRequest,
    ) -> Result<(), ScheduleChangeError> {
        if !caller.key.restricts_runs() {
            return Ok(());
        }
        let agent = match &request.session_key {
            Some(key) => self.agent_of_message(request.agent.as_ref(), key).await?,
            // The session is a new one.
            None => request.agent.clone().unwrap_or_else(|| self.agent_registry().default_agent()),
        };
        Ok(caller.key.check_agent(&agent)?)
    }

    /// The schedules that a caller may see, their own or all, the oldest first.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_schedules(&self, caller: &Caller) -> Result<Vec<ScheduleView>, StoreError> {
        let records = self.schedules().reload().await?;
        let views = records.into_iter().map(|record| record.view).filter(|view| may_see(caller, view));
        let mut views: Vec<_> = views.collect();
        views.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        Ok(views)
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
        // Else somebody lifts the pause of a stop of everything for the time after the hold.
        if patch.paused == Some(false) && self.is_held() && !caller.is_admin() {
            return Err(ScheduleChangeError::Held);
        }
        let author = PatchAuthor { principal: &caller.principal, scope: caller.scope };
        let changed = self.schedules().patch(author, id, patch).await?;
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

    /// Pauses the schedules that a stop covers and stops their firings. Not async, as [`Engine::stop`]; the pauses are
    /// being stored, for which the answer to the stop waits.
    pub(super) fn stop_schedules(
        &self,
        scope: &StopScope,
        requester: &StopRequester,
        request: &StopRequest,
        origin: ScheduleStopOrigin,
        stop_result: &mut StopResult,
    ) {
        let runs = stop_result.aborted.iter().chain(&stop_result.already_ending).cloned().collect();
        let (scope, requester_of_stop) = (scope.clone(), requester.clone());
        let stop = ScheduleStop { scope, requester: requester_of_stop, runs, is_held: self.is_held(), origin };
        let StoppedSchedules { ids, firing } = self.schedules().pause_for_stop(&stop);
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
        if ids.is_empty() && (self.cluster().is_none() || !stop.reaches_other_nodes()) {
            return;
        }
        let (progress, followed) = watch::channel(PauseProgress { ids: ids.into_iter().collect(), is_stored: false });
        stop_result.schedules = PausedSchedules::follow(followed);
        self.inner().runs.spawn(store_schedule_stop(self.clone(), stop, progress));
    }

    /// Fires what is due, one schedule after the other.
    /// One that fails does not hold up the others. Returns the last error.
    async fn fire_due_schedules(&self, permit: &DutyPermit) -> Result<(), StoreError> {
        self.schedules().store_pauses().await;
        let mut outcome = Ok(());
        for record in self.schedules().reload().await? {
            let (Some(next_at), None) = (record.next_at(), &record.view.paused) else { continue };
            if !permit.permits_work() || !self.permits_work() || !self.is_open() {
                return outcome;
            }
            if next_at <= self.schedules().now()
                && let Err(error) = self.fire_if_due(&record.view.id).await
            {
                tracing::error!(schedule = record.view.id, %error, "a schedule that is due could not fire; it is tried again");
                outcome = Err(error);
            }
        }
        outcome
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
                self.fire(record, revision, Due { at: due, missed, next }).await
            }
        }
    }

    /// Why a firing that is due does not happen.
    async fn refusal_of_firing(&self, record: &ScheduleRecord) -> Result<Option<FiringRefusal>, StoreError> {
        if self.inner().runs.gate() != AdmissionGate::Open {
            return Ok(Some(FiringRefusal::Held));
        }
        match record.rights_now(self) {
            CreatorRights::Level(_) => {}
            CreatorRights::None(reason) => return Ok(Some(FiringRefusal::NoRights(reason))),
            CreatorRights::Unknown => return Ok(Some(FiringRefusal::UnknownRights)),
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
            FiringRefusal::UnknownRights => return Ok(()),
            FiringRefusal::Held => {
                let problem = "new runs are held".to_owned();
                if view.missed == MissedPolicy::Once {
                    return self.note_problem(record, revision, problem).await;
                }
                view.missed_count += 1;
                view.problem = Some(problem);
            }
            FiringRefusal::StillRuns => {
                view.skipped_count += 1;
                view.problem = Some("the run of the firing before has not ended".to_owned());
            }
            FiringRefusal::NoRights(reason) => {
                tracing::warn!(
                    schedule = view.id,
                    reason,
                    "a schedule is paused: its creator has no right to its runs"
                );
                let by = view.created_by.clone();
                view.paused = Some(SchedulePause { reason, by });
                view.next_at = None;
                return self.schedules().replace(&record, revision).await.map(drop);
            }
        }
        set_next(&mut record, next);
        self.schedules().replace(&record, revision).await.map(drop)
    }

    /// Has the run of a firing accepted, if no other node was faster and no stop or hold came in between.
    async fn fire(&self, record: ScheduleRecord, revision: i64, due: Due) -> Result<(), StoreError> {
        let id = record.view.id.clone();
        let run = RunId::parse(format!("{id}:{}", due.at.as_second()));
        let run = run.map_err(|error| StoreError::Bug(error.to_string()))?;
        let mut fired = record.clone();
        fired.view.last_at = Some(due.at.to_string());
        fired.view.last_run = Some(run.clone());
        fired.view.problem = None;
        fired.view.fired += 1;
        fired.view.missed_count += due.missed;
        set_next(&mut fired, due.next);
        let Some(firing) = self.schedules().begin_firing(&id, &run) else { return Ok(()) };
        let outcome = self.submit_firing(&fired, revision, run.clone()).await;
        if matches!(outcome, Ok(FiringOutcome::Fired)) {
            self.schedules().note_stored(&fired, revision + 1);
        }
        drop(firing);
        match outcome? {
            FiringOutcome::Fired | FiringOutcome::NotDue => Ok(()),
            FiringOutcome::Later(why) if record.view.missed == MissedPolicy::Once => {
                self.note_problem(record, revision, why).await
            }
            FiringOutcome::Later(why) | FiringOutcome::Refused(why) => {
                tracing::warn!(schedule = id, %run, why, "a firing did not become a run");
                let mut missed = record;
                missed.view.missed_count += due.missed + 1;
                missed.view.problem = Some(why);
                set_next(&mut missed, due.next);
                self.schedules().replace(&missed, revision).await.map(drop)
            }
        }
    }

    /// Submits the run of a firing.
    async fn submit_firing(
        &self,
        fired: &ScheduleRecord,
        revision: i64,
        run: RunId,
    ) -> Result<FiringOutcome, StoreError> {
        let view = &fired.view;
        let CreatorRights::Level(scope) = fired.rights_now(self) else { return Ok(FiringOutcome::NotDue) };
        let caller = Caller {
            principal: view.created_by.clone(),
            scope,
            grants: self.access().grants_of(&view.created_by, scope),
            // A person in a chat has no token.
            key: self.access().key_of(&view.created_by).unwrap_or_default(),
            verified_person: false,
            surface: fired.surface,
            origin: RequestOrigin::internal(),
        };
        let channel_origin = match &view.delivery {
            None => None,
            Some(delivery) => match self.schedules().delivery() {
                None => {
                    return Ok(FiringOutcome::Later(format!("there is no channel {:?}", delivery.channel)));
                }
                Some(channels) => match channels.new_origin(delivery, view, &run) {
                    Ok(origin) => Some(origin),
                    // Right after a start, and after a reload, a channel is not at work yet.
                    Err(why) => return Ok(FiringOutcome::Later(why)),
                },
            },
        };
        match self.acquire_session(&view.session_key).await {
            Ok(()) => {}
            Err(SessionTransferError::Store(error)) => return Err(error),
            Err(error) => return Ok(FiringOutcome::Later(error.to_string())),
        }
        let submission = Submission {
            session: view.session_key.clone(),
            text: view.text.clone(),
            work: RunWork::default(),
            agent: view.agent.clone(),
            idempotency_key: Some(run),
            on_busy: OnBusy::Queue,
            timeout: None,
            stop_text_mode: StopTextMode::Literal,
            channel_origin,
        };
        match self.submit_firing_run(&caller, submission, to_stored(fired, revision + 1)?).await {
            Ok(SubmitOutcome::Accepted(_)) => Ok(FiringOutcome::Fired),
            Ok(SubmitOutcome::Duplicate(_) | SubmitOutcome::Stopped(_)) => {
                Ok(FiringOutcome::Refused("a run with its id exists".to_owned()))
            }
            Err(
                SubmitError::NotDue
                | SubmitError::Closed
                | SubmitError::NotReady(_)
                | SubmitError::Refused(AdmissionError::Held | AdmissionError::ShuttingDown),
            ) => Ok(FiringOutcome::NotDue),
            Err(SubmitError::Store(error)) => Err(error),
            Err(
                error @ SubmitError::Refused(
                    AdmissionError::QueueFull { .. }
                    | AdmissionError::SpendLimit { .. }
                    | AdmissionError::KeySpendLimit { .. }
                    | AdmissionError::Busy,
                ),
            ) => Ok(FiringOutcome::Later(error.to_string())),
            Err(error) => Ok(FiringOutcome::Refused(error.to_string())),
        }
    }

    /// Says why a firing that will be made up for is late.
    async fn note_problem(&self, mut record: ScheduleRecord, revision: i64, problem: String) -> Result<(), StoreError> {
        if record.view.problem.as_ref() == Some(&problem) {
            return Ok(());
        }
        record.view.problem = Some(problem);
        self.schedules().replace(&record, revision).await.map(drop)
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

/// A firing that is due.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Timestamp,
    /// Others that are missed.
    missed: u64,
    next: Option<Timestamp>,
}

/// What became of a firing.
#[derive(Debug)]
enum FiringOutcome {
    Fired,
    /// It is not due any more, or new runs are held. The schedule is looked at again.
    NotDue,
    /// It may be accepted later.
    Later(String),
    Refused(String),
}

/// Why a firing that is due does not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FiringRefusal {
    /// New runs are held, or the daemon is shutting down.
    Held,
    /// The run of the firing before has not ended.
    StillRuns,
    /// Its creator may not have such runs any more, for this reason.
    NoRights(String),
    /// It is looked at again soon.
    UnknownRights,
}

/// What the creator of a schedule may do now.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CreatorRights {
    Level(AccessLevel),
    None(String),
    /// The channels are not at work: the daemon starts or ends.
    Unknown,
}

impl ScheduleRecord {
    /// The rights of its creator now: those at its creation, unless they have shrunk. A firing needs those to send
    /// messages, and to send its answer into a chat.
    fn rights_now(&self, engine: &Engine) -> CreatorRights {
        let view = &self.view;
        let level = if self.surface == Surface::Channel {
            match engine.schedules().delivery().map(|channels| channels.sender_rights(&view.created_by)) {
                Some(SenderRights::Level(level)) => level,
                Some(SenderRights::None(reason)) => return CreatorRights::None(reason),
                Some(SenderRights::Unknown) | None => return CreatorRights::Unknown,
            }
        } else {
            match engine.access().level_of(&view.created_by) {
                Some(level) => level,
                None => return CreatorRights::None("its creator has no valid token any more".to_owned()),
            }
        };
        let level = level.min(self.scope);
        let needs_admin = view.delivery.is_some() && self.surface != Surface::Channel;
        if needs_admin && !ScheduleCreator::may_send_anywhere(level, self.surface) {
            let reason = "its creator is no admin any more, so its answers may not be sent into the chat";
            return CreatorRights::None(reason.to_owned());
        }
        if level < AccessLevel::Write {
            return CreatorRights::None("its creator may not send messages any more".to_owned());
        }
        CreatorRights::Level(level)
    }
}

impl ScheduleChangeError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid(_) | Self::Delivery(_) | Self::Over => ErrorCode::InvalidRequest,
            Self::Held => ErrorCode::Held,
            Self::Forbidden(_) => ErrorCode::Forbidden,
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
    let viewer = caller.viewer();
    viewer.reads_all() || viewer.principal == view.created_by
}

fn may_manage(caller: &Caller, view: &ScheduleView) -> bool {
    // Not with `write:all`: the runs have the rights of whoever made the schedule.
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
    loop {
        let wait = match engine.fire_due_schedules(&permit).await {
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

/// Stores the pauses of a stop: those of this node's schedules, and in a cluster those that only the database knows.
async fn store_schedule_stop(engine: Engine, stop: ScheduleStop, progress: watch::Sender<PauseProgress>) {
    let mut is_scanned = engine.cluster().is_none() || !stop.reaches_other_nodes();
    loop {
        let stored = async {
            if !is_scanned {
                let known = progress.borrow().ids.clone();
                let found = engine.schedules().pause_unknown(&stop, &known).await?;
                progress.send_modify(|progress| progress.ids.extend(found));
                is_scanned = true;
            }
            let ids = progress.borrow().ids.clone();
            engine.schedules().store_stop(&ids).await
        };
        match stored.await {
            Ok(()) => return progress.send_modify(|progress| progress.is_stored = true),
            Err(error) => tracing::error!(%error, "the pauses of a stop could not be stored; they are tried again"),
        }
        tokio::select! {
            () = engine.inner().closing.cancelled() => return,
            () = sleep(RETRY_INTERVAL) => {}
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
