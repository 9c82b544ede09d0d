//! Leave the chat: the three steps of Ctrl-C, signals, and a restored terminal.

use rustix::process::Signal;

use super::{CTRL_C, ChatFixture, DEFAULT_SIZE, open_chat};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_chat_is_left_and_says_how_to_come_back() {
    let mut fixture = ChatFixture::start_with("", &[]).await;
    fixture.model.script(ScriptedResponse::text("Good day."));
    fixture.send_until("hello", "Good day.").await;
    fixture.chat.wait_text("○ ready").await;
    let key = fixture.chat.snapshot().rows()[0].split(' ').next().unwrap().to_owned();
    assert!(key.starts_with("cli:20"), "{key}");
    fixture.type_until(CTRL_C, "Leave?").await;
    fixture.chat.type_keys(CTRL_C);
    assert_eq!(fixture.chat.wait_exit().await.code(), Some(0));
    assert!(fixture.chat.is_restored());
    let shown = fixture.chat.snapshot().text();
    assert!(shown.contains(&format!("go on with: quell chat --session {key}")), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_clears_then_stops_then_asks() {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("working").await;
    fixture.type_until("half a thought", "› half a thought").await;
    fixture.type_until_gone(CTRL_C, "half a thought").await;
    assert_eq!(fixture.count_active_runs().await, 1);
    fixture.type_until(CTRL_C, "Execution paused").await;
    fixture.chat.wait_text("○ ready").await;
    fixture.type_until(CTRL_C, "Leave?").await;
}

#[rstest]
#[case::left("l", 1)]
#[case::stopped("s", 0)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_can_be_left_running_and_is_named_or_stopped(#[case] key: &str, #[case] active_runs: usize) {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("working").await;
    fixture.type_until("\x04", "1 run not over. Leave?").await;
    fixture.chat.type_keys(CTRL_C);
    fixture.chat.type_keys(key);
    assert_eq!(fixture.chat.wait_exit().await.code(), Some(0));
    poll_until("the active runs", async || (fixture.count_active_runs().await == active_runs).then_some(())).await;
    let shown = fixture.chat.snapshot().text();
    let is_named = shown.contains("1 run not over · stop with: quell stop --session s");
    assert_eq!(is_named, active_runs == 1, "{shown}");
}

#[rstest]
#[case::term(Signal::TERM)]
#[case::hup(Signal::HUP)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_gives_the_terminal_back_and_leaves_the_run_alone(#[case] signal: Signal) {
    let mut fixture = ChatFixture::start().await;
    fixture.start_endless_run("working").await;
    fixture.type_until("not yet sent", "› not yet sent").await;
    assert!(!fixture.chat.is_restored());
    fixture.chat.signal(signal);
    assert_eq!(fixture.chat.wait_exit().await.code(), Some(143));
    assert!(fixture.chat.is_restored());
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
    let home = DaemonHome::new("");
    let mut alone = open_chat(&home, &[], DEFAULT_SIZE);
    assert_eq!(alone.wait_exit().await.code(), Some(4));
    let shown = alone.snapshot().text();
    assert!(shown.contains("no daemon") && alone.is_restored(), "{shown}");
}
