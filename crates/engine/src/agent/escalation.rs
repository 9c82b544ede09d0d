//! Read whether a call asks to run outside of the sandbox, and what it then may reach.

use std::sync::Arc;

use quell_kernel::escalation::{CallPlace, EscalationRight, describe_escalation, split_escalation};
use quell_kernel::network_access::NetworkAccess;
use quell_kernel::turn::{CallResult, ToolCall};
use quell_process::{SandboxNetwork, SandboxSpec};
use quell_protocol::CallEnd;
use quell_protocol::approval::Escalation;
use quell_protocol::sandbox::SandboxMode;

use super::tools::is_sandboxed_tool;
use super::{Agent, AgentLoop, Limits};

/// A call as it is executed.
#[derive(Debug)]
pub(super) struct PlannedCall {
    /// The call without its request to run outside of the sandbox.
    pub(super) call: ToolCall,
    /// What people are shown, if it asks to run outside.
    pub(super) escalation: Option<Escalation>,
}

impl PlannedCall {
    pub(super) fn place(&self) -> CallPlace {
        if self.escalation.is_some() { CallPlace::OutsideOfSandbox } else { CallPlace::Usual }
    }
}

impl Agent {
    pub(super) fn escalation_right(&self, limits: &Limits) -> EscalationRight {
        EscalationRight::of(&self.sandbox, limits.approval_timeout_s)
    }
}

impl AgentLoop<'_> {
    /// Takes the request to run outside of the sandbox out of a call. The error is the result of a wrong request.
    pub(super) fn plan_call(&self, call: &ToolCall) -> Result<PlannedCall, CallResult> {
        if !is_sandboxed_tool(&call.tool) {
            return Ok(PlannedCall { call: call.clone(), escalation: None });
        }
        let split = split_escalation(&call.arguments)
            .map_err(|problem| CallResult::new(CallEnd::Error, format!("{problem}. Nothing was done.")))?;
        let is_sandboxed = self.agent.escalation_right(&self.services.limits) != EscalationRight::NotSandboxed;
        let reason = split.reason.filter(|_| is_sandboxed);
        let escalation = reason.map(|reason| describe_escalation(&self.agent.sandbox, &self.agent.workdir, reason));
        Ok(PlannedCall { call: ToolCall { arguments: split.arguments, ..call.clone() }, escalation })
    }

    /// What the commands and file tools of a call may reach.
    pub(super) fn sandbox_of(&self, planned: &PlannedCall) -> Arc<SandboxSpec> {
        let session = &self.writer.run().session;
        let usual = self.sandbox.get_or_init(|| self.services.sandbox(self.agent, session));
        match planned.place() {
            CallPlace::Usual => Arc::clone(usual),
            // The mode `off` still hides what is protected.
            CallPlace::OutsideOfSandbox => {
                Arc::new(SandboxSpec { network: SandboxNetwork::Daemon, ..usual.with_mode(SandboxMode::Off) })
            }
        }
    }

    /// The servers that a call may reach.
    pub(super) fn network_of(&self, planned: &PlannedCall) -> &NetworkAccess {
        match planned.place() {
            CallPlace::Usual => &self.agent.sandbox.network,
            CallPlace::OutsideOfSandbox => &NetworkAccess::On,
        }
    }
}
