//! Esc: it stops, it forces, it counts down, it ends in the receipt line, and it never stops what it was not meant for.

use quell_testkit::commands::{self, Marker};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;

use super::{ENTER, ESC, Table};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn esc_stops_a_stream_and_the_receipt_stays() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("I begin and never ").wait_for("never"));
    table.say("tell me a story");
    table.chat.shows("I begin and never").await;
    table.chat.keys(ESC);
    table.model.request(0).client_left().await;
    let shown = table.chat.shows("Execution paused · 0 steps done, 1 cut off · stopped in").await.text();
    let read = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(read.contains("model closed after") && read.contains("history valid"), "{shown}");
    table.chat.shows("not seen by the model").await;
    table.chat.shows("ready").await;
    let list = table.daemon.http().get("/api/runs").await.expect_status(200);
    let verdict = &list["items"][0]["verdict"];
    assert_eq!((&verdict["reason"], &verdict["by"]["surface"]), (&json!("user"), &json!("tui")), "{list:#}");
    let log = table.daemon.output();
    let stops = |line: &&str| line.contains("abort request handled") && line.contains("surface=Tui");
    assert!(log.lines().find(stops).is_some_and(|line| line.contains(r#"key: \"s\""#)), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_countdown_names_what_is_left_and_a_second_esc_forces() {
    // Without force the process would be asked for as long as this test waits.
    let mut table =
        Table::with("[stop]\nterm_ms = 60000\ngrace_ms = 90000\nhard_ms = 5000\n", &["--session", "s"]).await;
    let mark = Marker::new();
    let command = commands::ignores_signals(&mark);
    table.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    table.say("work");
    // With its child there, it ignores the signal already.
    mark.at_least(2).await;
    table.chat.shows("shell").await;
    table.chat.keys(ESC);
    table.chat.shows("stopping: 1 process left").await;
    table.chat.keys(ESC);
    table.chat.shows("2 processes ended (kill)").await;
    mark.gone(crate::harness::PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_message_goes_on_with_what_was_finished() {
    let mut table = Table::set().await;
    let first = json!({"command": "echo $((40 + 2)) is known"});
    table.model.script(Behaviour::tool_call("c1", "shell", &first));
    table.model.script(Stream::new().text("Now I ").wait_for("never"));
    table.say("work");
    table.chat.shows("Now I").await;
    let shown = table.chat.now().text();
    assert!(shown.contains("shell  echo $((40 + 2)) is known") && shown.contains("exit 0"), "{shown}");
    table.chat.keys(ESC);
    table.chat.shows("Execution paused · 1 step done, 1 cut off").await;
    table.model.script(Behaviour::text("It was 42."));
    table.say("go on");
    table.chat.shows("It was 42.").await;
    let request = table.model.request(2).arrived().await;
    assert!(format!("{:?}", request.messages()).contains("42 is known"), "{:?}", request.messages());
    table.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn esc_that_closes_a_menu_does_not_stop() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("still here").wait_for("go").text(" and done."));
    table.say("hello");
    table.chat.shows("still here").await;
    table.chat.keys("/");
    table.chat.shows("/sessions").await;
    table.chat.keys(ESC);
    table.chat.hides("/sessions").await;
    table.chat.keys("sessions");
    table.chat.shows("▸ /sessions").await;
    table.chat.keys(ENTER);
    table.chat.shows("Sessions: Enter goes there").await;
    table.chat.keys(ESC);
    table.chat.hides("Sessions: Enter goes there").await;
    table.model.open_gate("go");
    table.chat.shows("still here and done.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_that_wait_come_back_into_the_input() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("working").wait_for("never"));
    table.say("first");
    table.chat.shows("working").await;
    table.say("second thought");
    table.chat.shows("queued  second thought").await;
    table.say("third thought");
    table.chat.shows("queued  third thought").await;
    table.chat.keys("half a sen");
    table.chat.keys(ESC);
    table.chat.shows("Execution paused").await;
    let wanted = |rows: &[String]| {
        let at = rows.iter().position(|row| row == "› second thought");
        at.is_some_and(|at| {
            rows[at..].starts_with(&["› second thought".into(), "  third thought".into(), "  half a sen".into()])
        })
    };
    table.chat.until("the texts in the input", |shown| wanted(&shown.rows())).await;
    assert_eq!(table.model.request_count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_word_is_the_daemons_to_know() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("working").wait_for("never"));
    table.say("first");
    table.chat.shows("working").await;
    table.say("Stop!");
    table.chat.shows("Execution paused").await;
    table.model.request(0).client_left().await;
    let list = table.daemon.http().get("/api/runs").await.expect_status(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "a stop word is no message");
    assert_eq!(list["items"][0]["verdict"]["reason"], "command");
    table.say("/stop");
    table.chat.shows("nothing to stop").await;
}

/// Figures are for the bench; here stands only what a person would call at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_says_stopping_before_the_daemon_has_answered() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("working").wait_for("never"));
    table.say("first");
    table.chat.shows("working").await;
    // The daemon stands still: whatever the screen says now is its own.
    let still = table.daemon.stand_still();
    table.chat.keys(ESC);
    table.chat.shows("◆ stopping").await;
    drop(still);
    table.chat.shows("Execution paused").await;
}
