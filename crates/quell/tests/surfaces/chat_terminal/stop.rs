//! Stop and force with Esc; the countdown and the receipt line.

use super::{ChatFixture, ENTER, ESC};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn esc_stops_a_stream_and_the_receipt_stays() {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("I begin and never ").await;
    fixture.chat.type_keys(ESC);
    fixture.model.request_at(0).wait_client_left().await;
    let shown = fixture.chat.wait_text("Execution paused · 0 steps done, 1 cut off · stopped in").await.text();
    let read = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(read.contains("model closed after") && read.contains("history valid"), "{shown}");
    fixture.chat.wait_text("not seen by the model").await;
    fixture.chat.wait_text("ready").await;
    let list = fixture.daemon.api().get("/api/runs").await.expect_status(200);
    let verdict = &list["items"][0]["verdict"];
    assert_eq!((&verdict["reason"], &verdict["by"]["surface"]), (&json!("user"), &json!("tui")), "{list:#}");
    let log = fixture.daemon.output();
    let stops = |line: &&str| line.contains("abort request handled") && line.contains("surface=Tui");
    assert!(log.lines().find(stops).is_some_and(|line| line.contains(r#"key: \"s\""#)), "{log}");
    // A stop word is sent as a message, and the daemon takes it for a stop.
    fixture.start_endless_run("I go on").await;
    let active = fixture.daemon.api().get("/api/runs?state=active").await.expect_status(200);
    fixture.send_line("Stop!");
    let stopped = fixture.daemon.api().wait_ended(active["items"][0]["runId"].as_str().unwrap()).await;
    assert_eq!(stopped["verdict"]["reason"], "command", "{stopped:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_countdown_names_what_is_left_and_a_second_esc_forces() {
    // Without force, the process would get SIGTERM only, for longer than this test waits.
    let slow = "[stop]\nterm_ms = 60000\ngrace_ms = 90000\nhard_ms = 5000\n";
    let mut fixture = ChatFixture::start_with(slow, &["--session", "s"]).await;
    let marker = ProcessMarker::new();
    fixture.model.script(shell_call(commands::ignores_signals(&marker)));
    fixture.send_line("work");
    // Once its child is there, it ignores the signal.
    marker.wait_for_count(2).await;
    fixture.chat.wait_text("shell").await;
    fixture.type_until(ESC, "stopping: 1 process left").await;
    fixture.type_until(ESC, "2 processes ended (kill)").await;
    marker.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_message_goes_on_with_what_was_finished() {
    let mut fixture = ChatFixture::start().await;
    fixture.model.script(shell_call("echo $((40 + 2)) is known"));
    fixture.model.script(ScriptedStream::new().text("Now I ").wait_for_gate("never"));
    fixture.send_until("work", "Now I").await;
    let shown = fixture.chat.snapshot().text();
    assert!(shown.contains("shell  echo $((40 + 2)) is known") && shown.contains("exit 0"), "{shown}");
    fixture.type_until(ESC, "Execution paused · 1 step done, 1 cut off").await;
    fixture.model.script(ScriptedResponse::text("It was 42."));
    fixture.send_until("go on", "It was 42.").await;
    let request = fixture.model.request_at(2).wait_arrived().await;
    assert!(format!("{:?}", request.messages()).contains("42 is known"), "{:?}", request.messages());
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn esc_that_closes_a_menu_does_not_stop() {
    let mut fixture = ChatFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("still here").wait_for_gate("go").text(" and done."));
    fixture.send_until("hello", "still here").await;
    fixture.type_until("/", "/sessions").await;
    fixture.type_until_gone(ESC, "/sessions").await;
    fixture.type_until("sessions", "▸ /sessions").await;
    fixture.type_until(ENTER, "Sessions: Enter goes there").await;
    fixture.type_until_gone(ESC, "Sessions: Enter goes there").await;
    fixture.model.open_gate("go");
    fixture.chat.wait_text("still here and done.").await;
}

/// The benchmark measures the figures. Here the screen only has to react before the daemon does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_says_stopping_before_the_daemon_has_answered() {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("working").await;
    // The daemon is suspended, so the chat shows this by itself.
    let still = fixture.daemon.suspend();
    fixture.type_until(ESC, "◆ stopping").await;
    drop(still);
    fixture.chat.wait_text("Execution paused").await;
}
