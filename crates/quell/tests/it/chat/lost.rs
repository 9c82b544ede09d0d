//! The daemon dies, and comes back: the chat says so, keeps what was typed, and goes on.

use std::net::TcpListener;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::Home;
use quell_testkit::model::{Behaviour, Stream};
use rustix::process::Signal;

use super::{CLASSIC, ENTER, chat, config};
use crate::cli::exe;

/// A port that was free a moment ago, so that a daemon can come back to it.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_daemon_is_waited_for_and_its_run_is_told_to_be_over() {
    let model = ScriptedModel::start().await;
    let home = Home::new(&config(&model, ""));
    let address = free_address();
    let daemon = home.start_on(exe(), &address).await;
    let mut chat = chat(&home, &["--session", "s"], CLASSIC);
    chat.shows("● live").await;
    model.script(Stream::new().text("half an ans").wait_for("never"));
    chat.keys("question");
    chat.keys(ENTER);
    chat.shows("half an ans").await;
    daemon.kill9().await;
    chat.shows("not connected").await;
    chat.keys("typed meanwhile");
    chat.shows("› typed meanwhile").await;
    // A message that cannot be sent comes back.
    chat.keys(ENTER);
    chat.shows("not sent").await;
    chat.shows("› typed meanwhile").await;
    drop(daemon);
    let _daemon = home.start_on(exe(), &address).await;
    let shown = chat.shows("● live").await;
    assert!(shown.text().contains("› typed meanwhile"), "{}", shown.text());
    chat.shows("Execution paused").await;
    model.script(Behaviour::text("I am back."));
    chat.keys(ENTER);
    chat.shows("I am back.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_stands_still_does_not_take_the_keyboard() {
    let model = ScriptedModel::start().await;
    let home = Home::new(&config(&model, ""));
    let daemon = home.start(exe()).await;
    let mut chat = chat(&home, &["--session", "s"], CLASSIC);
    chat.shows("● live").await;
    daemon.signal(Signal::STOP);
    chat.keys("/help");
    chat.shows("▸ /help").await;
    chat.keys(ENTER);
    chat.shows("Keys and commands").await;
    daemon.signal(Signal::CONT);
}
