//! The rules of Quell. Everything here is a pure function of its arguments: no clock, no IO, no async, no randomness, no
//! logging. Time comes in as a [`Moment`], and what is to be done goes out as values that the engine carries out.

pub mod approval;
pub mod channel;
pub mod expiry;
pub mod journal;
pub mod json;
pub mod memory;
pub mod picture;
pub mod printed;
pub mod queue;
pub mod registry;
pub mod retry;
pub mod rights;
pub mod routing;
pub mod run;
pub mod session;
pub mod skill;
pub mod society;
pub mod spend;
pub mod stop_text;
pub mod time;
pub mod turn;
pub mod view;

pub use registry::{Bounds, Registry, StopScope, Who};
pub use run::{Debts, Effect, Input, Outcome, Push, RunState};
pub use time::{Moment, StopTimes};
pub use turn::{Turn, TurnDraft};
