//! Stops, and whatever works against them: every point of a run, every state, crashes, processes that resist, load.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests run outside of any scope, and a failing test panics"
)]

mod agent_abort_properties;
mod background_commands;
mod crash_recovery;
mod hostile;
mod incomplete_answers;
mod open_file_limit;
mod parallel_calls;
mod processes;
mod queue_and_abort;
mod shutdown;
mod stop_completion_race;
mod stop_matrix;
mod stop_notes;
mod stop_races;
mod stop_under_load;
mod sub_run_approvals;
mod subagents;
mod sweep;

use quell_test_support::{prelude, test_engine, test_server};
