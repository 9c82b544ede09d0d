//! The HTTP API against its OpenAPI document, checked by openapi-spec-validator and schemathesis.
//!
//! openapi-spec-validator checks the document. Schemathesis generates valid and invalid requests from it and checks
//! every answer. `cargo xtask test` installs both below `target/`. `QUELL_SKIP_SCHEMATHESIS=1` skips the tests, with a
//! message.

use quell_testkit::skip::is_switched_off;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::npm_packages;
use crate::prelude::*;

const MISSING_SCHEMATHESIS_HELP: &str = "this test needs schemathesis below target/tools: `cargo xtask test openapi` installs it, or leave it out with \
    QUELL_SKIP_SCHEMATHESIS=1";
const DEMO_CONFIG: &str = "[providers.demo]\nkind = \"demo\"\n[agents.main]\nmodel = \"demo/demo\"\n";
/// How long the requests of a phase may take on a busy machine; they take ten seconds on two idle cores.
const PHASE_TIMEOUT: Duration = Duration::from_secs(150);
/// A fixed seed, so that the requests are the same each time.
const SEED: &str = "1";
/// Generated requests per route, besides those that cover its document.
const EXAMPLES_PER_ROUTE: &str = "20";
/// An event stream stays open, a backup is large, and schemathesis cannot generate JSON lines.
const EXCLUDED_PATHS: &str = "(events|/api/backup|/api/import)$";
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

fn python_exe() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/schemathesis/bin/python");
    assert!(python.exists(), "{MISSING_SCHEMATHESIS_HELP}");
    python
}

/// Runs a Python module and returns its output, which is shown when it fails.
async fn run_python_module(folder: &Path, module: &str, words: &[&str]) -> String {
    let mut program = npm_packages::program_command(python_exe().to_str().unwrap());
    // Files that it writes are removed with the folder.
    program.current_dir(folder).args(["-m", module]).args(words);
    let output = timeout(PHASE_TIMEOUT, program.output())
        .await
        .expect("the program did not end in time")
        .expect(MISSING_SCHEMATHESIS_HELP);
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{module}: {printed}");
    printed
}

/// Each phase has its own daemon: both send bad tokens to every route, and these are counted.
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
    let token = format!("Authorization: Bearer {}", daemon.token());
    let words = ["run", "openapi.json", "--url", daemon.url(), "--header", &token, "--phases", phase];
    let bounds = ["--seed", SEED, "--max-examples", EXAMPLES_PER_ROUTE, "--exclude-path-regex", EXCLUDED_PATHS];
    let others = ["--exclude-checks", EXCLUDED_CHECKS, "--request-timeout", "30", "--no-color"];
    let printed = run_python_module(folder.path(), "schemathesis.cli", &[&words[..], &bounds, &others].concat()).await;
    assert!(printed.contains(" passed"), "no requests were made: {printed}");
    // The daemon is alive and logged no panic.
    assert_eq!(daemon.api().get("/readyz").await.status, 200);
    assert!(!daemon.output().contains("panicked"), "{}", daemon.output());
}

/// Sends these bytes, and returns the status of the answer.
async fn raw_status(daemon: &TestDaemon, request: &str) -> String {
    let mut stream = TcpStream::connect(daemon.url().trim_start_matches("http://")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    timeout(PHASE_TIMEOUT, stream.read_exact(&mut head)).await.expect("the daemon did not answer").unwrap();
    String::from_utf8_lossy(&head).split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_accept_loop_are_in_the_document() {
    let _process_lock = ProcessLock::shared().await;
    let daemon = TestDaemon::start(quell_exe(), DEMO_CONFIG).await;
    let document: Value = daemon.api().get("/openapi.json").await.expect_status(200);
    let send = &document["paths"]["/api/sessions/{key}/runs"]["post"]["responses"];
    for status in ["400", "401", "403", "408", "413", "415", "421", "429", "431", "503"] {
        assert!(send.get(status).is_some(), "{status} is not in the document: {send:#}");
    }
    let get = |fields: &str| format!("GET /api/runs HTTP/1.1\r\n{fields}\r\n");
    let many: String = (0..120).map(|n| format!("x-{n}: 1\r\n")).collect();
    assert_eq!(raw_status(&daemon, &get(&format!("host: localhost\r\n{many}"))).await, "431");
    assert_eq!(raw_status(&daemon, &get(&format!("host: localhost\r\nx: {}\r\n", "x".repeat(1 << 20)))).await, "431");
    assert_eq!(raw_status(&daemon, &get("host: elsewhere.example\r\n")).await, "421");
    let unknown = get("host: localhost\r\nauthorization: Bearer no-token\r\n");
    let mut last = String::new();
    for _ in 0..110 {
        last = raw_status(&daemon, &unknown).await;
    }
    assert_eq!(last, "429");
    let responses = &document["paths"]["/api/runs"]["get"]["responses"];
    assert!(responses.get("431").is_some() && responses.get("408").is_none(), "{responses:#}");
}
