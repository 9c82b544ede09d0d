//! What a stop asks for: whom it covers, how hard, why, through which door.

use std::collections::BTreeSet;

use quell_protocol::{AgentId, By, InterruptionScope, RunId, SessionKey, StopReason, Surface, Verdict};

use super::Who;
use crate::run::Push;

/// Whom a stop covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopScope {
    /// One run with its subtree.
    Run {
        /// The run.
        id: RunId,
        /// Checked against the run when given (row A10).
        session: Option<SessionKey>,
    },
    /// All runs of a session with their subtrees.
    Session {
        /// The session.
        key: SessionKey,
        /// Whether its queue is withdrawn.
        queued: Queued,
        /// What happens to what earlier runs of it left running.
        background: Background,
    },
    /// Runs of an agent.
    Agent {
        /// The agent.
        id: AgentId,
        /// Which of them.
        phase: AgentPhase,
    },
    /// All runs of several agents, such as a subtree, queued ones included.
    Agents {
        /// The agents.
        ids: BTreeSet<AgentId>,
    },
    /// All runs of a conversation in a chat network, queued ones included, with what they left in the background; also those
    /// that another door let into its session, where the caller may stop them.
    Conversation {
        /// What the stop is confined to.
        scope: InterruptionScope,
        /// The conversation's session.
        session: SessionKey,
    },
    /// All runs that came in through one channel, or through another door into a session of its conversations.
    Channel {
        /// Its name.
        name: String,
    },
    /// All of it.
    Everything,
}

/// What happens to the queue of a stopped session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queued {
    /// Withdrawn.
    Withdraw,
    /// Left where it is.
    Keep,
}

/// What happens to the background runs and processes that ended runs of a stopped session started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// They are stopped.
    Stop,
    /// They go on.
    Keep,
}

impl StopScope {
    /// A session with all that belongs to it.
    #[must_use]
    pub fn whole_session(key: SessionKey) -> Self {
        Self::Session { key, queued: Queued::Withdraw, background: Background::Stop }
    }
}

/// Which runs of an agent a stop covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentPhase {
    /// Those that wait for the model.
    WaitingLlm,
    /// All that are not over.
    Any,
}

/// What a stop asks for besides its scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopAsk {
    /// How hard.
    pub push: Push,
    /// Why.
    pub reason: StopReason,
    /// Through which door.
    pub surface: Surface,
}

impl StopAsk {
    pub(super) fn verdict(&self, who: &Who) -> Verdict {
        let by = By { principal: who.principal.clone(), surface: self.surface };
        Verdict::Aborted { reason: self.reason.clone(), by: Some(by) }
    }
}
