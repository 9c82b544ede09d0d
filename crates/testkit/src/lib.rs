//! Test support that checks Quell from outside: a scripted model server, a history validator, misbehaving commands,
//! fake chat networks, leak checks, and a real daemon.
//!
//! It shares no code with what it checks: bodies are read as plain JSON, so that an error in Quell's own types cannot
//! hide itself. Functions panic with a description when a condition does not come true; that is how a test fails.

pub mod audio;
pub mod browser;
pub mod clock_offset;
pub mod commands;
pub mod daemon;
mod external_server;
mod fake_server;
pub mod gateway_client;
pub mod history_check;
pub mod hostile;
pub mod kernel;
pub mod leaks;
pub mod mcp;
pub mod model;
pub mod nats;
pub mod network;
pub mod networks;
mod or_fail;
pub mod postgres;
mod private_server;
pub mod pty;
pub mod seed;
pub mod skip;
mod sse;
pub mod timing;

use std::time::Duration;

/// Longest wait for anything on a busy machine. It decides only how late a failing test fails.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

pub use model::{ScriptedModel, ScriptedResponse, StreamStep};
