//! Registry entry of a run, the new run as requested, and the requester of a stop.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, InterruptionScope, Principal, RunId, SessionKey, Surface, Verdict};
use serde::{Deserialize, Serialize};

use crate::admission::WaitReason;
use crate::run::RunState;
use crate::time::Moment;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequester {
    pub principal: Principal,
    /// True when it may stop any run.
    pub admin: bool,
}

impl StopRequester {
    pub(super) fn may_stop(&self, entry: &RegistryEntry) -> bool {
        self.admin || entry.run.principal == self.principal
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    pub id: RunId,
    pub session: SessionKey,
    pub agent: AgentId,
    pub principal: Principal,
    /// True for a message of an admin, which may steer and interrupt the runs of others. A right to stop is not enough.
    pub admin: bool,
    pub surface: Surface,
    /// The run that starts it, if it is a sub-run.
    pub parent: Option<RunId>,
    pub text: String,
    pub on_busy: OnBusy,
    /// True for a plain model call: it waits for no other run of its session, and none waits for it.
    pub bypasses_queue: bool,
    /// Scope of interruptions by this run, and of this run. The session if `None`.
    pub interruption_scope: Option<Arc<InterruptionScope>>,
    /// When the registry aborts it as a backstop; see `expiry`.
    pub expires_at: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPhase {
    /// A model request is in progress, back-off included.
    Waiting,
    Processing,
}

/// A run that is not forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryEntry {
    pub run: NewRun,
    pub state: RunState,
    /// Meaningful while the run is running.
    pub phase: RunPhase,
    pub accept_seq: u64,
    /// True once its acceptance is durable; it does not start before.
    pub durable: bool,
    pub wait_reason: WaitReason,
    /// Verdict of a stop that came before the run was accepted. The run ends with it once its acceptance is durable.
    pub(super) pending_stop: Option<Verdict>,
    /// Agents that no run of this tree may start again, because a person stopped a run of theirs in it.
    pub(super) barred_agents: BTreeSet<AgentId>,
    /// True once its end is stored. It may then be forgotten as soon as no descendant is alive.
    pub(super) end_stored: bool,
}
