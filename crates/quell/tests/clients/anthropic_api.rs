//! The Messages API, with Anthropic's own clients, unmodified: `anthropic` from PyPI and `@anthropic-ai/sdk` from npm.
//! `QUELL_SKIP_MODEL_CLIENTS=1` and `QUELL_SKIP_NODE=1` skip the tests, with a message.

use std::process::Stdio;

use quell_test_support::doc_examples::code_blocks;
use quell_test_support::npm_packages::{self, NpmPackages};
use quell_test_support::test_daemon::start_daemon_with_dialects;
use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::history_check::corpus::ModelDialect::{Anthropic, Gemini, OpenAi, OpenAiResponses};
use quell_testkit::skip::is_switched_off;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use crate::dialects::official_clients::model_client_python;
use crate::prelude::*;

const PACKAGES: NpmPackages = NpmPackages {
    name: "anthropic-clients",
    files: &[
        ("package.json", include_str!("anthropic_api/clients/package.json")),
        ("package-lock.json", include_str!("anthropic_api/clients/package-lock.json")),
    ],
};

/// How long a program may take for one line on a busy machine; most of it is the import.
const LINE_TIMEOUT: Duration = Duration::from_secs(120);

/// One of Anthropic's own clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnthropicSdk {
    Python,
    Node,
}

use AnthropicSdk::{Node, Python};

/// A program with a client, which prints one JSON object a line.
struct ClientProgram {
    _process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// A daemon with an agent and a provider of each dialect, all on one scripted model.
struct ApiFixture {
    model: ScriptedModel,
    daemon: TestDaemon,
}

impl AnthropicSdk {
    fn is_skipped(self) -> bool {
        match self {
            Python => is_switched_off("QUELL_SKIP_MODEL_CLIENTS"),
            Node => npm_packages::is_skipped(),
        }
    }
}

impl ApiFixture {
    async fn start() -> Self {
        let (model, daemon) = start_daemon_with_dialects().await;
        Self { model, daemon }
    }

    async fn run_program(&self, client: AnthropicSdk, task: &str, model: &str) -> ClientProgram {
        let mut command = match client {
            Python => {
                let mut command = npm_packages::program_command(model_client_python().to_str().unwrap());
                command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/anthropic_api/client.py"));
                command
            }
            Node => {
                let packages = npm_packages::install_packages(&PACKAGES).await;
                let node = format!("node-linux-{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" });
                let node = packages.join("node_modules").join(node).join("bin/node");
                let mut command = npm_packages::program_command(node.to_str().unwrap());
                command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/anthropic_api/client.mjs"));
                command.env("CLIENT_PACKAGES", packages);
                command
            }
        };
        command.args([task, self.daemon.url(), self.daemon.token(), model]);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        ClientProgram { _process: process, lines }
    }

    /// Waits for the end of a run, and checks that it was stopped by its client.
    async fn assert_stopped(&self, run: &str, reason: &str) {
        let view = self.daemon.api().wait_ended(run).await;
        assert_fields(&view["verdict"], &json!({"kind": "aborted", "reason": reason}));
        assert!(view["receipt"].is_object(), "{view:#}");
    }
}

impl ClientProgram {
    /// The next line; `None` at the end of the program.
    async fn next(&mut self) -> Option<Value> {
        let line = timeout(LINE_TIMEOUT, self.lines.next_line()).await.expect("the program said nothing in time");
        Some(serde_json::from_str(&line.unwrap()?).unwrap())
    }

    async fn expect(&mut self, fields: Value) -> Value {
        let line = self.next().await.expect("the program ended early; its errors are above");
        assert_fields(&line, &fields);
        line
    }

    /// The id of the run that the program named.
    async fn run_id(&mut self) -> String {
        self.next().await.unwrap()["run"].as_str().unwrap().to_owned()
    }

    async fn expect_end(mut self) {
        assert_eq!(self.next().await, None);
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_arrives_whole_and_as_a_stream(
    #[values(Python, Node)] client: AnthropicSdk,
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect,
) {
    if client.is_skipped() {
        return;
    }
    let fixture = ApiFixture::start().await;
    fixture.model.script(ScriptedStream::new().thinking("A greeting.").text("Hel").text("lo!").cached_tokens(4));
    fixture.model.script(ScriptedStream::new().thinking("Again.").text("Hel").text("lo ü!"));
    let model = format!("{}/m", dialect.kind());
    let mut program = fixture.run_program(client, "exchange", &model).await;
    program.expect(json!({"text": "Hello!", "stop": "end_turn", "usage": [6, 4, 5], "model": model})).await;
    program.expect(json!({"text": "Hello ü!", "stop": "end_turn", "sequence": null, "usage": [10, 0, 5]})).await;
    program.expect_end().await;
    let requests = fixture.model.recorded_requests();
    assert_eq!((requests[0].dialect, requests[0].last_user_text.as_str()), (dialect, "what is there?"));
    assert!(requests[0].body.to_string().contains("Be brief."), "{:#}", requests[0].body);
    fixture.model.assert_histories_valid();
}

/// The reasoning goes to the client and comes back; the scripted model refuses it if it is changed.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_of_the_client_are_called_over_two_requests(
    #[values(Python, Node)] client: AnthropicSdk,
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect,
) {
    if client.is_skipped() {
        return;
    }
    let fixture = ApiFixture::start().await;
    let look = ScriptedStream::new().thinking("I had better look.").text("I look.");
    let look = look.tool_call("call_1", "look", &json!({"at": "ü"}));
    fixture.model.script(look.tool_call("call_2", "look", &json!({})));
    fixture.model.script(ScriptedStream::new().text("Two files."));
    let mut program = fixture.run_program(client, "tools", &format!("{}/m", dialect.kind())).await;
    let kinds = match dialect {
        // The signature of a call is a block of its own.
        Gemini => json!(["thinking", "text", "thinking", "tool_use", "tool_use"]),
        OpenAi | OpenAiResponses | Anthropic => json!(["thinking", "text", "tool_use", "tool_use"]),
    };
    program.expect(json!({"kinds": kinds, "stop": "tool_use", "calls": [["look", {"at": "ü"}], ["look", {}]]})).await;
    program.expect(json!({"text": "Two files.", "stop": "end_turn"})).await;
    program.expect_end().await;
    let sent = messages_as_text(fixture.model.recorded_requests()[1].messages());
    assert!(sent.contains("a file 0") && sent.contains("a file 1"), "{sent}");
    assert!(sent.contains("I had better look.") || sent.contains("encrypted") || sent.contains("ignature"), "{sent}");
    fixture.model.assert_histories_valid();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_answers_and_sees_an_image(#[values(Python, Node)] client: AnthropicSdk) {
    if client.is_skipped() {
        return;
    }
    let fixture = ApiFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("A dot."));
    let mut program = fixture.run_program(client, "images", "anthropic/m").await;
    program.expect(json!({"text": "A dot."})).await;
    program.expect_end().await;
    let body = fixture.model.recorded_requests()[0].body.to_string();
    assert!(body.contains("iVBORw0KGgo="), "{body}");
    fixture.model.script(ScriptedStream::new().text("Files."));
    fixture.model.script(ScriptedStream::new().text("Many files."));
    let mut program = fixture.run_program(client, "exchange", "agent/main").await;
    program.expect(json!({"text": "Files.", "stop": "end_turn", "model": "agent/main"})).await;
    program.expect(json!({"text": "Many files.", "stop": "end_turn"})).await;
    program.expect_end().await;
    fixture.model.assert_histories_valid();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_its_stream_stops_the_run(#[values(Python, Node)] client: AnthropicSdk) {
    if client.is_skipped() {
        return;
    }
    let fixture = ApiFixture::start().await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("Hel"));
    fixture.model.script(ScriptedResponse::text("Hello again."));
    let mut program = fixture.run_program(client, "client_stop", "anthropic/m").await;
    let run = program.run_id().await;
    program.expect(json!({"text": "Hel"})).await;
    fixture.model.request_at(0).wait_client_left().await;
    fixture.assert_stopped(&run, "disconnect").await;
    program.expect(json!({"text": "Hello again."})).await;
    program.expect_end().await;
    fixture.model.assert_histories_valid();
}

/// Both clients raise an error for the `error` event, with the text so far; without it they take the text for an answer.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_told_that_somebody_else_stopped_the_run(#[values(Python, Node)] client: AnthropicSdk) {
    if client.is_skipped() {
        return;
    }
    let fixture = ApiFixture::start().await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("Hel"));
    let mut program = fixture.run_program(client, "read_to_end", "anthropic/m").await;
    let run = program.run_id().await;
    program.expect(json!({"piece": "Hel"})).await;
    fixture.daemon.api().stop_run(&run).await;
    fixture.model.request_at(0).wait_client_left().await;
    fixture.assert_stopped(&run, "user").await;
    let seen = program.next().await.unwrap();
    assert!(seen["text"] == "Hel" && seen["error"].as_str().is_some_and(|error| error.ends_with("Error")), "{seen:#}");
    let message = seen["body"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("stopped by") && seen["body"]["error"]["type"].is_string(), "{seen:#}");
    program.expect_end().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_stops_the_run(#[values(Python, Node)] client: AnthropicSdk) {
    if client.is_skipped() {
        return;
    }
    let fixture = ApiFixture::start().await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("Hel"));
    let mut program = fixture.run_program(client, "lost", "anthropic/m").await;
    let run = program.run_id().await;
    program.expect(json!({"text": "Hel"})).await;
    program.expect_end().await;
    fixture.model.request_at(0).wait_client_left().await;
    fixture.assert_stopped(&run, "disconnect").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_raises_the_errors_of_the_client(#[values(Python, Node)] client: AnthropicSdk) {
    if client.is_skipped() {
        return;
    }
    let fixture = ApiFixture::start().await;
    let mut program = fixture.run_program(client, "refused", "anthropic/m").await;
    let refusals = [
        ("NotFoundError", 404, "not_found_error", "nobody/x"),
        ("NotFoundError", 404, "not_found_error", "nobody"),
        ("BadRequestError", 400, "invalid_request_error", "messages: at least one message"),
        ("BadRequestError", 400, "invalid_request_error", "messages.0.content.0.type: documents"),
        ("BadRequestError", 400, "invalid_request_error", "top_k: not supported"),
        ("BadRequestError", 400, "invalid_request_error", "colour: there is no such field"),
        ("BadRequestError", 400, "invalid_request_error", "max_tokens: expected a positive integer"),
        ("AuthenticationError", 401, "authentication_error", ""),
        ("NotFoundError", 404, "not_found_error", "nobody/x"),
    ];
    for (class, status, kind, text) in refusals {
        let seen = program.expect(json!({"class": class, "status": status, "type": kind})).await;
        assert!(seen["message"].as_str().unwrap().contains(text), "{seen:#}");
    }
    program.expect_end().await;
    assert_eq!(fixture.model.request_count(), 0, "nothing was sent to the provider");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_estimated_and_models_are_listed(#[values(Python, Node)] client: AnthropicSdk) {
    if client.is_skipped() {
        return;
    }
    let fixture = ApiFixture::start().await;
    let mut program = fixture.run_program(client, "count", "scripted/m").await;
    let tokens = program.next().await.unwrap()["tokens"].as_u64().unwrap();
    assert!((20..200).contains(&tokens), "{tokens}");
    program.expect(json!({"models": ["agent/main", "scripted/m"]})).await;
    program.expect(json!({"model": "scripted/m"})).await;
    program.expect_end().await;
    assert_eq!(fixture.model.request_count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_of_the_page_runs_as_printed() {
    if Python.is_skipped() {
        return;
    }
    let fixture = ApiFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("Two ").text("files."));
    let [program] = code_blocks(include_str!("../../../../docs/anthropic.md"), "python")[..] else { panic!() };
    let mut python = npm_packages::program_command(model_client_python().to_str().unwrap());
    python.args(["-c", program]);
    python.env("QUELL_URL", fixture.daemon.url()).env("QUELL_TOKEN", fixture.daemon.token());
    let output = timeout(LINE_TIMEOUT, python.output()).await.expect("the program did not end in time").unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "Two files.", "{err}");
    fixture.model.assert_histories_valid();
}
