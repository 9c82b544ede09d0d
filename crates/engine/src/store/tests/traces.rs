//! What chats show: kept for the daemon that comes after a crash, and for no other. Commands that have acted.

use super::*;
use crate::store::Trace;

pub(super) fn trace(run: &str, channel: &str) -> Trace {
    Trace {
        run: run_id(run),
        channel: channel.to_owned(),
        target: "room".to_owned(),
        thread: Some("t1".to_owned()),
        asked: format!("message of {run}"),
        draft: None,
    }
}

async fn left(store: &Store) -> Vec<Trace> {
    store.left_traces().await.unwrap().into_iter().map(|left| left.trace).collect()
}

#[tokio::test]
async fn only_what_an_earlier_daemon_shows_is_left() {
    let (store, home) = fresh();
    for run in ["a", "b", "c"] {
        store.keep_trace(trace(run, "tg")).await.unwrap();
    }
    store.keep_draft(run_id("b"), Some("draft".to_owned())).await.unwrap();
    store.forget_trace(run_id("c")).await.unwrap();
    store.keep_draft(run_id("c"), Some("late".to_owned())).await.unwrap();
    assert_eq!(left(&store).await, [], "it is at work itself");
    store.close().await;

    let store = open(&home);
    store.keep_trace(trace("d", "tg")).await.unwrap();
    let with_draft = Trace { draft: Some("draft".to_owned()), ..trace("b", "tg") };
    assert_eq!(left(&store).await, [trace("a", "tg"), with_draft]);
    // A run of that id begins again: it is this daemon's from now on.
    store.keep_trace(trace("a", "tg")).await.unwrap();
    store.forget_trace(run_id("b")).await.unwrap();
    assert_eq!(left(&store).await, []);
}

#[tokio::test]
async fn what_was_left_in_channels_that_are_gone_is_forgotten() {
    let (store, home) = fresh();
    for (run, channel) in [("a", "tg"), ("b", "slack"), ("c", "old")] {
        store.keep_trace(trace(run, channel)).await.unwrap();
    }
    store.close().await;
    let store = open(&home);
    store.keep_trace(trace("d", "old")).await.unwrap();
    assert_eq!(store.keep_traces_in(vec!["tg".to_owned(), "slack".to_owned()]).await, Ok(1));
    assert_eq!(left(&store).await, [trace("a", "tg"), trace("b", "slack")]);
    store.close().await;
    let store = open(&home);
    assert_eq!(left(&store).await.len(), 3, "what this daemon shows itself was not touched");
    assert_eq!(store.keep_traces_in(Vec::new()).await, Ok(3));
}

#[tokio::test]
async fn a_message_that_another_run_took_in_names_that_run() {
    let (store, home) = fresh();
    for run in ["a", "b"] {
        accept(&store, run, "s").await;
        store.keep_trace(trace(run, "tg")).await.unwrap();
    }
    store.steered(run_id("b"), run_id("a")).await.unwrap();
    store.close().await;
    let into: Vec<_> = open(&home).left_traces().await.unwrap().into_iter().map(|left| left.steered_into).collect();
    assert_eq!(into, [None, Some(run_id("a"))]);
}

#[tokio::test]
async fn commands_that_have_acted_are_known_after_a_restart_the_newest_of_many() {
    let (store, home) = fresh();
    let commands: Vec<String> = (0..1003).map(|number| format!("tg:{number}")).collect();
    for command in commands.iter().chain(&commands[1002..]) {
        store.keep_obeyed(command.clone()).await.unwrap();
    }
    store.close().await;
    let store = open(&home);
    for (command, known) in [("tg:2", false), ("tg:3", true), ("tg:1002", true), ("tg:1003", false)] {
        assert_eq!(store.is_obeyed(command.to_owned()).await, Ok(known), "{command}");
    }
}
