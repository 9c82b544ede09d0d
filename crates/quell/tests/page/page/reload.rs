//! A reloaded page shows what was seen live: thinking, calls with their times, names, ends. It also shows the end of a
//! run whose daemon died, and the retries of a failing provider.

use super::{PageConfig, PageFixture};
use crate::prelude::*;

/// All visible facts about the turns except the times of day: role, state, thinking, text, calls and ends.
const TURNS_SCRIPT: &str = "[...document.querySelectorAll('article.turn')].map(turn => [turn.dataset.role, turn.dataset.state ?? '',
    ...[...turn.querySelectorAll('.who, .state, .asked-text, .thinking-text, .markdown, .partial-note, .call-tool, .call-line, \
    .call-time, .call-end, .turn-foot')].map(part => part.className.split(' ')[0] + ': ' + part.textContent.trim())])";

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_shows_what_was_seen_live() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.open_session("again").await;
    let command = json!({"command": "echo printed; sleep 0.05; exit 3"});
    let look = ScriptedStream::new().thinking("First I look around.").text("I look.");
    fixture.model.script(look.tool_call("c1", "shell", &command));
    fixture.model.script(ScriptedStream::new().thinking("Now I know.").text("It **failed**."));
    fixture.send_message("try it").await;
    fixture.wait_text("article.turn[data-role=assistant]", "It failed.").await;
    fixture.wait_send_mode("send").await;
    fixture.model.script(ScriptedStream::new().thinking("A long thought").text("half an ans").wait_for_gate("never"));
    fixture.send_message("more").await;
    fixture.wait_text("article.turn[data-role=assistant] .markdown", "half an ans").await;
    fixture.click_until_text("#send", "article.turn.stopped .partial-note", "model").await;
    fixture.wait_text("article.turn.stopped .receipt-line", "stopped in").await;
    let live = fixture.eval(TURNS_SCRIPT).await;
    let text = live.to_string();
    for part in ["text: First I look around.", "text: A long thought", "who: main", "call-end: exit 3", " ms"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }

    fixture.reload().await;
    fixture.wait_text("article.turn.stopped .receipt-line", "stopped in").await;
    let again = fixture.eval(TURNS_SCRIPT).await;
    assert_eq!(again, live, "live: {live:#}\nafter the reload: {again:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lost_its_daemon_says_what_was_open() {
    let Some(mut fixture) = PageFixture::start_signed_in().await else { return };
    fixture.open_session("lost").await;
    fixture.model.script(shell_call("echo begun; sleep 600"));
    fixture.send_message("wait for it").await;
    fixture.wait_visible("details.call[data-end=running]").await;
    fixture.wait_text("#inspector", "sleep 600").await;
    fixture.kill_daemon().await;
    fixture.restart_daemon().await;
    fixture.wait_send_mode("send").await;
    fixture.wait_text("#inspector", "the record of what it held was lost with it").await;
    fixture.wait_text("#inspector", "echo begun; sleep 600").await;
    fixture.wait_text("#inspector", "lost").await;
    fixture.wait_text("#inspector .receipt-line", "record lost with the daemon").await;
    assert_eq!(fixture.count_matches("#toasts .toast.error").await, 0);
    let inspector = fixture.text("#inspector").await;
    assert!(!inspector.contains("It held nothing"), "{inspector}");
    // Its rows have the numbers that other resources had while it ran.
    let table = fixture.text("#inspector table.ledger tbody").await;
    assert!(table.contains("echo begun; sleep 600") && !table.contains("in-flight run"), "{table}");
    fixture.screenshot(&super::screenshot_dir().join("lost.png")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_fails_is_seen_to_be_tried_again() {
    let retrying = PageConfig { max_retries: 5, ..PageConfig::default() };
    let Some(fixture) = PageFixture::start_signed_in_with(&retrying).await else { return };
    fixture.open_session("retried").await;
    fixture.model.script(ScriptedResponse::rate_limited("50"));
    fixture.send_message("hello").await;
    let state = "article.turn[data-role=assistant] .state";
    fixture.wait_text(state, "attempt 1 of 6 failed, next in 50 s: ").await;
    fixture.screenshot(&super::screenshot_dir().join("retry.png")).await;
    fixture.click("#send").await;
    fixture.wait_send_mode("send").await;
    assert!(!fixture.text(state).await.contains("attempt"));
}
