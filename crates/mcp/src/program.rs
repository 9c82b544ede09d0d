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

    /// True if the program works for this principal alone.
    #[must_use]
    pub fn is_of(&self, principal: &Principal) -> bool {
        self.instance.owner.session.is_some() && self.instance.owner.principal == *principal
    }

    pub(super) fn is_at_work(&self) -> bool {
        self.instance.leases() > 0
    }

    /// The sessions that it is listed in, each with the principal of its last run.
    #[must_use]
    pub fn sessions(&self) -> Vec<(SessionKey, Principal)> {
        self.users().into_iter().map(|(session, user)| (session, user.principal)).collect()
    }

    /// Tells it to end, without waiting: gently after the calls that it works on. Returns true for the first request.
    pub fn send_end(&self, level: StopLevel) -> bool {
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

    /// The row of the API, as a session that uses it sees it.
    #[must_use]
    pub fn to_row(&self, session: &SessionKey) -> ProcessRow {
        let owner = &self.instance.owner;
        let user = self.users().into_iter().find(|(key, _)| key == session).map(|(_, user)| user);
        let user = user.unwrap_or_else(|| ServerUser { run: owner.run.clone(), principal: owner.principal.clone() });
        let program = self.instance.program.get();
        let facts = program.and_then(InstanceProgram::facts);
        let end = self.end();
        ProcessRow {
            id: self.id(),
            kind: ProcessKind::McpServer,
            session_key: session.clone(),
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
            leftovers: end.map(|end| end.leftovers.clone()).unwrap_or_default(),
            output_bytes: 0,
            alive: program
                .map(|program| program.processes.list())
                .unwrap_or_default()
                .iter()
                .map(LiveProcess::to_row)
                .collect(),
        }
    }

    /// A row for each session that has used it.
    #[must_use]
    pub fn to_rows(&self) -> Vec<ProcessRow> {
        self.users().iter().map(|(session, _)| self.to_row(session)).collect()
    }

    /// The sessions that have used it, each with its last run; while it starts, the one that it was started for.
    fn users(&self) -> Vec<(SessionKey, ServerUser)> {
        let owner = &self.instance.owner;
        let mut users: Vec<_> = self.instance.sessions().into_iter().collect();
        let is_listed = |session: &SessionKey| users.iter().any(|(key, _)| key == session);
        if let Some(session) = owner.session.as_ref().filter(|session| !is_listed(session)) {
            users.push((session.clone(), ServerUser { run: owner.run.clone(), principal: owner.principal.clone() }));
        }
        users
    }

    fn end(&self) -> Option<Arc<InstanceEnd>> {
        match self.instance.state() {
            InstanceState::Ended(end) => Some(end),
            InstanceState::Starting | InstanceState::Ready(_) => None,
        }
    }
}
