//! The examples of the pages about the model APIs and the API keys run as printed: with `sh` and `curl`, with OpenAI's
//! library for Python, and with the command line of Quell.

use std::process::Command;

use quell_test_support::doc_examples::code_blocks;
use tokio::time::timeout;

use crate::dialects::official_clients::{are_skipped, model_client_python};
use crate::prelude::*;

const OPENAI_PAGE: &str = include_str!("../../../../docs/openai.md");
/// How long an example may take on a busy machine.
const EXAMPLE_TIMEOUT: Duration = Duration::from_secs(120);

/// A daemon with the agent `main`, and a home in which the examples run.
struct ExampleFixture {
    model: ScriptedModel,
    daemon: TestDaemon,
}

impl ExampleFixture {
    async fn start() -> Self {
        let (model, daemon) = start_daemon("").await;
        Self { model, daemon }
    }

    /// Runs the blocks of a page as one program, and returns what it printed.
    async fn run(&self, program: &Path, blocks: &[&str]) -> String {
        let mut command: Command = self.daemon.home().command(program);
        let path = std::env::var("PATH").unwrap();
        let folder = quell_exe().parent().unwrap().display();
        command.args(["-c", &blocks.concat()]).env("PATH", format!("{folder}:{path}"));
        command.env("QUELL_URL", self.daemon.url()).env("QUELL_TOKEN", self.daemon.token());
        let mut command = tokio::process::Command::from(command);
        let output = command.kill_on_drop(true).output();
        let output = timeout(EXAMPLE_TIMEOUT, output).await.expect("the example did not end in time").unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}\n{err}");
        out.into_owned()
    }

    async fn run_shell(&self, blocks: &[&str]) -> String {
        // Without it a command that fails in the middle would be missed.
        let strict: Vec<&str> = std::iter::once("set -e\n").chain(blocks.iter().copied()).collect();
        self.run(Path::new("/bin/sh"), &strict).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_page_about_openai_run_as_printed() {
    let fixture = ExampleFixture::start().await;
    for _ in 0..2 {
        fixture.model.script(ScriptedStream::new().text("Two ").text("files."));
    }
    let printed = fixture.run_shell(&code_blocks(OPENAI_PAGE, "sh")).await;
    for expected in [
        r#"{"object":"list""#,
        r#""id":"agent/main""#,
        r#""delta":{"content":"Two "}"#,
        "data: [DONE]",
        r#""object":"response""#,
        r#""status":"in_progress""#,
    ] {
        assert!(printed.contains(expected), "{expected} is missing in {printed}");
    }
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_programs_of_the_page_about_openai_run_as_printed() {
    if are_skipped() {
        return;
    }
    let fixture = ExampleFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("Two ").text("files."));
    fixture.model.script(ScriptedStream::new().text("Still ").text("two."));
    // The second one continues the first.
    let printed = fixture.run(&model_client_python(), &code_blocks(OPENAI_PAGE, "python")).await;
    assert_eq!(printed, "Two files.Still two.\n");
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_of_the_page_about_anthropic_runs_as_printed() {
    let fixture = ExampleFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("Two files."));
    let page = include_str!("../../../../docs/anthropic.md");
    let printed = fixture.run_shell(&code_blocks(page, "sh")).await;
    let message: Value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    assert_fields(&message, &json!({"type": "message", "model": "agent/main", "stop_reason": "end_turn"}));
    assert_eq!(message["content"][0]["text"], "Two files.");
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_page_about_api_keys_run_as_printed() {
    let fixture = ExampleFixture::start().await;
    let page = include_str!("../../../../docs/api-keys.md");
    let printed = fixture.run_shell(&code_blocks(page, "sh")).await;
    assert!(printed.contains("app") && printed.contains("openai/*"), "{printed}");
    let rows = fixture.daemon.api().get("/api/tokens").await.expect_status(200)["items"].clone();
    let row = rows.as_array().unwrap().iter().find(|row| row["name"] == "app").unwrap();
    let expected = json!({"apis": ["openai"], "agents": ["main"], "models": ["openai/*"], "dailyCost": 5.0});
    assert_fields(&row["restrictions"], &expected);
    assert!(row["expiresAt"].is_string(), "{row:#}");
}
