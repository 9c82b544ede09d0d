//! Places at MCP servers where a stop can find a run: a server that starts, a call that is cancelled, a call that is
//! not.

use quell_protocol::ResourceKind;
use quell_testkit::{ScriptedResponse, leaks};
use serde_json::json;

use super::super::case_run::{CaseRun, CaseStepFuture, StopMoment, SweepCase, do_nothing};
use super::script_model;
use crate::test_engine::WAIT_TIMEOUT;

pub(super) fn mcp_cases() -> Vec<SweepCase> {
    let starting = SweepCase {
        agent: "starting",
        ..SweepCase::new(
            "MCP server starting",
            do_nothing,
            StopMoment::OnCondition(|case_run| Box::pin(wait_call_held(case_run))),
        )
    };
    let reaching = SweepCase {
        agent: "reaching",
        ..SweepCase::new(
            "MCP server by URL starting",
            do_nothing,
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
        let held = rows.iter().any(|row| row.label == label && row.is_held());
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
