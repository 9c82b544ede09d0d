//! The official clients of A2A, unmodified: from PyPI and from npm, over JSON-RPC and REST.
//! `QUELL_SKIP_A2A_CLIENT=1` skips those in Python, `QUELL_SKIP_NODE=1` those in JavaScript.

use std::process::Stdio;

use quell_testkit::skip::is_switched_off;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::timeout;

use quell_test_support::a2a_client::pushes::{PUSH_SECRET, wait_told_states};
use quell_test_support::doc_examples::code_blocks;
use quell_test_support::hook_receiver::HookReceiver;
use quell_test_support::npm_packages::{self, NpmPackages};

use crate::cutting_relay::CuttingRelay;
use crate::prelude::*;

const MISSING_CLIENT_HELP: &str = "this test needs the client of A2A below target/tools: `cargo xtask test --full a2a` installs it, or leave it out with \
    QUELL_SKIP_A2A_CLIENT=1";
const DOC_PAGE: &str = include_str!("../../../../../docs/a2a.md");
/// How long the program may take on a busy machine.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(180);
const AGENT_THAT_ASKS: &str = "[agents.asking]\nmodel = \"scripted/m\"\napprovals = { list_files = \"ask\" }\n";

const CLIENT_PACKAGES: NpmPackages = NpmPackages {
    name: "a2a-client",
    files: &[
        ("package.json", include_str!("package.json")),
        ("package-lock.json", include_str!("package-lock.json")),
        ("client.mjs", include_str!("client.mjs")),
    ],
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum A2aClientLanguage {
    Python,
    JavaScript,
}

/// A Python that has the client; `None` where it is switched off.
fn python_command() -> Option<tokio::process::Command> {
    if is_switched_off("QUELL_SKIP_A2A_CLIENT") {
        return None;
    }
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/a2a-client/bin/python");
    assert!(python.exists(), "{MISSING_CLIENT_HELP}");
    Some(npm_packages::program_command(python.to_str().unwrap()))
}

/// The command of a client; `None` where it is switched off.
async fn client_command(language: A2aClientLanguage) -> Option<tokio::process::Command> {
    match language {
        A2aClientLanguage::Python => {
            let mut command = python_command()?;
            command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/a2a/client.py"));
            Some(command)
        }
        A2aClientLanguage::JavaScript => {
            if npm_packages::is_skipped() {
                return None;
            }
            let folder = npm_packages::install_packages(&CLIENT_PACKAGES).await;
            let mut command = npm_packages::program_command("node");
            command.arg("client.mjs").current_dir(folder);
            Some(command)
        }
    }
}

async fn token_of(daemon: &TestDaemon, name: &str, scope: &[&str]) -> String {
    let body = json!({"name": name, "scope": scope});
    daemon.api().post("/api/tokens", &body).await.expect_status(201)["token"].as_str().unwrap().to_owned()
}

/// Runs the program to its end. `on_step` hears of each step that it prints.
async fn run_client(mut command: tokio::process::Command, on_step: impl Fn(&str)) -> Result<Vec<Value>, String> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut lines, mut stderr) = (BufReader::new(child.stdout.take().unwrap()).lines(), child.stderr.take().unwrap());
    let read_steps = async {
        let mut steps = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            let step: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            on_step(step["step"].as_str().unwrap());
            steps.push(step);
        }
        steps
    };
    let read_errors = async {
        let mut text = String::new();
        stderr.read_to_string(&mut text).await.unwrap();
        text
    };
    let (steps, errors) = tokio::join!(read_steps, read_errors);
    let status = child.wait().await.unwrap();
    if status.success() { Ok(steps) } else { Err(format!("{steps:#?}\n{errors}")) }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_official_client_runs_and_stops_tasks(
    #[values(A2aClientLanguage::Python, A2aClientLanguage::JavaScript)] language: A2aClientLanguage,
    #[values("JSONRPC", "HTTP+JSON")] binding: &str,
) {
    let Some(mut command) = client_command(language).await else { return };
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), PUSH_SECRET).unwrap();
    let push = format!("[hooks]\nsecret_file = {:?}\n[tools]\nfetch_private = true\n", secret.path());
    let (model, daemon) = start_daemon(&format!("{AGENT_THAT_ASKS}{push}")).await;
    let receiver = HookReceiver::start().await;
    model.script(ScriptedResponse::text("Hello from Quell.")).script(ScriptedResponse::text("and again"));
    model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::text("after the stop"));
    model.script(ScriptedResponse::silent_mid_stream("begun")).script(gated_response("lost"));
    model.script(list_files_call()).script(ScriptedResponse::text("listed"));
    model.script(ScriptedResponse::text("pushed"));
    let relay = CuttingRelay::start(daemon.address().to_owned()).await;
    command.env("QUELL_TEST_A2A", &relay.url).env("QUELL_TEST_BINDING", binding).env("QUELL_TEST_API", daemon.url());
    command.env("QUELL_TEST_ADMIN", daemon.token()).env("QUELL_TEST_RECEIVER", receiver.url("a2a"));
    command.env("QUELL_TEST_WRITER", token_of(&daemon, "writer", &["write"]).await);
    command.env("QUELL_TEST_READER", token_of(&daemon, "reader", &["read"]).await);
    command.env("QUELL_TEST_STRANGER", token_of(&daemon, "stranger", &["write"]).await);
    command.env("QUELL_TEST_APPROVER", token_of(&daemon, "approver", &["write", "read:all", "approve"]).await);
    let on_step = |step: &str| match step {
        "streaming" => relay.cut(),
        "resubscribed" => {
            model.open_gate("lost");
        }
        _ => {}
    };
    let ended = timeout(CLIENT_TIMEOUT, run_client(command, on_step)).await.expect("the client did not end in time");
    let steps = ended.unwrap_or_else(|failed| panic!("{failed}\n{}", daemon.output()));
    check_exchange(&steps);
    check_stops(&steps);
    check_lost_connection_and_approval(&steps);
    check_refusals(&steps);
    let pushed = find_step(&steps, "push");
    assert_fields(pushed, &json!({"configs": 2, "url": receiver.url("a2a"), "left": 1}));
    let told = wait_told_states(&daemon.api(), &receiver, pushed["task"].as_str().unwrap()).await;
    assert_eq!(told.last().unwrap(), "TASK_STATE_COMPLETED", "{told:?}");
    model.wait_for_connections(0).await;
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_of_the_documentation_works_as_printed() {
    let Some(mut command) = python_command() else { return };
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::text("None at all."));
    let program = code_blocks(DOC_PAGE, "python")[0].replace("http://127.0.0.1:7171", daemon.url());
    command.arg("-c").arg(program).env("TOKEN", daemon.token());
    let output = timeout(CLIENT_TIMEOUT, command.output()).await.expect("it did not end in time").unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("task "), "{out}");
    assert_eq!(lines[1..], ["", "TASK_STATE_WORKING", "None at all.", "TASK_STATE_COMPLETED"]);
}

fn find_step<'a>(steps: &'a [Value], name: &str) -> &'a Value {
    steps.iter().find(|step| step["step"] == name).unwrap_or_else(|| panic!("no step {name}: {steps:#?}"))
}

fn check_exchange(steps: &[Value]) {
    assert_fields(find_step(steps, "card"), &json!({"name": "main", "bindings": ["JSONRPC", "HTTP+JSON"]}));
    let states = json!(["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]);
    let normal = json!({"first": "task", "states": states, "answer": "Hello from Quell."});
    assert_fields(find_step(steps, "normal"), &normal);
    let got = json!({"state": "TASK_STATE_COMPLETED", "answer": "Hello from Quell.", "history": "normal"});
    assert_fields(find_step(steps, "get"), &got);
    let blocking = json!({"state": "TASK_STATE_COMPLETED", "answer": "and again", "same_context": true});
    assert_fields(find_step(steps, "blocking"), &blocking);
    assert_fields(find_step(steps, "list"), &json!({"pages": 2, "newest_first": true, "total": 2}));
}

fn check_stops(steps: &[Value]) {
    let own = find_step(steps, "own stop");
    assert_eq!((&own["cancelled"], last_of(&own["states"])), (&json!(["TASK_STATE_CANCELED"]), "TASK_STATE_CANCELED"));
    let by = json!({"principal": "writer", "surface": "a2a"});
    let run = json!({"verdict": {"kind": "aborted", "by": by}, "receipt": {"leftovers": []}, "processes": 0});
    assert_fields(&own["run"], &run);
    assert!(own["message"].as_str().unwrap().contains("history valid"), "{own:#}");
    assert_fields(
        find_step(steps, "after the stop"),
        &json!({"state": "TASK_STATE_COMPLETED", "answer": "after the stop"}),
    );
    let other = find_step(steps, "other stop");
    assert_eq!(last_of(&other["states"]), "TASK_STATE_CANCELED");
    let by = json!({"principal": "admin", "surface": "http"});
    assert_fields(&other["run"], &json!({"verdict": {"kind": "aborted", "by": by}, "receipt": {"leftovers": []}}));
}

fn last_of(states: &Value) -> &str {
    states.as_array().and_then(|states| states.last()?.as_str()).unwrap_or_else(|| panic!("no states: {states}"))
}

fn check_lost_connection_and_approval(steps: &[Value]) {
    let lost = find_step(steps, "lost");
    assert_refused(lost);
    assert_fields(lost, &json!({"first": "task", "answer": "begun and done", "stored": "begun and done"}));
    assert_eq!(last_of(&lost["states"]), "TASK_STATE_COMPLETED");
    let approval = find_step(steps, "approval");
    assert_eq!(last_of(&approval["asked"]), "TASK_STATE_INPUT_REQUIRED");
    assert_fields(approval, &json!({"tool": "list_files", "answer": "listed"}));
    assert_eq!(last_of(&approval["states"]), "TASK_STATE_COMPLETED");
}

fn check_refusals(steps: &[Value]) {
    let stopped = json!(["TaskNotCancelableError", "TaskNotFoundError"]);
    assert_eq!(find_step(steps, "own stop")["errors"], stopped);
    let bad = json!([
        "TaskNotFoundError",
        "ContentTypeNotSupportedError",
        "TaskNotFoundError",
        "TaskNotFoundError",
        "UnsupportedOperationError",
    ]);
    assert_eq!(find_step(steps, "bad input")["errors"], bad);
    for name in ["huge body", "unknown agent", "no right"] {
        assert_refused(find_step(steps, name));
    }
}

/// The client has thrown an error.
fn assert_refused(step: &Value) {
    assert!(step["problem"].is_string() && step["problem"] != "nothing was refused", "{step:#}");
}
