//! Scope, policies and request of a stop.

use std::collections::BTreeSet;

use quell_protocol::{AgentId, InterruptionScope, Requester, RunId, SessionKey, StopReason, Surface, Verdict};
use serde::{Deserialize, Serialize};

use super::StopRequester;
use crate::run::StopLevel;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopScope {
    Run {
        id: RunId,
        /// If given, it must match the session of the run: no session can stop a run of another.
        session: Option<SessionKey>,
        /// If given, it must match the agent of the run, for clients that know the run as one of this agent.
        #[serde(default)]
        agent: Option<AgentId>,
    },
    /// All runs of a session with their subtrees.
    Session {
        key: SessionKey,
        queued: QueuedPolicy,
        background: BackgroundPolicy,
    },
    Agent {
        id: AgentId,
        phase: AgentRunFilter,
    },
    /// All runs of several agents, such as a subtree, queued ones included.
    Agents {
        ids: BTreeSet<AgentId>,
    },
    /// All runs of a chat conversation, queued ones included, with their background runs and processes. Also covers
    /// runs that came into its session through another transport, as far as the caller may stop them.
    Conversation {
        scope: InterruptionScope,
        session: SessionKey,
    },
    /// All runs that came through one channel, or through another transport into a session of its conversations.
    Channel {
        name: String,
    },
    Everything,
}

/// What happens to the queue of a stopped session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueuedPolicy {
    Withdraw,
    Keep,
}

/// What happens to the background runs and processes that ended runs of a stopped session started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackgroundPolicy {
    Stop,
    Keep,
}

impl StopScope {
    /// One run, whatever session and agent it has.
    pub fn run(id: RunId) -> Self {
        Self::Run { id, session: None, agent: None }
    }

    /// A session with its queue and its background runs and processes.
    pub fn whole_session(key: SessionKey) -> Self {
        Self::Session { key, queued: QueuedPolicy::Withdraw, background: BackgroundPolicy::Stop }
    }
}

/// Which runs of an agent a stop covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentRunFilter {
    /// Running runs that wait for the model.
    WaitingLlm,
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    pub level: StopLevel,
    pub reason: StopReason,
    pub surface: Surface,
}

impl StopRequest {
    pub(super) fn verdict(&self, requester: &StopRequester) -> Verdict {
        let by = Requester { principal: requester.principal.clone(), surface: self.surface };
        Verdict::Aborted { reason: self.reason.clone(), by: Some(by) }
    }
}
