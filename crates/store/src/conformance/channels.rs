//! Pending replies: kept for the next daemon after a crash, and not listed by the one that saved them. Executed
//! commands.

use super::*;
use crate::PendingReply;

pub(crate) fn pending_reply(run: &str, channel: &str) -> PendingReply {
    PendingReply {
        run: run_id(run),
        channel: channel.to_owned(),
        target: "room".to_owned(),
        thread: Some("t1".to_owned()),
        request_message: format!("message of {run}"),
        draft_message: None,
    }
}

async fn list_stale(store: &Store) -> Vec<PendingReply> {
    store.channels().list_stale_replies().await.unwrap().into_iter().map(|left| left.pending_reply).collect()
}

pub(crate) async fn only_what_an_earlier_daemon_shows_is_left<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for run in ["a", "b", "c"] {
        store.channels().save_pending_reply(pending_reply(run, "tg")).await.unwrap();
    }
    store.channels().save_pending_reply_draft(run_id("b"), Some("draft".to_owned())).await.unwrap();
    store.channels().delete_pending_reply(run_id("c")).await.unwrap();
    store.channels().save_pending_reply_draft(run_id("c"), Some("late".to_owned())).await.unwrap();
    assert_eq!(list_stale(&store).await, [], "it is at work itself");
    for (run, is_pending) in [("a", true), ("c", false)] {
        assert_eq!(store.channels().has_pending_reply(run_id(run)).await, Ok(is_pending));
    }
    store.close().await;

    let store = home.open();
    store.channels().save_pending_reply(pending_reply("d", "tg")).await.unwrap();
    let with_draft = PendingReply { draft_message: Some("draft".to_owned()), ..pending_reply("b", "tg") };
    assert_eq!(list_stale(&store).await, [pending_reply("a", "tg"), with_draft]);
    assert_eq!(store.channels().take_stale_replies("slack".to_owned()).await, Ok(vec![]));
    assert_eq!(list_stale(&store).await.len(), 2);
    // A new run with this id belongs to this daemon.
    store.channels().save_pending_reply(pending_reply("a", "tg")).await.unwrap();
    store.channels().delete_pending_reply(run_id("b")).await.unwrap();
    assert_eq!(list_stale(&store).await, []);
}

pub(crate) async fn what_was_left_is_given_to_one_daemon_each<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for run in ["a", "b"] {
        store.channels().save_pending_reply(pending_reply(run, "tg")).await.unwrap();
    }
    store.close().await;
    let take = async |store: &Store| {
        let taken = store.channels().take_stale_replies("tg".to_owned()).await.unwrap();
        taken.into_iter().map(|left| (left.pending_reply, left.outcome_sent)).collect::<Vec<_>>()
    };
    let store = home.open();
    assert_eq!(take(&store).await, [(pending_reply("a", "tg"), false), (pending_reply("b", "tg"), false)]);
    assert_eq!(take(&store).await, []);
    store.channels().mark_outcome_sent(run_id("a")).await.unwrap();
    store.channels().delete_pending_reply(run_id("b")).await.unwrap();
    store.close().await;
    assert_eq!(take(&home.open()).await, [(pending_reply("a", "tg"), true)]);
}

pub(crate) async fn what_was_left_in_channels_that_are_gone_is_forgotten<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for (run, channel) in [("a", "tg"), ("b", "slack"), ("c", "old")] {
        store.channels().save_pending_reply(pending_reply(run, channel)).await.unwrap();
    }
    store.close().await;
    let store = home.open();
    store.channels().save_pending_reply(pending_reply("d", "old")).await.unwrap();
    assert_eq!(store.channels().delete_stale_replies_except(vec!["tg".to_owned(), "slack".to_owned()]).await, Ok(1));
    assert_eq!(list_stale(&store).await, [pending_reply("a", "tg"), pending_reply("b", "slack")]);
    store.close().await;
    let store = home.open();
    assert_eq!(list_stale(&store).await.len(), 3, "what this daemon shows itself was not touched");
    assert_eq!(store.channels().delete_stale_replies_except(Vec::new()).await, Ok(3));
}

pub(crate) async fn a_message_that_another_run_took_in_names_that_run<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for run in ["a", "b"] {
        accept_run(&store, run, "s").await;
        store.channels().save_pending_reply(pending_reply(run, "tg")).await.unwrap();
    }
    store.runs().record_steered(run_id("b"), run_id("a")).await.unwrap();
    store.close().await;
    let into: Vec<_> =
        home.open().channels().list_stale_replies().await.unwrap().into_iter().map(|left| left.steered_into).collect();
    assert_eq!(into, [None, Some(run_id("a"))]);
}

pub(crate) async fn commands_that_have_acted_are_known_after_a_restart_the_newest_of_many<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    let commands: Vec<String> = (0..1003).map(|number| format!("tg:{number}")).collect();
    for command in commands.iter().chain(&commands[1002..]) {
        store.channels().mark_command_executed(command.clone()).await.unwrap();
    }
    store.close().await;
    let store = home.open();
    for (command, known) in [("tg:2", false), ("tg:3", true), ("tg:1002", true), ("tg:1003", false)] {
        assert_eq!(store.channels().is_command_executed(command.to_owned()).await, Ok(known), "{command}");
    }
}
