//! A chat that is opened again shows what was seen live, line by line; and how far a model call is that does not get through.

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::Daemon;
use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::pty::{Pty, Size};
use serde_json::json;

use super::{CTRL_C, ENTER, ESC, Table, chat, config};
use crate::cli::exe;

const LARGE: Size = Size { rows: 50, columns: 100 };
/// Unfolds output and thinking.
const CTRL_O: &str = "\x0f";

/// What stands between the header and the rule above the input.
fn page(shown: &str) -> Vec<String> {
    let rows = shown.lines().skip(1).take_while(|row| !row.starts_with("──")).map(|row| row.trim_end().to_owned());
    rows.filter(|row| !row.is_empty()).collect()
}

async fn opened(table: &Table) -> Pty {
    let chat = chat(table.daemon.home(), &["--session", "s"], LARGE);
    chat.shows("● live").await;
    chat
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_that_is_opened_again_shows_what_was_seen_live() {
    let mut table = Table::set().await;
    table.chat.resize(LARGE);
    table.chat.keys(CTRL_O);
    let command = json!({"command": "echo printed; sleep 0.05; exit 3"});
    table
        .model
        .script(Stream::new().thinking("First I look around.").text("I look.").tool_call("c1", "shell", &command));
    table.model.script(Stream::new().thinking("Now I know.").text("It failed."));
    table.say("try it");
    table.chat.shows("It failed.").await;
    table.chat.shows("○").await;
    table.model.script(Stream::new().thinking("A long thought").text("half an ans").wait_for("never"));
    table.say("more");
    table.chat.shows("half an ans").await;
    table.chat.keys(ESC);
    table.chat.shows("Execution paused").await;
    let live = page(&table.chat.shows("not seen by the model").await.text());
    let text = live.join("\n");
    for part in ["First I look around.", "A long thought", "exit 3", " ms  "] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(text.contains("0 steps done, 1 cut off"), "{text}");

    let mut again = opened(&table).await;
    again.keys(CTRL_O);
    again.shows("Execution paused").await;
    again.shows("stopped in").await;
    let again = page(&again.shows("A long thought").await.text());
    assert_eq!(again.join("\n"), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_call_that_fails_says_when_it_is_tried_again() {
    let model = ScriptedModel::start().await;
    let config = config(&model, "").replace("max_retries = 0", "max_retries = 5");
    let daemon = Daemon::start(exe(), &config).await;
    let mut chat = chat(daemon.home(), &["--session", "s"], LARGE);
    chat.shows("● live").await;
    model.script(Behaviour::rate_limited("50"));
    chat.keys("hello");
    chat.keys(ENTER);
    chat.shows("attempt 1 of 6 failed, next in ").await;
    chat.keys(ESC);
    let shown = chat.shows("Execution paused").await;
    assert!(!shown.text().contains("attempt 1"), "{}", shown.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_typed_at_the_question_whether_to_leave_is_kept() {
    let mut table = Table::set().await;
    table.chat.keys(CTRL_C);
    table.chat.shows("Leave?").await;
    table.chat.keys("hello there");
    table.chat.shows("› hello there").await;
    table.model.script(Behaviour::text("I am still here."));
    table.chat.keys(ENTER);
    table.chat.shows("I am still here.").await;
    let (status, _) = table.leave().await;
    assert!(status.success());
}
