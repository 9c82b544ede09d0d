//! Who may do what: delegation, file locations, token scopes.

mod api_keys;
mod delegation;
mod file_locations;
mod open_streams;
mod route_matrix;
mod tokens;

use crate::prelude::*;
use crate::test_engine::shell_call;

/// A daemon with the agent `main`, which has every tool.
struct PermissionsFixture {
    daemon: TestDaemon,
    model: ScriptedModel,
    _process_lock: ProcessLock,
}

impl PermissionsFixture {
    /// `more` continues the section of the agent.
    async fn start_with(more: &str) -> Self {
        let process_lock = ProcessLock::shared().await;
        let (model, daemon) = start_daemon(more).await;
        Self { daemon, model, _process_lock: process_lock }
    }

    /// An HTTP client with a new token.
    async fn create_token(&self, name: &str, scope: Value) -> TestApiClient {
        let body = json!({"name": name, "scope": scope});
        let made = self.daemon.api().post("/api/tokens", &body).await.expect_status(201);
        self.daemon.api().with_token(made["token"].as_str().unwrap())
    }
}

/// Sends a message to an agent; returns the id of its run.
async fn send_message(daemon: &TestDaemon, agent: &str, text: &str) -> String {
    daemon.api().start_run(&format!("with {agent}"), &json!({"text": text, "agent": agent})).await
}
