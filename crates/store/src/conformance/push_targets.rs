//! Push targets: one per key, limited in number, taken over by one daemon, gone with their run.

use super::*;
use crate::{PushTargetKey, PutPushTargetOutcome, StoredPushTarget};

const LIMIT: u32 = 2;

pub(crate) fn push_target_key(run: &str, owner: &str, id: &str) -> PushTargetKey {
    PushTargetKey { run: run_id(run), owner: Principal::parse(owner).unwrap(), id: id.to_owned() }
}

async fn put(store: &Store, run: &str, owner: &str, id: &str) -> PutPushTargetOutcome {
    let sealed = format!("sealed {id}\0").into_bytes();
    store.push_targets().put(push_target_key(run, owner, id), sealed, LIMIT).await.unwrap()
}

async fn stored_number(store: &Store, run: &str, owner: &str, id: &str) -> i64 {
    match put(store, run, owner, id).await {
        PutPushTargetOutcome::Stored(number) => number,
        other => panic!("{other:?}"),
    }
}

async fn ids(store: &Store, run: &str, owner: &str) -> Vec<String> {
    let listed = store.push_targets().list(run_id(run), Principal::parse(owner).unwrap()).await.unwrap();
    listed.into_iter().map(|target| target.key.id).collect()
}

async fn take_over(store: &Store, limit: usize) -> Vec<String> {
    let taken = store.push_targets().take_over_ended(limit).await.unwrap();
    taken.into_iter().map(|target| target.key.id).collect()
}

pub(crate) async fn a_push_target_stands_once_and_its_owner_has_few<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    accept_run(&store, "r", "s").await;
    assert_eq!(put(&store, "nobody", "ann", "a").await, PutPushTargetOutcome::NoSuchRun);
    let (first, second) = (stored_number(&store, "r", "ann", "a").await, stored_number(&store, "r", "ann", "b").await);
    assert_eq!(put(&store, "r", "ann", "c").await, PutPushTargetOutcome::TooMany);
    stored_number(&store, "r", "bob", "a").await;
    let again = stored_number(&store, "r", "ann", "a").await;
    assert!(first < second && second < again);
    let exists = async |number| store.push_targets().exists(number).await.unwrap();
    assert_eq!((exists(first).await, exists(again).await), (false, true));
    assert_eq!(
        (ids(&store, "r", "ann").await, ids(&store, "r", "bob").await),
        (vec!["b".into(), "a".into()], vec!["a".to_owned()])
    );
    store.close().await;
    let store = home.open();
    let listed = store.push_targets().list(run_id("r"), Principal::parse("ann").unwrap()).await.unwrap();
    let target =
        StoredPushTarget { number: second, key: push_target_key("r", "ann", "b"), sealed: b"sealed b\0".to_vec() };
    assert_eq!(listed[0], target);
}

pub(crate) async fn push_targets_are_deleted_by_key_by_owner_and_with_their_run<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "r", "s").await;
    for (owner, id) in [("ann", "a"), ("ann", "b"), ("bob", "a"), ("cy", "a")] {
        stored_number(&store, "r", owner, id).await;
    }
    assert_eq!(store.push_targets().delete(push_target_key("r", "ann", "a")).await, Ok(true));
    assert_eq!(store.push_targets().delete(push_target_key("r", "ann", "a")).await, Ok(false));
    assert_eq!(ids(&store, "r", "ann").await, ["b"]);
    assert_eq!(store.push_targets().delete_of_owner(Principal::parse("bob").unwrap()).await, Ok(1));
    assert_eq!((ids(&store, "r", "bob").await.len(), ids(&store, "r", "cy").await.len()), (0, 1));
    assert_eq!(delete_session(&store, "s", &[]).await, DeleteSessionOutcome::Deleted);
    assert_eq!((ids(&store, "r", "ann").await.len(), ids(&store, "r", "cy").await.len()), (0, 0));
    run_to_end(&store, "old", "t").await;
    stored_number(&store, "old", "ann", "a").await;
    let agent = AgentId::parse("main").unwrap();
    store.runs().delete_runs_of_agent_before(agent, "2100".into()).await.unwrap();
    assert_eq!(ids(&store, "old", "ann").await.len(), 0);
}

pub(crate) async fn targets_of_ended_runs_of_a_dead_daemon_are_taken_over_once<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    run_to_end(&store, "ended", "s").await;
    run_to_end(&store, "later", "s").await;
    accept_run(&store, "open", "s").await;
    for (run, id) in [("ended", "a"), ("ended", "b"), ("open", "c"), ("later", "d")] {
        let number = stored_number(&store, run, "ann", id).await;
        if id == "b" {
            store.push_targets().settle(number).await.unwrap();
        }
    }
    assert_eq!(take_over(&store, 10).await.len(), 0, "they are of this daemon");
    store.close().await;
    let store = home.open();
    stored_number(&store, "ended", "bob", "new").await;
    assert_eq!(take_over(&store, 1).await, ["a"]);
    assert_eq!(take_over(&store, 10).await, ["d"]);
    assert_eq!(take_over(&store, 10).await.len(), 0);
    store.runs().record_end(run_id("open"), "ended".into(), no_spend()).await.unwrap();
    assert_eq!(take_over(&store, 10).await, ["c"]);
    store.close().await;
    assert_eq!(take_over(&home.open(), 10).await, ["a", "c", "d", "new"]);
}
