//! What the registry keeps of a run, and who asks for things.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, InterruptionScope, Principal, RunId, SessionKey, Surface, Verdict};

use crate::queue::Waiting;
use crate::run::RunState;
use crate::time::Moment;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// Its name.
    pub principal: Principal,
    /// True when it may stop any run.
    pub admin: bool,
}

impl Who {
    pub(super) fn may_stop(&self, entry: &Entry) -> bool {
        self.admin || entry.run.principal == self.principal
    }
}

/// A run as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// Its id.
    pub id: RunId,
    /// Its session.
    pub session: SessionKey,
    /// The agent that runs.
    pub agent: AgentId,
    /// Who asked.
    pub principal: Principal,
    /// True when who asked may stop any run: an interrupting one aborts only what its sender may stop.
    pub admin: bool,
    /// Through which door.
    pub surface: Surface,
    /// The run that started it.
    pub parent: Option<RunId>,
    /// The message.
    pub text: String,
    /// Policy while the session is busy.
    pub on_busy: OnBusy,
    /// What an interruption by it, or of it, is confined to; its session when it has none.
    pub scope: Option<Arc<InterruptionScope>>,
    /// When the registry's backstop ends it (row A5).
    pub expires_at: Moment,
}

/// What a started run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A model request is out, back-off included.
    Waiting,
    /// Anything else.
    Processing,
}

/// One run that is not forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As it was asked for.
    pub run: NewRun,
    /// Where it stands.
    pub state: RunState,
    /// What it is doing while running.
    pub phase: Phase,
    /// Its place in the order of acceptance.
    pub mark: u64,
    /// True once its acceptance is durable; it does not start before.
    pub durable: bool,
    /// Why it waits.
    pub waiting: Waiting,
    /// A stop of its id came before it was accepted: it ends once its acceptance is durable.
    pub(super) early: Option<Verdict>,
    /// Agents that no run below this one starts again, because a person stopped a run of theirs there.
    pub(super) barred: BTreeSet<AgentId>,
    /// Its end is stored: it may be forgotten as soon as nothing below it lives.
    pub(super) closed: bool,
}
