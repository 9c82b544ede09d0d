//! The official clients of MCP, unmodified: from PyPI and from npm, over HTTP and on standard input and output, in both
//! generations of the protocol. `QUELL_SKIP_MCP_CLIENT=1` skips those in Python, `QUELL_SKIP_NODE=1` those in Node.

use quell_test_support::npm_packages;
use quell_testkit::skip::is_switched_off;
use tokio::time::timeout;

use super::*;
use crate::cutting_relay::CuttingRelay;

const MISSING_CLIENT_HELP: &str = "this test needs the client of MCP below target/tools: `cargo xtask test --full mcp` installs it, or leave it out with \
    QUELL_SKIP_MCP_CLIENT=1";
/// How long the program may take on a busy machine.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(180);
const TOOLS: [&str; 9] =
    ["hold", "lift_hold", "list_agents", "list_runs", "run_agent", "stop_all", "stop_run", "stop_session", "watch_run"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum McpClientLanguage {
    Python,
    JavaScript,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum McpClientTransport {
    Http,
    Stdio,
}

/// The command of a client; `None` where it is switched off.
async fn client_command(language: McpClientLanguage) -> Option<tokio::process::Command> {
    match language {
        McpClientLanguage::Python => {
            if is_switched_off("QUELL_SKIP_MCP_CLIENT") {
                return None;
            }
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let python = root.join("../../target/tools/mcp-client/bin/python");
            assert!(python.exists(), "{MISSING_CLIENT_HELP}");
            let mut command = npm_packages::program_command(python.to_str().unwrap());
            command.arg(root.join("tests/clients/mcp_server/client.py"));
            Some(command)
        }
        McpClientLanguage::JavaScript => {
            if npm_packages::is_skipped() {
                return None;
            }
            let folder = npm_packages::install_packages(&CLIENT_PACKAGES).await;
            let mut command = npm_packages::program_command(node_path(&folder).to_str().unwrap());
            command.arg("client.mjs").current_dir(folder);
            Some(command)
        }
    }
}

async fn token_of(daemon: &TestDaemon, name: &str, scope: &str) -> String {
    let body = json!({"name": name, "scope": [scope]});
    daemon.api().post("/api/tokens", &body).await.expect_status(201)["token"].as_str().unwrap().to_owned()
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_official_client_runs_and_stops_agents(
    #[values(McpClientLanguage::Python, McpClientLanguage::JavaScript)] language: McpClientLanguage,
    #[values(McpClientTransport::Http, McpClientTransport::Stdio)] transport: McpClientTransport,
    #[values("legacy", STATELESS)] mode: &str,
) {
    let Some(mut command) = client_command(language).await else { return };
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::text("Hello from Quell."));
    model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::silent_mid_stream("begun"));
    model.script(gated_response("lost"));
    let relay = CuttingRelay::start(daemon.address().to_owned()).await;
    let endpoint = match transport {
        McpClientTransport::Http => format!("{}/mcp", relay.url),
        McpClientTransport::Stdio => quell_exe().display().to_string(),
    };
    command.env("QUELL_TEST_MCP", endpoint).env("QUELL_TEST_MODE", mode).env("QUELL_TEST_API", daemon.url());
    command.env("QUELL_TEST_ADMIN", daemon.token());
    command.env("QUELL_TEST_WRITER", token_of(&daemon, "writer", "write").await);
    command.env("QUELL_TEST_READER", token_of(&daemon, "reader", "read").await);
    let cut = async {
        if transport == McpClientTransport::Http {
            model.wait_for_requests(4).await[3].wait_paused().await;
            relay.cut();
            if mode == "legacy" {
                // The run goes on without its client, which comes back for the rest.
                model.open_gate("lost");
            }
        }
    };
    let (ended, ()) = tokio::join!(timeout(CLIENT_TIMEOUT, command.output()), cut);
    let output = ended.expect("the client did not end in time").unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}\n{}", daemon.output());
    let steps: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    check_steps(&steps, mode);
    // The one in JavaScript drops progress that it reads together with the answer.
    if language == McpClientLanguage::Python {
        assert!(!find_step(&steps, "normal")["progress"].as_array().unwrap().is_empty(), "{steps:#?}");
    }
    check_lost(&steps, transport, mode);
    if (transport, mode) != (McpClientTransport::Http, "legacy") {
        let runs = daemon.api().get("/api/runs").await.expect_status(200);
        let lost = runs["items"].as_array().unwrap().iter().find(|run| run["text"] == "lost").unwrap();
        let view = daemon.api().wait_ended(lost["runId"].as_str().unwrap()).await;
        assert_fields(&view, &json!({"verdict": {"kind": "aborted", "reason": "disconnect"}, "surface": "mcp"}));
    }
    model.wait_for_connections(0).await;
    model.assert_histories_valid();
}

fn find_step<'a>(steps: &'a [Value], name: &str) -> &'a Value {
    steps.iter().find(|step| step["step"] == name).unwrap_or_else(|| panic!("no step {name}: {steps:#?}"))
}

fn check_steps(steps: &[Value], mode: &str) {
    let version = if mode == "legacy" { "2025-11-25" } else { mode };
    assert_fields(find_step(steps, "hello"), &json!({"version": version, "tools": TOOLS}));
    let normal = find_step(steps, "normal");
    let run = json!({"state": "ended", "verdict": {"kind": "completed"}, "receipt": {"leftovers": []}});
    assert_fields(normal, &json!({"text": "Hello from Quell.", "error": false, "run": run}));
    let progress: Vec<f64> =
        normal["progress"].as_array().unwrap().iter().map(|update| update[0].as_f64().unwrap()).collect();
    assert!(progress.is_sorted_by(|one, next| one < next), "{progress:?}");
    let resources = find_step(steps, "resources");
    assert_eq!((&resources["receipt"], &resources["history"]), (&normal["run"]["runId"], &json!(2)), "{resources:#}");
    // The history of the session; a client that reads all pages gets the receipt, too.
    let history = format!("quell://sessions/{}/history", percent_encode(normal["run"]["sessionKey"].as_str().unwrap()));
    assert_eq!(resources["listed"][0], json!(history), "{resources:#}");
    let own = find_step(steps, "own stop");
    assert_fields(
        own,
        &json!({"run": {"verdict": {"kind": "aborted", "by": {"principal": "writer", "surface": "mcp"}}}}),
    );
    assert_eq!(own["run"]["receipt"]["leftovers"], json!([]), "{own:#}");
    let other = find_step(steps, "other stop");
    let verdict = json!({"kind": "aborted", "reason": "user", "by": {"principal": "admin", "surface": "http"}});
    assert_fields(other, &json!({"error": true, "run": {"verdict": verdict, "receipt": {"leftovers": []}}}));
    assert!(other["text"].as_str().unwrap().contains("the run was stopped by admin"), "{other:#}");
    let codes = json!({"no_such_tool": [-32602], "run_agent": [-32602, -32602]});
    let bad = json!({"codes": codes, "unknown_agent": [true, "agent_not_found"]});
    assert_fields(find_step(steps, "bad input"), &bad);
    assert_fields(find_step(steps, "no right"), &json!({"code": 403, "data": {"code": "forbidden"}}));
}

/// With a session over HTTP the client gets the answer after the cut. Else the cut has stopped the run.
fn check_lost(steps: &[Value], transport: McpClientTransport, mode: &str) {
    let lost = find_step(steps, "lost");
    match (transport, mode) {
        (McpClientTransport::Http, "legacy") => assert_eq!(lost["text"], "begun and done", "{lost:#}"),
        (McpClientTransport::Http, _) => assert!(lost["problem"].is_string(), "{lost:#}"),
        (McpClientTransport::Stdio, _) => assert_eq!(lost["run"]["verdict"]["kind"], "aborted", "{lost:#}"),
    }
}
