//! The engine of Quell: runs agents, tracks every resource that a run holds, and releases all of it at the end.
//!
//! Layers, of which lower ones do not depend on higher ones: `journal`, `channel_origin`, `cluster`, `sealing`,
//! `webhook_delivery` (0); `live_run`, `approvals`, `access`, `hooks`, `memory`, `push`, `schedules` (1); `agent` (2); `runs` (3); `session` (4); `engine`, the facade of this crate (5).

pub mod access;
pub mod agent;
pub mod approvals;
pub mod channel_origin;
pub mod cluster;
pub mod engine;
pub mod hooks;
pub mod journal;
pub mod live_run;
pub mod memory;
pub mod push;
pub mod runs;
pub mod schedules;
mod sealing;
pub mod session;
mod webhook_delivery;

pub use engine::{Engine, EngineConfig};
