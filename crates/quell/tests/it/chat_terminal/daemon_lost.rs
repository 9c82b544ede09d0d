//! The daemon dies and comes back: the chat shows it, keeps the typed text and continues.

use std::net::TcpListener;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::DaemonHome;
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use rustix::process::Signal;

use super::{DEFAULT_SIZE, ENTER, open_chat};
use crate::test_daemon::{config_toml, quell_exe};

/// A free port, to which a restarted daemon can bind again.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_daemon_is_waited_for_and_its_run_is_told_to_be_over() {
    let model = ScriptedModel::start().await;
    let home = DaemonHome::new(&config_toml(&model, ""));
    let address = free_address();
    let daemon = home.start_on(quell_exe(), &address).await;
    let mut chat = open_chat(&home, &["--session", "s"], DEFAULT_SIZE);
    chat.wait_text("● live").await;
    model.script(ScriptedStream::new().text("half an ans").wait_for_gate("never"));
    chat.type_keys("question\r");
    chat.wait_text("half an ans").await;
    daemon.kill9().await;
    chat.wait_text("not connected").await;
    chat.type_keys("typed meanwhile");
    chat.wait_text("› typed meanwhile").await;
    // A message that cannot be sent comes back into the input.
    chat.type_keys(ENTER);
    chat.wait_text("not sent").await;
    chat.wait_text("› typed meanwhile").await;
    drop(daemon);
    let _daemon = home.start_on(quell_exe(), &address).await;
    let shown = chat.wait_text("● live").await;
    assert!(shown.text().contains("› typed meanwhile"), "{}", shown.text());
    chat.wait_text("Execution paused").await;
    model.script(ScriptedResponse::text("I am back."));
    chat.type_keys(ENTER);
    chat.wait_text("I am back.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_stands_still_does_not_take_the_keyboard() {
    let model = ScriptedModel::start().await;
    let home = DaemonHome::new(&config_toml(&model, ""));
    let daemon = home.start(quell_exe()).await;
    let mut chat = open_chat(&home, &["--session", "s"], DEFAULT_SIZE);
    chat.wait_text("● live").await;
    daemon.signal(Signal::STOP);
    chat.type_keys("/help");
    chat.wait_text("▸ /help").await;
    chat.type_keys(ENTER);
    chat.wait_text("Keys and commands").await;
    daemon.signal(Signal::CONT);
}
