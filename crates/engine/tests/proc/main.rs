//! `proc` against real processes: whatever a command does, after its end nothing of it is alive.
#![expect(clippy::disallowed_methods, reason = "tests start what they test, and stand outside of every scope")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bench;
mod deaths;
mod ends;
mod isolation;
mod running;
mod shell;
mod stops;
