//! The HTTP API against its own document, asked by two programs that know nothing of Quell: openapi-spec-validator reads the
//! document, and schemathesis makes requests from it, good and bad ones, and holds every answer against it.
//!
//! `cargo xtask test` installs both below `target/`. `QUELL_SKIP_SCHEMATHESIS=1` leaves this out, and says so.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_testkit::daemon::Daemon;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cli::exe;
use crate::harness::Claim;
use crate::node;

const NEEDS: &str = "this test needs schemathesis below target/tools: `cargo xtask test openapi` installs it, or leave it out with \
    QUELL_SKIP_SCHEMATHESIS=1";
const DEMO: &str = "[providers.demo]\nkind = \"demo\"\n[agents.main]\nmodel = \"demo/demo\"\n";
/// How long the requests of a phase may take on a busy machine; they take ten seconds alone on two cores.
const PATIENCE: Duration = Duration::from_secs(150);
/// The same requests each time.
const SEED: &str = "1";
/// Requests that are made up for each route, besides those that cover its document.
const EXAMPLES: &str = "20";
/// An event stream stays open, a copy of the database is large, and lines of JSON are nothing that schemathesis can write.
const LEFT_OUT: &str = "(events|/api/backup|/api/import)$";
/// Much that is right by its form is refused for good reasons: an agent whose provider is not configured, a cursor that no list
/// gave out.
const UNCHECKED: &str = "positive_data_acceptance";
/// Names of what is there, so that not all requests are about what is not. A session is deleted by other names alone: else its
/// run would go with it.
const THERE: &str = r#"
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

#[expect(clippy::print_stdout, reason = "a test that is left out says so")]
fn is_skipped() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the one switch of a test that needs another program")]
    let skipped = std::env::var("QUELL_SKIP_SCHEMATHESIS").is_ok();
    if skipped {
        println!("skipped: QUELL_SKIP_SCHEMATHESIS is set");
    }
    skipped
}

fn python() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/schemathesis/bin/python");
    assert!(python.exists(), "{NEEDS}");
    python
}

/// Runs a module of Python and answers what it printed, which is shown when it fails.
async fn succeed(folder: &Path, module: &str, words: &[&str]) -> String {
    let mut program = node::command(python().to_str().unwrap());
    // What it writes beside itself goes with the folder.
    program.current_dir(folder).args(["-m", module]).args(words);
    let output = timeout(PATIENCE, program.output()).await.expect("it ends in time").expect(NEEDS);
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{module}: {printed}");
    printed
}

/// Each with a daemon of its own: both ask every route with bad tokens, which are counted.
#[rstest]
#[case("coverage")]
#[case("fuzzing")]
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_as_the_document_says(#[case] phase: &str) {
    if is_skipped() {
        return;
    }
    let _claim = Claim::shared().await;
    let daemon = Daemon::start(exe(), DEMO).await;
    let document: Value = daemon.http().get("/openapi.json").await.expect_status(200);
    assert_eq!(document["openapi"], "3.1.0");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("openapi.json"), document.to_string()).unwrap();
    std::fs::write(folder.path().join("schemathesis.toml"), THERE).unwrap();
    succeed(folder.path(), "openapi_spec_validator", &["openapi.json"]).await;

    let message = json!({"text": "hello", "idempotencyKey": "there"});
    let _ = daemon.http().post("/api/sessions/s/runs", &message).await.expect_status(202);
    let token = format!("Authorization: Bearer {}", daemon.token());
    let words = ["run", "openapi.json", "--url", daemon.url(), "--header", &token, "--phases", phase];
    let bounds = ["--seed", SEED, "--max-examples", EXAMPLES, "--exclude-path-regex", LEFT_OUT];
    let others = ["--exclude-checks", UNCHECKED, "--request-timeout", "30", "--no-color"];
    let printed = succeed(folder.path(), "schemathesis.cli", &[&words[..], &bounds, &others].concat()).await;
    assert!(printed.contains(" passed"), "requests were made: {printed}");
    // It lives, and what is left to say is said: nothing that was asked has broken it.
    assert_eq!(daemon.http().get("/readyz").await.status, 200);
    assert!(!daemon.output().contains("panicked"), "{}", daemon.output());
}

/// The status of the answer to these bytes.
async fn status(daemon: &Daemon, request: &str) -> String {
    let mut stream = TcpStream::connect(daemon.url().trim_start_matches("http://")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("it answers").unwrap();
    String::from_utf8_lossy(&head).split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_accept_loop_answers_is_in_the_document() {
    let _claim = Claim::shared().await;
    let daemon = Daemon::start(exe(), DEMO).await;
    let document: Value = daemon.http().get("/openapi.json").await.expect_status(200);
    let send = &document["paths"]["/api/sessions/{key}/runs"]["post"]["responses"];
    for status in ["400", "401", "403", "408", "413", "415", "421", "429", "431", "503"] {
        assert!(send.get(status).is_some(), "{status} is not in the document: {send:#}");
    }
    let get = |fields: &str| format!("GET /api/runs HTTP/1.1\r\n{fields}\r\n");
    let many: String = (0..120).map(|n| format!("x-{n}: 1\r\n")).collect();
    assert_eq!(status(&daemon, &get(&format!("host: localhost\r\n{many}"))).await, "431");
    assert_eq!(status(&daemon, &get(&format!("host: localhost\r\nx: {}\r\n", "x".repeat(1 << 20)))).await, "431");
    assert_eq!(status(&daemon, &get("host: elsewhere.example\r\n")).await, "421");
    let unknown = get("host: localhost\r\nauthorization: Bearer no-token\r\n");
    let mut last = String::new();
    for _ in 0..110 {
        last = status(&daemon, &unknown).await;
    }
    assert_eq!(last, "429");
    let responses = &document["paths"]["/api/runs"]["get"]["responses"];
    assert!(responses.get("431").is_some() && responses.get("408").is_none(), "{responses:#}");
}
