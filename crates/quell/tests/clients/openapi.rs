//! The HTTP API against its OpenAPI document, checked by openapi-spec-validator and schemathesis.
//!
//! openapi-spec-validator checks the document. Schemathesis generates valid and invalid requests from it and checks
//! every answer. `cargo xtask test --full` installs both below `target/`. `QUELL_SKIP_SCHEMATHESIS=1` skips the tests, with a
//! message.

use std::collections::BTreeSet;

use quell_test_support::npm_packages;
use quell_testkit::skip::is_switched_off;
use tokio::time::timeout;

use crate::prelude::*;

const MISSING_SCHEMATHESIS_HELP: &str = "this test needs schemathesis below target/tools: `cargo xtask test --full openapi` installs it, or leave it out with \
    QUELL_SKIP_SCHEMATHESIS=1";
const DEMO_CONFIG: &str = "[server]\nbad_tokens_per_minute = 10000\n[providers.demo]\nkind = \"demo\"\n[agents.main]\nmodel = \"demo/demo\"\n";
/// How long the requests of a phase may take on a busy machine; they take ten seconds on two idle cores.
const PHASE_TIMEOUT: Duration = Duration::from_secs(150);
/// A fixed seed, so that the requests are the same each time.
const SEED: &str = "1";
/// Generated requests per route, besides those that cover its document.
const EXAMPLES_PER_ROUTE: &str = "20";
/// An event stream stays open, a backup is large, and schemathesis cannot generate JSON lines.
const EXCLUDED_PATHS: &str = "(events|/api/backup|/api/import)$|^/v1/";
/// Many requests of the right form are refused for good reasons: an agent whose provider is not configured, an unknown
/// cursor.
const EXCLUDED_CHECKS: &str = "positive_data_acceptance";
/// Names that exist, so that some requests find something. Deletion of sessions uses other names, since it would delete
/// the run.
const EXISTING_NAMES_CONFIG: &str = r#"
[[operations]]
include-path-regex = "^/api/(agents|agent)/"
parameters = { "path.id" = "main" }

[[operations]]
include-path-regex = "^/api/runs/"
parameters = { "path.id" = "there" }

[[operations]]
include-path-regex = "^/api/sessions/"
exclude-method = "DELETE"
parameters = { "path.key" = "s" }
"#;

/// Runs a Python module and returns its output, which is shown when it fails.
async fn run_python_module(folder: &Path, module: &str, words: &[&str]) -> String {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/schemathesis/bin/python");
    assert!(python.exists(), "{MISSING_SCHEMATHESIS_HELP}");
    let mut program = npm_packages::program_command(python.to_str().unwrap());
    // Files that it writes are removed with the folder.
    program.current_dir(folder).args(["-m", module]).args(words);
    let ended = timeout(PHASE_TIMEOUT, program.output()).await;
    let output = ended.expect("the program did not end in time").expect(MISSING_SCHEMATHESIS_HELP);
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{module}: {printed}");
    printed
}

/// Sends the requests of a phase to the routes whose paths these options choose, and checks their answers.
async fn run_schemathesis(daemon: &TestDaemon, folder: &Path, phase: &str, chosen_paths: [&str; 2]) {
    let token = format!("Authorization: Bearer {}", daemon.token());
    let words = ["run", "openapi.json", "--url", daemon.url(), "--header", &token, "--phases", phase];
    let bounds = ["--seed", SEED, "--max-examples", EXAMPLES_PER_ROUTE];
    let others = ["--exclude-checks", EXCLUDED_CHECKS, "--request-timeout", "30", "--no-color"];
    let words = [&words[..], &bounds, &chosen_paths, &others].concat();
    let printed = run_python_module(folder, "schemathesis.cli", &words).await;
    assert!(printed.contains(" passed"), "no requests were made: {printed}");
    // The daemon is alive and logged no panic.
    assert_eq!(daemon.api().get("/readyz").await.status, 200);
    assert!(!daemon.output().contains("panicked"), "{}", daemon.output());
}

/// Each phase has its own daemon, which lets them send many bad tokens to every route.
#[rstest]
#[case("coverage")]
#[case("fuzzing")]
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_as_the_document_says(#[case] phase: &str) {
    if is_switched_off("QUELL_SKIP_SCHEMATHESIS") {
        return;
    }
    let _process_lock = ProcessLock::shared().await;
    let daemon = TestDaemon::start(quell_exe(), DEMO_CONFIG).await;
    let document: Value = daemon.api().get("/openapi.json").await.expect_status(200);
    assert_eq!(document["openapi"], "3.1.0");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("openapi.json"), document.to_string()).unwrap();
    std::fs::write(folder.path().join("schemathesis.toml"), EXISTING_NAMES_CONFIG).unwrap();
    run_python_module(folder.path(), "openapi_spec_validator", &["openapi.json"]).await;

    let message = json!({"text": "hello", "idempotencyKey": "there"});
    let _ = daemon.api().post_run("s", &message).await.expect_status(202);
    run_schemathesis(&daemon, folder.path(), phase, ["--exclude-path-regex", EXCLUDED_PATHS]).await;
}

/// The routes of OpenAI and Anthropic, with models and agents that exist. `answered` names the surfaces on which at least
/// one model answers: few requests at random are right in everything.
#[rstest]
#[case("coverage", &["anthropic", "openai"])]
#[case("fuzzing", &["openai"])]
#[tokio::test(flavor = "multi_thread")]
async fn model_apis_answer_as_the_document_says(#[case] phase: &str, #[case] answered: &[&str]) {
    if is_switched_off("QUELL_SKIP_SCHEMATHESIS") {
        return;
    }
    let _process_lock = ProcessLock::shared().await;
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| ScriptedResponse::text("hello"));
    let config = format!(
        "[server]\nbad_tokens_per_minute = 10000\n{}[agents.main]\nmodel = \"scripted/model\"\n",
        provider_toml(&model)
    );
    let daemon = TestDaemon::start(quell_exe(), &config).await;
    let mut document: Value = daemon.api().get("/openapi.json").await.expect_status(200);
    name_models_that_exist(&mut document["components"]["schemas"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("openapi.json"), document.to_string()).unwrap();
    run_schemathesis(&daemon, folder.path(), phase, ["--include-path-regex", "^/v1/"]).await;
    let surfaces = answered_surfaces(&daemon.api()).await;
    assert!(answered.iter().all(|surface| surfaces.contains(*surface)), "no model answered on all of {answered:?}");
}

/// The surfaces of the runs that were completed.
async fn answered_surfaces(api: &TestApiClient) -> BTreeSet<String> {
    let (mut surfaces, mut path) = (BTreeSet::new(), "/api/runs".to_owned());
    loop {
        let page = api.get(&path).await.expect_status(200);
        let completed = page["items"].as_array().unwrap().iter().filter(|run| run["verdict"]["kind"] == "completed");
        surfaces.extend(completed.map(|run| run["surface"].as_str().unwrap().to_owned()));
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/api/runs?cursor={}", percent_encode(cursor)),
            None => return surfaces,
        }
    }
}

/// Names and ids at random are unknown, and some fields need another one: nearly all requests would be refused.
fn name_models_that_exist(schemas: &mut Value) {
    for schema in ["ChatRequest", "MessagesRequest", "CountTokensRequest", "ResponsesRequest"] {
        let properties = schemas[schema]["properties"].as_object_mut().unwrap();
        let names = json!({"enum": ["agent/main", "scripted/model", "agent/nobody", "nobody/model"]});
        properties.insert("model".to_owned(), names);
        let unset = ["tool_choice", "stream_options", "previous_response_id", "conversation", "thinking"];
        unset.iter().for_each(|name| drop(properties.remove(*name)));
    }
}
