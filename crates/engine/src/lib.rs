//! The work of Quell: it runs agents, holds what they hold, and gives all of it back.
//!
//! Ranks, lower ones know nothing of higher ones: `scope`, `clock` (0); `llm`, `proc`, `store`, `cell`, `approvals` (1);
//! `tools`, `mcp`, `hooks`, `memory`, `access` (2); `agent` (3); `runs`, `session` (4); `dispatch`, the face of this crate (5).

pub mod access;
pub mod address;
pub mod agent;
pub mod approvals;
pub mod cell;
pub mod channel;
pub mod clock;
pub mod dispatch;
pub mod hooks;
pub mod journal;
pub mod llm;
pub mod mcp;
pub mod memory;
pub mod proc;
pub mod runs;
pub mod scope;
pub mod session;
pub mod store;
pub mod tools;

pub use dispatch::{Engine, EngineConfig};
