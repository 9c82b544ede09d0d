//! The daemon dies and comes back: the chat shows it, keeps the typed text and continues.

use rustix::process::Signal;

use super::{ChatFixture, ENTER};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_daemon_is_waited_for_and_its_run_is_told_to_be_over() {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("half an ans").await;
    fixture.daemon.kill9().await;
    fixture.chat.wait_text("not connected").await;
    fixture.type_until("typed meanwhile", "› typed meanwhile").await;
    // A message that cannot be sent comes back into the input.
    fixture.type_until(ENTER, "not sent").await;
    fixture.chat.wait_text("› typed meanwhile").await;
    let (home, address) = (fixture.daemon.home().clone(), fixture.daemon.address().to_owned());
    fixture.daemon = home.start_on(quell_exe(), &address).await;
    let shown = fixture.chat.wait_text("● live").await;
    assert!(shown.text().contains("› typed meanwhile"), "{}", shown.text());
    fixture.chat.wait_text("Execution paused").await;
    fixture.model.script(ScriptedResponse::text("I am back."));
    fixture.type_until(ENTER, "I am back.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_stands_still_does_not_take_the_keyboard() {
    let mut fixture = ChatFixture::start().await;
    fixture.daemon.signal(Signal::STOP);
    fixture.type_until("/help", "▸ /help").await;
    fixture.type_until(ENTER, "Keys and commands").await;
    fixture.daemon.signal(Signal::CONT);
}
