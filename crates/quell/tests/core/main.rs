//! What runs do, and what a daemon keeps: agents, sessions, memory, limits, rights, the sandbox, the command line.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests run outside of any scope, and a failing test panics"
)]

mod agents;
mod approvals;
mod cli;
mod coding;
mod compaction;
mod config;
mod config_reload;
mod demo;
mod dialects;
mod hooks;
mod memory;
mod metrics;
mod model_fallback;
mod operations;
mod permissions;
mod pictures;
mod resource_limits;
mod sandbox;
mod schedules;
mod sessions;
mod skills;
mod spend_limits;
mod startup_messages;
mod undo;

use quell_test_support::{prelude, test_engine, test_server};
