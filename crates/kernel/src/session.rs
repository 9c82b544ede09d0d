//! Session state machine: uninitialised, ready, active, expired, terminated.
//!
//! A live session holds the resources of a conversation: its agent instance, model clients and MCP connections. The
//! history is in the database and outlives the live session.
//!
//! | state | input | next | effect |
//! |---|---|---|---|
//! | Uninitialised, Expired | initialised | Ready | |
//! | Ready, Active | touch | Active | activated |
//! | Active | released | Ready | |
//! | Ready, Active | expire if idle, and idle longer than the limit | Expired | expired |
//! | any but Terminated | clean up | Terminated | clean up |
//! | any | anything else | unchanged | |

mod session_table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::time::Moment;
pub use session_table::{ChangeLookup, CreateToken, SessionCleanup, SessionLookup, SessionTable};

/// State of a live session. `used` is the time of its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionState {
    Uninitialised,
    /// Has its resources, and no active run.
    Ready {
        used: Moment,
    },
    Active {
        used: Moment,
    },
    /// Was idle for too long; its next use initialises it again.
    Expired,
    /// Cleaned up, for good.
    Terminated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionInput {
    /// Every stage of its creation has succeeded.
    Initialised,
    Touched,
    /// It has no active run any more.
    Released,
    /// Nothing needs it: it expires if it has been idle for longer than `idle`.
    ExpireIfIdle {
        idle: Duration,
    },
    CleanUp,
}

/// What the engine has to do after a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionEffect {
    Activated,
    /// Report that it has expired; the clean-up follows.
    Expired,
    CleanUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionUse {
    /// Something keeps it: a run, an approval, a background process, or a turn that is not stored yet.
    InUse,
    /// It expires after this time without use.
    Idle { idle: Duration },
}

impl SessionState {
    #[must_use]
    pub fn step(self, input: SessionInput, now: Moment) -> (Self, Option<SessionEffect>) {
        match (self, input) {
            (Self::Uninitialised | Self::Expired, SessionInput::Initialised) => (Self::Ready { used: now }, None),
            (Self::Ready { .. } | Self::Active { .. }, SessionInput::Touched) => {
                (Self::Active { used: now }, Some(SessionEffect::Activated))
            }
            (Self::Active { .. }, SessionInput::Released) => (Self::Ready { used: now }, None),
            (Self::Ready { used } | Self::Active { used }, SessionInput::ExpireIfIdle { idle })
                if now.since(used) > idle =>
            {
                (Self::Expired, Some(SessionEffect::Expired))
            }
            (Self::Uninitialised | Self::Ready { .. } | Self::Active { .. } | Self::Expired, SessionInput::CleanUp) => {
                (Self::Terminated, Some(SessionEffect::CleanUp))
            }
            (
                Self::Ready { .. } | Self::Active { .. },
                SessionInput::Initialised | SessionInput::ExpireIfIdle { .. },
            )
            | (Self::Ready { .. }, SessionInput::Released)
            | (
                Self::Uninitialised | Self::Expired,
                SessionInput::Touched | SessionInput::Released | SessionInput::ExpireIfIdle { .. },
            )
            | (
                Self::Terminated,
                SessionInput::Initialised
                | SessionInput::Touched
                | SessionInput::Released
                | SessionInput::ExpireIfIdle { .. }
                | SessionInput::CleanUp,
            ) => (self, None),
        }
    }

    /// Name of the state on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Uninitialised => "uninitialised",
            Self::Ready { .. } => "ready",
            Self::Active { .. } => "active",
            Self::Expired => "expired",
            Self::Terminated => "terminated",
        }
    }

    /// Time of the last use; `None` if the session is not live.
    pub fn last_used(self) -> Option<Moment> {
        match self {
            Self::Ready { used } | Self::Active { used } => Some(used),
            Self::Uninitialised | Self::Expired | Self::Terminated => None,
        }
    }
}
