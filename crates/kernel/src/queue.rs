//! What a new message does while its session is busy, and why one may be refused.

use quell_protocol::api::OnBusy;

use crate::registry::NotBorn;
use quell_protocol::{AgentId, RunId};

/// How a queued run came to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// For its turn.
    Turn,
    /// To be taken by the active run at its next step; else for its turn.
    Steer,
}

/// What is to be done with a message that was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It waits for its turn, which may be now.
    Queue,
    /// The active run takes it at its next step.
    Steer {
        /// The active run.
        into: RunId,
    },
    /// Older runs of the session are aborted first.
    Interrupt,
}

/// Why a message was not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// New runs are on hold.
    #[error("new runs are on hold; lift it with `quell hold off`")]
    Held,
    /// The daemon closes.
    #[error("the daemon is shutting down; send again after its restart")]
    ShuttingDown,
    /// The caller asked not to wait.
    #[error(
        "the session has an active run and the message asked to be refused then; send it with another onBusy policy"
    )]
    Busy,
    /// Too many wait already.
    #[error("{waiting} messages already wait in this session, which is the limit; stop it or wait")]
    QueueFull {
        /// How many wait.
        waiting: usize,
    },
    /// The agent does not exist, or takes no more runs because it is being deleted.
    #[error("there is no agent {agent:?}; `quell agents` lists them")]
    NoAgent {
        /// The agent.
        agent: AgentId,
    },
    /// The agent has spent what it may in a day.
    #[error("the agent {agent:?} has spent what it may in a day; it takes new messages from {opens} on")]
    SpendLimit {
        /// The agent.
        agent: AgentId,
        /// When it takes messages again, RFC 3339.
        opens: String,
    },
    /// It is a sub-run that may not be born.
    #[error(transparent)]
    SubRun(#[from] NotBorn),
}

/// The session as a new message finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// The run that is started and not ended.
    pub active: Option<RunId>,
    /// True when that run may take the message at its next step.
    pub takes: bool,
    /// How many are queued.
    pub waiting: usize,
    /// How many may be.
    pub limit: usize,
}

/// Decides what a new message does.
///
/// # Errors
/// The [`Refusal`] says why not.
pub fn admit(policy: OnBusy, busy: &Busy) -> Result<Admission, Refusal> {
    let idle = busy.active.is_none() && busy.waiting == 0;
    match policy {
        OnBusy::Reject if !idle => Err(Refusal::Busy),
        OnBusy::Interrupt => Ok(Admission::Interrupt),
        // A message to an idle session does not wait, so the limit does not concern it.
        OnBusy::Queue | OnBusy::Steer | OnBusy::Reject if !idle && busy.waiting >= busy.limit => {
            Err(Refusal::QueueFull { waiting: busy.waiting })
        }
        OnBusy::Steer => {
            let into = busy.active.clone().filter(|_| busy.takes);
            Ok(into.map_or(Admission::Queue, |into| Admission::Steer { into }))
        }
        OnBusy::Queue | OnBusy::Reject => Ok(Admission::Queue),
    }
}

#[cfg(test)]
mod tests;
