//! Pending replies: kept for the next daemon after a crash, and not listed by the one that saved them. Executed
//! commands.

use super::*;
use crate::PendingReply;

pub(super) fn pending_reply(run: &str, channel: &str) -> PendingReply {
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
    store.list_stale_replies().await.unwrap().into_iter().map(|left| left.pending_reply).collect()
}

#[tokio::test]
async fn only_what_an_earlier_daemon_shows_is_left() {
    let (store, home) = new_store();
    for run in ["a", "b", "c"] {
        store.save_pending_reply(pending_reply(run, "tg")).await.unwrap();
    }
    store.save_pending_reply_draft(run_id("b"), Some("draft".to_owned())).await.unwrap();
    store.delete_pending_reply(run_id("c")).await.unwrap();
    store.save_pending_reply_draft(run_id("c"), Some("late".to_owned())).await.unwrap();
    assert_eq!(list_stale(&store).await, [], "it is at work itself");
    store.close().await;

    let store = open_store(&home);
    store.save_pending_reply(pending_reply("d", "tg")).await.unwrap();
    let with_draft = PendingReply { draft_message: Some("draft".to_owned()), ..pending_reply("b", "tg") };
    assert_eq!(list_stale(&store).await, [pending_reply("a", "tg"), with_draft]);
    // A new run with this id belongs to this daemon.
    store.save_pending_reply(pending_reply("a", "tg")).await.unwrap();
    store.delete_pending_reply(run_id("b")).await.unwrap();
    assert_eq!(list_stale(&store).await, []);
}

#[tokio::test]
async fn pending_replies_of_removed_channels_are_deleted() {
    let (store, home) = new_store();
    for (run, channel) in [("a", "tg"), ("b", "slack"), ("c", "old")] {
        store.save_pending_reply(pending_reply(run, channel)).await.unwrap();
    }
    store.close().await;
    let store = open_store(&home);
    store.save_pending_reply(pending_reply("d", "old")).await.unwrap();
    assert_eq!(store.delete_stale_replies_except(vec!["tg".to_owned(), "slack".to_owned()]).await, Ok(1));
    assert_eq!(list_stale(&store).await, [pending_reply("a", "tg"), pending_reply("b", "slack")]);
    store.close().await;
    let store = open_store(&home);
    assert_eq!(list_stale(&store).await.len(), 3, "what this daemon shows itself was not touched");
    assert_eq!(store.delete_stale_replies_except(Vec::new()).await, Ok(3));
}

#[tokio::test]
async fn a_message_that_another_run_took_in_names_that_run() {
    let (store, home) = new_store();
    for run in ["a", "b"] {
        accept_run(&store, run, "s").await;
        store.save_pending_reply(pending_reply(run, "tg")).await.unwrap();
    }
    store.record_run_steered(run_id("b"), run_id("a")).await.unwrap();
    store.close().await;
    let into: Vec<_> =
        open_store(&home).list_stale_replies().await.unwrap().into_iter().map(|left| left.steered_into).collect();
    assert_eq!(into, [None, Some(run_id("a"))]);
}

#[tokio::test]
async fn commands_that_have_acted_are_known_after_a_restart_the_newest_of_many() {
    let (store, home) = new_store();
    let commands: Vec<String> = (0..1003).map(|number| format!("tg:{number}")).collect();
    for command in commands.iter().chain(&commands[1002..]) {
        store.mark_command_executed(command.clone()).await.unwrap();
    }
    store.close().await;
    let store = open_store(&home);
    for (command, known) in [("tg:2", false), ("tg:3", true), ("tg:1002", true), ("tg:1003", false)] {
        assert_eq!(store.is_command_executed(command.to_owned()).await, Ok(known), "{command}");
    }
}
