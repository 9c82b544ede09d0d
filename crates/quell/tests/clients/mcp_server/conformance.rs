//! The conformance tests of MCP: every scenario for servers that needs no tool made for it. The others, and why they do
//! not apply, are in `docs/mcp-server.md`.

use quell_test_support::npm_packages;
use tokio::time::timeout;

use super::*;

const CONFORMANCE_TIMEOUT: Duration = Duration::from_secs(300);

const SCENARIOS: [&str; 21] = [
    "2025-11-25:server-initialize",
    "2025-11-25:server-session-lifecycle",
    "2025-11-25:ping",
    "2025-11-25:tools-list",
    "2025-11-25:resources-list",
    "2025-11-25:dns-rebinding-protection",
    "2025-11-25:server-sse-multiple-streams",
    "2025-11-25:server-sse-polling",
    "2025-06-18:server-initialize",
    "2025-06-18:tools-list",
    "2025-06-18:resources-list",
    "2026-07-28:server-stateless",
    "2026-07-28:tools-list",
    "2026-07-28:resources-list",
    "2026-07-28:sep-2164-resource-not-found",
    "2026-07-28:dns-rebinding-protection",
    "2026-07-28:server-sse-multiple-streams",
    "2026-07-28:caching",
    "2026-07-28:http-header-validation",
    "2026-07-28:input-required-result-unsupported-methods",
    "extension:tasks-dispatch-and-envelope",
];

/// Checks of these scenarios that need a tool made for the tests, or prompts.
const INAPPLICABLE: [&str; 10] = [
    "sep-2575-server-rejects-undeclared-capability",
    "sep-2575-missing-capability-http-400",
    "sep-2575-http-server-no-independent-requests-on-stream",
    "sep-2575-server-no-log-without-loglevel",
    "sep-2549-prompts-list-caching-hints",
    "tasks-server-directed-creation-no-hint",
    "sep-2663-legacy-task-param-ignored",
    "tasks-immediate-result-shortcut",
    "tasks-result-type-complete-on-non-task-responses",
    "sep-2663-durable-create-strong-consistency",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_tests_find_nothing() {
    if npm_packages::is_skipped() {
        return;
    }
    let folder = npm_packages::install_packages(&CLIENT_PACKAGES).await;
    let (_model, daemon) = start_daemon("").await;
    let mut command = npm_packages::program_command(node_path(&folder).to_str().unwrap());
    command.arg("conformance.mjs").args(SCENARIOS).current_dir(folder);
    command.env("QUELL_TEST_MCP", format!("{}/mcp", daemon.url())).env("QUELL_TEST_WRITER", daemon.token());
    let output = timeout(CONFORMANCE_TIMEOUT, command.output()).await.expect("they did not end in time").unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let results: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(results.len(), SCENARIOS.len(), "{out}\n{err}");
    let mut inapplicable = Vec::new();
    for result in &results {
        assert!(result["checks"].as_u64().unwrap() > 0, "{result:#}");
        for problem in result["problems"].as_array().unwrap() {
            let id = problem["id"].as_str().unwrap();
            assert!(INAPPLICABLE.contains(&id), "{} {problem:#}", result["scenario"]);
            inapplicable.push(id);
        }
    }
    let passed: Vec<_> = INAPPLICABLE.iter().filter(|id| !inapplicable.contains(id)).collect();
    assert!(passed.is_empty(), "these apply now: {passed:?}");
}
