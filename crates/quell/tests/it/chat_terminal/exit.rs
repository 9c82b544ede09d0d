//! Leave the chat: the three steps of Ctrl-C, signals, and a restored terminal.

use rstest::rstest;
use rustix::process::Signal;

use super::{CTRL_C, ChatFixture, DEFAULT_SIZE, is_terminal_restored, open_chat};
use crate::test_daemon::run_cli;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_chat_is_left_and_says_how_to_come_back() {
    let mut fixture = ChatFixture::start_with("", &[]).await;
    fixture.model.script(quell_testkit::ScriptedResponse::text("Good day."));
    fixture.send_until("hello", "Good day.").await;
    fixture.chat.wait_text("ready").await;
    let key = fixture.chat.snapshot().rows()[0].split(' ').next().unwrap().to_owned();
    assert!(key.starts_with("cli:20"), "{key}");
    let (status, shown) = fixture.exit().await;
    assert_eq!(status.code(), Some(0));
    assert!(shown.contains(&format!("go on with: quell chat --session {key}")), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_clears_then_stops_then_asks_and_leaves_the_terminal_as_it_was() {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("working").await;
    fixture.type_until("half a thought", "› half a thought").await;
    fixture.type_until_gone(CTRL_C, "half a thought").await;
    fixture.type_until(CTRL_C, "Execution paused").await;
    fixture.chat.wait_text("ready").await;
    fixture.type_until("\x1b[A", "› half a thought").await;
    fixture.type_until_gone(CTRL_C, "› half a thought").await;
    fixture.type_until(CTRL_C, "Leave?").await;
    fixture.chat.type_keys(CTRL_C);
    assert_eq!(fixture.chat.wait_exit().await.code(), Some(0));
    assert!(is_terminal_restored(&fixture.chat));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_can_be_left_running_and_is_named() {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("working").await;
    fixture.type_until("\x04", "1 run not over. Leave?").await;
    fixture.chat.type_keys(CTRL_C);
    fixture.chat.type_keys("l");
    assert_eq!(fixture.chat.wait_exit().await.code(), Some(0));
    let shown = fixture.chat.snapshot().text();
    assert!(shown.contains("1 run not over · stop with: quell stop --session s"), "{shown}");
    assert_eq!(fixture.count_active_runs().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_can_be_stopped_on_the_way_out() {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("working").await;
    fixture.send_until("/quit", "s     stop it").await;
    fixture.chat.type_keys("s");
    assert_eq!(fixture.chat.wait_exit().await.code(), Some(0));
    fixture.model.request_at(0).wait_client_left().await;
    assert_eq!(fixture.count_active_runs().await, 0);
}

#[rstest]
#[case::term(Signal::TERM)]
#[case::hup(Signal::HUP)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_gives_the_terminal_back_and_leaves_the_run_alone(#[case] signal: Signal) {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("working").await;
    fixture.type_until("not yet sent", "› not yet sent").await;
    assert!(!is_terminal_restored(&fixture.chat));
    fixture.chat.signal(signal);
    assert_eq!(fixture.chat.wait_exit().await.code(), Some(143));
    assert!(is_terminal_restored(&fixture.chat));
    let shown = fixture.chat.snapshot().text();
    assert!(shown.contains("quell stop --session s") && shown.contains("not yet sent"), "{shown}");
    assert_eq!(fixture.count_active_runs().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_is_told_to_use_send() {
    let fixture = ChatFixture::start().await;
    let ran = run_cli(fixture.daemon.home(), &["chat"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("needs a terminal") && ran.err.contains("quell send"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_daemon_nothing_is_taken() {
    let home = quell_testkit::daemon::DaemonHome::new("");
    let mut alone = open_chat(&home, &[], DEFAULT_SIZE);
    assert_eq!(alone.wait_exit().await.code(), Some(4));
    let shown = alone.snapshot().text();
    assert!(shown.contains("no daemon") && is_terminal_restored(&alone), "{shown}");
}
