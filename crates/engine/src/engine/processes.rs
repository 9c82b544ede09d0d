//! Show and end the processes that belong to a session and not to a call: background commands and MCP servers.

use std::sync::Arc;

use quell_kernel::StopLevel;
use quell_mcp::ServerProgram;
use quell_protocol::audit::Action;
use quell_protocol::background::ProcessRow;
use quell_protocol::{Principal, SessionKey};
use quell_tools::background::BackgroundProcess;

use super::{AuditAction, Caller, Engine};

/// A process of a session, with all processes below it.
#[derive(Debug, Clone)]
pub enum SessionProcess {
    Command(Arc<BackgroundProcess>),
    Server(ServerProgram),
}

impl SessionProcess {
    /// Waits until its last process is dead or named as a leftover.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_ended(&self) {
        match self {
            Self::Command(process) => process.wait_ended().await,
            Self::Server(program) => program.wait_ended().await,
        }
    }

    fn is_of(&self, principal: &Principal) -> bool {
        match self {
            Self::Command(process) => process.owner.principal == *principal,
            Self::Server(program) => program.is_of(principal),
        }
    }

    fn send_end(&self, level: StopLevel, principal: Option<&Principal>) -> bool {
        match self {
            Self::Command(process) => process.send_end(level),
            Self::Server(program) => program.send_end(level, principal),
        }
    }

    /// Where it comes from, for the audit log.
    fn origin(&self) -> String {
        let of_row = |row: ProcessRow| format!("session: {}; started by run {}", row.session_key, row.started_by_run);
        self.to_rows().into_iter().next().map(of_row).unwrap_or_default()
    }

    fn id(&self) -> String {
        match self {
            Self::Command(process) => process.id.clone(),
            Self::Server(program) => program.id(),
        }
    }

    /// A row for each session that has it. A shared server has one in each session that has used it.
    pub fn to_rows(&self) -> Vec<ProcessRow> {
        match self {
            Self::Command(process) => vec![process.to_row()],
            Self::Server(program) => program.to_rows(),
        }
    }

    /// Its row as this session sees it; none if the session does not have it.
    pub fn row_of(&self, session: &SessionKey) -> Option<ProcessRow> {
        let is_listed = self.is_listed_in(session);
        is_listed.then(|| self.to_rows().into_iter().find(|row| row.session_key == *session)).flatten()
    }

    fn is_listed_in(&self, session: &SessionKey) -> bool {
        match self {
            Self::Command(process) => process.owner.session == *session,
            Self::Server(program) => program.is_listed_in(session),
        }
    }
}

impl Engine {
    /// The processes of all sessions, those of sub-agents too: first the background commands,
    /// then the servers, each oldest first, with those that have ended recently.
    pub fn all_processes(&self) -> Vec<SessionProcess> {
        let services = &self.inner().services;
        let commands = services.background.all_processes().into_iter().map(SessionProcess::Command);
        commands.chain(services.mcp.programs().into_iter().map(SessionProcess::Server)).collect()
    }

    pub fn session_processes(&self, key: &SessionKey) -> Vec<SessionProcess> {
        let mut processes = self.all_processes();
        processes.retain(|process| process.is_listed_in(key));
        processes
    }

    pub fn find_process(&self, key: &SessionKey, id: &str) -> Option<SessionProcess> {
        self.session_processes(key).into_iter().find(|process| process.id() == id)
    }

    pub fn may_read_process(&self, caller: &Caller, row: &ProcessRow) -> bool {
        self.may_read_run(caller, &row.principal, &row.session_key)
    }

    pub fn count_live_processes(&self) -> usize {
        self.inner().services.background.count_alive()
    }

    /// Tells a process to end. False if `caller` may not end it.
    #[must_use]
    pub fn end_process(&self, caller: &Caller, process: &SessionProcess, level: StopLevel) -> bool {
        let requester = caller.who();
        if !requester.admin && !process.is_of(&requester.principal) {
            return false;
        }
        let id = process.id();
        tracing::info!(principal = %caller.principal, process = id, "process of a session is ended");
        if process.send_end(level, (!requester.admin).then_some(&requester.principal)) {
            let audit_action = AuditAction::on_target(Action::EndProcess, "process", &id);
            self.audit(caller, audit_action.with_detail(process.origin()));
        }
        true
    }
}
