//! Who may do what: delegation, file locations, token scopes.

mod delegation;
mod file_locations;
mod tokens;

use quell_testkit::daemon::TestDaemon;
use serde_json::json;

/// Sends a message to an agent; returns the id of its run.
async fn send_message(daemon: &TestDaemon, agent: &str, text: &str) -> String {
    daemon.api().start_run(&format!("with {agent}"), &json!({"text": text, "agent": agent})).await
}
