//! The programs of servers as processes of their sessions: list them and end them.

use std::sync::Arc;

use quell_process::LiveProcess;
use quell_protocol::background::{ProcessKind, ProcessRow};
use quell_protocol::{Leftover, Principal, ResourceKind, RunId, SessionKey};
use quell_scope::StopLevel;
use quell_scope::clock::Clock;

use super::instance::{InstanceEnd, InstanceProgram, InstanceShutdown, InstanceState, ServerInstance, ServerUser};
use super::server_use::program_label;

/// The program of a server with everything that it has started, running or ended.
#[derive(Debug, Clone)]
pub struct ServerProgram {
    instance: Arc<ServerInstance>,
    clock: Clock,
}

/// The programs that a stop covers.
#[derive(Debug, Default)]
pub struct ServerStop {
    pub programs: Vec<ServerProgram>,
    /// The number of programs that this stop was the first to end.
    pub newly_ended: usize,
}

impl ServerStop {
    /// Adds what a second pass of the same stop has covered.
    pub fn add(&mut self, other: Self) {
        self.newly_ended += other.newly_ended;
        let is_new = |program: &ServerProgram| self.programs.iter().all(|known| known.number() != program.number());
        let new: Vec<_> = other.programs.into_iter().filter(is_new).collect();
        self.programs.extend(new);
    }

    /// Waits until all of them have ended.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; the stop itself has already happened.
    pub async fn wait_ended(&self) {
        for program in &self.programs {
            // waits: for what was stopped; bounded by the stop ladder and by the caller.
            program.wait_ended().await;
        }
    }
}

impl ServerProgram {
    pub(super) fn new(instance: Arc<ServerInstance>, clock: Clock) -> Self {
        Self { instance, clock }
    }

    pub(super) fn number(&self) -> u64 {
        self.instance.number
    }

    /// The session that it belongs to; none if all sessions share it.
    pub(super) fn owner_session(&self) -> Option<&SessionKey> {
        self.instance.owner.session.as_ref()
    }

    /// Unique among the processes of the daemon.
    #[must_use]
    pub fn id(&self) -> String {
        format!("m{}", self.instance.number)
    }

    /// True for the program of a session that was started for this principal, who may end it.
    #[must_use]
    pub fn is_of(&self, principal: &Principal) -> bool {
        self.instance.owner.session.is_some() && self.instance.owner.principal == *principal
    }

    /// True while it may work on a call of somebody else.
    pub(super) fn is_at_work_for_others(&self, principal: &Principal) -> bool {
        let users = self.instance.sessions();
        self.instance.leases() > 0 && users.values().any(|user| user.principal != *principal)
    }

    /// True if it is listed in this session.
    #[must_use]
    pub fn is_listed_in(&self, session: &SessionKey) -> bool {
        self.owner_session() == Some(session) || self.instance.sessions().contains_key(session)
    }

    /// Tells it to end, without waiting: gently after the calls that it works on. Returns true for the first request. A
    /// principal who may not stop others ends it after their calls, for which no stop waits.
    pub fn send_end(&self, level: StopLevel, principal: Option<&Principal>) -> bool {
        if principal.is_some_and(|principal| self.is_at_work_for_others(principal)) {
            return self.instance.request_shutdown(InstanceShutdown::Drain);
        }
        self.instance.mark_stopped();
        self.instance.request_shutdown(match level {
            StopLevel::Gentle => InstanceShutdown::Drain,
            StopLevel::Forced => InstanceShutdown::Kill,
        })
    }

    /// Waits until its last process is dead or named as a leftover.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_ended(&self) {
        // waits: for a person who ended it, or after a stop, as above; no run waits here.
        self.instance.wait_ended().await;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end().is_some()
    }

    /// True when it has ended and left no process.
    #[must_use]
    pub fn ended_cleanly(&self) -> bool {
        self.end().is_some_and(|end| end.leftovers.is_empty())
    }

    /// What is not over, or could not be ended, with the run that started it.
    #[must_use]
    pub fn leftovers(&self) -> Vec<(RunId, Leftover)> {
        let names = match self.end() {
            Some(end) => end.leftovers.clone(),
            None => vec![program_label(&self.instance)],
        };
        let leftover = |name| (self.instance.owner.run.clone(), Leftover { kind: ResourceKind::Process, name });
        names.into_iter().map(leftover).collect()
    }

    /// Its row for each session that it is listed in.
    #[must_use]
    pub fn to_rows(&self) -> Vec<ProcessRow> {
        let program = self.instance.program.get();
        let facts = program.and_then(InstanceProgram::facts);
        let alive = program.map(|program| program.processes.list()).unwrap_or_default();
        let end = self.end();
        let to_row = |(session_key, user): (SessionKey, ServerUser)| ProcessRow {
            id: self.id(),
            kind: ProcessKind::McpServer,
            session_key,
            started_by_run: user.run,
            principal: user.principal,
            command: program_label(&self.instance),
            pid: facts.as_ref().map(|facts| facts.pid).filter(|pid| *pid != 0),
            state: if end.is_some() { "ended" } else { "running" }.to_owned(),
            started_at: self.clock.rfc3339(self.instance.started),
            ended_at: end.as_ref().and_then(|end| end.at).map(|at| self.clock.rfc3339(at)),
            exit_code: facts.as_ref().and_then(|facts| facts.exit_code),
            signal: facts.as_ref().and_then(|facts| facts.signal),
            swept: facts.as_ref().map_or(0, |facts| facts.swept),
            how: end.as_ref().map(|end| end.how.as_str().to_owned()),
            leftovers: end.as_ref().map(|end| end.leftovers.clone()).unwrap_or_default(),
            output_bytes: 0,
            alive: alive.iter().map(LiveProcess::to_row).collect(),
        };
        self.users().into_iter().map(to_row).collect()
    }

    /// The session that it belongs to, with the run that started it; of a shared one, all that have used it, each with its
    /// last run.
    fn users(&self) -> Vec<(SessionKey, ServerUser)> {
        let owner = &self.instance.owner;
        let started_by = || ServerUser { run: owner.run.clone(), principal: owner.principal.clone() };
        match &owner.session {
            Some(session) => vec![(session.clone(), started_by())],
            None => self.instance.sessions().into_iter().collect(),
        }
    }

    fn end(&self) -> Option<Arc<InstanceEnd>> {
        match self.instance.state() {
            InstanceState::Ended(end) => Some(end),
            InstanceState::Starting | InstanceState::Ready(_) => None,
        }
    }
}
