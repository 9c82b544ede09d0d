//! Tests of this crate with real processes: after the end of a command no process of it is alive.
#![expect(clippy::disallowed_methods, reason = "tests start processes and tasks outside of any scope")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod exits;
mod fixture;
mod isolation;
mod killed_wardens;
mod lifetime_limit;
mod running;
mod sandbox;
mod stops;
mod timing;
