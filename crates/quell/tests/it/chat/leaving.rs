//! Leaving: Ctrl-C in its three steps, signals, and a terminal that is given back in every case.

use quell_testkit::model::Stream;
use rstest::rstest;
use rustix::process::Signal;

use super::{CLASSIC, CTRL_C, Table, chat, is_given_back};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_chat_is_left_and_says_how_to_come_back() {
    let mut table = Table::with("", &[]).await;
    table.model.script(quell_testkit::Behaviour::text("Good day."));
    table.say("hello");
    table.chat.shows("Good day.").await;
    table.chat.shows("ready").await;
    let key = table.chat.now().rows()[0].split(' ').next().unwrap().to_owned();
    assert!(key.starts_with("cli:20"), "{key}");
    let (status, shown) = table.leave().await;
    assert_eq!(status.code(), Some(0));
    assert!(shown.contains(&format!("go on with: quell chat --session {key}")), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_clears_then_stops_then_asks_and_leaves_the_terminal_as_it_was() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("working").wait_for("never"));
    table.say("first");
    table.chat.shows("working").await;
    table.chat.keys("half a thought");
    table.chat.shows("› half a thought").await;
    table.chat.keys(CTRL_C);
    table.chat.hides("half a thought").await;
    table.chat.keys(CTRL_C);
    table.chat.shows("Execution paused").await;
    table.chat.shows("ready").await;
    table.chat.keys("\x1b[A");
    table.chat.shows("› half a thought").await;
    table.chat.keys(CTRL_C);
    table.chat.hides("› half a thought").await;
    table.chat.keys(CTRL_C);
    table.chat.shows("Leave?").await;
    table.chat.keys(CTRL_C);
    assert_eq!(table.chat.ended().await.code(), Some(0));
    assert!(is_given_back(&table.chat));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_can_be_left_running_and_is_named() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("working").wait_for("never"));
    table.say("first");
    table.chat.shows("working").await;
    table.chat.keys("\x04");
    table.chat.shows("1 run not over. Leave?").await;
    table.chat.keys(CTRL_C);
    table.chat.keys("l");
    assert_eq!(table.chat.ended().await.code(), Some(0));
    let shown = table.chat.now().text();
    assert!(shown.contains("1 run not over · stop with: quell stop --session s"), "{shown}");
    let list = table.daemon.http().get("/api/runs?state=active").await.expect_status(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_can_be_stopped_on_the_way_out() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("working").wait_for("never"));
    table.say("first");
    table.chat.shows("working").await;
    table.say("/quit");
    table.chat.shows("s     stop it").await;
    table.chat.keys("s");
    assert_eq!(table.chat.ended().await.code(), Some(0));
    table.model.request(0).client_left().await;
    let list = table.daemon.http().get("/api/runs?state=active").await.expect_status(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 0, "{list:#}");
}

#[rstest]
#[case(Signal::TERM)]
#[case(Signal::HUP)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_gives_the_terminal_back_and_leaves_the_run_alone(#[case] signal: Signal) {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("working").wait_for("never"));
    table.say("first");
    table.chat.shows("working").await;
    table.chat.keys("not yet sent");
    table.chat.shows("› not yet sent").await;
    assert!(!is_given_back(&table.chat));
    table.chat.signal(signal);
    assert_eq!(table.chat.ended().await.code(), Some(143));
    assert!(is_given_back(&table.chat));
    let shown = table.chat.now().text();
    assert!(shown.contains("quell stop --session s") && shown.contains("not yet sent"), "{shown}");
    let list = table.daemon.http().get("/api/runs?state=active").await.expect_status(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_is_told_to_use_send() {
    let table = Table::set().await;
    let ran = crate::cli::run(table.daemon.home().command(crate::cli::exe()).arg("chat"));
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("needs a terminal") && ran.err.contains("quell send"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_daemon_nothing_is_taken() {
    let home = quell_testkit::daemon::Home::new("");
    let mut alone = chat(&home, &[], CLASSIC);
    assert_eq!(alone.ended().await.code(), Some(4));
    let shown = alone.now().text();
    assert!(shown.contains("no daemon") && is_given_back(&alone), "{shown}");
}
