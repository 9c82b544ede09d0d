//! Naive model of the registry: one list in order of acceptance, which every query scans as a whole.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_protocol::api::{ComputeStatus, OnBusy};
use quell_protocol::{AgentId, Principal, Requester, RunId, SessionKey, StopReason, Verdict};

use crate::admission::{Admission, AdmissionError, SubRunError};
use crate::registry::{
    AcceptOutcome, AdmissionGate, AgentRunFilter, BackgroundPolicy, NewRun, QueuedPolicy, RunLimits, RunPhase,
    StopOutcome, StopRequest, StopRequester, StopScope,
};
use crate::run::{RunEffect, RunState, RunStateInput, StopLevel};
use crate::time::{Moment, StopTimeouts};

/// A run of the model. Runs refer to each other by sequence number of acceptance, never by id, so that an id that is
/// used again does not refer to an old run.
#[derive(Debug, Clone)]
pub(super) struct ModelRun {
    pub(super) request: NewRun,
    pub(super) state: RunState,
    pub(super) phase: RunPhase,
    pub(super) durable: bool,
    pub(super) accept_seq: u64,
    parent: Option<u64>,
    steers_into: Option<u64>,
    pending_stop: Option<Verdict>,
    /// Agents of which a person stopped a run below this one.
    barred_agents: BTreeSet<AgentId>,
    end_stored: bool,
}

impl ModelRun {
    /// True when it is ended and has unpaid debts.
    pub(super) fn has_late_debts(&self) -> bool {
        matches!(self.state, RunState::Ended { debts, .. } if !debts.is_paid())
    }
}

#[derive(Debug)]
struct ModelPendingStop {
    principal: Principal,
    id: RunId,
    session: Option<SessionKey>,
    agent: Option<AgentId>,
    until: Moment,
    verdict: Verdict,
}

#[derive(Debug)]
pub(super) struct RegistryModel {
    pub(super) runs: Vec<ModelRun>,
    pub(super) gate: AdmissionGate,
    pub(super) enrolled: BTreeSet<AgentId>,
    pending_stops: Vec<ModelPendingStop>,
    last_accept_seq: u64,
    limits: RunLimits,
}

impl RegistryModel {
    pub(super) fn new(limits: RunLimits, enrolled: BTreeSet<AgentId>) -> Self {
        Self {
            runs: Vec::new(),
            gate: AdmissionGate::Open,
            enrolled,
            pending_stops: Vec::new(),
            last_accept_seq: 0,
            limits,
        }
    }

    pub(super) fn get(&self, id: &RunId) -> Option<&ModelRun> {
        self.runs.iter().find(|run| run.request.id == *id)
    }

    fn get_mut(&mut self, id: &RunId) -> Option<&mut ModelRun> {
        self.runs.iter_mut().find(|run| run.request.id == *id)
    }

    pub(super) fn live_of_session(&self, key: &SessionKey) -> Vec<&ModelRun> {
        self.runs.iter().filter(|run| run.request.session == *key && !run.state.is_ended()).collect()
    }

    pub(super) fn live_of_agent(&self, agent: &AgentId) -> Vec<&ModelRun> {
        self.runs.iter().filter(|run| run.request.agent == *agent && !run.state.is_ended()).collect()
    }

    pub(super) fn accept(&mut self, new: NewRun, now: Moment) -> Result<AcceptOutcome, AdmissionError> {
        if self.get(&new.id).is_some() {
            return Ok(AcceptOutcome::Known);
        }
        match self.gate {
            AdmissionGate::Open => {}
            AdmissionGate::Held => return Err(AdmissionError::Held),
            AdmissionGate::Closing => return Err(AdmissionError::ShuttingDown),
        }
        if !self.enrolled.contains(&new.agent) {
            return Err(AdmissionError::NoAgent { agent: new.agent });
        }
        if let Some(parent) = &new.parent {
            self.check_sub_run(parent, &new.agent)?;
        }
        let live = self.live_of_session(&new.session);
        let active = live.iter().find(|run| run.state == RunState::Running);
        let may = new.admin || active.is_some_and(|run| run.request.principal == new.principal);
        let active = active.filter(|_| may).map(|run| (run.accept_seq, run.request.id.clone()));
        let waiting = live.iter().filter(|run| run.state == RunState::Queued).count();
        if new.on_busy == OnBusy::Reject && !live.is_empty() {
            return Err(AdmissionError::Busy);
        }
        if new.on_busy != OnBusy::Interrupt && waiting >= self.limits.max_queued {
            return Err(AdmissionError::QueueFull { waiting });
        }
        let steered = active.filter(|_| new.on_busy == OnBusy::Steer);
        let admission = match (&steered, new.on_busy) {
            (Some((_, into)), _) => Admission::Steer { into: into.clone() },
            (None, OnBusy::Interrupt) => Admission::Interrupt,
            (None, OnBusy::Queue | OnBusy::Steer | OnBusy::Reject) => Admission::Queue,
        };
        self.push(new, steered.map(|(accept_seq, _)| accept_seq), now);
        Ok(AcceptOutcome::New(admission))
    }

    fn check_sub_run(&self, parent: &RunId, agent: &AgentId) -> Result<(), SubRunError> {
        let parent = self.get(parent).filter(|run| run.state == RunState::Running).ok_or(SubRunError::ParentOver)?;
        let above: Vec<&ModelRun> = self.runs.iter().filter(|run| self.is_below(parent, &[run.accept_seq])).collect();
        if above.len() > self.limits.max_depth {
            return Err(SubRunError::TooDeep { limit: self.limits.max_depth });
        }
        let children = self.runs.iter().filter(|run| run.parent == Some(parent.accept_seq) && !run.state.is_ended());
        if children.count() >= self.limits.max_children {
            return Err(SubRunError::TooMany { limit: self.limits.max_children });
        }
        if above.iter().any(|run| run.barred_agents.contains(agent)) {
            return Err(SubRunError::StoppedByPerson { agent: agent.clone() });
        }
        Ok(())
    }

    fn push(&mut self, new: NewRun, steers_into: Option<u64>, now: Moment) {
        let matches_run = |stop: &&ModelPendingStop| {
            let same_session = stop.session.as_ref().is_none_or(|key| *key == new.session);
            let same_agent = stop.agent.as_ref().is_none_or(|agent| *agent == new.agent);
            stop.principal == new.principal && stop.id == new.id && same_session && same_agent && stop.until >= now
        };
        let pending_stop = self.pending_stops.iter().find(matches_run).map(|stop| stop.verdict.clone());
        let parent = new.parent.as_ref().and_then(|parent| self.get(parent)).map(|parent| parent.accept_seq);
        self.last_accept_seq += 1;
        self.runs.push(ModelRun {
            request: new,
            state: RunState::Queued,
            phase: RunPhase::Processing,
            durable: false,
            accept_seq: self.last_accept_seq,
            parent,
            steers_into,
            pending_stop,
            barred_agents: BTreeSet::new(),
            end_stored: false,
        });
    }

    pub(super) fn commit_acceptance(&mut self, id: &RunId, now: Moment) -> StopOutcome {
        let Some(run) = self.get_mut(id) else { return StopOutcome::default() };
        run.durable = true;
        let (accept_seq, pending_stop) = (run.accept_seq, run.pending_stop.take());
        let (key, over, policy) = (run.request.session.clone(), run.state.is_ended(), run.request.on_busy);
        let by = Requester { principal: run.request.principal.clone(), surface: run.request.surface };
        let (owner, admin) = (run.request.principal.clone(), run.request.admin);
        if let Some(verdict) = pending_stop {
            return self.abort(&[accept_seq], StopLevel::Gentle, &verdict, now);
        }
        if policy != OnBusy::Interrupt || over {
            return StopOutcome::default();
        }
        let may = |older: &&ModelRun| older.accept_seq < accept_seq && (admin || older.request.principal == owner);
        let older: Vec<u64> = self.live_of_session(&key).into_iter().filter(may).map(|run| run.accept_seq).collect();
        let verdict = Verdict::Aborted { reason: StopReason::Superseded, by: Some(by) };
        self.abort(&older, StopLevel::Gentle, &verdict, now)
    }

    pub(super) fn rollback_acceptance(&mut self, id: &RunId) {
        if self.get(id).is_some_and(|run| !run.durable) {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: &RunId) {
        let gone = self.get(id).map(|run| run.accept_seq);
        self.runs.retain(|run| Some(run.accept_seq) != gone);
    }

    pub(super) fn due_run(&self, key: &SessionKey) -> Option<&ModelRun> {
        let oldest = self.live_of_session(key).into_iter().next()?;
        (self.gate == AdmissionGate::Open && oldest.durable && oldest.state == RunState::Queued).then_some(oldest)
    }

    pub(super) fn take_steering_messages(&mut self, id: &RunId) -> Vec<(RunId, String)> {
        let Some(into) = self.get(id).filter(|run| run.state == RunState::Running).map(|run| run.accept_seq) else {
            return Vec::new();
        };
        let meant = |run: &&ModelRun| run.steers_into == Some(into) && run.durable && run.state == RunState::Queued;
        let taken: Vec<_> =
            self.runs.iter().filter(meant).map(|run| (run.request.id.clone(), run.request.text.clone())).collect();
        for (id, _) in &taken {
            self.remove(id);
        }
        taken
    }

    pub(super) fn set_phase(&mut self, id: &RunId, phase: RunPhase) {
        if let Some(run) = self.get_mut(id) {
            run.phase = phase;
        }
    }

    pub(super) fn apply_input(&mut self, id: &RunId, input: RunStateInput, now: Moment) -> Vec<RunEffect> {
        let Some(run) = self.get_mut(id) else { return Vec::new() };
        let (state, effects) = run.state.clone().step(input, now, &StopTimeouts::default());
        run.state = state;
        effects
    }

    pub(super) fn stop(
        &mut self,
        scope: &StopScope,
        requester: &StopRequester,
        request: &StopRequest,
        now: Moment,
    ) -> StopOutcome {
        let by = Requester { principal: requester.principal.clone(), surface: request.surface };
        let verdict = Verdict::Aborted { reason: request.reason.clone(), by: Some(by) };
        if let StopScope::Run { id, session, agent } = scope
            && self.get(id).is_none()
        {
            let (principal, until) = (requester.principal.clone(), now.plus(Duration::from_secs(60)));
            let (id, session, agent, verdict) = (id.clone(), session.clone(), agent.clone(), verdict.clone());
            self.pending_stops.push(ModelPendingStop { principal, id, session, agent, until, verdict });
        }
        let named = |run: &&ModelRun| match scope {
            StopScope::Run { id, session, agent } => {
                run.request.id == *id
                    && session.as_ref().is_none_or(|key| *key == run.request.session)
                    && agent.as_ref().is_none_or(|agent| *agent == run.request.agent)
            }
            StopScope::Session { key, queued, background } => {
                run.request.session == *key
                    && (*queued == QueuedPolicy::Withdraw || run.state != RunState::Queued)
                    && (*background == BackgroundPolicy::Stop || !run.state.is_ended())
            }
            StopScope::Agent { id, phase } => {
                let waits = run.state == RunState::Running && run.phase == RunPhase::Waiting;
                run.request.agent == *id && (*phase == AgentRunFilter::Any || waits)
            }
            StopScope::Agents { ids } => ids.contains(&run.request.agent),
            StopScope::Everything => true,
            // No run of the model has an interruption scope, but its session may be that of a chat.
            StopScope::Conversation { session, .. } => run.request.session == *session,
            StopScope::Channel { name } => run.request.session.as_str().starts_with("irc_") && name == "irc",
        };
        let mine = |run: &&ModelRun| requester.admin || run.request.principal == requester.principal;
        let roots: Vec<u64> = self.runs.iter().filter(named).filter(mine).map(|run| run.accept_seq).collect();
        let stopped = self.abort(&roots, request.level, &verdict, now);
        for run in self.runs.clone().iter().filter(|run| roots.contains(&run.accept_seq)) {
            let is_above = |it: &&ModelRun| it.accept_seq != run.accept_seq && self.is_below(run, &[it.accept_seq]);
            let goes_on = |it: &ModelRun| !it.state.is_ended() && !stopped.covered.contains(&it.request.id);
            let one_above_goes_on = self.runs.iter().filter(is_above).any(goes_on);
            let top = self.runs.iter().position(|top| top.parent.is_none() && self.is_below(run, &[top.accept_seq]));
            if let Some(top) = top.filter(|_| one_above_goes_on) {
                self.runs[top].barred_agents.insert(run.request.agent.clone());
            }
        }
        stopped
    }

    /// Aborts the roots and all their descendants.
    pub(super) fn abort(&mut self, roots: &[u64], level: StopLevel, verdict: &Verdict, now: Moment) -> StopOutcome {
        let mut stopped = StopOutcome::default();
        let covered: Vec<ModelRun> = self.runs.iter().filter(|run| self.is_below(run, roots)).cloned().collect();
        for run in covered {
            let id = run.request.id;
            let effects = self.apply_input(&id, RunStateInput::Abort { level, verdict: verdict.clone() }, now);
            if run.state == RunState::Queued {
                stopped.withdrawn.push((id.clone(), run.request.text));
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

    /// True when the run is one of `tops` or a descendant of one.
    pub(super) fn is_below(&self, run: &ModelRun, tops: &[u64]) -> bool {
        tops.contains(&run.accept_seq)
            || run
                .parent
                .and_then(|parent| self.runs.iter().find(|run| run.accept_seq == parent))
                .is_some_and(|parent| self.is_below(parent, tops))
    }

    pub(super) fn forget(&mut self, id: &RunId) -> Vec<RunId> {
        let Some(run) = self.get_mut(id).filter(|run| run.state.is_ended()) else { return Vec::new() };
        run.end_stored = true;
        let above: Vec<u64> = {
            let Some(run) = self.get(id) else { return Vec::new() };
            self.runs
                .iter()
                .filter(|other| self.is_below(run, &[other.accept_seq]))
                .map(|other| other.accept_seq)
                .collect()
        };
        let over = |run: &&ModelRun| {
            let lives = self.runs.iter().any(|other| self.lives_below(other, run));
            above.contains(&run.accept_seq) && run.end_stored && !run.has_late_debts() && !lives
        };
        // From the run upwards: a run that is kept keeps its ancestors.
        let mut gone: Vec<RunId> = self.runs.iter().rev().filter(over).map(|run| run.request.id.clone()).collect();
        let kept = self.runs.iter().rev().filter(|run| above.contains(&run.accept_seq)).position(|run| !over(&run));
        gone.truncate(kept.unwrap_or(gone.len()));
        gone.iter().for_each(|id| self.remove(id));
        gone
    }

    /// True when `run` is not ended, and is `top` or a descendant of it.
    pub(super) fn lives_below(&self, run: &ModelRun, top: &ModelRun) -> bool {
        !run.state.is_ended() && self.is_below(run, &[top.accept_seq])
    }

    pub(super) fn expired_runs(&self, now: Moment) -> Vec<RunId> {
        let over = |run: &&ModelRun| run.state.verdict().is_none() && run.request.expires_at < now;
        self.runs.iter().filter(over).map(|run| run.request.id.clone()).collect()
    }

    pub(super) fn compute_status(&self, agent: &AgentId) -> ComputeStatus {
        let of: Vec<&ModelRun> = self.runs.iter().filter(|run| run.request.agent == *agent).collect();
        let any = |wanted: &dyn Fn(&ModelRun) -> bool| of.iter().any(|run| wanted(run));
        if any(&|run| run.state == RunState::Running && run.phase == RunPhase::Waiting) {
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
