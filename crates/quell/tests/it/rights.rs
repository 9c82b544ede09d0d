//! Who may do what: what a run may start, where agents may work, and what a token may ask for.

mod delegation;
mod places;
mod tokens;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::Daemon;
use serde_json::{Value, json};

use crate::doors::escape;

/// A provider, without any agent.
fn provider(model: &ScriptedModel) -> String {
    format!("[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n", model.base_url())
}

/// Sends a message to an agent and answers its run.
async fn send(daemon: &Daemon, agent: &str, text: &str) -> String {
    let path = format!("/api/sessions/{}/runs", escape(&format!("with {agent}")));
    let sent = daemon.http().post(&path, &json!({"text": text, "agent": agent})).await.expect_status(202);
    sent["runId"].as_str().unwrap().to_owned()
}

/// The view of a run that is over.
async fn over(daemon: &Daemon, run: &str) -> Value {
    daemon.http().events(run, 0).await.to_end().await;
    daemon.http().get(&format!("/api/runs/{run}")).await.expect_status(200)
}
