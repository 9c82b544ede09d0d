//! The life of a live session (row C6), and the book of all of them.
//!
//! A live session is what a conversation has in memory and at its servers: its agent's instance, its model clients, its MCP
//! connections. What was said in it is in the database and lives on when this ends.
//!
//! | state | input | next | effect |
//! |---|---|---|---|
//! | Uninitialised, Expired | initialised | Ready | |
//! | Ready, Active | touch | Active | activated |
//! | Active | released | Ready | |
//! | Ready, Active | unneeded, idle for longer than its limit | Expired | expired |
//! | any but Terminated | clean up | Terminated | clean up |
//! | any | anything else | unchanged | |

mod book;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::time::Moment;
pub use book::{Birth, Book, Change, Departure, Enter};

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    /// Nothing of it is there yet.
    Uninitialised,
    /// It has what it needs, and nothing is at work in it.
    Ready {
        /// When it was used last.
        used: Moment,
    },
    /// Something is at work in it.
    Active {
        /// When it was used last.
        used: Moment,
    },
    /// Nobody used it for too long; its next use initialises it again.
    Expired,
    /// Cleaned up, for good.
    Terminated,
}

/// What can happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LifeInput {
    /// Every stage of its making has succeeded.
    Initialised,
    /// It is put to use.
    Touch,
    /// Nothing is at work in it any more.
    Released,
    /// Nothing needs it, and it may be idle for so long.
    Unneeded {
        /// The limit; exactly so long is not too long.
        idle: Duration,
    },
    /// What it has is to be given back.
    CleanUp,
}

/// What the engine has to do about a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LifeEffect {
    /// Say that it is in use.
    Activated,
    /// Say that it has expired; the clean-up follows.
    Expired,
    /// Give back what it has.
    CleanUp,
}

/// Whether a session that nobody uses may expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Something of it is alive or waits: a run, an approval, a background process, a turn that is not recorded.
    Kept,
    /// It may be idle for so long.
    Unneeded {
        /// The limit.
        idle: Duration,
    },
}

impl Life {
    /// The next state, and what is to be done about it.
    #[must_use]
    pub fn step(self, input: LifeInput, now: Moment) -> (Self, Option<LifeEffect>) {
        match (self, input) {
            (Self::Uninitialised | Self::Expired, LifeInput::Initialised) => (Self::Ready { used: now }, None),
            (Self::Ready { .. } | Self::Active { .. }, LifeInput::Touch) => {
                (Self::Active { used: now }, Some(LifeEffect::Activated))
            }
            (Self::Active { .. }, LifeInput::Released) => (Self::Ready { used: now }, None),
            (Self::Ready { used } | Self::Active { used }, LifeInput::Unneeded { idle }) if now.since(used) > idle => {
                (Self::Expired, Some(LifeEffect::Expired))
            }
            (Self::Uninitialised | Self::Ready { .. } | Self::Active { .. } | Self::Expired, LifeInput::CleanUp) => {
                (Self::Terminated, Some(LifeEffect::CleanUp))
            }
            (Self::Ready { .. } | Self::Active { .. }, LifeInput::Initialised | LifeInput::Unneeded { .. })
            | (Self::Ready { .. }, LifeInput::Released)
            | (
                Self::Uninitialised | Self::Expired,
                LifeInput::Touch | LifeInput::Released | LifeInput::Unneeded { .. },
            )
            | (
                Self::Terminated,
                LifeInput::Initialised
                | LifeInput::Touch
                | LifeInput::Released
                | LifeInput::Unneeded { .. }
                | LifeInput::CleanUp,
            ) => (self, None),
        }
    }

    /// As it is told to people and programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Uninitialised => "uninitialised",
            Self::Ready { .. } => "ready",
            Self::Active { .. } => "active",
            Self::Expired => "expired",
            Self::Terminated => "terminated",
        }
    }

    /// When it was used last, while it lives.
    #[must_use]
    pub fn used(self) -> Option<Moment> {
        match self {
            Self::Ready { used } | Self::Active { used } => Some(used),
            Self::Uninitialised | Self::Expired | Self::Terminated => None,
        }
    }
}
