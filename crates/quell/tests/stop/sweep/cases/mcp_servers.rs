//! Places at MCP servers where a stop can find a run: a server that starts, a call that is cancelled, a call that is
//! not.

use super::*;

pub(super) fn mcp_cases() -> Vec<SweepCase> {
    let calling = |name, prepare: CaseStep| SweepCase::new(name).prepare(prepare).shows(&["Stopped while it ran"]);
    vec![
        SweepCase::new("MCP server starting")
            .agent("starting")
            .when(|case_run| wait_held(case_run, ResourceKind::McpCall).boxed()),
        SweepCase::new("MCP server by URL starting")
            .agent("reaching")
            .when(|case_run| wait_url_server_reached(case_run).boxed()),
        calling("MCP call", |case_run| script_call(case_run, "test__decline", &json!({})))
            .when(|case_run| wait_called(case_run, "test: decline").boxed()),
        calling("MCP call of a deaf server", |case_run| script_call(case_run, "test__fork", &json!({})))
            .when(|case_run| wait_deaf_call(case_run).boxed()),
        calling("MCP call of a server that answers its ping alone", |case_run| {
            script_call(case_run, "test__wait", &json!({}))
        })
        .when(|case_run| wait_called(case_run, "test: wait").boxed()),
        SweepCase::new("MCP server that has started something in the run")
            .prepare(|case_run| script_spawn_and_silence(case_run))
            .when(|case_run| wait_text(case_run).boxed()),
        calling("question of an MCP server", |case_run| script_call(case_run, "test__ask", &json!({})))
            .when(|case_run| wait_pending_approval(case_run).boxed())
            // The server may still answer the call once it hears that nobody answers its question.
            .shows(&["stopped on purpose"]),
    ]
}

fn script_spawn_and_silence<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let spawn = ScriptedResponse::tool_call("c1", "test__spawn", &json!({"text": "hello"}));
    script_model(case_run, [spawn, ScriptedResponse::silent_mid_stream("I wait")])
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

async fn wait_url_server_reached(case_run: &CaseRun<'_>) {
    wait_held(case_run, ResourceKind::McpCall).await;
    case_run.sweep.silent_mcp_server.wait_unanswered().await;
}
