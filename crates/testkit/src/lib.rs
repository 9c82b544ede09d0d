//! Scaffold for tests of Quell, from outside: a scripted model server over real HTTP, a strict checker of histories,
//! misbehaving commands, chat networks, a leak check that asks the operating system, and a real daemon to talk to.
//!
//! Nothing here shares code with what it checks: bodies are read as plain JSON, so a slip in Quell's own types cannot hide
//! itself. Helpers panic with a description where a condition does not come true; that is how a test fails.

pub mod browser;
pub mod commands;
pub mod daemon;
pub mod gateway;
pub mod history;
pub mod hostile;
pub mod leaks;
pub mod mcp;
pub mod model;
pub mod networks;
pub mod pace;
pub mod pty;
mod sse;

pub use model::{Behaviour, ScriptedModel, Step};
