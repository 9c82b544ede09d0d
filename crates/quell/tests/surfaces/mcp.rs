//! MCP servers: a misbehaving one of our own.

mod browse;
mod failures;
mod http;
mod late_answers;
mod lifetimes;
mod oauth;
mod pictures;
mod places;
mod questions;
mod shared_servers;
mod stops;
mod tool_use;

use std::ops::Deref;
use std::sync::Mutex;
use std::time::Instant;

use quell_engine::engine::build_stop_answer;
use quell_mcp::McpConfig;
use quell_protocol::Resource;
use quell_protocol::background::ProcessRow;
use quell_test_support::mcp_servers::{call_row, config_section, last_result, test_server_config};
use quell_testkit::mcp::{self, FakeMcpServer, McpFault};

use crate::prelude::*;

/// A grace for which no test waits: the server would be ended for its silence after it.
const LONG_GRACE_MS: u64 = 60_000;

/// An engine whose agents have the MCP server `test`.
struct McpFixture {
    test_engine: TestEngine,
    marker: ProcessMarker,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Deref for McpFixture {
    type Target = TestEngine;

    fn deref(&self) -> &TestEngine {
        &self.test_engine
    }
}

impl McpFixture {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts with changes to the server's configuration.
    async fn start_with(change: impl FnOnce(&mut McpConfig)) -> Self {
        let (marker, folder) = (ProcessMarker::new(), tempfile::tempdir().unwrap());
        let log = folder.path().join("log");
        let mut server = test_server_config(&marker, &log);
        change(&mut server);
        let test_engine = TestEngine::start_with(ProcessLock::shared().await, |config| {
            config.mcp.insert("test".to_owned(), server);
        })
        .await;
        Self { test_engine, marker, log, _folder: folder }
    }

    /// Starts a run whose model makes one call.
    async fn start_call(&self, session: &str, tool: &str, arguments: Value) -> RunId {
        let name = format!("test__{tool}");
        self.model.script(ScriptedResponse::tool_call(format!("call-{session}-{tool}"), name, &arguments));
        self.send(submission(session, "do it")).await
    }

    /// Starts a call, and waits until it is held and the server has received `count` calls.
    async fn start_held_call(&self, session: &str, tool: &str, arguments: Value, count: usize) -> RunId {
        let run = self.start_call(session, tool, arguments).await;
        self.wait_resource_held(&run, ResourceKind::McpCall).await;
        self.wait_messages("tools/call", count).await;
        run
    }

    /// Stops a run, which must abort it alone, and waits for its end, which leaves nothing.
    async fn stop_to_end(&self, run: &RunId) -> RunView {
        assert_eq!(self.stop(run).aborted, std::slice::from_ref(run));
        let view = self.wait_ended(run).await;
        assert!(receipt_of(&view).leftovers.is_empty() && receipt_of(&view).rung != Rung::Abandoned, "{view:#?}");
        view
    }

    /// Runs a message whose model makes one call; returns the result of the call.
    async fn call_and_answer(&self, session: &str, tool: &str) -> String {
        self.run_call(session, tool).await;
        last_result(self)
    }

    /// Runs a message whose model makes one call and then answers.
    async fn run_call(&self, session: &str, tool: &str) -> RunView {
        let call = ScriptedResponse::tool_call(format!("a-{tool}"), format!("test__{tool}"), &json!({"text": "hello"}));
        self.model.script(call).script(ScriptedResponse::text("fine"));
        let view = self.run_message(session, "do it").await;
        assert_eq!(view.output.as_deref(), Some("fine"), "{view:#?}");
        view
    }

    /// True while the call of this run is held.
    fn holds_call(&self, run: &RunId) -> bool {
        let rows = self.engine.live_run(run).unwrap().scope.ledger().rows();
        rows.iter().any(|row| row.kind == ResourceKind::McpCall && row.is_held())
    }

    /// The servers that are listed in a session.
    fn session_servers(&self, key: &str) -> Vec<ProcessRow> {
        let key = parse_session_key(key);
        self.engine.session_processes(&key).iter().filter_map(|process| process.row_of(&key)).collect()
    }

    /// Waits until the server has received `count` messages of a method.
    async fn wait_messages(&self, method: &'static str, count: usize) -> Vec<mcp::McpReceivedMessage> {
        poll_until(&format!("{count} messages of {method}"), async || {
            let found = mcp::received_messages_of(&self.log, method);
            (found.len() >= count).then_some(found)
        })
        .await
    }

    /// Waits until `count` servers are alive.
    async fn wait_servers(&self, count: usize) {
        let mcp = self.engine.mcp().clone();
        leaks::wait_for_value("servers that are alive", count, move || mcp.count_live()).await;
    }

    async fn close(self) {
        self.test_engine.close().await;
        self.marker.wait_gone(WAIT_TIMEOUT).await;
    }
}

/// Sets these variables of the test server's environment, each of which makes it misbehave.
fn set_env(server: &mut McpConfig, names: &[&str]) {
    server.env.extend(names.iter().map(|name| (String::from(*name), "1".to_owned())));
}

/// The row of the server's program in the receipt of a run.
fn server_row(view: &RunView) -> &Resource {
    let rows = &receipt_of(view).resources;
    let row = rows.iter().find(|row| row.kind == ResourceKind::Process && row.label.starts_with("MCP server test"));
    row.unwrap_or_else(|| panic!("{rows:#?}"))
}

/// The text of the last model request.
fn last_request_text(test_engine: &TestEngine) -> String {
    messages_as_text(&test_engine.last_messages())
}
