//! Show and end background commands.

use std::sync::Arc;

use quell_kernel::StopLevel;
use quell_protocol::SessionKey;
use quell_protocol::audit::Action;
use quell_tools::background::BackgroundProcess;

use super::{AuditAction, Caller, Engine};

impl Engine {
    /// A session's background commands, oldest first, including the recently ended ones.
    pub fn session_processes(&self, key: &SessionKey) -> Vec<Arc<BackgroundProcess>> {
        self.inner().services.background.of_session(key)
    }

    /// The background commands of all sessions, including those of sub-agents, oldest first.
    pub fn all_processes(&self) -> Vec<Arc<BackgroundProcess>> {
        self.inner().services.background.all_processes()
    }

    pub fn find_process(&self, key: &SessionKey, id: &str) -> Option<Arc<BackgroundProcess>> {
        self.inner().services.background.get(key, id)
    }

    pub fn count_live_processes(&self) -> usize {
        self.inner().services.background.count_alive()
    }

    /// Tells a background command to end. False if `caller` may not end it.
    #[must_use]
    pub fn end_process(&self, caller: &Caller, process: &BackgroundProcess, level: StopLevel) -> bool {
        let requester = caller.who();
        if !requester.admin && process.owner.principal != requester.principal {
            return false;
        }
        tracing::info!(principal = %caller.principal, process = process.id, session = %process.owner.session, "background process is ended");
        let is_first_request = process.send_end(level);
        if is_first_request {
            let audit_action = AuditAction::on_target(Action::EndProcess, "process", &process.id);
            self.audit(
                caller,
                audit_action
                    .with_detail(format!("session: {}; started by run {}", process.owner.session, process.owner.run)),
            );
        }
        true
    }
}
