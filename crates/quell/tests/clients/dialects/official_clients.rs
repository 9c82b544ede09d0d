//! The scripted model is a server that the official Python clients accept, so that what the dialects are tested with is
//! the real format. `QUELL_SKIP_MODEL_CLIENTS=1` skips the tests, with a message.
//!
//! `cargo xtask test --full` installs `openai`, `anthropic` and `google-genai` below `target/`.

use quell_test_support::npm_packages;
use quell_test_support::test_engine::reasoning_mark;
use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::history_check::corpus::ModelDialect::{Anthropic, Gemini, OpenAi, OpenAiResponses};
use quell_testkit::skip::is_switched_off;
use tokio::time::timeout;

use crate::prelude::*;

const MISSING_CLIENTS_HELP: &str = "this test needs the clients of model providers below target/tools: `cargo xtask test --full official_clients` installs \
    them, or leave it out with QUELL_SKIP_MODEL_CLIENTS=1";
/// How long the program may take on a busy machine; most of it is the import.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the program with a client, named by its kind, against the scripted model, and returns what it printed as JSON.
async fn run_client(task: &str, model: &ScriptedModel) -> Value {
    run_model_client("dialects/official_clients.py", &[task, &format!("http://{}", model.address())]).await
}

/// True when tests that need the clients of model providers are to be skipped.
pub(crate) fn are_skipped() -> bool {
    is_switched_off("QUELL_SKIP_MODEL_CLIENTS")
}

/// The Python of the environment with the clients of model providers.
pub(crate) fn model_client_python() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/model-clients/bin/python");
    assert!(python.exists(), "{MISSING_CLIENTS_HELP}");
    python
}

/// Runs a Python program of these tests that uses a client of a model provider; returns what it printed as JSON.
pub(crate) async fn run_model_client(script: &str, arguments: &[&str]) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut program = npm_packages::program_command(model_client_python().to_str().unwrap());
    program.arg(folder.join("tests/clients").join(script)).args(arguments);
    let ended = timeout(CLIENT_TIMEOUT, program.output()).await;
    let output = ended.expect("the program did not end in time").expect(MISSING_CLIENTS_HELP);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(printed.lines().last().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// A tool loop: reasoning, text, two calls, and with their results the answer. Then an error inside the stream.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_accepts_the_scripted_model(
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect,
) {
    if are_skipped() {
        return;
    }
    let model = ScriptedModel::start().await;
    let look = ScriptedStream::new().thinking("I had better ").thinking("look.").text("I ").text("look.");
    let look = look.tool_call("call_1", "shell", &json!({"command": "ls ü"}));
    let look = look.tool_call("call_2", "shell", &json!({"command": "pwd"})).usage(Default::default(), 100, 20);
    model.script(look.cached_tokens(60).split_arguments(4));
    model.script(ScriptedStream::new().text("Two files."));
    model.script(ScriptedResponse::error_inside_stream("I be", "the engine is on fire"));
    let seen = run_client(dialect.kind(), &model).await;
    let calls = json!([["call_1", "shell", {"command": "ls ü"}], ["call_2", "shell", {"command": "pwd"}]]);
    assert_eq!((&seen["text"], &seen["calls"]), (&json!("I look."), &calls), "{seen:#}");
    assert_eq!(seen["thinking"], "I had better look.", "{seen:#}");
    assert_eq!(seen["usage"], json!({"input": 100, "output": 20, "cached": 60}), "{seen:#}");
    assert_eq!(seen["answer"], "Two files.", "{seen:#}");
    assert!(seen["error"].as_str().is_some_and(|error| error.contains("the engine is on fire")), "{seen:#}");
    // The history that the client sent back is valid, with its reasoning.
    model.assert_histories_valid();
    assert!(messages_as_text(model.recorded_requests()[1].messages()).contains(reasoning_mark(dialect)));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_accepts_a_scripted_search(#[values(OpenAiResponses, Gemini)] dialect: ModelDialect) {
    if are_skipped() {
        return;
    }
    let model = ScriptedModel::start().await;
    let answer = ScriptedStream::new().web_search("is rust safe").text("It is.");
    model.script(answer.citation("https://rust.example/safe", "Safety")).script(ScriptedResponse::text("Sure."));
    let seen = run_client(&format!("{}-search", dialect.kind()), &model).await;
    let pages = json!([["https://rust.example/safe", "Safety"]]);
    let expected = json!({"text": "It is.", "searches": ["is rust safe"], "pages": pages, "answer": "sent"});
    assert_eq!(seen, expected);
    model.assert_histories_valid();
    assert_eq!(model.recorded_requests().len(), 2);
}
