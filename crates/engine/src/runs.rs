//! All runs that are not forgotten: the kernel's registry and the live runs behind one lock. Applies the effects of
//! transitions.
//!
//! Every transition is made under that lock. Its effects are applied before the lock is released, in the order in which
//! the run machine returned them. Announcing, cancelling, killing, sealing and arming a timer are all synchronous and
//! short. So a stop never waits, and no two threads can announce out of order.

mod agent_notices;
mod agents;
mod amendments;
mod channel_delivery;
mod consolidation;
mod hooks;
mod message_files;
mod queries;
mod recording;
mod run_metrics;
mod run_task;
mod spending;
mod stop;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use quell_kernel::admission::AdmissionError;
use quell_kernel::registry::{
    AcceptOutcome, AdmissionGate, RegistryEntry, RunPhase, StopOutcome, StopRequest, StopRequester, StopScope,
};
use quell_kernel::{Debts, Moment, RunEffect, RunRegistry, RunState, RunStateInput, StopLevel};
use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, StopReason};
use quell_scope::clock::Clock;
use quell_store::Store;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::agent::{MODEL_CALLS, Services};
use crate::live_run::{Acceptance, EngineNotice, Hub, LiveRun};
pub use hooks::run_hook_trigger;
pub use recording::{build_run_row, serialize_view};
pub use run_task::{RunInputs, RunPermit, RunSetupError, abort_at_deadline};
use spending::AgentSpending;
pub use spending::{DaySums, SpentToday};
pub use stop::{StopResult, Ticket};

/// The runs of one engine. Clones share one table.
#[derive(Clone)]
pub struct RunTable(Arc<RunTableInner>);

struct RunTableInner {
    clock: Clock,
    hub: Hub,
    store: Store,
    services: Arc<Services>,
    tasks: TaskTracker,
    /// A stop may come from a thread outside the runtime.
    runtime: Handle,
    state: Mutex<RunTableState>,
    spending: AgentSpending,
}

struct RunTableState {
    registry: RunRegistry,
    live_runs: HashMap<RunId, Arc<LiveRun>>,
    /// The last published state of each agent: its status, and the version of the list of its runs.
    published: BTreeMap<AgentId, (ComputeStatus, u64)>,
    /// A task is scheduled that publishes the changed lists.
    is_publish_scheduled: bool,
    /// Runs whose turn the database refused, in order of refusal.
    unrecorded: Vec<Arc<LiveRun>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartRequirement {
    /// A sub-run works on the permit of its parent, so that parents cannot starve their children.
    Nothing,
    Permit,
}

impl StartRequirement {
    fn for_entry(entry: &RegistryEntry) -> Self {
        if entry.run.parent.is_some() { Self::Nothing } else { Self::Permit }
    }
}

/// What came of a run that was to start at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImmediateStart {
    Started,
    /// A stop of its id came first: it is over.
    StoppedBefore,
}

impl RunTable {
    /// Creates an empty table. Its tasks run on the current runtime.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub fn new(mut registry: RunRegistry, services: Arc<Services>, store: Store, clock: Clock, hub: Hub) -> Self {
        services.agents.snapshot().keys().for_each(|agent| registry.enroll(agent.clone()));
        registry.enroll(MODEL_CALLS.clone());
        let (live_runs, published) = (HashMap::new(), BTreeMap::new());
        let state = Mutex::new(RunTableState {
            registry,
            live_runs,
            published,
            is_publish_scheduled: false,
            unrecorded: Vec::new(),
        });
        let runtime = Handle::current();
        let inner = Arc::new(RunTableInner {
            clock,
            hub,
            store,
            services,
            tasks: TaskTracker::new(),
            runtime,
            state,
            spending: AgentSpending::new(clock),
        });
        // A run is kept in memory as long as its background processes live.
        let weak = Arc::downgrade(&inner);
        inner.services.background.set_end_callback(move |run| {
            if let Some(inner) = weak.upgrade() {
                Self(inner).forget_run_if_stored(run);
            }
        });
        let program_hub = inner.hub.clone();
        inner.services.mcp.set_program_callback(move |session| {
            program_hub.publish(&EngineNotice::session_changed(session.clone(), "process"));
        });
        let weak = Arc::downgrade(&inner);
        inner.services.mcp.set_late_call_callback(move |fact| {
            if let Some(inner) = weak.upgrade() {
                Self(inner).add_late_fact(fact);
            }
        });
        Self(inner)
    }

    /// Admits a run, not yet durably.
    pub fn accept(&self, live_run: &Arc<LiveRun>) -> Result<AcceptOutcome, AdmissionError> {
        self.accept_locked(&mut self.lock(), live_run)
    }

    fn accept_locked(
        &self,
        state: &mut RunTableState,
        live_run: &Arc<LiveRun>,
    ) -> Result<AcceptOutcome, AdmissionError> {
        // A repeat of a known run is answered, even if new runs are refused.
        if state.registry.get(live_run.id()).is_none() && state.registry.gate() == AdmissionGate::Open {
            self.check_daily_limit(&live_run.run.agent)?;
            self.check_daily_cost(live_run)?;
        }
        let accepted = state.registry.accept(live_run.run.clone(), self.now())?;
        if let AcceptOutcome::New(_) = accepted {
            self.spending().open_run(live_run);
            state.live_runs.insert(live_run.run.id.clone(), Arc::clone(live_run));
        }
        Ok(accepted)
    }

    /// Marks the acceptance of a run as durable. Aborts the runs that it interrupts and returns that stop.
    pub fn commit_acceptance(&self, live_run: &LiveRun) -> StopResult {
        let requested = self.now();
        let mut state = self.lock();
        live_run.set_acceptance(Acceptance::Durable);
        let stopped = state.registry.commit_acceptance(live_run.id(), requested);
        self.apply_stop(&mut state, stopped, requested)
    }

    /// Accepts a run that waits for no other one, and starts it in the same step. If a stop came first, the run ends at
    /// once. Nothing of it is stored before its end.
    pub fn start_at_once(&self, live_run: &Arc<LiveRun>) -> Result<ImmediateStart, AdmissionError> {
        let requested = self.now();
        let mut state = self.lock();
        self.accept_locked(&mut state, live_run)?;
        live_run.set_acceptance(Acceptance::Durable);
        let stopped = state.registry.commit_acceptance(live_run.id(), requested);
        // The one who stopped it has its answer.
        let _stopped = self.apply_stop(&mut state, stopped, requested);
        if !state.registry.may_start_at_once(live_run.id()) {
            return Ok(ImmediateStart::StoppedBefore);
        }
        let effects = state.registry.apply_input(live_run.id(), RunStateInput::Start, self.now());
        self.apply_effects(&mut state, live_run.id(), &effects);
        self.publish_agent_changes(&mut state);
        Ok(ImmediateStart::Started)
    }

    /// Removes a run whose acceptance could not be stored.
    pub fn rollback_acceptance(&self, live_run: &LiveRun) {
        let mut state = self.lock();
        live_run.set_acceptance(Acceptance::Refused);
        state.registry.rollback_acceptance(live_run.id());
        self.forget_live_run(&mut state, live_run.id());
        self.publish_agent_changes(&mut state);
    }

    /// Stops what `scope` covers and `requester` may stop. Synchronous: when it returns, tokens are cancelled and the
    /// wardens have the stop.
    #[must_use]
    pub fn stop(&self, scope: &StopScope, requester: &StopRequester, request: &StopRequest) -> StopResult {
        self.stop_runs(request.level, |registry, now| registry.stop(scope, requester, request, now))
    }

    /// Stops a run whose owner the caller names, accepted or not, as [`RunTable::stop`] does.
    #[must_use]
    pub fn stop_run_of_owner(
        &self,
        run: &RunId,
        owner: &Principal,
        requester: &StopRequester,
        request: &StopRequest,
    ) -> StopResult {
        self.stop_runs(request.level, |registry, now| registry.stop_run_of_owner(run, owner, requester, request, now))
    }

    /// Aborts runs on behalf of Quell itself.
    pub fn abort_runs(&self, ids: Vec<RunId>, level: StopLevel, reason: &StopReason) -> StopResult {
        self.stop_runs(level, |registry, now| registry.abort(ids, level, reason, now))
    }

    /// Stops runs in one step: what `stop` aborts in the registry, their scopes, and their background work.
    fn stop_runs(&self, level: StopLevel, stop: impl FnOnce(&mut RunRegistry, Moment) -> StopOutcome) -> StopResult {
        let requested = self.now();
        let mut state = self.lock();
        let stopped = stop(&mut state.registry, requested);
        let mut stop_result = self.apply_stop(&mut state, stopped, requested);
        self.end_background(&mut stop_result, level);
        stop_result
    }

    pub fn apply_input(&self, id: &RunId, input: RunStateInput) {
        let mut state = self.lock();
        let effects = state.registry.apply_input(id, input, self.now());
        self.apply_effects(&mut state, id, &effects);
        self.publish_agent_changes(&mut state);
    }

    /// What the next run of a session needs to start; `None` if no run is due.
    pub fn due_requirement(&self, key: &SessionKey) -> Option<StartRequirement> {
        self.lock().registry.due_run(key).map(StartRequirement::for_entry)
    }

    /// True if a sub-run could start in a session whose next message waits for a permit.
    pub fn has_due_sub_run(&self, key: &SessionKey) -> bool {
        self.lock().registry.due_sub_run(key).is_some()
    }

    /// Starts the next run of a session, or without a permit its oldest sub-run. Returns the live run.
    #[must_use]
    pub fn start_due_run(&self, key: &SessionKey, available: StartRequirement) -> Option<Arc<LiveRun>> {
        let mut state = self.lock();
        let due = match available {
            StartRequirement::Permit => state.registry.due_run(key),
            StartRequirement::Nothing => state.registry.due_sub_run(key),
        };
        let id = due?.run.id.clone();
        let live_run = state.live_runs.get(&id).cloned()?;
        let effects = state.registry.apply_input(&id, RunStateInput::Start, self.now());
        self.apply_effects(&mut state, &id, &effects);
        self.publish_agent_changes(&mut state);
        Some(live_run)
    }

    pub fn set_phase(&self, live_run: &LiveRun, phase: RunPhase) {
        let mut state = self.lock();
        state.registry.set_phase(live_run.id(), phase);
        live_run.set_phase(phase);
        self.publish_agent_changes(&mut state);
    }

    /// Moves the messages that wait to steer a run from the queue to its turn, in one locked step: no stop can seal the
    /// turn in between and lose them.
    pub fn take_steering_messages(&self, into: &Arc<LiveRun>) {
        let mut state = self.lock();
        let messages = state.registry.take_steering_messages(into.id());
        let live_runs: Vec<Arc<LiveRun>> =
            messages.iter().filter_map(|(id, _)| state.live_runs.get(id).cloned()).collect();
        for (id, text) in messages {
            let received_at =
                state.live_runs.get(&id).map_or_else(|| into.writer().clock().now(), |live_run| live_run.accepted_at());
            // Only a running run takes messages, and its turn is open.
            let _ = into.writer().add_user_message(text, received_at);
        }
        drop(state);
        for live_run in live_runs {
            live_run.mark_steered();
            self.spawn(recording::store_steered_message(self.clone(), live_run, Arc::clone(into)));
        }
    }

    pub fn waiting_steering_messages(&self, id: &RunId) -> Vec<RunId> {
        self.lock().registry.waiting_steering_messages(id)
    }

    /// Forgets a message that is stored as taken by another run.
    fn forget_steered_message(&self, id: &RunId) {
        self.forget_live_run(&mut self.lock(), id);
    }

    fn forget_live_run(&self, state: &mut RunTableState, id: &RunId) {
        state.live_runs.remove(id);
        self.spending().close_run(id);
    }

    fn spending(&self) -> &AgentSpending {
        &self.0.spending
    }

    pub fn set_gate(&self, gate: AdmissionGate) {
        self.lock().registry.set_gate(gate);
    }

    pub fn gate(&self) -> AdmissionGate {
        self.lock().registry.gate()
    }

    /// Aborts expired runs (row A6 in `docs/design/requirements.md`), and forgets runs that are over and stored.
    pub fn sweep(&self) {
        let expired = self.lock().registry.expired_runs(self.now());
        self.abort_runs(expired, StopLevel::Gentle, &StopReason::Timeout);
        let retained = self.lock().registry.retained_runs();
        for id in retained {
            self.forget_run(&id);
        }
    }

    /// Forgets a run that is over and stored, unless a descendant is active. Also forgets its ancestors that were kept
    /// only for it.
    pub fn forget_run(&self, id: &RunId) {
        let mut state = self.lock();
        let background = &self.0.services.background;
        for forgotten in state.registry.forget(id, |run| background.has_work_of_run(run)) {
            self.forget_live_run(&mut state, &forgotten);
        }
    }

    fn forget_run_if_stored(&self, id: &RunId) {
        let closed = self.lock().registry.retained_runs().contains(id);
        if closed {
            self.forget_run(id);
        }
    }

    /// Tasks of the engine that do not belong to a run's scope: the tasks of runs, timers, session actors.
    pub fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    /// Starts a task of the engine that the shutdown waits for. May be called from any thread.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // The only place that spawns the engine's own tasks; all are tracked. Boxed as in `Scope::spawn`.
        self.0.runtime.spawn(self.0.tasks.track_future(task.boxed()));
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub fn services(&self) -> &Arc<Services> {
        &self.0.services
    }

    pub fn hub(&self) -> &Hub {
        &self.0.hub
    }

    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    fn apply_stop(&self, state: &mut RunTableState, stopped: StopOutcome, requested: Moment) -> StopResult {
        for id in &stopped.covered {
            if let Some(live_run) = state.live_runs.get(id) {
                live_run.mark_stop_requested(requested);
            }
        }
        for (id, effects) in &stopped.transitions {
            self.apply_effects(state, id, effects);
        }
        let tickets: Vec<Ticket> =
            stopped.covered.iter().filter_map(|id| state.live_runs.get(id).cloned().map(Ticket)).collect();
        for ticket in &tickets {
            ticket.0.mark_stop_delivered();
        }
        let aborted: HashSet<&RunId> = stopped.aborted.iter().collect();
        let was_ending =
            |id: &&RunId| !aborted.contains(id) && !state.registry.get(id).is_some_and(|e| e.state.is_ended());
        let ending: Vec<RunId> = stopped.covered.iter().filter(was_ending).cloned().collect();
        self.publish_agent_changes(state);
        StopResult {
            aborted: stopped.aborted,
            already_ending: ending,
            withdrawn: stopped.withdrawn,
            tickets,
            ..StopResult::default()
        }
    }

    /// Stops the background work of the covered runs, also what their sessions keep: a run stays in the registry as long
    /// as such work is active. What an active run still holds was stopped through its ledger, and its end waits for it.
    fn end_background(&self, stop_result: &mut StopResult, level: StopLevel) {
        let covered: HashSet<&RunId> = stop_result.tickets.iter().map(|ticket| ticket.0.id()).collect();
        stop_result.background = self.0.services.background.stop(level, |owner| covered.contains(&owner.run));
    }

    /// Applies the effects of one transition, in order.
    fn apply_effects(&self, state: &mut RunTableState, id: &RunId, effects: &[RunEffect]) {
        let Some(live_run) = state.live_runs.get(id).cloned() else { return };
        let Some(entry) = state.registry.get(id) else { return };
        let debts = debts_of(entry);
        for effect in effects {
            match effect {
                RunEffect::StartWork => live_run.mark_started(),
                RunEffect::Cancel => self.cancel_run(&live_run, entry),
                RunEffect::Kill => live_run.scope.kill(),
                RunEffect::Seal => live_run.seal(),
                RunEffect::ArmGraceTimer(at) => self.spawn(run_task::send_input_at(
                    self.clone(),
                    Arc::clone(&live_run),
                    *at,
                    RunStateInput::GracePassed,
                )),
                RunEffect::ArmHardLimitTimer(at) => self.spawn(run_task::send_input_at(
                    self.clone(),
                    Arc::clone(&live_run),
                    *at,
                    RunStateInput::HardLimitPassed,
                )),
                RunEffect::AnnounceEnding => announce_ending(&live_run, entry),
                RunEffect::AnnounceEnded => self.announce_end(&live_run, debts),
                RunEffect::AmendReceipt => self.amend_receipt(&live_run, debts),
            }
        }
    }

    fn cancel_run(&self, live_run: &LiveRun, entry: &RegistryEntry) {
        if let Some(quell_protocol::Verdict::Aborted { reason, .. }) = entry.state.verdict() {
            self.0.hub.publish(&EngineNotice::Cancelling {
                run_id: live_run.run.id.clone(),
                session_key: live_run.run.session.clone(),
                reason: reason.clone(),
            });
        }
        if !matches!(entry.state.verdict(), Some(quell_protocol::Verdict::Aborted { .. })) {
            live_run.scope.ledger().hand_over_background();
        }
        live_run.scope.cancel();
    }

    fn announce_end(&self, live_run: &Arc<LiveRun>, debts: Debts) {
        live_run.announce_ended(debts, |receipt, changes| {
            run_metrics::count_run_end(receipt, live_run.billing_info.get(), changes);
        });
        let (run, session, steps) = (live_run.id(), &live_run.run.session, live_run.steps());
        match live_run.verdict() {
            Some(quell_protocol::Verdict::Aborted { .. }) => {
                tracing::info!(%run, %session, steps, "execution cancelled")
            }
            Some(verdict) => tracing::info!(%run, %session, steps, verdict = verdict.as_str(), "run ended"),
            None => {}
        }
        let (runs, live_run) = (self.clone(), Arc::clone(live_run));
        self.spawn(async move {
            runs.record_end_hooks(&live_run).await;
            recording::store_end_and_forget(runs, live_run).await;
        });
    }

    fn amend_receipt(&self, live_run: &Arc<LiveRun>, debts: Debts) {
        live_run.rebuild_receipt(debts);
        self.spawn(recording::store_end_and_forget(self.clone(), Arc::clone(live_run)).map(drop));
    }

    fn now(&self) -> Moment {
        self.0.clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, RunTableState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn debts_of(entry: &RegistryEntry) -> Debts {
    match &entry.state {
        RunState::Ending { debts, .. } | RunState::Ended { debts, .. } => *debts,
        RunState::Queued | RunState::Running => Debts::default(),
    }
}

fn announce_ending(live_run: &LiveRun, entry: &RegistryEntry) {
    if let Some(verdict) = entry.state.verdict() {
        tracing::debug!(run = %live_run.run.id, session = %live_run.run.session, verdict = verdict.as_str(), "run is ending");
        live_run.announce_ending(verdict);
    }
}

impl std::fmt::Debug for RunTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunTable")
    }
}
