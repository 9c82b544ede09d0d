//! Registry of all runs that are not forgotten: admission, start order, stops and the run tree.
//!
//! It is a plain value behind one lock of the engine. Every check that could race with its action ("abort it if it
//! waits for the model") is one method here, and so one locked operation there.

mod client_runs;
mod conversations;
mod counters;
mod enrolled;
mod entry;
mod pending_stops;
mod run_tree;
mod stop_request;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use quell_protocol::api::{ComputeStatus, OnBusy};
use quell_protocol::{AgentId, Principal, Requester, RunId, SessionKey, StopReason, Verdict};

use self::client_runs::ClientRuns;
use self::conversations::ConversationIndex;
use self::counters::{RunCounters, compute_status_of};
pub use self::entry::{NewRun, RegistryEntry, RunPhase, StopRequester};
use self::pending_stops::{PendingStopRun, PendingStops};
pub use self::run_tree::RunLimits;
pub use self::stop_request::{AgentRunFilter, BackgroundPolicy, QueuedPolicy, StopRequest, StopScope};
use crate::admission::{self, Admission, AdmissionError, SessionLoad, WaitReason};
use crate::run::{RunEffect, RunState, RunStateInput, StopLevel};
use crate::time::{Moment, StopTimeouts};

/// A transition that the engine must carry out.
pub type RunTransition = (RunId, Vec<RunEffect>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutcome {
    /// Effects to carry out, children before parents.
    pub transitions: Vec<RunTransition>,
    pub aborted: Vec<RunId>,
    /// The queued runs among them, with their texts.
    pub withdrawn: Vec<(RunId, String)>,
    /// Every run that the scope covers and the caller may stop, whether this call aborted it or not.
    pub covered: Vec<RunId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcceptOutcome {
    New(Admission),
    /// A run with that id is already registered.
    Known,
}

#[derive(Debug, Default)]
pub struct RunRegistry {
    runs: HashMap<RunId, RegistryEntry>,
    /// Runs of each session that are not ended, in order of acceptance.
    sessions: HashMap<SessionKey, VecDeque<RunId>>,
    children: HashMap<RunId, Vec<RunId>>,
    /// Runs of chat conversations that are not forgotten.
    conversations: ConversationIndex,
    counters: RunCounters,
    client_runs: ClientRuns,
    /// Agents that accept runs.
    enrolled: BTreeSet<AgentId>,
    pending_stops: PendingStops,
    last_accept_seq: u64,
    admission_gate: AdmissionGate,
    limits: RunLimits,
    times: StopTimeouts,
}

/// Whether new runs are accepted and queued ones start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdmissionGate {
    #[default]
    Open,
    /// New runs are refused, queued runs wait.
    Held,
    Closing,
}

impl RunRegistry {
    /// Creates an empty registry, in which no agent accepts runs yet.
    pub fn new(times: StopTimeouts, limits: RunLimits) -> Self {
        Self { times, limits, ..Self::default() }
    }

    pub fn set_gate(&mut self, gate: AdmissionGate) {
        self.admission_gate = gate;
    }

    pub fn gate(&self) -> AdmissionGate {
        self.admission_gate
    }

    pub fn get(&self, id: &RunId) -> Option<&RegistryEntry> {
        self.runs.get(id)
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &RegistryEntry> {
        self.runs.values()
    }

    /// Runs of a session that are not ended, in order of acceptance.
    pub fn runs_of_session<'a>(&'a self, key: &SessionKey) -> impl Iterator<Item = &'a RegistryEntry> {
        self.sessions.get(key).into_iter().flatten().filter_map(|id| self.runs.get(id))
    }

    /// Sessions with a run that is not ended.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionKey> {
        self.sessions.keys()
    }

    /// Accepts a run. It does not start before [`RunRegistry::commit_acceptance`].
    ///
    /// # Errors
    /// A refusal changes nothing.
    pub fn accept(&mut self, run: NewRun, now: Moment) -> Result<AcceptOutcome, AdmissionError> {
        if self.runs.contains_key(&run.id) {
            return Ok(AcceptOutcome::Known);
        }
        match self.admission_gate {
            AdmissionGate::Open => {}
            AdmissionGate::Held => return Err(AdmissionError::Held),
            AdmissionGate::Closing => return Err(AdmissionError::ShuttingDown),
        }
        if !self.enrolled.contains(&run.agent) {
            return Err(AdmissionError::NoAgent { agent: run.agent });
        }
        self.check_sub_run(&run)?;
        let admission = match run.bypasses_queue {
            true => Admission::Queue,
            false => admission::decide_admission(run.on_busy, &self.session_load(&run))?,
        };
        let waiting = match admission {
            Admission::Steer { .. } => WaitReason::Steer,
            Admission::Queue | Admission::Interrupt => WaitReason::EarlierRuns,
        };
        self.client_runs.check(&run, waiting, self.limits.max_client_runs)?;
        let pending_stop = self.pending_stops.verdict_for(&run, now);
        self.insert(run, waiting, pending_stop);
        Ok(AcceptOutcome::New(admission))
    }

    /// Marks the acceptance of a run as durable: the run may start.
    ///
    /// If a stop of its id came first, the run ends. An interrupting run aborts the runs accepted before it in its
    /// scope, or in its session if it has no scope, as far as its sender may stop them. It waits for the others.
    pub fn commit_acceptance(&mut self, id: &RunId, now: Moment) -> StopOutcome {
        let Some(entry) = self.runs.get_mut(id) else { return StopOutcome::default() };
        entry.durable = true;
        if let Some(verdict) = entry.pending_stop.take() {
            return self.abort_all(vec![id.clone()], StopLevel::Gentle, &verdict, now);
        }
        if entry.run.on_busy != OnBusy::Interrupt || entry.state.is_ended() {
            return StopOutcome::default();
        }
        let by = Requester { principal: entry.run.principal.clone(), surface: entry.run.surface };
        let verdict = Verdict::Aborted { reason: StopReason::Superseded, by: Some(by) };
        let older = self.get(id).map(|entry| self.superseded_by(entry)).unwrap_or_default();
        self.abort_all(older, StopLevel::Gentle, &verdict, now)
    }

    /// Forgets a run whose acceptance could not be made durable.
    pub fn rollback_acceptance(&mut self, id: &RunId) {
        if self.runs.get(id).is_some_and(|e| !e.durable) {
            self.remove(id);
        }
    }

    /// The run of a session that may start now: the oldest, if it is queued and durable and the gate is open.
    pub fn due_run(&self, key: &SessionKey) -> Option<&RegistryEntry> {
        if self.admission_gate != AdmissionGate::Open {
            return None;
        }
        let head = self.runs_of_session(key).next()?;
        (head.durable && head.state == RunState::Queued && !self.waits_for_superseded(head)).then_some(head)
    }

    /// True if this run waits for no other run of its session and may start now.
    pub fn may_start_at_once(&self, id: &RunId) -> bool {
        let is_due =
            |entry: &RegistryEntry| entry.run.bypasses_queue && entry.durable && entry.state == RunState::Queued;
        self.admission_gate == AdmissionGate::Open && self.get(id).is_some_and(is_due)
    }

    /// The oldest queued sub-run of a session without an active run, also behind other messages. Its parent may hold
    /// the permit that those messages wait for.
    pub fn due_sub_run(&self, key: &SessionKey) -> Option<&RegistryEntry> {
        self.due_run(key)?;
        self.runs_of_session(key)
            .find(|entry| entry.run.parent.is_some() && entry.durable && entry.state == RunState::Queued)
    }

    /// Takes the texts that wait to steer this run, oldest first. They leave the queue and belong to the run from now
    /// on.
    pub fn take_steering_messages(&mut self, id: &RunId) -> Vec<(RunId, String)> {
        let Some(entry) = self.runs.get(id) else { return Vec::new() };
        if entry.state != RunState::Running {
            return Vec::new();
        }
        let key = entry.run.session.clone();
        let taken: Vec<(RunId, String)> = self
            .steering_messages(&key)
            .filter(|e| e.durable)
            .map(|e| (e.run.id.clone(), e.run.text.clone()))
            .collect();
        for (id, _) in &taken {
            self.remove(id);
        }
        taken
    }

    /// The messages that this run would take at its next step, oldest first.
    pub fn waiting_steering_messages(&self, id: &RunId) -> Vec<RunId> {
        let Some(entry) = self.runs.get(id).filter(|entry| entry.state == RunState::Running) else { return Vec::new() };
        self.steering_messages(&entry.run.session).map(|e| e.run.id.clone()).collect()
    }

    fn steering_messages(&self, key: &SessionKey) -> impl Iterator<Item = &RegistryEntry> {
        self.runs_of_session(key).filter(|e| e.wait_reason == WaitReason::Steer && e.state == RunState::Queued)
    }

    pub fn set_phase(&mut self, id: &RunId, phase: RunPhase) {
        let Some(entry) = self.runs.get_mut(id) else { return };
        let before = compute_status_of(entry);
        entry.phase = phase;
        self.counters.update(before, entry);
    }

    /// Applies an input to a run. Returns no effects for an unknown run.
    pub fn apply_input(&mut self, id: &RunId, input: RunStateInput, now: Moment) -> Vec<RunEffect> {
        let Some(entry) = self.runs.get_mut(id) else { return Vec::new() };
        let before = compute_status_of(entry);
        let state = std::mem::replace(&mut entry.state, RunState::Queued);
        let was_active = !matches!(state, RunState::Queued | RunState::Ended { .. });
        let (state, effects) = state.step(input, now, &self.times);
        entry.state = state;
        self.counters.update(before, entry);
        if entry.state.is_ended() {
            self.client_runs.remove(entry);
            let key = entry.run.session.clone();
            self.remove_from_session(&key, id);
            if was_active {
                self.requeue_steering(&key);
            }
        }
        effects
    }

    /// Stops the runs that `scope` covers and `requester` may stop.
    pub fn stop(
        &mut self,
        scope: &StopScope,
        requester: &StopRequester,
        request: &StopRequest,
        now: Moment,
    ) -> StopOutcome {
        if let StopScope::Run { id, session, agent } = scope
            && !self.runs.contains_key(id)
        {
            let (session, agent) = (session.clone(), agent.clone());
            let run = PendingStopRun { principal: requester.principal.clone(), id: id.clone(), session, agent };
            self.pending_stops.insert(run, request.verdict(requester), now);
        }
        self.stop_registered(scope, requester, request, now)
    }

    /// Stops a run whose owner the caller knows, also a run that is not accepted yet. Then the stop is kept for the
    /// owner, in the name of `requester`, if that is the owner or an admin.
    pub fn stop_run_of_owner(
        &mut self,
        id: &RunId,
        owner: &Principal,
        requester: &StopRequester,
        request: &StopRequest,
        now: Moment,
    ) -> StopOutcome {
        if !self.runs.contains_key(id) && (requester.admin || requester.principal == *owner) {
            let run = PendingStopRun { principal: owner.clone(), id: id.clone(), session: None, agent: None };
            self.pending_stops.insert(run, request.verdict(requester), now);
        }
        self.stop_registered(&StopScope::run(id.clone()), requester, request, now)
    }

    fn stop_registered(
        &mut self,
        scope: &StopScope,
        requester: &StopRequester,
        request: &StopRequest,
        now: Moment,
    ) -> StopOutcome {
        let roots = self.stop_roots(scope, requester);
        let stopped = self.abort_all(roots.clone(), request.level, &request.verdict(requester), now);
        self.bar_stopped_agents(&roots, &stopped.covered);
        stopped
    }

    /// Aborts runs for reasons of Quell itself: time-out, budget, shutdown.
    pub fn abort(&mut self, ids: Vec<RunId>, level: StopLevel, reason: &StopReason, now: Moment) -> StopOutcome {
        let verdict = Verdict::Aborted { reason: reason.clone(), by: None };
        self.abort_all(ids, level, &verdict, now)
    }

    /// Runs past their expiry that have no verdict yet.
    pub fn expired_runs(&self, now: Moment) -> Vec<RunId> {
        let is_expired = |e: &&RegistryEntry| e.state.verdict().is_none() && now > e.run.expires_at;
        self.runs.values().filter(is_expired).map(|e| e.run.id.clone()).collect()
    }

    /// Forgets an ended run whose end is stored. Returns the runs that are gone, with ancestors that were kept for it.
    ///
    /// A run is kept while a descendant is alive, while it holds something else that it started (`holds`), or while it
    /// has unpaid debts, because a late payment amends its receipt. A later call for it, or for a descendant, forgets
    /// it then.
    pub fn forget(&mut self, id: &RunId, holds: impl Fn(&RunId) -> bool) -> Vec<RunId> {
        let Some(entry) = self.runs.get_mut(id) else { return Vec::new() };
        if !entry.state.is_ended() {
            return Vec::new();
        }
        entry.end_stored = true;
        let mut gone = Vec::new();
        let mut next = Some(id.clone());
        while let Some(id) = next.take().filter(|id| self.may_be_forgotten(id, &holds)) {
            next = self.get(&id).and_then(|entry| entry.run.parent.clone());
            self.remove(&id);
            gone.push(id);
        }
        gone
    }

    /// Ended runs whose end is stored and that are not forgotten yet.
    pub fn retained_runs(&self) -> Vec<RunId> {
        self.runs.values().filter(|entry| entry.end_stored).map(|entry| entry.run.id.clone()).collect()
    }

    fn may_be_forgotten(&self, id: &RunId, holds: impl Fn(&RunId) -> bool) -> bool {
        let Some(entry) = self.get(id).filter(|entry| entry.end_stored) else { return false };
        let is_paid = matches!(&entry.state, RunState::Ended { debts, .. } if debts.is_paid());
        is_paid && !self.subtree(id).iter().any(|run| self.is_alive(run) || holds(run))
    }

    pub fn compute_status(&self, agent: &AgentId) -> ComputeStatus {
        self.counters.status(agent)
    }

    /// Runs of an agent that are not ended, in order of acceptance.
    pub fn runs_of_agent(&self, agent: &AgentId) -> impl Iterator<Item = &RunId> {
        self.counters.active_runs(agent)
    }

    /// Counter that changes whenever [`RunRegistry::runs_of_agent`] changes.
    pub fn agent_change_count(&self, agent: &AgentId) -> u64 {
        self.counters.change_count(agent)
    }

    fn session_load(&self, run: &NewRun) -> SessionLoad {
        let active = self.runs_of_session(&run.session).find(|e| e.state != RunState::Queued);
        let accepts_steering = active.is_some_and(|active| self.accepts_steering(active, run));
        let waiting = self.runs_of_session(&run.session).filter(|e| e.state == RunState::Queued).count();
        SessionLoad {
            active_run: active.map(|e| e.run.id.clone()),
            accepts_steering,
            waiting,
            queue_limit: self.limits.max_queued,
        }
    }

    /// Whether a message may steer the active run of its session.
    ///
    /// The active run then answers the message too, and a stop of the run covers it. So both must be of one
    /// conversation, and the sender must be allowed to stop the run. In a chat no message may overtake an earlier one.
    /// A run that is ending has no next step that could read the message.
    fn accepts_steering(&self, active: &RegistryEntry, run: &NewRun) -> bool {
        let sender = StopRequester { principal: run.principal.clone(), admin: run.admin };
        let waits_for_earlier_runs =
            |e: &RegistryEntry| e.state == RunState::Queued && e.wait_reason == WaitReason::EarlierRuns;
        let overtakes =
            || run.interruption_scope.is_some() && self.runs_of_session(&run.session).any(waits_for_earlier_runs);
        let reads_on = active.state == RunState::Running;
        reads_on && sender.may_stop(active) && active.run.interruption_scope == run.interruption_scope && !overtakes()
    }

    fn insert(&mut self, run: NewRun, wait_reason: WaitReason, pending_stop: Option<Verdict>) {
        self.last_accept_seq += 1;
        let id = run.id.clone();
        self.sessions.entry(run.session.clone()).or_default().push_back(id.clone());
        // The parent is registered before its child, so no run is its own ancestor.
        if let Some(parent) = &run.parent {
            self.children.entry(parent.clone()).or_default().push(id.clone());
        }
        let (state, phase, mark) = (RunState::Queued, RunPhase::Processing, self.last_accept_seq);
        let entry = RegistryEntry {
            run,
            state,
            phase,
            accept_seq: mark,
            durable: false,
            wait_reason,
            pending_stop,
            barred_agents: BTreeSet::new(),
            end_stored: false,
        };
        self.counters.add(&entry);
        self.client_runs.add(&entry);
        self.conversations.add(&entry.run);
        self.runs.insert(id, entry);
    }

    fn remove(&mut self, id: &RunId) {
        let Some(entry) = self.runs.remove(id) else { return };
        self.counters.remove(&entry);
        self.client_runs.remove(&entry);
        self.conversations.remove(&entry.run);
        self.remove_from_session(&entry.run.session, id);
        self.children.remove(id);
        if let Some(siblings) = entry.run.parent.and_then(|parent| self.children.get_mut(&parent)) {
            siblings.retain(|sibling| sibling != id);
        }
    }

    /// Lets messages that waited to steer the ended run wait for a turn of their own.
    fn requeue_steering(&mut self, key: &SessionKey) {
        for id in self.sessions.get(key).into_iter().flatten() {
            if let Some(entry) = self.runs.get_mut(id) {
                entry.wait_reason = WaitReason::EarlierRuns;
                self.client_runs.add(entry);
            }
        }
    }

    fn remove_from_session(&mut self, key: &SessionKey, id: &RunId) {
        let Some(runs) = self.sessions.get_mut(key) else { return };
        runs.retain(|run| run != id);
        if runs.is_empty() {
            self.sessions.remove(key);
        }
    }

    fn stop_roots(&self, scope: &StopScope, requester: &StopRequester) -> Vec<RunId> {
        let may = |e: &&RegistryEntry| requester.may_stop(e);
        // In order of acceptance, so that withdrawn texts come back in the order of their messages.
        let ids = |mut entries: Vec<&RegistryEntry>| {
            entries.sort_unstable_by_key(|e| e.accept_seq);
            entries.into_iter().map(|e| e.run.id.clone()).collect()
        };
        match scope {
            StopScope::Run { id, session, agent } => {
                let fits = |e: &&RegistryEntry| {
                    session.as_ref().is_none_or(|key| *key == e.run.session)
                        && agent.as_ref().is_none_or(|agent| *agent == e.run.agent)
                };
                ids(self.runs.get(id).into_iter().filter(may).filter(fits).collect())
            }
            StopScope::Session { key, queued, background } => {
                let covered = |e: &&RegistryEntry| match e.state {
                    RunState::Queued => *queued == QueuedPolicy::Withdraw,
                    // Background runs and processes that it started may still be alive.
                    RunState::Ended { .. } => *background == BackgroundPolicy::Stop,
                    RunState::Running | RunState::Ending { .. } => true,
                };
                ids(self.runs.values().filter(|e| e.run.session == *key).filter(may).filter(covered).collect())
            }
            StopScope::Agent { id, phase } => {
                let waits = |e: &&RegistryEntry| e.state == RunState::Running && e.phase == RunPhase::Waiting;
                let covered = |e: &&RegistryEntry| *phase == AgentRunFilter::Any || waits(e);
                ids(self.runs.values().filter(|e| e.run.agent == *id).filter(may).filter(covered).collect())
            }
            StopScope::Agents { ids: agents } => {
                ids(self.runs.values().filter(|e| agents.contains(&e.run.agent)).filter(may).collect())
            }
            StopScope::Conversation { scope, session } => {
                ids(self.runs_of_conversation(scope, session).filter(may).collect())
            }
            StopScope::Channel { name } => ids(self.runs_of_channel(name).filter(may).collect()),
            StopScope::Everything => ids(self.runs.values().filter(may).collect()),
        }
    }

    fn abort_all(&mut self, roots: Vec<RunId>, level: StopLevel, verdict: &Verdict, now: Moment) -> StopOutcome {
        let mut stopped = StopOutcome::default();
        let mut seen = HashSet::new();
        for root in roots {
            // Children first, so that no parent sees the end of a child before its own abort.
            for id in self.subtree(&root).into_iter().rev() {
                if !seen.insert(id.clone()) {
                    continue;
                }
                self.abort_one(id, RunStateInput::Abort { level, verdict: verdict.clone() }, now, &mut stopped);
            }
        }
        stopped
    }

    fn abort_one(&mut self, id: RunId, abort: RunStateInput, now: Moment, stopped: &mut StopOutcome) {
        let Some(entry) = self.runs.get(&id) else { return };
        let is_first_verdict = entry.state.verdict().is_none();
        if entry.state == RunState::Queued {
            stopped.withdrawn.push((id.clone(), entry.run.text.clone()));
        }
        let effects = self.apply_input(&id, abort, now);
        if is_first_verdict {
            stopped.aborted.push(id.clone());
        }
        if !effects.is_empty() {
            stopped.transitions.push((id.clone(), effects));
        }
        stopped.covered.push(id);
    }
}

#[cfg(test)]
mod tests;
