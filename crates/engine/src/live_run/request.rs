//! A run as it is requested, by a client or by another run.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::attachment::MessageFile;
use quell_kernel::expiry::ExpiryLimits;
use quell_kernel::permissions::RunPermissions;
use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, Surface};
use quell_scope::PointProbe;

use crate::channel_origin::ChannelOrigin;
use crate::journal::Journal;

#[derive(Debug, Clone)]
pub struct RunDefaults {
    /// Bounds of a run's expiry (row A5 in `docs/design/requirements.md`).
    pub expiry: ExpiryLimits,
    /// Time limit of a run that sets none.
    pub run_timeout: Duration,
    pub journal: Journal,
    /// Called at every point that a run reaches; for tests.
    pub probe: PointProbe,
}

/// What a run does.
#[derive(Debug, Clone)]
pub enum RunWork {
    /// Answers its message, which may come with files.
    Answer { files: Arc<[MessageFile]> },
    /// Summarises the conversation before it.
    Compact,
    /// Adds this message to the conversation, in the assistant's name. No model is called.
    AddMessage(String),
}

impl Default for RunWork {
    /// Answers a message without files.
    fn default() -> Self {
        Self::Answer { files: Arc::default() }
    }
}

#[derive(Debug, Clone)]
pub struct RunRequest {
    /// A new id if absent.
    pub id: Option<RunId>,
    pub session: SessionKey,
    pub agent: AgentId,
    pub principal: Principal,
    /// True if that principal may stop any run.
    pub admin: bool,
    pub surface: Surface,
    pub parent: Option<RunId>,
    pub text: String,
    pub work: RunWork,
    /// What to do if the session is busy.
    pub on_busy: OnBusy,
    /// Time limit from now; the default applies if absent.
    pub timeout: Option<Duration>,
    /// Hash of the request, compared for idempotency.
    pub fingerprint: String,
    /// The chat message that the run answers.
    pub channel_origin: Option<ChannelOrigin>,
    /// Upper bound of its permissions, if another run starts it.
    pub max_permissions: Option<RunPermissions>,
}
