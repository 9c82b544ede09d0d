//! The engine of Quell: runs agents, tracks every resource that a run holds, and releases all of it at the end.
//!
//! Layers, of which lower ones do not depend on higher ones: `scope`, `clock` (0); `llm`, `proc`, `store`, `live_run`,
//! `approvals` (1); `tools`, `mcp`, `hooks`, `memory`, `access` (2); `agent` (3); `runs`, `session` (4); `engine`, the
//! facade of this crate (5).

pub mod access;
pub mod address;
pub mod agent;
pub mod approvals;
pub mod channel_origin;
pub mod clock;
pub mod engine;
pub mod hooks;
pub mod journal;
pub mod live_run;
pub mod llm;
pub mod mcp;
pub mod memory;
pub mod proc;
pub mod runs;
pub mod scope;
pub mod session;
pub mod store;
pub mod tools;

pub use engine::{Engine, EngineConfig};
