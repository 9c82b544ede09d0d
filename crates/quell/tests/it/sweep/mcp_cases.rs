//! Places at MCP servers where a stop can find a run: a server that starts, a call that is cancelled, a call that is
//! not.

use quell_mcp::McpConfig;
use quell_protocol::ResourceKind;
use quell_testkit::mcp::FakeMcpServer;
use quell_testkit::{ScriptedResponse, leaks, mcp};
use serde_json::json;

use super::case_run::CaseRun;
use super::cases::{CaseStepFuture, StopMoment, SweepCase, script_model};
use crate::test_engine::WAIT_TIMEOUT;

/// MCP servers of the sweep: one that works, and two that never answer the initialisation, as a process and by URL. No
/// server stays after a run.
pub(super) fn mcp_servers(silent: &FakeMcpServer) -> Vec<(String, McpConfig)> {
    let server = || McpConfig {
        command: Some("sh".to_owned()),
        args: vec!["-c".to_owned(), mcp::SERVER_SCRIPT.to_owned()],
        idle_s: Some(0),
        grace_ms: Some(100),
        ..McpConfig::default()
    };
    let mut mute = server();
    mute.env.insert("MCP_MUTE".to_owned(), "1".to_owned());
    let silent_url = McpConfig { url: Some(silent.url()), ..McpConfig::default() };
    vec![("test".to_owned(), server()), ("mute".to_owned(), mute), ("far".to_owned(), silent_url)]
}

pub(super) fn mcp_cases() -> Vec<SweepCase> {
    let starting = SweepCase {
        agent: "starting",
        ..SweepCase::new(
            "MCP server starting",
            |_| Box::pin(async {}),
            StopMoment::OnCondition(|case_run| Box::pin(wait_call_held(case_run))),
        )
    };
    let reaching = SweepCase {
        agent: "reaching",
        ..SweepCase::new(
            "MCP server by URL starting",
            |_| Box::pin(async {}),
            StopMoment::OnCondition(|case_run| Box::pin(wait_url_server_reached(case_run))),
        )
    };
    let calling = SweepCase {
        visible_next: &["Stopped while it ran"],
        ..SweepCase::new(
            "MCP call",
            |case_run| script_call(case_run, "test__decline"),
            StopMoment::OnCondition(|case_run| Box::pin(wait_called(case_run, "test: decline"))),
        )
    };
    let deaf = SweepCase {
        visible_next: &["Stopped while it ran"],
        ..SweepCase::new(
            "MCP call of a deaf server",
            |case_run| script_call(case_run, "test__fork"),
            StopMoment::OnCondition(|case_run| Box::pin(wait_deaf_call(case_run))),
        )
    };
    let silent = SweepCase {
        visible_next: &["Stopped while it ran"],
        ..SweepCase::new(
            "MCP call of a server that answers its ping alone",
            |case_run| script_call(case_run, "test__wait"),
            StopMoment::OnCondition(|case_run| Box::pin(wait_called(case_run, "test: wait"))),
        )
    };
    vec![starting, reaching, calling, deaf, silent]
}

fn script_call<'a>(case_run: &'a CaseRun<'a>, tool: &str) -> CaseStepFuture<'a> {
    script_model(case_run, [ScriptedResponse::tool_call("c1", tool, &json!({}))])
}

/// Waits until the call itself was sent; its server is running by then.
async fn wait_called(case_run: &CaseRun<'_>, label: &'static str) {
    let (engine, run) = (case_run.sweep.test_engine.engine.clone(), case_run.run.clone());
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let rows = engine.live_run(&run).map(|live_run| live_run.scope.ledger().rows()).unwrap_or_default();
        let held = rows.iter().any(|row| row.label == label && row.released.is_none());
        if held { Ok(()) } else { Err(format!("{rows:#?}")) }
    })
    .await;
}

async fn wait_deaf_call(case_run: &CaseRun<'_>) {
    wait_called(case_run, "test: fork").await;
    case_run.sweep.test_engine.wait_printed(&case_run.run, "progress").await;
}

/// Waits until the server has the request.
async fn wait_url_server_reached(case_run: &CaseRun<'_>) {
    wait_call_held(case_run).await;
    case_run.sweep.silent_mcp_server.wait_unanswered().await;
}

async fn wait_call_held(case_run: &CaseRun<'_>) {
    case_run.sweep.test_engine.wait_resource_held(&case_run.run, ResourceKind::McpCall).await;
}
