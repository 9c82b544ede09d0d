//! A reopened chat shows what was seen live, and failing model calls show their retries.

use quell_testkit::pty::PtySize;

use super::{ChatFixture, ESC, open_chat};
use crate::prelude::*;

const LARGE_SIZE: PtySize = PtySize { rows: 50, columns: 100 };
/// Unfolds output and thinking.
const CTRL_O: &str = "\x0f";

/// The rows between the header and the rule above the input.
fn transcript_rows(shown: &str) -> Vec<String> {
    let rows = shown.lines().skip(1).take_while(|row| !row.starts_with("──")).map(|row| row.trim_end().to_owned());
    rows.filter(|row| !row.is_empty()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_that_is_opened_again_shows_what_was_seen_live() {
    let mut fixture = ChatFixture::start().await;
    fixture.chat.resize(LARGE_SIZE);
    fixture.chat.type_keys(CTRL_O);
    let command = json!({"command": "echo printed; sleep 0.05; exit 3"});
    let look = ScriptedStream::new().thinking("First I look around.").text("I look.");
    fixture.model.script(look.tool_call("c1", "shell", &command));
    fixture.model.script(ScriptedStream::new().thinking("Now I know.").text("It failed."));
    fixture.send_until("try it", "It failed.").await;
    fixture.chat.wait_text("○").await;
    fixture.model.script(ScriptedStream::new().thinking("A long thought").text("half an ans").wait_for_gate("never"));
    fixture.send_until("more", "half an ans").await;
    fixture.type_until(ESC, "Execution paused").await;
    let live = transcript_rows(&fixture.chat.wait_text("not seen by the model").await.text());
    let text = live.join("\n");
    for part in ["First I look around.", "A long thought", "exit 3", " ms  "] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(text.contains("0 steps done, 1 cut off"), "{text}");

    let mut again = open_chat(fixture.daemon.home(), &["--session", "s"], LARGE_SIZE);
    again.wait_text("● live").await;
    again.type_keys(CTRL_O);
    again.wait_text("Execution paused").await;
    again.wait_text("stopped in").await;
    assert_eq!(transcript_rows(&again.wait_text("A long thought").await.text()).join("\n"), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_call_that_fails_says_when_it_is_tried_again() {
    let retrying = |model: &ScriptedModel| config_toml(model, "").replace("max_retries = 0", "max_retries = 5");
    let mut fixture = ChatFixture::start_configured(&["--session", "s"], retrying).await;
    fixture.chat.resize(LARGE_SIZE);
    fixture.model.script(ScriptedResponse::rate_limited("50"));
    fixture.send_until("hello", "attempt 1 of 6 failed, next in ").await;
    let shown = fixture.type_until(ESC, "Execution paused").await;
    assert!(!shown.text().contains("attempt 1"), "{}", shown.text());
}
