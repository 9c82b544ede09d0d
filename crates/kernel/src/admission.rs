//! Decides what a new message does while its session is busy, and why it may be refused.

use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, Principal, RunId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The run waits for the earlier runs of its session.
    EarlierRuns,
    /// The active run may take the message at its next step; if it does not, the message waits as with `EarlierRuns`.
    Steer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// The message waits until the earlier runs of the session have ended, which may be at once.
    Queue,
    /// The active run takes the message at its next step.
    Steer { into: RunId },
    /// The older runs of the session are aborted first.
    Interrupt,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    #[error("new runs are on hold; lift it with `quell hold off`")]
    Held,
    #[error("the daemon is shutting down; send again after its restart")]
    ShuttingDown,
    /// The message has the policy `reject`, and the session is busy.
    #[error("the session is busy and the message has the policy reject; send it with another onBusy policy")]
    Busy,
    /// As many messages wait as the queue may hold.
    #[error("{waiting} messages already wait in this session, which is the limit; stop it or wait")]
    QueueFull { waiting: usize },
    /// The token has as many requests to standard APIs as it may have at the same time.
    #[error(
        "{limit} requests of this token are being answered, which is the limit (in_flight_runs in [limits]); send this \
         again when one has ended"
    )]
    TooManyClientRuns { limit: usize },
    /// The agent does not exist, or accepts no more runs because it is being deleted.
    #[error("there is no agent {agent:?}; `quell agents` lists them")]
    NoAgent { agent: AgentId },
    #[error("the agent {agent:?} has reached its daily limit; it takes new messages from {opens} on")]
    SpendLimit {
        agent: AgentId,
        /// Time at which the agent accepts messages again, RFC 3339.
        opens: String,
    },
    #[error("the token {key:?} has reached its daily cost; it is taken again from {opens} on")]
    KeySpendLimit {
        key: Principal,
        /// Time at which the token may spend again, RFC 3339.
        opens: String,
    },
    /// The message would start a sub-run that is not allowed.
    #[error(transparent)]
    SubRun(#[from] SubRunError),
}

/// Why a run may not start a sub-run. The texts are shown to the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubRunError {
    #[error("the run that asked for it is over")]
    ParentOver,
    #[error("sub-runs may be nested at most {limit} deep; do the work yourself")]
    TooDeep { limit: usize },
    #[error("{limit} sub-runs are at work already, which is the limit; wait for one of them to end")]
    TooMany { limit: usize },
    /// A person stopped a sub-run of this agent in this run tree.
    #[error("a person stopped the agent {agent:?} in this turn; do not start it again, go on without it or say so")]
    StoppedByPerson { agent: AgentId },
}

/// State of a session when a new message arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionLoad {
    /// The run that has started and not ended.
    pub active_run: Option<RunId>,
    /// True if the active run can take the message at its next step.
    pub accepts_steering: bool,
    pub waiting: usize,
    pub queue_limit: usize,
}

pub fn decide_admission(policy: OnBusy, load: &SessionLoad) -> Result<Admission, AdmissionError> {
    let idle = load.active_run.is_none() && load.waiting == 0;
    match policy {
        OnBusy::Reject if !idle => Err(AdmissionError::Busy),
        OnBusy::Interrupt => Ok(Admission::Interrupt),
        // A message to an idle session does not wait, so the limit does not apply to it.
        OnBusy::Queue | OnBusy::Steer | OnBusy::Reject if !idle && load.waiting >= load.queue_limit => {
            Err(AdmissionError::QueueFull { waiting: load.waiting })
        }
        OnBusy::Steer => {
            let into = load.active_run.clone().filter(|_| load.accepts_steering);
            Ok(into.map_or(Admission::Queue, |into| Admission::Steer { into }))
        }
        OnBusy::Queue | OnBusy::Reject => Ok(Admission::Queue),
    }
}

#[cfg(test)]
mod tests;
