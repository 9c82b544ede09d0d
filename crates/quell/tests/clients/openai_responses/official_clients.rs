//! The same with OpenAI's own clients for Python and JavaScript, and with its agents library.
//!
//! `QUELL_SKIP_MODEL_CLIENTS=1` skips those in Python, `QUELL_SKIP_NODE=1` those in JavaScript, with a message.

use quell_test_support::npm_packages::{self, NpmPackages};

use crate::dialects::official_clients::{are_skipped, run_model_client};

use crate::prelude::*;

const NODE_PACKAGES: NpmPackages = NpmPackages {
    name: "openai-client",
    files: &[
        ("package.json", include_str!("package.json")),
        ("package-lock.json", include_str!("package-lock.json")),
        ("openai_responses.mjs", include_str!("official_client.mjs")),
        ("openai_chat.mjs", include_str!("../openai_chat/official_client.mjs")),
    ],
};
/// How long a program may take on a busy machine.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy)]
pub(crate) enum OfficialClient {
    Python,
    Node,
}

impl OfficialClient {
    pub(crate) fn is_skipped(self) -> bool {
        match self {
            Self::Python => are_skipped(),
            Self::Node => npm_packages::is_skipped(),
        }
    }

    /// Runs a task of its program in this folder of tests, and returns what it printed as JSON.
    pub(crate) async fn run(self, folder: &str, task: &str, server: &TestServer) -> Value {
        let address = format!("http://{}", server.address);
        let arguments = [task, &address, &server.token];
        match self {
            Self::Python => run_model_client(&format!("{folder}/official_client.py"), &arguments).await,
            Self::Node => run_node(&format!("{folder}.mjs"), &arguments).await,
        }
    }
}

async fn run_node(program: &str, arguments: &[&str]) -> Value {
    let folder = npm_packages::install_packages(&NODE_PACKAGES).await;
    // The client needs Node 22; that of the machine may be older.
    let node = format!("node-linux-{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" });
    let node = folder.join("node_modules").join(node).join("bin/node");
    let mut node = npm_packages::program_command(node.to_str().unwrap());
    node.arg(program).args(arguments).current_dir(folder);
    let output = tokio::time::timeout(CLIENT_TIMEOUT, node.output()).await;
    let output = output.expect("the program did not end in time").unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(printed.lines().last().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {printed}"))
}

use OfficialClient::{Node, Python};

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_creates_continues_and_reads_again(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::tool_call("call_1", "look", &json!({"at": "Bern"})));
    server.model.script(ScriptedStream::new().thinking("hm").text("A ").text("cat."));
    server.model.script(ScriptedResponse::text("in a conversation"));
    let seen = client.run("openai_responses", "create", &server).await;
    let expected = json!({
        "call": ["look", {"at": "Bern"}], "streamed": "A cat.", "final": "A cat.", "thinking": "hm",
        "retrieved": "A cat.", "inputs": ["function_call_output"], "conversation": "in a conversation",
        "items": ["message", "message"], "counted": true, "deleted": "not_found",
    });
    assert_eq!(seen, expected);
    server.model.assert_histories_valid();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_stops_by_closing_its_stream(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::text("next"));
    assert_eq!(client.run("openai_responses", "leave", &server).await, json!({"next": "next", "stopped": "cancelled"}));
    server.model.request_at(0).wait_client_left().await;
    let runs = server.http.get("/api/runs").await.expect_status(200);
    let first = runs["items"].as_array().unwrap().last().unwrap()["runId"].as_str().unwrap().to_owned();
    let view = server.wait_ended(&first).await;
    assert_fields(&view["receipt"], &json!({"verdict": {"kind": "aborted", "reason": "disconnect"}, "leftovers": []}));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_sees_the_end_that_somebody_else_made(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let seen = client.run("openai_responses", "stopped", &server).await;
    assert_eq!(seen, json!({"text": "begun", "last": "response.incomplete", "status": "cancelled"}));
    assert_eq!(server.model.request_count(), 1, "it was repeated");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_polls_and_cancels_in_the_background(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done")).script(ScriptedResponse::silent_mid_stream("begun"));
    let seen = client.run("openai_responses", "background", &server).await;
    assert_eq!(seen, json!({"polled": "done", "cancelled": ["cancelled", "cancelled"], "foreground": 400}));
    server.model.request_at(1).wait_client_left().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_resumes_after_a_lost_connection(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedStream::new().text("one ").wait_for_gate("more").text("two"));
    // The client asks again once it has resumed.
    server.model.script(ScriptedResponse::text("resumed"));
    let (seen, ()) = tokio::join!(client.run("openai_responses", "resume", &server), async {
        server.model.request_at(1).wait_arrived().await;
        server.model.open_gate("more");
    });
    assert_eq!(seen, json!({"text": "one two", "gap": 0, "last": "response.completed", "again": true}));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_knows_every_error(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    let seen = client.run("openai_responses", "errors", &server).await;
    let expected = json!({
        "model": ["NotFoundError", "model_not_found", null],
        "field": ["BadRequestError", "invalid_request", "tools[0].type"],
        "previous": ["NotFoundError", "not_found", "previous_response_id"],
        "response": ["NotFoundError", "not_found", null],
        "key": ["AuthenticationError", "invalid_api_key", null],
    });
    assert_eq!(seen, expected);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agents_library_runs_its_tools_and_stops(#[values("responses", "chat")] api: &str) {
    if are_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::tool_call("call_1", "look", &json!({"at": "Bern"})));
    server.model.script(ScriptedResponse::text("A cat.")).script(ScriptedResponse::silent_mid_stream("begun"));
    server.model.script(ScriptedResponse::text("next"));
    let address = format!("http://{}", server.address);
    let arguments = [api, &address, &server.token];
    let seen = run_model_client("openai_responses/agents_client.py", &arguments).await;
    assert_eq!(seen, json!({"looked": ["Bern"], "answer": "A cat.", "begun": "begun", "next": "next"}));
    server.model.request_at(2).wait_client_left().await;
    server.model.assert_histories_valid();
}
