//! The integration tests of the `quell` binary and the rules of the source tree, in one test binary.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests run outside of any scope, and a failing test panics"
)]

mod a2a;
mod acp;
mod agent_abort_properties;
mod agents;
mod anthropic;
mod anthropic_api;
mod api_doc_examples;
mod approvals;
mod background_commands;
mod channels;
mod chat_terminal;
mod cli;
mod cluster;
mod coding;
mod compaction;
mod config;
mod config_reload;
mod crash_recovery;
mod cutting_relay;
mod demo;
mod dialects;
mod hooks;
mod hostile;
mod http;
mod incomplete_answers;
mod mcp;
mod mcp_server;
mod memory;
mod metrics;
mod model_fallback;
mod open_file_limit;
mod openai_chat;
mod openai_responses;
mod openapi;
mod openclaw;
mod operations;
mod page;
mod parallel_calls;
mod permissions;
mod pictures;
mod postgres;
mod processes;
mod queue_and_abort;
mod resource_limits;
mod sandbox;
mod schedules;
mod sessions;
mod shutdown;
mod skills;
mod spend_limits;
mod startup_messages;
mod stop_completion_race;
mod stop_matrix;
mod stop_notes;
mod stop_races;
mod stop_under_load;
mod sub_run_approvals;
mod subagents;
mod sweep;
mod tidy;
mod undo;
mod ws;

use quell_test_support::{prelude, test_daemon, test_engine, test_server};
