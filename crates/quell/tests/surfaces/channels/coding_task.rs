//! A whole task of a coding agent, from a chat, in each dialect of models: a repository whose test fails is read in
//! parallel, mended, tested with a person's permission, stopped in the middle, continued and undone.
//!
//! What the chat and the history show is the transcript in docs/coding-task.md, which this test keeps true.

use std::path::Path;
use std::process::Command;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{DaemonHome, TestRunEventStream, poll_until};
use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::telegram::{FakeTelegram, FakeTelegramMessage, TOKEN, TelegramTestUser};
use rstest::rstest;
use serde_json::{Value, json};

use super::ChannelDaemonFixture;
use crate::test_daemon::quell_exe;
use crate::test_engine::ProcessLock;

const ANN: TelegramTestUser = TelegramTestUser { id: 77, name: "ann" };
const CHAT: i64 = 77;
const PAGE: &str = include_str!("../../../../../docs/coding-task.md");

const PROGRAM: &str = "# Adds two numbers.\necho $(($1 - $2))\n";
const TEST: &str = "sum=$(sh add.sh 2 3)\nif [ \"$sum\" = 5 ]; then echo '1 test passed'; else\n  echo \"failed: 2 + 3 is \
                    $sum, not 5\"\n  exit 1\nfi\n";

struct CodingTask {
    fixture: ChannelDaemonFixture,
    telegram: FakeTelegram,
    project: tempfile::TempDir,
}

impl CodingTask {
    async fn start(dialect: ModelDialect) -> Self {
        let process_lock = ProcessLock::shared().await;
        let (telegram, model) = (FakeTelegram::start().await, ScriptedModel::start().await);
        let project = create_repository();
        let config = format!(
            "[providers.scripted]\nkind = \"{kind}\"\nbase_url = \"{base}\"\napi_key_env = \"KEY\"\nmax_retries = 0\n\
             [agents.coder]\nmodel = \"scripted/m\"\nworkdir = \"{workdir}\"\ntools = [\"*\"]\n\
             approvals = {{ shell = \"ask\" }}\n\
             [channels.telegram]\nkind = \"telegram\"\napi_base = \"{telegram}\"\ntoken_env = \"TOKEN\"\n\
             agent = \"coder\"\nallow = [\"77\"]\napprovers = [\"77\"]\n",
            kind = dialect.kind(),
            base = model.base_url(),
            workdir = project.path().display(),
            telegram = telegram.base_url(),
        );
        let home = DaemonHome::new(&config).with_env("TOKEN", TOKEN).with_env("KEY", "sk-test");
        let daemon = home.start(quell_exe()).await;
        Self { fixture: ChannelDaemonFixture { model, daemon, _process_lock: process_lock }, telegram, project }
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.project.path().join(name)).unwrap()
    }

    /// The scripted work: three calls at once, the change, its test, and then more than anybody wants.
    fn script_work(&self) {
        let look = ScriptedStream::new()
            .thinking("First I look.")
            .text("I look at the program and its test.")
            .tool_call("ask", "spawn_agent", &json!({"agent": "coder", "prompt": "What does test.sh expect?"}))
            .tool_call("read", "read_file", &json!({"path": "add.sh"}))
            .tool_call("search", "search_files", &json!({"pattern": "add\\.sh", "path": "."}));
        let edit = json!({"path": "add.sh", "old": "$1 - $2", "new": "$1 + $2"});
        self.fixture
            .model
            .script(look)
            .script(ScriptedStream::new().wait_for_gate("sub-agent").text("It expects that 2 + 3 is 5."))
            .script(ScriptedStream::new().text("It subtracts.").tool_call("edit", "edit_file", &edit))
            .script(ScriptedResponse::tool_call("test", "shell", &json!({"command": "sh test.sh"})))
            .script(ScriptedResponse::silent_mid_stream("Now I rewrite everything in"));
    }

    /// Waits until both reading calls have ended while the sub-agent before them is at work; returns the run, and the
    /// rest of its events.
    async fn read_while_sub_agent_waits(&self) -> (String, TestRunEventStream) {
        self.fixture.model.request_at(1).wait_paused().await;
        let api = self.fixture.daemon.api();
        let runs = api.get("/api/runs?state=active").await.expect_status(200);
        let root = runs["items"].as_array().unwrap().iter().find(|run| run["parent"].is_null()).unwrap();
        let run = root["runId"].as_str().unwrap().to_owned();
        let mut events = api.run_events(&run, 0).await;
        for _ in ["read", "search"] {
            let ended = events.wait_for("tool.ended").await;
            assert_ne!(ended.data["callId"], "ask");
        }
        self.fixture.model.open_gate("sub-agent");
        (run, events)
    }

    /// Presses the first button of the call that waits.
    async fn approve(&self) {
        let find = |it: &[FakeTelegramMessage]| it.iter().find(|shown| !shown.buttons.is_empty()).cloned();
        let state = self.telegram.wait_for("the buttons", |it| find(it.messages(CHAT)).is_some()).await;
        let shown = find(state.messages(CHAT)).unwrap();
        assert!(shown.text.contains("sh test.sh"), "{}", shown.text);
        self.telegram.press_button(CHAT, ANN, shown.id, &shown.buttons[0].data);
    }

    async fn wait_bot_text(&self, part: &str) {
        self.telegram.wait_for(part, |it| it.bot_texts(CHAT).iter().any(|text| text.contains(part))).await;
    }

    /// Waits until the history holds what the chat already shows.
    async fn wait_no_active_run(&self) {
        let api = self.fixture.daemon.api();
        let ended = async || {
            let runs = api.get("/api/runs?state=active").await.expect_status(200);
            runs["items"].as_array().unwrap().is_empty().then_some(())
        };
        poll_until("the end of the run", ended).await;
    }

    /// The history of the chat, as the page of the docs shows it.
    async fn transcript(&self) -> String {
        let path = "/api/sessions/telegram_77_77/history";
        let history = self.fixture.daemon.api().get(path).await.expect_status(200);
        history["items"].as_array().unwrap().iter().map(transcript_lines).collect()
    }
}

fn create_repository() -> tempfile::TempDir {
    let project = tempfile::tempdir().unwrap();
    std::fs::write(project.path().join("add.sh"), PROGRAM).unwrap();
    std::fs::write(project.path().join("test.sh"), TEST).unwrap();
    git(project.path(), &["init", "--quiet"]);
    git(project.path(), &["add", "."]);
    git(project.path(), &["-c", "user.name=ann", "-c", "user.email=ann@quell.test", "commit", "--quiet", "-m", "Add"]);
    project
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn transcript_lines(message: &Value) -> String {
    let text = message["text"].as_str().unwrap();
    let mut lines = match message["role"].as_str().unwrap() {
        "tool" => {
            let id = message["callId"].as_str().unwrap();
            let code = message["code"].as_i64().map(|code| format!(", exit code {code}")).unwrap_or_default();
            format!("{id}: {}{code}\n", message["end"].as_str().unwrap())
        }
        role => text.lines().map(|line| format!("{role}: {line}\n")).collect(),
    };
    for call in message["calls"].as_array().into_iter().flatten() {
        lines.push_str(&format!(
            "  {} = {} {}\n",
            call["id"].as_str().unwrap(),
            call["tool"].as_str().unwrap(),
            call["arguments"]
        ));
    }
    for line in message["diff"].as_str().unwrap_or_default().lines() {
        lines.push_str(&format!("  {line}\n"));
    }
    lines
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: Git"]
async fn a_repository_is_mended_stopped_continued_and_undone(
    #[values(ModelDialect::OpenAi, ModelDialect::OpenAiResponses, ModelDialect::Anthropic, ModelDialect::Gemini)]
    dialect: ModelDialect,
) {
    let task = CodingTask::start(dialect).await;
    task.script_work();
    task.telegram.post_message(CHAT, ANN, "The test of this repository fails. Mend the program.");
    let (run, events) = task.read_while_sub_agent_waits().await;
    let approval = task.fixture.daemon.api().wait_approval().await;
    assert_eq!(approval["runId"], run.as_str());
    task.approve().await;
    task.wait_bot_text("Now I rewrite everything in").await;
    assert_eq!(task.file("add.sh"), PROGRAM.replace('-', "+"));
    task.telegram.post_message(CHAT, ANN, "/stop");
    task.fixture.model.request_at(4).wait_client_left().await;
    task.wait_bot_text("⏹ stopped in").await;
    task.wait_bot_text("history valid").await;

    task.fixture.model.script(ScriptedResponse::text("The test passes. I leave it at that."));
    task.telegram.post_message(CHAT, ANN, "Only the mistake, please.");
    task.wait_bot_text("I leave it at that.").await;
    task.wait_no_active_run().await;
    task.fixture.assert_stop_told(5).await;

    let events = events.read_to_end().await.events;
    for kind in ["approval.requested", "approval.resolved", "run.ended"] {
        assert!(events.iter().any(|event| event.kind == kind), "{kind}: {events:#?}");
    }
    let transcript = task.transcript().await;
    assert!(PAGE.contains(&format!("```text\n{transcript}```\n")), "docs/coding-task.md should show:\n{transcript}");

    let undone = task.fixture.daemon.api().post(&format!("/api/runs/{run}/undo"), &json!({})).await.expect_status(200);
    assert_eq!(undone["files"].as_array().unwrap().len(), 1, "{undone:#}");
    assert_eq!(
        (task.file("add.sh").as_str(), git(task.project.path(), &["status", "--porcelain"])),
        (PROGRAM, String::new())
    );
}
