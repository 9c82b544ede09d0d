//! All runs that are not forgotten: the kernel's registry behind one lock, and the cell of each run.
//!
//! Every transition is made under that lock and its effects are carried out before it is let go, in the order in which the
//! machine gave them: announcing, cancelling, killing, sealing and arming a timer are all synchronous and short. So a stop
//! never waits for anything, and no two threads can announce out of order.

mod agents;
mod amend;
mod consolidate;
mod errand;
mod finish;
mod hooks;
mod look;
mod measure;
mod record;
mod spend;
mod stop;
mod tell;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::queue::Refusal;
use quell_kernel::registry::{Accepted, Background as Kept, Entry, Gate, Phase, StopAsk, StopScope, Stopped, Who};
use quell_kernel::{Debts, Effect, Input, Moment, Push, Registry, RunState};
use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, StopReason};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::agent::Workshop;
use crate::cell::{Acceptance, Cell, Hub, Notice};
use crate::clock::Clock;
use crate::scope::StopLevel;
use crate::store::Store;
use crate::tools::background::Owner;
pub use finish::{Outfit, Place, Unfit, deadline, stored_view};
pub use hooks::happening;
use spend::Spending;
pub use spend::Today;
pub use stop::{Stop, Ticket};

/// The runs of one engine. Clones are the same.
#[derive(Clone)]
pub struct Runs(Arc<Inner>);

struct Inner {
    clock: Clock,
    hub: Hub,
    store: Store,
    workshop: Arc<Workshop>,
    tasks: TaskTracker,
    /// A stop may come from a thread that is none of the runtime's.
    runtime: Handle,
    state: Mutex<State>,
    spending: Spending,
}

struct State {
    registry: Registry,
    cells: HashMap<RunId, Arc<Cell>>,
    /// What subscribers were told of each agent: its status, and the version of the list of its runs.
    shown: BTreeMap<AgentId, (ComputeStatus, u64)>,
    /// A task will tell the lists that have changed since.
    telling: bool,
    /// Runs whose turn the database refused, in the order in which it did.
    refused: Vec<Arc<Cell>>,
}

/// What a run needs to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// Nothing: a sub-run works on its parent's place, so that parents cannot starve their children.
    Nothing,
    /// A place among the runs in flight.
    Place,
}

impl Needs {
    fn of(entry: &Entry) -> Self {
        if entry.run.parent.is_some() { Self::Nothing } else { Self::Place }
    }
}

impl Runs {
    /// No runs yet. Its tasks will run on the runtime that this is called on.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[must_use]
    pub fn new(mut registry: Registry, workshop: Arc<Workshop>, store: Store, clock: Clock, hub: Hub) -> Self {
        workshop.society.roll().keys().for_each(|agent| registry.enroll(agent.clone()));
        let (cells, shown) = (HashMap::new(), BTreeMap::new());
        let state = Mutex::new(State { registry, cells, shown, telling: false, refused: Vec::new() });
        let runtime = Handle::current();
        let inner = Arc::new(Inner {
            clock,
            hub,
            store,
            workshop,
            tasks: TaskTracker::new(),
            runtime,
            state,
            spending: Spending::new(clock),
        });
        // What a run left in the background keeps it from being forgotten.
        let weak = Arc::downgrade(&inner);
        inner.workshop.background.on_end(move |run| {
            if let Some(inner) = weak.upgrade() {
                Self(inner).forget_if_closed(run);
            }
        });
        let weak = Arc::downgrade(&inner);
        inner.workshop.mcp.on_late(move |fact| {
            if let Some(inner) = weak.upgrade() {
                Self(inner).learn(fact);
            }
        });
        Self(inner)
    }

    /// Lets a run in, not yet durable.
    ///
    /// # Errors
    /// The [`Refusal`] says why not.
    pub fn accept(&self, cell: &Arc<Cell>) -> Result<Accepted, Refusal> {
        let mut state = self.lock();
        // Whoever asks for a run that is known is told of it, whatever refuses new ones.
        if state.registry.get(cell.id()).is_none() && state.registry.gate() == Gate::Open {
            self.may_spend(&cell.run.agent)?;
        }
        let accepted = state.registry.accept(cell.run.clone(), self.now())?;
        if let Accepted::New(_) = accepted {
            self.spending().open(cell);
            state.cells.insert(cell.run.id.clone(), Arc::clone(cell));
        }
        Ok(accepted)
    }

    /// The acceptance of a run is in the database. Answers the runs that it interrupts.
    pub fn durable(&self, cell: &Cell) -> Stop {
        let requested = self.now();
        let mut state = self.lock();
        cell.set_acceptance(Acceptance::Durable);
        let stopped = state.registry.durable(cell.id(), requested);
        self.carry_out(&mut state, stopped, requested)
    }

    /// The acceptance of a run failed: it leaves no trace.
    pub fn refuse(&self, cell: &Cell) {
        let mut state = self.lock();
        cell.set_acceptance(Acceptance::Refused);
        state.registry.withdraw(cell.id());
        self.forget_cell(&mut state, cell.id());
        self.show(&mut state);
    }

    /// Stops what `scope` covers and `who` may stop. Synchronous: when it returns, tokens have fired and wardens are told.
    #[must_use]
    pub fn stop(&self, scope: &StopScope, who: &Who, ask: &StopAsk) -> Stop {
        let requested = self.now();
        let mut state = self.lock();
        let stopped = state.registry.stop(scope, who, ask, requested);
        let mut stop = self.carry_out(&mut state, stopped, requested);
        self.end_processes(&mut stop, ask.push, |owner| match scope {
            StopScope::Session { key, background: Kept::Stop, .. } => owner.session == *key && may(who, owner),
            StopScope::Everything => may(who, owner),
            StopScope::Session { .. }
            | StopScope::Run { .. }
            | StopScope::Agent { .. }
            | StopScope::Agents { .. }
            // What left something in the background is in the registry until that has ended.
            | StopScope::Conversation { .. }
            | StopScope::Channel { .. } => false,
        });
        stop
    }

    /// Stops a run whose owner `who` knows, accepted or not, as [`Runs::stop`] does.
    #[must_use]
    pub fn stop_coming(&self, run: (&RunId, &Principal), who: &Who, ask: &StopAsk) -> Stop {
        let requested = self.now();
        let mut state = self.lock();
        let stopped = state.registry.stop_coming(run, who, ask, requested);
        let mut stop = self.carry_out(&mut state, stopped, requested);
        self.end_processes(&mut stop, ask.push, |_| false);
        stop
    }

    /// Aborts runs on Quell's own account.
    pub fn abort(&self, ids: Vec<RunId>, push: Push, reason: &StopReason) -> Stop {
        let requested = self.now();
        let mut state = self.lock();
        let stopped = state.registry.abort(ids, push, reason, requested);
        let mut stop = self.carry_out(&mut state, stopped, requested);
        self.end_processes(&mut stop, push, |_| false);
        stop
    }

    /// One input to one run.
    pub fn input(&self, id: &RunId, input: Input) {
        let mut state = self.lock();
        let effects = state.registry.input(id, input, self.now());
        self.apply(&mut state, id, &effects);
        self.show(&mut state);
    }

    /// Whether the run of a session that is due needs a place of its own among those at work, if one is due.
    #[must_use]
    pub fn due(&self, key: &SessionKey) -> Option<Needs> {
        self.lock().registry.due(key).map(Needs::of)
    }

    /// True when a sub-run could start in a session whose next message waits for a place.
    #[must_use]
    pub fn sub_run_is_due(&self, key: &SessionKey) -> bool {
        self.lock().registry.due_sub_run(key).is_some()
    }

    /// Starts the run of a session that is due, or without a place its oldest sub-run; answers its cell.
    #[must_use]
    pub fn start_due(&self, key: &SessionKey, has: Needs) -> Option<Arc<Cell>> {
        let mut state = self.lock();
        let due = match has {
            Needs::Place => state.registry.due(key),
            Needs::Nothing => state.registry.due_sub_run(key),
        };
        let id = due?.run.id.clone();
        let cell = state.cells.get(&id).cloned()?;
        let effects = state.registry.input(&id, Input::Start, self.now());
        self.apply(&mut state, &id, &effects);
        self.show(&mut state);
        Some(cell)
    }

    /// Notes what a run is doing.
    pub fn phase(&self, cell: &Cell, phase: Phase) {
        let mut state = self.lock();
        state.registry.set_phase(cell.id(), phase);
        cell.set_phase(phase);
        self.show(&mut state);
    }

    /// The messages that wait to steer a run leave the queue and join its turn, in one locked step: no stop can seal the turn
    /// between the two and lose them.
    pub fn take_steers(&self, into: &Arc<Cell>) {
        let mut state = self.lock();
        let taken = state.registry.take_steers(into.id());
        let cells: Vec<Arc<Cell>> = taken.iter().filter_map(|(id, _)| state.cells.get(id).cloned()).collect();
        for (id, text) in taken {
            let came = state.cells.get(&id).map_or_else(|| into.pen().clock().now(), |cell| cell.accepted());
            // Only a running run takes any, and its turn is open.
            let _ = into.pen().add_user(text, came);
        }
        drop(state);
        for cell in cells {
            cell.handed_over();
            self.spawn(finish::note_steered(self.clone(), cell, Arc::clone(into)));
        }
    }

    /// The database knows that another run has this message.
    fn forget_message(&self, id: &RunId) {
        self.forget_cell(&mut self.lock(), id);
    }

    fn forget_cell(&self, state: &mut State, id: &RunId) {
        state.cells.remove(id);
        self.spending().close(id);
    }

    fn spending(&self) -> &Spending {
        &self.0.spending
    }

    /// Opens, holds or closes the gate for new runs.
    pub fn set_gate(&self, gate: Gate) {
        self.lock().registry.set_gate(gate);
    }

    /// The gate for new runs.
    #[must_use]
    pub fn gate(&self) -> Gate {
        self.lock().registry.gate()
    }

    /// Aborts what is over its time (row A6), and forgets what is over and stored.
    pub fn sweep(&self) {
        let expired = self.lock().registry.expired(self.now());
        self.abort(expired, Push::Gentle, &StopReason::Timeout);
        let kept = self.lock().registry.kept();
        for id in kept {
            self.forget(&id);
        }
    }

    /// Forgets a run that is over and stored, unless a descendant lives; and those above it that were kept for it.
    pub fn forget(&self, id: &RunId) {
        let mut state = self.lock();
        let background = &self.0.workshop.background;
        for gone in state.registry.forget(id, |run| background.has_of_run(run)) {
            self.forget_cell(&mut state, &gone);
        }
    }

    fn forget_if_closed(&self, id: &RunId) {
        let closed = self.lock().registry.kept().contains(id);
        if closed {
            self.forget(id);
        }
    }

    /// Tasks of the engine that are not a run's own: finalisers, timers, session actors.
    #[must_use]
    pub fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    /// Starts a task of the engine that the shutdown waits for. May be called from any thread.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // The one place where the engine's own tasks are born, tracked.
        self.0.runtime.spawn(self.0.tasks.track_future(task));
    }

    /// The database.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// What agents share.
    #[must_use]
    pub fn workshop(&self) -> &Arc<Workshop> {
        &self.0.workshop
    }

    /// The fan-out.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.0.hub
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    fn carry_out(&self, state: &mut State, stopped: Stopped, requested: Moment) -> Stop {
        for id in &stopped.covered {
            if let Some(cell) = state.cells.get(id) {
                cell.stop_requested(requested);
            }
        }
        for (id, effects) in &stopped.transitions {
            self.apply(state, id, effects);
        }
        let tickets: Vec<Ticket> =
            stopped.covered.iter().filter_map(|id| state.cells.get(id).cloned().map(Ticket)).collect();
        for ticket in &tickets {
            ticket.0.stop_delivered();
        }
        let aborted: HashSet<&RunId> = stopped.aborted.iter().collect();
        let was_ending =
            |id: &&RunId| !aborted.contains(id) && !state.registry.get(id).is_some_and(|e| e.state.is_ended());
        let ending: Vec<RunId> = stopped.covered.iter().filter(was_ending).cloned().collect();
        self.show(state);
        Stop { aborted: stopped.aborted, ending, withdrawn: stopped.withdrawn, tickets, ..Stop::default() }
    }

    /// Ends what the covered runs left in the background, and what else the scope covers. What a run at work still holds
    /// has been told through its ledger, and its end waits for it.
    fn end_processes(&self, stop: &mut Stop, push: Push, else_covered: impl Fn(&Owner) -> bool) {
        let level = match push {
            Push::Gentle => StopLevel::Gentle,
            Push::Forced => StopLevel::Forced,
        };
        let covered: HashSet<&RunId> = stop.tickets.iter().map(|ticket| ticket.0.id()).collect();
        let background = &self.0.workshop.background;
        let covers = |owner: &Owner| covered.contains(&owner.run) || else_covered(owner);
        let (processes, ended) = background.end(level, covers);
        let tasks = background.end_tasks(level, covers);
        (stop.processes, stop.ended, stop.tasks) = (processes, ended, tasks);
    }

    /// Carries out the effects of one transition, in order.
    fn apply(&self, state: &mut State, id: &RunId, effects: &[Effect]) {
        let Some(cell) = state.cells.get(id).cloned() else { return };
        let Some(entry) = state.registry.get(id) else { return };
        let debts = debts_of(entry);
        for effect in effects {
            match effect {
                Effect::Spawn => cell.started(),
                Effect::Cancel => self.cancel(&cell, entry),
                Effect::Kill => cell.scope.kill(),
                Effect::Seal => cell.seal(),
                Effect::ArmGrace(at) => {
                    self.spawn(finish::timer(self.clone(), Arc::clone(&cell), *at, Input::GracePassed))
                }
                Effect::ArmHard(at) => {
                    self.spawn(finish::timer(self.clone(), Arc::clone(&cell), *at, Input::HardPassed))
                }
                Effect::AnnounceEnding => announce_ending(&cell, entry),
                Effect::AnnounceEnded => self.end(&cell, debts),
                Effect::AmendReceipt => self.amend(&cell, debts),
            }
        }
    }

    fn cancel(&self, cell: &Cell, entry: &Entry) {
        if let Some(quell_protocol::Verdict::Aborted { reason, .. }) = entry.state.verdict() {
            self.0.hub.publish(&Notice::Cancelling {
                run_id: cell.run.id.clone(),
                session_key: cell.run.session.clone(),
                reason: reason.clone(),
            });
        }
        if !matches!(entry.state.verdict(), Some(quell_protocol::Verdict::Aborted { .. })) {
            cell.scope.ledger().hand_over();
        }
        cell.scope.cancel();
    }

    fn end(&self, cell: &Arc<Cell>, debts: Debts) {
        cell.announce_ended(debts, |receipt| measure::ended(receipt, cell.bill.get()));
        let (run, session, steps) = (cell.id(), &cell.run.session, cell.steps());
        match cell.verdict() {
            Some(quell_protocol::Verdict::Aborted { .. }) => {
                tracing::info!(%run, %session, steps, "execution cancelled")
            }
            Some(verdict) => tracing::info!(%run, %session, steps, verdict = verdict.word(), "run ended"),
            None => {}
        }
        let (runs, cell) = (self.clone(), Arc::clone(cell));
        self.spawn(async move {
            runs.tell_end(&cell).await;
            finish::close_book(runs, cell).await;
        });
    }

    fn amend(&self, cell: &Arc<Cell>, debts: Debts) {
        cell.amend_receipt(debts);
        self.spawn(finish::close_book(self.clone(), Arc::clone(cell)));
    }

    fn now(&self) -> Moment {
        self.0.clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn may(who: &Who, owner: &Owner) -> bool {
    who.admin || owner.principal == who.principal
}

fn debts_of(entry: &Entry) -> Debts {
    match &entry.state {
        RunState::Ending { debts, .. } | RunState::Ended { debts, .. } => *debts,
        RunState::Queued | RunState::Running => Debts::default(),
    }
}

fn announce_ending(cell: &Cell, entry: &Entry) {
    if let Some(verdict) = entry.state.verdict() {
        tracing::debug!(run = %cell.run.id, session = %cell.run.session, verdict = verdict.word(), "run is ending");
        cell.announce_ending(verdict);
    }
}

impl std::fmt::Debug for Runs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Runs")
    }
}
