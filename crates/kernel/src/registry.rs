//! The one registry of runs that are not over: who runs, who waits, who started whom, and what a stop covers.
//!
//! A plain value behind one lock of the engine. Every question that could race ("abort it if it waits for the model") is one
//! method here, and so one locked operation there.

mod ask;
mod conversation;
mod early;
mod entry;
mod kin;
mod roster;
mod tally;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use quell_protocol::api::{ComputeStatus, OnBusy};
use quell_protocol::{AgentId, By, Principal, RunId, SessionKey, StopReason, Verdict};

pub use self::ask::{AgentPhase, Background, Queued, StopAsk, StopScope};
use self::conversation::Conversations;
use self::early::EarlyStops;
pub use self::entry::{Entry, NewRun, Phase, Who};
pub use self::kin::{Bounds, NotBorn};
use self::tally::{Tallies, doing};
use crate::queue::{self, Admission, Busy, Refusal, Waiting};
use crate::run::{Effect, Input, Push, RunState};
use crate::time::{Moment, StopTimes};

/// A transition that the engine must carry out.
pub type Transition = (RunId, Vec<Effect>);

/// What a stop did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stopped {
    /// Effects to carry out, children before parents.
    pub transitions: Vec<Transition>,
    /// Runs that this call aborted.
    pub aborted: Vec<RunId>,
    /// Queued ones among them, with their texts.
    pub withdrawn: Vec<(RunId, String)>,
    /// Every run that the scope covers and the caller may stop, aborted by this call or not; the tickets.
    pub covered: Vec<RunId>,
}

/// What became of a new run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// It is in the registry.
    New(Admission),
    /// A run with that id is already there.
    Known,
}

/// The registry.
#[derive(Debug, Default)]
pub struct Registry {
    runs: HashMap<RunId, Entry>,
    /// Not-ended runs of each session in order of acceptance.
    sessions: HashMap<SessionKey, VecDeque<RunId>>,
    children: HashMap<RunId, Vec<RunId>>,
    /// Runs of each conversation in a chat network that are not forgotten.
    conversations: Conversations,
    tallies: Tallies,
    /// Agents that take runs.
    roster: BTreeSet<AgentId>,
    early: EarlyStops,
    marks: u64,
    gate: Gate,
    bounds: Bounds,
    times: StopTimes,
}

/// Whether new runs are let in and queued ones start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gate {
    /// Yes.
    #[default]
    Open,
    /// New ones are refused, queued ones wait.
    Held,
    /// The daemon closes.
    Closing,
}

impl Registry {
    /// An empty registry, in which no agent takes runs yet.
    #[must_use]
    pub fn new(times: StopTimes, bounds: Bounds) -> Self {
        Self { times, bounds, ..Self::default() }
    }

    /// Opens, holds or closes the gate.
    pub fn set_gate(&mut self, gate: Gate) {
        self.gate = gate;
    }

    /// The gate.
    #[must_use]
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// One entry.
    #[must_use]
    pub fn get(&self, id: &RunId) -> Option<&Entry> {
        self.runs.get(id)
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.runs.values()
    }

    /// Not-ended runs of a session in order of acceptance.
    pub fn of_session<'a>(&'a self, key: &SessionKey) -> impl Iterator<Item = &'a Entry> {
        self.sessions.get(key).into_iter().flatten().filter_map(|id| self.runs.get(id))
    }

    /// Sessions that have a run that is not over.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionKey> {
        self.sessions.keys()
    }

    /// Lets a run in, not yet durable: it will not start before [`Registry::durable`].
    ///
    /// # Errors
    /// The [`Refusal`] says why not; nothing has changed then.
    pub fn accept(&mut self, run: NewRun, now: Moment) -> Result<Accepted, Refusal> {
        if self.runs.contains_key(&run.id) {
            return Ok(Accepted::Known);
        }
        match self.gate {
            Gate::Open => {}
            Gate::Held => return Err(Refusal::Held),
            Gate::Closing => return Err(Refusal::ShuttingDown),
        }
        if !self.roster.contains(&run.agent) {
            return Err(Refusal::NoAgent { agent: run.agent });
        }
        self.may_be_born(&run)?;
        let admission = queue::admit(run.on_busy, &self.busy(&run))?;
        let waiting = match admission {
            Admission::Steer { .. } => Waiting::Steer,
            Admission::Queue | Admission::Interrupt => Waiting::Turn,
        };
        let early = self.early.verdict_for(&run, now);
        self.insert(run, waiting, early);
        Ok(Accepted::New(admission))
    }

    /// The acceptance of a run is durable: it may start, or it ends because a stop of its id came first; an interrupting one
    /// aborts what was accepted before it in its scope, else in its session, as far as its sender may stop it; it waits for the
    /// rest.
    pub fn durable(&mut self, id: &RunId, now: Moment) -> Stopped {
        let Some(entry) = self.runs.get_mut(id) else { return Stopped::default() };
        entry.durable = true;
        if let Some(verdict) = entry.early.take() {
            return self.abort_all(vec![id.clone()], Push::Gentle, &verdict, now);
        }
        if entry.run.on_busy != OnBusy::Interrupt || entry.state.is_ended() {
            return Stopped::default();
        }
        let by = By { principal: entry.run.principal.clone(), surface: entry.run.surface };
        let verdict = Verdict::Aborted { reason: StopReason::Superseded, by: Some(by) };
        let older = self.get(id).map(|entry| self.superseded_by(entry)).unwrap_or_default();
        self.abort_all(older, Push::Gentle, &verdict, now)
    }

    /// Forgets a run whose acceptance could not be made durable.
    pub fn withdraw(&mut self, id: &RunId) {
        if self.runs.get(id).is_some_and(|e| !e.durable) {
            self.remove(id);
        }
    }

    /// The run of a session that is due now: the oldest, if it is queued and durable and the gate is open.
    #[must_use]
    pub fn due(&self, key: &SessionKey) -> Option<&Entry> {
        if self.gate != Gate::Open {
            return None;
        }
        let head = self.of_session(key).next()?;
        (head.durable && head.state == RunState::Queued && !self.is_held_back(head)).then_some(head)
    }

    /// The oldest sub-run that waits in a session in which nothing is at work, also behind other messages: whoever started it
    /// may hold the very place that they wait for.
    #[must_use]
    pub fn due_sub_run(&self, key: &SessionKey) -> Option<&Entry> {
        self.due(key)?;
        self.of_session(key)
            .find(|entry| entry.run.parent.is_some() && entry.durable && entry.state == RunState::Queued)
    }

    /// The texts that wait to steer this run, oldest first. They leave the queue: from now on the run covers them.
    pub fn take_steers(&mut self, id: &RunId) -> Vec<(RunId, String)> {
        let Some(entry) = self.runs.get(id) else { return Vec::new() };
        if entry.state != RunState::Running {
            return Vec::new();
        }
        let key = entry.run.session.clone();
        let taken: Vec<(RunId, String)> = self
            .of_session(&key)
            .filter(|e| e.waiting == Waiting::Steer && e.durable && e.state == RunState::Queued)
            .map(|e| (e.run.id.clone(), e.run.text.clone()))
            .collect();
        for (id, _) in &taken {
            self.remove(id);
        }
        taken
    }

    /// Notes what a running run is doing.
    pub fn set_phase(&mut self, id: &RunId, phase: Phase) {
        let Some(entry) = self.runs.get_mut(id) else { return };
        let before = doing(entry);
        entry.phase = phase;
        self.tallies.change(before, entry);
    }

    /// One input to one run. An unknown run has no effects.
    pub fn input(&mut self, id: &RunId, input: Input, now: Moment) -> Vec<Effect> {
        let Some(entry) = self.runs.get_mut(id) else { return Vec::new() };
        let before = doing(entry);
        let state = std::mem::replace(&mut entry.state, RunState::Queued);
        let was_active = !matches!(state, RunState::Queued | RunState::Ended { .. });
        let (state, effects) = state.step(input, now, &self.times);
        entry.state = state;
        self.tallies.change(before, entry);
        if entry.state.is_ended() {
            let key = entry.run.session.clone();
            self.leave_session(&key, id);
            if was_active {
                self.end_steering(&key);
            }
        }
        effects
    }

    /// Stops what `scope` covers and `who` may stop.
    pub fn stop(&mut self, scope: &StopScope, who: &Who, ask: &StopAsk, now: Moment) -> Stopped {
        if let StopScope::Run { id, session } = scope
            && !self.runs.contains_key(id)
        {
            self.early.keep((&who.principal, id, session.as_ref()), ask.verdict(who), now);
        }
        self.stop_known(scope, who, ask, now)
    }

    /// Stops a run whose owner the caller knows, also one that is not accepted yet: then the stop is kept for its owner, in
    /// the name of `who` asked for it, if that is the owner or may stop any run.
    pub fn stop_coming(&mut self, (id, owner): (&RunId, &Principal), who: &Who, ask: &StopAsk, now: Moment) -> Stopped {
        if !self.runs.contains_key(id) && (who.admin || who.principal == *owner) {
            self.early.keep((owner, id, None), ask.verdict(who), now);
        }
        self.stop_known(&StopScope::Run { id: id.clone(), session: None }, who, ask, now)
    }

    fn stop_known(&mut self, scope: &StopScope, who: &Who, ask: &StopAsk, now: Moment) -> Stopped {
        let roots = self.roots(scope, who);
        let stopped = self.abort_all(roots.clone(), ask.push, &ask.verdict(who), now);
        self.bar(&roots, &stopped.covered);
        stopped
    }

    /// Aborts runs on Quell's own account: time-out, budget, shutdown.
    pub fn abort(&mut self, ids: Vec<RunId>, push: Push, reason: &StopReason, now: Moment) -> Stopped {
        let verdict = Verdict::Aborted { reason: reason.clone(), by: None };
        self.abort_all(ids, push, &verdict, now)
    }

    /// Runs whose time is over (row A6).
    #[must_use]
    pub fn expired(&self, now: Moment) -> Vec<RunId> {
        let over = |e: &&Entry| e.state.verdict().is_none() && now > e.run.expires_at;
        self.runs.values().filter(over).map(|e| e.run.id.clone()).collect()
    }

    /// Forgets an ended run whose end is stored, unless a descendant of it is still alive, something else that it started
    /// is (`holds`), or it still owes something: what is paid late amends its receipt. Then the next call that finds
    /// nothing alive forgets it, and so does one for a descendant. Answers the runs that are gone.
    pub fn forget(&mut self, id: &RunId, holds: impl Fn(&RunId) -> bool) -> Vec<RunId> {
        let Some(entry) = self.runs.get_mut(id) else { return Vec::new() };
        if !entry.state.is_ended() {
            return Vec::new();
        }
        entry.closed = true;
        let mut gone = Vec::new();
        let mut next = Some(id.clone());
        while let Some(id) = next.take().filter(|id| self.is_over(id, &holds)) {
            next = self.get(&id).and_then(|entry| entry.run.parent.clone());
            self.remove(&id);
            gone.push(id);
        }
        gone
    }

    /// Ended runs whose end is stored and that are kept for what they started.
    #[must_use]
    pub fn kept(&self) -> Vec<RunId> {
        self.runs.values().filter(|entry| entry.closed).map(|entry| entry.run.id.clone()).collect()
    }

    fn is_over(&self, id: &RunId, holds: impl Fn(&RunId) -> bool) -> bool {
        let Some(entry) = self.get(id).filter(|entry| entry.closed) else { return false };
        let paid = matches!(&entry.state, RunState::Ended { debts, .. } if debts.paid());
        paid && !self.subtree(id).iter().any(|run| self.is_alive(run) || holds(run))
    }

    /// What an agent's runs are doing (row B3).
    #[must_use]
    pub fn compute_status(&self, agent: &AgentId) -> ComputeStatus {
        self.tallies.status(agent)
    }

    /// An agent's runs that are not over, in order of acceptance.
    pub fn of_agent(&self, agent: &AgentId) -> impl Iterator<Item = &RunId> {
        self.tallies.active(agent)
    }

    /// A number that is another one whenever [`Registry::of_agent`] is another list.
    #[must_use]
    pub fn changes_of_agent(&self, agent: &AgentId) -> u64 {
        self.tallies.changes(agent)
    }

    fn busy(&self, run: &NewRun) -> Busy {
        let active = self.of_session(&run.session).find(|e| e.state != RunState::Queued);
        let takes = active.is_some_and(|active| self.takes(active, run));
        let waiting = self.of_session(&run.session).filter(|e| e.state == RunState::Queued).count();
        Busy { active: active.map(|e| e.run.id.clone()), takes, waiting, limit: self.bounds.queued }
    }

    /// Whether a message may steer the active run of its session. That answers it where it answers its own, and a stop of it
    /// covers the message: so both are of one conversation, and the message's sender may stop that run. In a chat network
    /// nothing overtakes what was said before it.
    fn takes(&self, active: &Entry, run: &NewRun) -> bool {
        let who = Who { principal: run.principal.clone(), admin: run.admin };
        let in_turn = |e: &Entry| e.state == RunState::Queued && e.waiting == Waiting::Turn;
        let overtakes = || run.scope.is_some() && self.of_session(&run.session).any(in_turn);
        who.may_stop(active) && active.run.scope == run.scope && !overtakes()
    }

    fn insert(&mut self, run: NewRun, waiting: Waiting, early: Option<Verdict>) {
        self.marks += 1;
        let id = run.id.clone();
        self.sessions.entry(run.session.clone()).or_default().push_back(id.clone());
        // Its parent is there, so no run is its own ancestor, and no entry outlives its run.
        if let Some(parent) = &run.parent {
            self.children.entry(parent.clone()).or_default().push(id.clone());
        }
        let (state, phase, mark) = (RunState::Queued, Phase::Processing, self.marks);
        let barred = BTreeSet::new();
        let entry = Entry { run, state, phase, mark, durable: false, waiting, early, barred, closed: false };
        self.tallies.add(&entry);
        self.conversations.add(&entry.run);
        self.runs.insert(id, entry);
    }

    fn remove(&mut self, id: &RunId) {
        let Some(entry) = self.runs.remove(id) else { return };
        self.tallies.remove(&entry);
        self.conversations.remove(&entry.run);
        self.leave_session(&entry.run.session, id);
        self.children.remove(id);
        if let Some(siblings) = entry.run.parent.and_then(|parent| self.children.get_mut(&parent)) {
            siblings.retain(|sibling| sibling != id);
        }
    }

    /// The active run of a session is over: what waited to steer it waits for its own turn from now on.
    fn end_steering(&mut self, key: &SessionKey) {
        for id in self.sessions.get(key).into_iter().flatten() {
            if let Some(entry) = self.runs.get_mut(id) {
                entry.waiting = Waiting::Turn;
            }
        }
    }

    fn leave_session(&mut self, key: &SessionKey, id: &RunId) {
        let Some(runs) = self.sessions.get_mut(key) else { return };
        runs.retain(|run| run != id);
        if runs.is_empty() {
            self.sessions.remove(key);
        }
    }

    fn roots(&self, scope: &StopScope, who: &Who) -> Vec<RunId> {
        let may = |e: &&Entry| who.may_stop(e);
        // In the order of acceptance, so that what is withdrawn comes back in the order in which it was said.
        let ids = |mut entries: Vec<&Entry>| {
            entries.sort_unstable_by_key(|e| e.mark);
            entries.into_iter().map(|e| e.run.id.clone()).collect()
        };
        match scope {
            StopScope::Run { id, session } => {
                let fits = |e: &&Entry| session.as_ref().is_none_or(|key| *key == e.run.session);
                ids(self.runs.get(id).into_iter().filter(may).filter(fits).collect())
            }
            StopScope::Session { key, queued, background } => {
                let covered = |e: &&Entry| match e.state {
                    RunState::Queued => *queued == Queued::Withdraw,
                    // What it started may still be alive.
                    RunState::Ended { .. } => *background == Background::Stop,
                    RunState::Running | RunState::Ending { .. } => true,
                };
                ids(self.runs.values().filter(|e| e.run.session == *key).filter(may).filter(covered).collect())
            }
            StopScope::Agent { id, phase } => {
                let waits = |e: &&Entry| e.state == RunState::Running && e.phase == Phase::Waiting;
                let covered = |e: &&Entry| *phase == AgentPhase::Any || waits(e);
                ids(self.runs.values().filter(|e| e.run.agent == *id).filter(may).filter(covered).collect())
            }
            StopScope::Agents { ids: agents } => {
                ids(self.runs.values().filter(|e| agents.contains(&e.run.agent)).filter(may).collect())
            }
            StopScope::Conversation { scope, session } => ids(self.of_chat(scope, session).filter(may).collect()),
            StopScope::Channel { name } => ids(self.of_channel(name).filter(may).collect()),
            StopScope::Everything => ids(self.runs.values().filter(may).collect()),
        }
    }

    fn abort_all(&mut self, roots: Vec<RunId>, push: Push, verdict: &Verdict, now: Moment) -> Stopped {
        let mut stopped = Stopped::default();
        let mut seen = HashSet::new();
        for root in roots {
            // Children first, so that no parent sees its child end before it is itself being aborted from above.
            for id in self.subtree(&root).into_iter().rev() {
                if !seen.insert(id.clone()) {
                    continue;
                }
                self.abort_one(id, Input::Abort { push, verdict: verdict.clone() }, now, &mut stopped);
            }
        }
        stopped
    }

    fn abort_one(&mut self, id: RunId, abort: Input, now: Moment, stopped: &mut Stopped) {
        let Some(entry) = self.runs.get(&id) else { return };
        let fresh = entry.state.verdict().is_none();
        if entry.state == RunState::Queued {
            stopped.withdrawn.push((id.clone(), entry.run.text.clone()));
        }
        let effects = self.input(&id, abort, now);
        if fresh {
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
