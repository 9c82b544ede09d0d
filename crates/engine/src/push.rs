//! Push notifications: tell the receiver that a client has named what happens to a run, with signed POST requests.
//!
//! What a notification says is up to a [`PushTranslator`]: this module knows no protocol of clients.

mod target;

use std::fmt;

use quell_protocol::api::RunView;
use quell_protocol::{RunEvent, RunId};
use quell_store::StoreError;
use serde_json::Value;

pub use target::{InvalidPushTarget, PushAuthentication, PushTarget};

/// The most targets that one client may have for one run.
pub const MAX_PUSH_TARGETS: u32 = 10;

/// Says in the words of a protocol what happened to a run.
pub trait PushTranslator: Send + Sync {
    /// The body of the notification that tells of `event`; `None` if clients need not know of it. `run` is the run as it
    /// is now, which may be after later events.
    fn notification(&self, run: &RunView, event: &RunEvent) -> Option<Value>;
}

/// Why a push target cannot be stored, read or deleted.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error(
        "push notifications are off, because there is no secret to sign them with; the operator names one with \
         secret_env or secret_file in [hooks]"
    )]
    NotAvailable,
    #[error("there is no run {0}")]
    RunNotFound(RunId),
    #[error("there is no push target {0:?} for this run")]
    TargetNotFound(String),
    #[error(transparent)]
    InvalidTarget(#[from] InvalidPushTarget),
    #[error("a run has at most {MAX_PUSH_TARGETS} push targets of a client; delete one of them first")]
    TooManyTargets,
    #[error("too many notifications wait for their receivers; try again later")]
    Overloaded,
    #[error("the run {0} is on another node of the cluster; ask that one")]
    OtherNode(RunId),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl fmt::Debug for dyn PushTranslator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PushTranslator")
    }
}
