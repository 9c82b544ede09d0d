//! Who may do what: delegation, file locations, token scopes.

mod delegation;
mod file_locations;
mod tokens;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::TestDaemon;
use serde_json::{Value, json};

use crate::test_server::percent_encode;

/// The configuration of the scripted provider, without any agent.
fn provider_toml(model: &ScriptedModel) -> String {
    format!("[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n", model.base_url())
}

/// Sends a message to an agent; returns the id of its run.
async fn send_message(daemon: &TestDaemon, agent: &str, text: &str) -> String {
    let path = format!("/api/sessions/{}/runs", percent_encode(&format!("with {agent}")));
    let sent = daemon.api().post(&path, &json!({"text": text, "agent": agent})).await.expect_status(202);
    sent["runId"].as_str().unwrap().to_owned()
}

/// Waits for the end of a run; returns its view.
async fn wait_ended(daemon: &TestDaemon, run: &str) -> Value {
    daemon.api().run_events(run, 0).await.read_to_end().await;
    daemon.api().get(&format!("/api/runs/{run}")).await.expect_status(200)
}
