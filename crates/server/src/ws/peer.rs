//! The client of a connection after its `connect`, and what it may do.

use quell_engine::access::{Caller, Credential};
use quell_engine::engine::EngineNotice;
use quell_protocol::api::AccessLevel;

use super::frame::RpcError;
use super::{MAX_PAYLOAD, MAX_READER_PAYLOAD};
use crate::access_rules::RouteAccess;

/// Scope of clients that decide approvals.
pub(super) const APPROVALS_SCOPE: &str = "operator.approvals";

/// An authenticated client.
#[derive(Debug, Clone)]
pub(super) struct WsPeer {
    pub(super) caller: Caller,
    /// The credential of the client, which may be revoked while it is connected.
    pub(super) credential: Credential,
    /// The access level that was requested and granted, if any.
    pub(super) granted: Option<AccessLevel>,
    pub(super) role: WsRole,
    /// The client wants live tool events.
    pub(super) tool_events: bool,
    /// The client fetches the events of runs with `runs.follow` and does not want them as `chat` events, too.
    pub(super) run_events: bool,
}

impl WsPeer {
    /// Maximum size of a message from this client, in bytes.
    pub(super) fn largest_message(&self) -> usize {
        if self.granted >= Some(AccessLevel::Write) { MAX_PAYLOAD } else { MAX_READER_PAYLOAD }
    }

    /// Whether the client may receive a notice. A client with read access receives all; a node receives those of runs,
    /// which are then limited to the sessions to which it has subscribed.
    pub(super) fn may_receive(&self, notice: &EngineNotice) -> bool {
        match notice {
            EngineNotice::Shutdown { .. } => true,
            EngineNotice::Run(_) | EngineNotice::Cancelling { .. } | EngineNotice::Amended { .. } => {
                self.role == WsRole::Node || self.granted >= Some(AccessLevel::Read)
            }
            EngineNotice::Agent { .. }
            | EngineNotice::AgentListChanged { .. }
            | EngineNotice::Session { .. }
            | EngineNotice::Hold { .. } => self.granted >= Some(AccessLevel::Read),
        }
    }

    /// Requires the scope of a rule. What it demands of the session or run is checked by the method.
    pub(super) fn require_access(&self, access: RouteAccess) -> Result<(), RpcError> {
        match access {
            RouteAccess::Public | RouteAccess::Approve => Ok(()),
            RouteAccess::Token | RouteAccess::List | RouteAccess::Read | RouteAccess::ReadAll => {
                self.require_scope(AccessLevel::Read)
            }
            RouteAccess::Stop if self.caller.may_stop_all() => Ok(()),
            RouteAccess::Create
            | RouteAccess::Use
            | RouteAccess::Manage
            | RouteAccess::Configure
            | RouteAccess::Stop => self.require_scope(AccessLevel::Write),
            RouteAccess::StopAll if self.caller.may_stop_all() => Ok(()),
            RouteAccess::StopAll | RouteAccess::Admin => self.require_scope(AccessLevel::Admin),
        }
    }

    pub(super) fn require_scope(&self, scope: AccessLevel) -> Result<(), RpcError> {
        if self.granted >= Some(scope) {
            return Ok(());
        }
        Err(RpcError::missing_scope(match scope {
            AccessLevel::Read => "operator.read",
            AccessLevel::Write => "operator.write",
            AccessLevel::Admin => "operator.admin",
        }))
    }

    /// Requires the right to decide approvals, or the scope to write. The engine decides which approvals the peer may
    /// decide.
    pub(super) fn require_approver(&self) -> Result<(), RpcError> {
        if self.caller.may_approve() {
            return Ok(());
        }
        self.require_scope(AccessLevel::Write).map_err(|_| RpcError::missing_scope(APPROVALS_SCOPE))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WsRole {
    /// A person's client: receives every chat.
    Operator,
    /// A device: receives the chats to which it has subscribed.
    Node,
}
