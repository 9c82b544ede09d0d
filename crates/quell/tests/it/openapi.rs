//! The HTTP API against its own document, asked by two programs that know nothing of Quell: openapi-spec-validator reads the
//! document, and schemathesis makes requests from it, good and bad ones, and holds every answer against it.
//!
//! `cargo xtask test` installs both below `target/`. `QUELL_SKIP_SCHEMATHESIS=1` leaves this out, and says so.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_testkit::daemon::Daemon;
use serde_json::Value;
use tokio::time::timeout;

use crate::cli::exe;
use crate::harness::Claim;
use crate::node;

const NEEDS: &str = "this test needs schemathesis below target/tools: `cargo xtask test openapi` installs it, or leave it out with \
    QUELL_SKIP_SCHEMATHESIS=1";
/// How long the requests may take on a busy machine; they take half a minute alone on two cores.
const PATIENCE: Duration = Duration::from_secs(150);
/// The same requests each time.
const SEED: &str = "1";
/// Requests that are made up for each route, besides those that cover its document.
const EXAMPLES: &str = "5";
/// An event stream stays open, a copy of the database is large, and lines of JSON are nothing that schemathesis can write.
const LEFT_OUT: &str = "(events|/api/backup|/api/import)$";
/// Much that is right by its form is refused for good reasons: an agent whose provider is not configured, a cursor that no list
/// gave out.
const UNCHECKED: &str = "positive_data_acceptance";

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
async fn succeed(module: &str, words: &[&str]) -> String {
    let mut program = node::command(python().to_str().unwrap());
    program.args(["-m", module]).args(words);
    let output = timeout(PATIENCE, program.output()).await.expect("it ends in time").expect(NEEDS);
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{module}: {printed}");
    printed
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_as_the_document_says() {
    if is_skipped() {
        return;
    }
    let _claim = Claim::shared().await;
    let config = "[providers.demo]\nkind = \"demo\"\n[agents.main]\nmodel = \"demo/demo\"\n";
    let daemon = Daemon::start(exe(), config).await;
    let document: Value = daemon.http().get("/openapi.json").await.expect_status(200);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("openapi.json");
    std::fs::write(&file, document.to_string()).unwrap();
    let file = file.to_str().unwrap();
    succeed("openapi_spec_validator", &[file]).await;

    let token = format!("Authorization: Bearer {}", daemon.token());
    let words = ["run", file, "--url", daemon.url(), "--header", &token, "--seed", SEED, "--max-examples", EXAMPLES];
    let bounds =
        ["--phases", "examples,coverage,fuzzing", "--exclude-path-regex", LEFT_OUT, "--exclude-checks", UNCHECKED];
    let words = [&words[..], &bounds, &["--request-timeout", "30", "--no-color"]].concat();
    let printed = succeed("schemathesis.cli", &words).await;
    assert!(printed.contains(" passed"), "requests were made: {printed}");
    // It lives, and what is left to say is said: nothing that was asked has broken it.
    assert_eq!(daemon.http().get("/readyz").await.status, 200);
    assert!(!daemon.output().contains("panicked"), "{}", daemon.output());
}
