//! The stop control of the chat: button, Esc, force by a second press, and runs that were started elsewhere.

use quell_test_support::send_process::SendProcess;
use quell_testkit::browser::Key;

use super::{LONG_GRACE_CONFIG, PageConfig, PageFixture};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_by_the_button_ends_in_a_receipt() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.start_streaming("The first half").await;
    let geometry = "(r => [r.x, r.y, r.width, r.height])(document.querySelector('#send').getBoundingClientRect())";
    let while_running = fixture.eval(geometry).await;
    fixture.click("#send").await;
    fixture.model.request_at(0).wait_client_left().await;
    fixture.wait_text("article.turn.stopped .receipt-line", "stopped in ").await;
    fixture.wait_text("article.turn.stopped .receipt-line", "history valid").await;
    fixture.wait_text("article.turn.stopped .partial.not-seen", "The first half").await;
    fixture.wait_send_mode("send").await;
    assert_eq!(fixture.eval(geometry).await, while_running, "the control keeps its place and size");
    fixture.wait_text("#settling", "stopped in ").await;

    fixture.model.script(ScriptedResponse::text("Here it is."));
    fixture.send_message("and now?").await;
    fixture.wait_text("article.turn[data-role=assistant]", "Here it is.").await;
    let seen = messages_as_text(fixture.model.recorded_requests().last().unwrap().messages());
    assert!(!seen.contains("The first half"), "as the page says, the model does not see it: {seen}");
    fixture.model.assert_histories_valid();
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn esc_stops_from_anywhere_and_keeps_what_is_typed() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    // With nothing to stop.
    fixture.fill("#message", "a draft").await;
    fixture.press_key(Key::Escape).await;
    assert_eq!(fixture.draft().await, "a draft");
    fixture.clear_draft().await;

    fixture.start_streaming("The first half").await;
    fixture.fill("#message", "typed while it runs").await;
    fixture.press_key(Key::Escape).await;
    fixture.model.request_at(0).wait_client_left().await;
    fixture.wait_receipts(1).await;
    fixture.wait_send_mode("send").await;
    assert_eq!(fixture.draft().await, "typed while it runs");

    fixture.clear_draft().await;
    fixture.start_streaming("The second half").await;
    fixture.run_script("document.activeElement.blur()", &[]).await;
    fixture.press_key(Key::Escape).await;
    fixture.wait_receipts(2).await;
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn esc_for_a_dialog_or_the_search_field_stops_nothing() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.start_streaming("It goes on").await;
    fixture.click_until_visible("#stop-all", "#stop-all-dialog").await;
    fixture.press_key(Key::Escape).await;
    fixture.wait_hidden("#stop-all-dialog").await;
    fixture.wait_send_mode("stop").await;
    fixture.fill("#session-search", "a word").await;
    fixture.press_key(Key::Escape).await;
    fixture.wait_for("document.querySelector('#session-search').value === ''").await;
    assert_eq!(fixture.eval("document.querySelector('#send').dataset.mode").await, "stop");
    // An empty field is left.
    fixture.press_key(Key::Escape).await;
    fixture.wait_focused("#message").await;
    assert_eq!(fixture.eval("document.querySelector('#send').dataset.mode").await, "stop");
    fixture.press_key(Key::Escape).await;
    fixture.wait_receipts(1).await;
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_click_of_a_double_click_on_send_stops_nothing() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.start_streaming("It goes on").await;
    let twice = "document.querySelector('#send').dispatchEvent(new MouseEvent('click', {bubbles: true, detail: 2}))";
    fixture.run_script(twice, &[]).await;
    assert_eq!(fixture.eval("document.querySelector('#send').dataset.mode").await, "stop");
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_text_that_the_model_keeps_is_not_marked_as_unseen() {
    let keeps = PageConfig::main("partial = \"keep\"");
    let Some(fixture) = PageFixture::start_signed_in_with(&keeps).await else { return };
    fixture.start_streaming("Half of it").await;
    fixture.press_key(Key::Escape).await;
    fixture.wait_text("article.turn.stopped .partial", "Half of it").await;
    for round in ["live", "restored"] {
        assert_eq!(fixture.count_matches("article.turn.stopped .partial.not-seen").await, 0, "{round}");
        fixture.reload().await;
        fixture.wait_text("article.turn.stopped .partial", "Half of it").await;
    }
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_press_forces_and_says_so() {
    let Some(fixture) = PageFixture::start_signed_in_with(&PageConfig::tables(LONG_GRACE_CONFIG)).await else { return };
    for press in ["button", "Esc"] {
        let marker = ProcessMarker::new();
        fixture.model.script(shell_call(commands::ignores_signals(&marker)));
        fixture.send_message("work").await;
        let call = ".turn:last-child details.call:not([open]) summary";
        fixture.click_until_text(call, ".turn:last-child .call-output", "deaf").await;
        let press_stop = async || match press {
            "button" => fixture.click("#send").await,
            _ => fixture.press_key(Key::Escape).await,
        };
        fixture.wait_send_mode("stop").await;
        press_stop().await;
        fixture.wait_send_mode("force").await;
        fixture.wait_for("document.querySelector('#settling').textContent.trim()").await;
        fixture.wait_text("#settling", "process").await;
        assert!(!marker.marked_processes().is_empty(), "the first press is gentle");
        press_stop().await;
        fixture.wait_send_mode("send").await;
        fixture.wait_text("#settling", "(kill)").await;
        assert!(marker.marked_processes().is_empty(), "{:?}", marker.marked_processes());
    }
    fixture.wait_receipts(2).await;
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_the_command_line_is_seen_and_stopped_on_the_page() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.model.script(ScriptedResponse::silent_mid_stream("from the terminal"));
    let send = SendProcess::start(fixture.daemon.home(), &["--session", "cli/시험:1", "go on"]);
    // The session appears in the list by itself.
    fixture.wait_visible("#sessions [data-session='cli/시험:1']").await;
    fixture.click_until_text("#sessions [data-session='cli/시험:1']", "article.turn[data-role=user]", "go on").await;
    fixture.wait_text("article.turn[data-role=assistant]", "from the terminal").await;
    fixture.wait_send_mode("stop").await;
    fixture.click_until_text("#send", "article.turn.stopped .receipt-line", "stopped in ").await;
    let ended = send.wait_exit().await;
    assert!(ended.code == 130 && ended.err.contains("stopped"), "{ended:?}");
    fixture.assert_no_page_errors(&[]).await;
}
