//! The stop control of the chat: button, Esc, force by a second press, and runs that were started elsewhere.

use std::process::Stdio;

use quell_testkit::browser::Key;
use quell_testkit::commands::{self, ProcessMarker};
use quell_testkit::model::ScriptedResponse;
use serde_json::json;

use super::{LONG_GRACE_CONFIG, PageConfig, PageFixture};
use crate::test_daemon::quell_exe;

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_by_button_and_by_esc_ends_in_a_receipt() {
    let Some(fixture) = PageFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    browser.wait_visible("#message").await;
    fixture.start_streaming("The first half").await;
    let geometry = "(r => [r.x, r.y, r.width, r.height])(document.querySelector('#send').getBoundingClientRect())";
    let while_running = browser.eval(geometry).await;
    browser.click("#send").await;
    fixture.model.request_at(0).wait_client_left().await;
    browser.wait_text("article.turn.stopped .receipt-line", "stopped in ").await;
    browser.wait_text("article.turn.stopped .receipt-line", "history valid").await;
    browser.wait_text("article.turn.stopped .partial.not-seen", "The first half").await;
    fixture.wait_send_mode("send").await;
    assert_eq!(browser.eval(geometry).await, while_running, "the control keeps its place and size");
    browser.wait_text("#settling", "stopped in ").await;

    // Esc with nothing to stop keeps the typed text.
    browser.fill("#message", "a draft").await;
    browser.press_key(Key::Escape).await;
    assert_eq!(browser.eval("document.querySelector('#message').value").await, "a draft");
    browser.run_script("document.querySelector('#message').value = ''", &[]).await;

    fixture.start_streaming("The second half").await;
    browser.fill("#message", "typed while it runs").await;
    browser.press_key(Key::Escape).await;
    fixture.model.request_at(1).wait_client_left().await;
    browser.wait_for("document.querySelectorAll('article.turn.stopped .receipt-line').length === 2").await;
    fixture.wait_send_mode("send").await;
    assert_eq!(browser.eval("document.querySelector('#message').value").await, "typed while it runs");

    // Esc closes a dialog above the chat, and stops nothing then.
    browser.run_script("document.querySelector('#message').value = ''", &[]).await;
    fixture.start_streaming("The third part").await;
    browser.click("#stop-all").await;
    browser.wait_visible("#stop-all-dialog").await;
    browser.press_key(Key::Escape).await;
    browser.wait_hidden("#stop-all-dialog").await;
    fixture.wait_send_mode("stop").await;
    // Esc works anywhere in the chat, without a focused field.
    browser.run_script("document.activeElement.blur()", &[]).await;
    browser.press_key(Key::Escape).await;
    fixture.wait_send_mode("send").await;
    browser.wait_for("document.querySelectorAll('article.turn.stopped .receipt-line').length === 3").await;

    // Esc in the search field only empties it. The second click of a double click on Send stops nothing.
    fixture.start_streaming("The fourth part").await;
    browser.fill("#session-search", "a word").await;
    browser.press_key(Key::Escape).await;
    browser.wait_for("document.querySelector('#session-search').value === ''").await;
    let twice = "document.querySelector('#send').dispatchEvent(new MouseEvent('click', {bubbles: true, detail: 2}))";
    browser.run_script(twice, &[]).await;
    assert_eq!(browser.eval("document.querySelector('#send').dataset.mode").await, "stop");
    browser.press_key(Key::Escape).await;
    browser.wait_for("document.querySelectorAll('article.turn.stopped .receipt-line').length === 4").await;

    fixture.model.script(ScriptedResponse::text("Here it is."));
    fixture.send_message("and now?").await;
    browser.wait_text("article.turn[data-role=assistant]", "Here it is.").await;
    let seen = fixture.model.recorded_requests().last().map(|request| json!(request.messages()).to_string()).unwrap();
    assert!(!seen.contains("The first half"), "as the page says, the model does not see it: {seen}");
    fixture.model.assert_histories_valid();
    browser.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_text_that_the_model_keeps_is_not_marked_as_unseen() {
    let Some(fixture) =
        PageFixture::start_with(&PageConfig { main: "partial = \"keep\"", ..PageConfig::default() }).await
    else {
        return;
    };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    browser.wait_visible("#message").await;
    fixture.start_streaming("Half of it").await;
    browser.press_key(Key::Escape).await;
    browser.wait_text("article.turn.stopped .partial", "Half of it").await;
    for round in ["live", "restored"] {
        assert_eq!(browser.count_matches("article.turn.stopped .partial.not-seen").await, 0, "{round}");
        browser.reload().await;
        browser.wait_text("article.turn.stopped .partial", "Half of it").await;
    }
    browser.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_press_forces_and_says_so() {
    let Some(fixture) =
        PageFixture::start_with(&PageConfig { tables: LONG_GRACE_CONFIG, ..PageConfig::default() }).await
    else {
        return;
    };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    browser.wait_visible("#message").await;
    for press in ["button", "Esc"] {
        let marker = ProcessMarker::new();
        let command = json!({"command": commands::ignores_signals(&marker)});
        fixture.model.script(ScriptedResponse::tool_call("c1", "shell", &command));
        fixture.send_message("work").await;
        browser.click(".turn:last-child details.call:not([open]) summary").await;
        browser.wait_text(".turn:last-child .call-output", "deaf").await;
        let press_stop = async || match press {
            "button" => browser.click("#send").await,
            _ => browser.press_key(Key::Escape).await,
        };
        fixture.wait_send_mode("stop").await;
        press_stop().await;
        fixture.wait_send_mode("force").await;
        browser.wait_for("document.querySelector('#settling').textContent.trim()").await;
        browser.wait_text("#settling", "process").await;
        assert!(!marker.marked_processes().is_empty(), "the first press is gentle");
        press_stop().await;
        fixture.wait_send_mode("send").await;
        browser.wait_text("#settling", "(kill)").await;
        assert!(marker.marked_processes().is_empty(), "{:?}", marker.marked_processes());
    }
    assert_eq!(browser.count_matches("article.turn.stopped .receipt-line").await, 2);
    browser.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_the_command_line_is_seen_and_stopped_on_the_page() {
    let Some(fixture) = PageFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("from the terminal"));
    let mut send = fixture.daemon.home().command(quell_exe());
    send.args(["send", "--session", "cli/시험:1", "go on"]);
    send.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let send = tokio::process::Command::from(send).kill_on_drop(true).spawn().unwrap();
    // The session appears in the list by itself.
    browser.wait_visible("#sessions [data-session='cli/시험:1']").await;
    browser.click("#sessions [data-session='cli/시험:1']").await;
    browser.wait_text("article.turn[data-role=user]", "go on").await;
    browser.wait_text("article.turn[data-role=assistant]", "from the terminal").await;
    fixture.wait_send_mode("stop").await;
    browser.click("#send").await;
    browser.wait_text("article.turn.stopped .receipt-line", "stopped in ").await;
    let ended = tokio::time::timeout(crate::test_engine::WAIT_TIMEOUT, send.wait_with_output()).await.unwrap().unwrap();
    let output = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && output.contains("stopped"), "{output}");
    browser.assert_no_page_errors(&[]).await;
}
