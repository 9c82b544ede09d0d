//! The page survives the death and the return of the daemon: it marks its content as old, reconnects, stays signed in,
//! and continues where it was.

use quell_testkit::browser::Key;

use super::{PageConfig, PageFixture};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_page_outlives_its_daemon() {
    let Some(mut fixture) = PageFixture::start_signed_in().await else { return };
    fixture.open_session("long-lived").await;
    fixture.start_streaming("what was said before").await;
    fixture.fill("#message", "half a thou").await;

    fixture.kill_daemon().await;
    fixture.wait_for("document.querySelector('[data-fact=connection]').dataset.state !== 'live'").await;
    let status = fixture.wait_for("document.querySelector('[data-fact=connection]').textContent.trim()").await;
    assert!(status.is_string(), "the connection status has a text");
    // The page keeps what it has shown.
    fixture.wait_text("article.turn[data-role=assistant]", "what was said before").await;
    assert_eq!(fixture.draft().await, "half a thou");
    // A stop that cannot be sent is shown as waiting, neither ignored nor reported as failed.
    fixture.click_until_text("#send", "#settling", "waits for the connection").await;
    assert_eq!(fixture.count_matches("#toasts .toast.error").await, 0);

    fixture.restart_daemon().await;
    fixture.wait_for("!document.body.classList.contains('stale')").await;
    assert_eq!(fixture.eval("document.body.dataset.view").await, "chat", "the cookie survives");
    // The new daemon has sealed the run: it is over, and the page shows it.
    fixture.wait_send_mode("send").await;
    fixture.wait_text("article.turn.stopped", "what was said before").await;
    fixture.wait_text("#settling", "ended before the stop arrived").await;
    assert_eq!(fixture.count_matches("article.turn[data-role=user]").await, 1, "nothing is shown twice");
    assert_eq!(fixture.count_matches("#toasts .toast.error").await, 0);
    assert_eq!(fixture.draft().await, "half a thou");
    fixture.model.script(ScriptedResponse::text("I am back."));
    fixture.fill("#message", "ght").await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_text("article.turn[data-role=user]", "half a thought").await;
    fixture.wait_text("article.turn[data-role=assistant]", "I am back.").await;
    fixture.model.assert_histories_valid();
    let lost = ["ERR_CONNECTION", "WebSocket connection to", "ERR_EMPTY_RESPONSE", "Failed to load resource"];
    fixture.assert_no_page_errors(&lost).await;
}

/// The connection breaks in the middle of a stream, and the model continues meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_where_it_was() {
    let Some((fixture, proxy)) = PageFixture::start_behind_proxy(&PageConfig::default()).await else { return };
    fixture.open_session("resumed").await;
    let stream = ScriptedStream::new().text("one ").wait_for_gate("two").text("two ");
    fixture.model.script(stream.wait_for_gate("three").text("three"));
    fixture.send_message("count").await;
    fixture.wait_text("article.turn[data-role=assistant]", "one").await;
    proxy.cut_websockets().await;
    fixture.wait_for("document.body.classList.contains('stale')").await;
    fixture.model.open_gate("two");
    proxy.restore_websockets();
    fixture.wait_live().await;
    fixture.wait_text("article.turn[data-role=assistant]", "one two").await;
    fixture.wait_send_mode("stop").await;
    fixture.model.open_gate("three");
    fixture.wait_send_mode("send").await;
    let text = fixture.text("article.turn[data-role=assistant] .markdown").await;
    assert_eq!(text.trim(), "one two three", "nothing is lost and nothing is doubled");
    fixture.assert_no_page_errors(&["WebSocket connection to", "/api/sessions/resumed"]).await;
}

/// A person presses Esc while the page has no connection; the run continues meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_without_a_connection_is_sent_when_it_is_back() {
    let Some((fixture, proxy)) = PageFixture::start_behind_proxy(&PageConfig::default()).await else { return };
    fixture.open_session("cut-off").await;
    for times in 1..=3 {
        fixture.start_streaming(&format!("Part {times} goes on")).await;
        fixture.set_offline(true).await;
        proxy.cut_websockets().await;
        fixture.wait_for("document.body.classList.contains('stale')").await;
        fixture.press_key(Key::Escape).await;
        fixture.wait_text("#settling", "waits for the connection").await;
        fixture.wait_send_mode("force").await;
        assert_eq!(fixture.count_matches("#toasts .toast.error").await, 0);
        fixture.set_offline(false).await;
        proxy.restore_websockets();
        fixture.model.request_at(times - 1).wait_client_left().await;
        fixture.wait_send_mode("send").await;
        fixture.wait_text("#settling", "stopped in ").await;
        fixture.wait_receipts(times).await;
    }
    // None of these stops affects the next message.
    fixture.model.script(ScriptedResponse::text("I am not stopped."));
    fixture.send_message("and now?").await;
    fixture.wait_text("article.turn[data-role=assistant]", "I am not stopped.").await;
    fixture.wait_send_mode("send").await;
    assert_eq!(fixture.count_matches("article.turn.stopped").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_goes_with_its_cause_and_hides_no_stop() {
    let Some((fixture, proxy)) = PageFixture::start_behind_proxy(&PageConfig::default()).await else { return };
    fixture.open_session("refused").await;
    fixture.start_streaming("It goes on").await;
    fixture.set_offline(true).await;
    proxy.cut_websockets().await;
    fixture.wait_for("document.body.classList.contains('stale')").await;
    fixture.press_key(Key::Escape).await;
    fixture.wait_text("#settling", "waits for the connection").await;
    fixture.send_message("and then?").await;
    fixture.wait_text("#refusal.problem", "Quell does not answer").await;
    assert!(fixture.text("#settling").await.contains("waits for the connection"));

    fixture.set_offline(false).await;
    proxy.restore_websockets();
    fixture.wait_text("#refusal:not(.problem)", "It can be sent now").await;
    fixture.wait_send_mode("send").await;
    assert_eq!(fixture.draft().await, "and then?");
    fixture.model.script(ScriptedResponse::text("Then this."));
    fixture.click("#message").await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_text("article.turn[data-role=assistant]", "Then this.").await;
    assert_eq!(fixture.text("#refusal").await, "");

    // A hold is another cause that ends by itself. What is typed afterwards is another text.
    fixture.wait_send_mode("send").await;
    drop(fixture.http.put("/api/hold", &json!({})).await.expect_status(200));
    fixture.send_message("is anybody there").await;
    fixture.wait_text("#refusal.problem", "on hold").await;
    drop(fixture.http.delete("/api/hold").await.expect_status(200));
    fixture.wait_text("#refusal:not(.problem)", "It can be sent now").await;
    fixture.type_text("?").await;
    assert_eq!(fixture.text("#refusal").await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_outlives_a_reload_and_not_the_sending() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.open_session("drafted").await;
    fixture.fill("#message", "half a thought").await;
    fixture.reload().await;
    fixture.wait_for("document.querySelector('#message')?.value === 'half a thought'").await;
    fixture.model.script(ScriptedResponse::text("Whole."));
    fixture.press_key(Key::Enter).await;
    fixture.wait_text("article.turn[data-role=assistant]", "Whole.").await;
    fixture.reload().await;
    fixture.wait_text("article.turn[data-role=assistant]", "Whole.").await;
    assert_eq!(fixture.draft().await, "");
}
