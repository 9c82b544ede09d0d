//! The one integration test binary: the house rules, and the product from outside.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests stand outside of every scope, and a test that cannot go on panics"
)]

mod answers;
mod anthropic;
mod approvals;
mod background;
mod channels;
mod chat;
mod cli;
mod compaction;
mod config;
mod crash;
mod demo;
mod doors;
mod examples;
mod harness;
mod hooks;
mod hostile;
mod http;
mod limits;
mod matrix;
mod mcp;
mod memory;
mod metrics;
mod node;
mod open_files;
mod openapi;
mod openclaw;
mod operations;
mod page;
mod pictures;
mod processes;
mod race;
mod races;
mod reload;
mod rights;
mod rows_b;
mod rows_b10;
mod rows_e;
mod serving;
mod sessions;
mod shutdown;
mod skills;
mod society;
mod spend;
mod stop_gets_in;
mod subagents;
mod sweep;
mod tidy;
mod truth;
mod ws;
