//! A reloaded page shows what was seen live: thinking, calls with their times, names, ends. It also shows the end of a
//! run whose daemon died, and the retries of a failing provider.

use quell_testkit::ScriptedModel;
use quell_testkit::browser::{Browser, Viewport, is_skipped};
use quell_testkit::daemon::DaemonHome;
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use serde_json::{Value, json};

use super::{PageConfig, PageFixture};
use crate::test_daemon::quell_exe;
use crate::test_engine::shell_call;

/// All visible facts about the turns except the times of day: role, state, thinking, text, calls and ends.
const TURNS_SCRIPT: &str = "[...document.querySelectorAll('article.turn')].map(turn => [turn.dataset.role, turn.dataset.state ?? '',
    ...[...turn.querySelectorAll('.who, .state, .asked-text, .thinking-text, .markdown, .partial-note, .call-tool, .call-line, \
    .call-time, .call-end, .turn-foot')].map(part => part.className.split(' ')[0] + ': ' + part.textContent.trim())])";

async fn visible_turns(fixture: &PageFixture) -> Value {
    fixture.eval(TURNS_SCRIPT).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_shows_what_was_seen_live() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.open_session("again").await;
    let command = json!({"command": "echo printed; sleep 0.05; exit 3"});
    let stream =
        ScriptedStream::new().thinking("First I look around.").text("I look.").tool_call("c1", "shell", &command);
    fixture.model.script(stream);
    fixture.model.script(ScriptedStream::new().thinking("Now I know.").text("It **failed**."));
    fixture.send_message("try it").await;
    fixture.wait_text("article.turn[data-role=assistant]", "It failed.").await;
    fixture.wait_send_mode("send").await;
    fixture.model.script(ScriptedStream::new().thinking("A long thought").text("half an ans").wait_for_gate("never"));
    fixture.send_message("more").await;
    fixture.wait_text("article.turn[data-role=assistant] .markdown", "half an ans").await;
    fixture.click_until_text("#send", "article.turn.stopped .partial-note", "model").await;
    fixture.wait_text("article.turn.stopped .receipt-line", "stopped in").await;
    let live = visible_turns(&fixture).await;
    let text = live.to_string();
    for part in
        ["thinking-text: First I look around.", "thinking-text: A long thought", "who: main", "call-end: exit 3"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(text.contains(" ms"), "no time of a call in {text}");

    fixture.reload().await;
    fixture.wait_text("article.turn.stopped .receipt-line", "stopped in").await;
    let again = visible_turns(&fixture).await;
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
    if is_skipped() {
        return;
    }
    let model = ScriptedModel::start().await;
    let config = super::page_config_toml(&PageConfig::default(), &model).replace("max_retries = 0", "max_retries = 5");
    let daemon = DaemonHome::new(&config).start(quell_exe()).await;
    let (http, browser) = (daemon.api(), Browser::start(Viewport::DESKTOP).await);
    let fixture = PageFixture { browser, daemon, model, http };
    fixture.sign_in().await;
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
