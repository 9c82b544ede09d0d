//! The registry as one list in order of acceptance, every question answered by looking through all of it.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_protocol::api::{ComputeStatus, OnBusy};
use quell_protocol::{AgentId, By, Principal, RunId, SessionKey, StopReason, Verdict};

use crate::queue::{Admission, Refusal};
use crate::registry::{
    Accepted, AgentPhase, Background, Bounds, Gate, NewRun, NotBorn, Phase, Queued, StopAsk, StopScope, Stopped, Who,
};
use crate::run::{Effect, Input, Push, RunState};
use crate::time::{Moment, StopTimes};

/// A run as the model knows it. Runs point at each other by their place in the order of acceptance, never by id, so that an
/// id that is used again means nothing old.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) new: NewRun,
    pub(super) state: RunState,
    pub(super) phase: Phase,
    pub(super) durable: bool,
    pub(super) mark: u64,
    parent: Option<u64>,
    steers: Option<u64>,
    stopped_early: Option<Verdict>,
    /// Agents of which a person stopped a run somewhere below this one.
    lost: BTreeSet<AgentId>,
    stored: bool,
}

impl Run {
    /// True when it is over and something is still owed.
    pub(super) fn owes_late(&self) -> bool {
        matches!(self.state, RunState::Ended { debts, .. } if !debts.paid())
    }
}

#[derive(Debug)]
struct Early {
    principal: Principal,
    id: RunId,
    session: Option<SessionKey>,
    until: Moment,
    verdict: Verdict,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) runs: Vec<Run>,
    pub(super) gate: Gate,
    /// Agents that take runs.
    pub(super) roster: BTreeSet<AgentId>,
    early: Vec<Early>,
    marks: u64,
    bounds: Bounds,
}

impl Model {
    pub(super) fn new(bounds: Bounds, roster: BTreeSet<AgentId>) -> Self {
        Self { runs: Vec::new(), gate: Gate::Open, roster, early: Vec::new(), marks: 0, bounds }
    }

    pub(super) fn get(&self, id: &RunId) -> Option<&Run> {
        self.runs.iter().find(|run| run.new.id == *id)
    }

    fn get_mut(&mut self, id: &RunId) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.new.id == *id)
    }

    pub(super) fn live(&self, key: &SessionKey) -> Vec<&Run> {
        self.runs.iter().filter(|run| run.new.session == *key && !run.state.is_ended()).collect()
    }

    pub(super) fn live_of_agent(&self, agent: &AgentId) -> Vec<&Run> {
        self.runs.iter().filter(|run| run.new.agent == *agent && !run.state.is_ended()).collect()
    }

    pub(super) fn accept(&mut self, new: NewRun, now: Moment) -> Result<Accepted, Refusal> {
        if self.get(&new.id).is_some() {
            return Ok(Accepted::Known);
        }
        match self.gate {
            Gate::Open => {}
            Gate::Held => return Err(Refusal::Held),
            Gate::Closing => return Err(Refusal::ShuttingDown),
        }
        if !self.roster.contains(&new.agent) {
            return Err(Refusal::NoAgent { agent: new.agent });
        }
        if let Some(parent) = &new.parent {
            self.judge_birth(parent, &new.agent)?;
        }
        let live = self.live(&new.session);
        let active = live.iter().find(|run| run.state != RunState::Queued);
        let may = new.admin || active.is_some_and(|run| run.new.principal == new.principal);
        let active = active.filter(|_| may).map(|run| (run.mark, run.new.id.clone()));
        let waiting = live.iter().filter(|run| run.state == RunState::Queued).count();
        if new.on_busy == OnBusy::Reject && !live.is_empty() {
            return Err(Refusal::Busy);
        }
        if new.on_busy != OnBusy::Interrupt && waiting >= self.bounds.queued {
            return Err(Refusal::QueueFull { waiting });
        }
        let steered = active.filter(|_| new.on_busy == OnBusy::Steer);
        let admission = match (&steered, new.on_busy) {
            (Some((_, into)), _) => Admission::Steer { into: into.clone() },
            (None, OnBusy::Interrupt) => Admission::Interrupt,
            (None, OnBusy::Queue | OnBusy::Steer | OnBusy::Reject) => Admission::Queue,
        };
        self.push(new, steered.map(|(mark, _)| mark), now);
        Ok(Accepted::New(admission))
    }

    fn judge_birth(&self, parent: &RunId, agent: &AgentId) -> Result<(), NotBorn> {
        let parent = self.get(parent).filter(|run| run.state == RunState::Running).ok_or(NotBorn::ParentOver)?;
        let above: Vec<&Run> = self.runs.iter().filter(|run| self.is_below(parent, &[run.mark])).collect();
        if above.len() > self.bounds.depth {
            return Err(NotBorn::TooDeep { limit: self.bounds.depth });
        }
        let children = self.runs.iter().filter(|run| run.parent == Some(parent.mark) && !run.state.is_ended());
        if children.count() >= self.bounds.children {
            return Err(NotBorn::TooMany { limit: self.bounds.children });
        }
        if above.iter().any(|run| run.lost.contains(agent)) {
            return Err(NotBorn::StoppedByPerson { agent: agent.clone() });
        }
        Ok(())
    }

    fn push(&mut self, new: NewRun, steers: Option<u64>, now: Moment) {
        let meant = |early: &&Early| {
            let here = early.session.as_ref().is_none_or(|key| *key == new.session);
            early.principal == new.principal && early.id == new.id && here && early.until >= now
        };
        let stopped_early = self.early.iter().find(meant).map(|early| early.verdict.clone());
        let parent = new.parent.as_ref().and_then(|parent| self.get(parent)).map(|parent| parent.mark);
        self.marks += 1;
        let (state, phase, mark) = (RunState::Queued, Phase::Processing, self.marks);
        let (durable, stored, lost) = (false, false, BTreeSet::new());
        self.runs.push(Run { new, state, phase, durable, mark, parent, steers, stopped_early, lost, stored });
    }

    pub(super) fn durable(&mut self, id: &RunId, now: Moment) -> Stopped {
        let Some(run) = self.get_mut(id) else { return Stopped::default() };
        run.durable = true;
        let (mark, early) = (run.mark, run.stopped_early.take());
        let (key, over, policy) = (run.new.session.clone(), run.state.is_ended(), run.new.on_busy);
        let by = By { principal: run.new.principal.clone(), surface: run.new.surface };
        let (owner, admin) = (run.new.principal.clone(), run.new.admin);
        if let Some(verdict) = early {
            return self.abort(&[mark], Push::Gentle, &verdict, now);
        }
        if policy != OnBusy::Interrupt || over {
            return Stopped::default();
        }
        let may = |older: &&Run| older.mark < mark && (admin || older.new.principal == owner);
        let older: Vec<u64> = self.live(&key).into_iter().filter(may).map(|run| run.mark).collect();
        let verdict = Verdict::Aborted { reason: StopReason::Superseded, by: Some(by) };
        self.abort(&older, Push::Gentle, &verdict, now)
    }

    pub(super) fn withdraw(&mut self, id: &RunId) {
        if self.get(id).is_some_and(|run| !run.durable) {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: &RunId) {
        let gone = self.get(id).map(|run| run.mark);
        self.runs.retain(|run| Some(run.mark) != gone);
    }

    pub(super) fn due(&self, key: &SessionKey) -> Option<&Run> {
        let oldest = self.live(key).into_iter().next()?;
        (self.gate == Gate::Open && oldest.durable && oldest.state == RunState::Queued).then_some(oldest)
    }

    pub(super) fn take_steers(&mut self, id: &RunId) -> Vec<(RunId, String)> {
        let Some(into) = self.get(id).filter(|run| run.state == RunState::Running).map(|run| run.mark) else {
            return Vec::new();
        };
        let meant = |run: &&Run| run.steers == Some(into) && run.durable && run.state == RunState::Queued;
        let taken: Vec<_> =
            self.runs.iter().filter(meant).map(|run| (run.new.id.clone(), run.new.text.clone())).collect();
        for (id, _) in &taken {
            self.remove(id);
        }
        taken
    }

    pub(super) fn set_phase(&mut self, id: &RunId, phase: Phase) {
        if let Some(run) = self.get_mut(id) {
            run.phase = phase;
        }
    }

    pub(super) fn input(&mut self, id: &RunId, input: Input, now: Moment) -> Vec<Effect> {
        let Some(run) = self.get_mut(id) else { return Vec::new() };
        let (state, effects) = run.state.clone().step(input, now, &StopTimes::default());
        run.state = state;
        effects
    }

    pub(super) fn stop(&mut self, scope: &StopScope, who: &Who, ask: &StopAsk, now: Moment) -> Stopped {
        let by = By { principal: who.principal.clone(), surface: ask.surface };
        let verdict = Verdict::Aborted { reason: ask.reason.clone(), by: Some(by) };
        if let StopScope::Run { id, session } = scope
            && self.get(id).is_none()
        {
            let (principal, until) = (who.principal.clone(), now.plus(Duration::from_secs(60)));
            let (id, session, verdict) = (id.clone(), session.clone(), verdict.clone());
            self.early.push(Early { principal, id, session, until, verdict });
        }
        let named = |run: &&Run| match scope {
            StopScope::Run { id, session } => {
                run.new.id == *id && session.as_ref().is_none_or(|key| *key == run.new.session)
            }
            StopScope::Session { key, queued, background } => {
                run.new.session == *key
                    && (*queued == Queued::Withdraw || run.state != RunState::Queued)
                    && (*background == Background::Stop || !run.state.is_ended())
            }
            StopScope::Agent { id, phase } => {
                let waits = run.state == RunState::Running && run.phase == Phase::Waiting;
                run.new.agent == *id && (*phase == AgentPhase::Any || waits)
            }
            StopScope::Agents { ids } => ids.contains(&run.new.agent),
            StopScope::Everything => true,
            // No run of the model comes from a chat network: all are from elsewhere, in sessions that may be a chat's.
            StopScope::Conversation { session, .. } => run.new.session == *session,
            StopScope::Channel { name } => run.new.session.as_str().starts_with("irc_") && name == "irc",
        };
        let mine = |run: &&Run| who.admin || run.new.principal == who.principal;
        let roots: Vec<u64> = self.runs.iter().filter(named).filter(mine).map(|run| run.mark).collect();
        let stopped = self.abort(&roots, ask.push, &verdict, now);
        for run in self.runs.clone().iter().filter(|run| roots.contains(&run.mark)) {
            let is_above = |it: &&Run| it.mark != run.mark && self.is_below(run, &[it.mark]);
            let goes_on = |it: &Run| !it.state.is_ended() && !stopped.covered.contains(&it.new.id);
            let one_above_goes_on = self.runs.iter().filter(is_above).any(goes_on);
            let top = self.runs.iter().position(|top| top.parent.is_none() && self.is_below(run, &[top.mark]));
            if let Some(top) = top.filter(|_| one_above_goes_on) {
                self.runs[top].lost.insert(run.new.agent.clone());
            }
        }
        stopped
    }

    /// Aborts what the roots cover: each with everything that was started below it.
    pub(super) fn abort(&mut self, roots: &[u64], push: Push, verdict: &Verdict, now: Moment) -> Stopped {
        let mut stopped = Stopped::default();
        let covered: Vec<Run> = self.runs.iter().filter(|run| self.is_below(run, roots)).cloned().collect();
        for run in covered {
            let id = run.new.id;
            let effects = self.input(&id, Input::Abort { push, verdict: verdict.clone() }, now);
            if run.state == RunState::Queued {
                stopped.withdrawn.push((id.clone(), run.new.text));
            }
            if run.state.verdict().is_none() {
                stopped.aborted.push(id.clone());
            }
            if !effects.is_empty() {
                stopped.transitions.push((id.clone(), effects));
            }
            stopped.covered.push(id);
        }
        stopped
    }

    /// True when the run is one of `tops` or was started below one.
    pub(super) fn is_below(&self, run: &Run, tops: &[u64]) -> bool {
        tops.contains(&run.mark)
            || run
                .parent
                .and_then(|parent| self.runs.iter().find(|run| run.mark == parent))
                .is_some_and(|parent| self.is_below(parent, tops))
    }

    pub(super) fn forget(&mut self, id: &RunId) -> Vec<RunId> {
        let Some(run) = self.get_mut(id).filter(|run| run.state.is_ended()) else { return Vec::new() };
        run.stored = true;
        let above: Vec<u64> = {
            let Some(run) = self.get(id) else { return Vec::new() };
            self.runs.iter().filter(|other| self.is_below(run, &[other.mark])).map(|other| other.mark).collect()
        };
        let over = |run: &&Run| {
            let lives = self.runs.iter().any(|other| self.lives_below(other, run));
            above.contains(&run.mark) && run.stored && !run.owes_late() && !lives
        };
        // From the run upwards: a parent that is kept keeps those above it.
        let mut gone: Vec<RunId> = self.runs.iter().rev().filter(over).map(|run| run.new.id.clone()).collect();
        let kept = self.runs.iter().rev().filter(|run| above.contains(&run.mark)).position(|run| !over(&run));
        gone.truncate(kept.unwrap_or(gone.len()));
        gone.iter().for_each(|id| self.remove(id));
        gone
    }

    /// True when `run` is not ended, and is `top` or was started below it.
    pub(super) fn lives_below(&self, run: &Run, top: &Run) -> bool {
        !run.state.is_ended() && self.is_below(run, &[top.mark])
    }

    pub(super) fn expired(&self, now: Moment) -> Vec<RunId> {
        let over = |run: &&Run| run.state.verdict().is_none() && run.new.expires_at < now;
        self.runs.iter().filter(over).map(|run| run.new.id.clone()).collect()
    }

    pub(super) fn compute_status(&self, agent: &AgentId) -> ComputeStatus {
        let of: Vec<&Run> = self.runs.iter().filter(|run| run.new.agent == *agent).collect();
        let any = |wanted: &dyn Fn(&Run) -> bool| of.iter().any(|run| wanted(run));
        if any(&|run| run.state == RunState::Running && run.phase == Phase::Waiting) {
            ComputeStatus::WaitingLlm
        } else if any(&|run| run.state == RunState::Running) {
            ComputeStatus::Processing
        } else if any(&|run| matches!(run.state, RunState::Ending { .. })) {
            ComputeStatus::Stopping
        } else {
            ComputeStatus::Idle
        }
    }
}
