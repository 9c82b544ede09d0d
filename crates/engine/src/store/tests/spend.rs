//! What is spent is counted with the end of its run, once.

use quell_protocol::Usage;

use super::*;
use crate::store::SealedRun;

const TODAY: &str = "2026-05-01";

fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, estimated: false }
}

fn spent(input: u64, output: u64) -> Spent {
    Spent { day: TODAY.to_owned(), usage: usage(input, output), ..nothing() }
}

async fn today(store: &Store) -> Vec<(String, Usage)> {
    let rows = store.spent_on(TODAY.to_owned()).await.unwrap();
    rows.into_iter().map(|(agent, usage)| (agent.to_string(), usage)).collect()
}

#[tokio::test]
async fn an_end_that_is_stored_again_counts_only_what_is_new() {
    let (store, home) = fresh();
    for id in ["a", "b"] {
        store.accept_run(row(id, "s")).await.unwrap();
    }
    for _ in 0..3 {
        store.end_run(run_id("a"), "ended".into(), spent(100, 10)).await.unwrap();
    }
    assert_eq!(today(&store).await, [("main".to_owned(), usage(100, 10))]);
    store.end_run(run_id("a"), "amended".into(), spent(120, 10)).await.unwrap();
    store.end_run(run_id("a"), "amended".into(), spent(90, 5)).await.unwrap();
    store.end_run(run_id("b"), "ended".into(), spent(1, 2)).await.unwrap();
    let other = Spent { agent: AgentId::parse("other").unwrap(), ..spent(7, 0) };
    store.accept_run(row("c", "s")).await.unwrap();
    store.end_run(run_id("c"), "ended".into(), other).await.unwrap();
    store.close().await;
    let store = open(&home);
    assert_eq!(today(&store).await, [("main".to_owned(), usage(121, 12)), ("other".to_owned(), usage(7, 0))]);
    assert_eq!(store.spent_on("2026-05-02".to_owned()).await.unwrap(), []);
}

#[tokio::test]
async fn a_deleted_run_is_counted_and_its_day_stays() {
    let (store, _home) = fresh();
    store.accept_run(row("a", "s")).await.unwrap();
    store.delete_session(key("s"), vec![run_id("a")]).await.unwrap();
    let missing = store.end_run(run_id("a"), "ended".into(), spent(5, 5)).await;
    assert!(missing.is_err(), "who stored it learns that it is gone");
    let again = Spent { counted: usage(5, 5), ..spent(6, 5) };
    let _ = store.end_run(run_id("a"), "amended".into(), again).await;
    assert_eq!(today(&store).await, [("main".to_owned(), usage(6, 5))]);
}

#[tokio::test]
async fn a_run_that_a_crash_left_is_counted_when_it_is_sealed() {
    let (store, home) = fresh();
    store.accept_run(row("a", "s")).await.unwrap();
    store.close().await;
    let store = open(&home);
    let sealed =
        SealedRun { session: key("s"), run: run_id("a"), turn: None, view: "sealed".into(), spent: spent(30, 3) };
    store.seal_runs(vec![sealed.clone()]).await.unwrap();
    store.seal_runs(vec![sealed]).await.unwrap();
    assert_eq!(today(&store).await, [("main".to_owned(), usage(30, 3))]);
}
