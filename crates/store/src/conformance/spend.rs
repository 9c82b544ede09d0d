//! Token usage is counted when a run ends, once.

use quell_kernel::daily_spend::PricedUsage;
use quell_protocol::{Principal, Usage};

use super::*;
use crate::SealedRun;

const TODAY: &str = "2026-05-01";

fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, cached_tokens: 0, estimated: false }
}

fn run_spend(input: u64, output: u64) -> RunSpend {
    RunSpend { day: TODAY.to_owned(), usage: usage(input, output), ..no_spend() }
}

async fn spend_today(store: &Store) -> Vec<(String, Usage)> {
    let rows = store.spend().on_day(TODAY.to_owned()).await.unwrap();
    rows.into_iter().map(|(agent, usage)| (agent.to_string(), usage)).collect()
}

pub(crate) async fn an_end_that_is_stored_again_counts_only_what_is_new<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for id in ["a", "b"] {
        store.runs().accept(accepted_row(id, "s")).await.unwrap();
    }
    for _ in 0..3 {
        store.runs().record_end(run_id("a"), "ended".into(), run_spend(100, 10)).await.unwrap();
    }
    assert_eq!(spend_today(&store).await, [("main".to_owned(), usage(100, 10))]);
    store.runs().record_end(run_id("a"), "amended".into(), run_spend(120, 10)).await.unwrap();
    store.runs().record_end(run_id("a"), "amended".into(), run_spend(90, 5)).await.unwrap();
    store.runs().record_end(run_id("b"), "ended".into(), run_spend(1, 2)).await.unwrap();
    let other = RunSpend { agent: AgentId::parse("other").unwrap(), ..run_spend(7, 0) };
    store.runs().accept(accepted_row("c", "s")).await.unwrap();
    store.runs().record_end(run_id("c"), "ended".into(), other).await.unwrap();
    store.close().await;
    let store = home.open();
    assert_eq!(spend_today(&store).await, [("main".to_owned(), usage(121, 12)), ("other".to_owned(), usage(7, 0))]);
    assert_eq!(store.spend().on_day("2026-05-02".to_owned()).await.unwrap(), []);
}

async fn key_spend(store: &Store, first: &str, last: &str) -> Vec<(String, u64, u64, u64)> {
    let rows = store.spend().by_key(first.to_owned(), last.to_owned()).await.unwrap();
    let flat = rows.into_iter().map(|(key, PricedUsage { usage, cost_nanos })| {
        (key.to_string(), usage.input_tokens, usage.output_tokens, cost_nanos)
    });
    flat.collect()
}

pub(crate) async fn a_run_is_counted_once_for_its_key_with_its_cost<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    let spend_of = |key: &str, input: u64, cost: u64| RunSpend {
        key: Some(Principal::parse(key).unwrap()),
        cost,
        ..run_spend(input, 1)
    };
    for id in ["a", "b", "c", "d", "e"] {
        store.runs().accept(accepted_row(id, "s")).await.unwrap();
    }
    for _ in 0..3 {
        store.runs().record_end(run_id("a"), "ended".into(), spend_of("ci", 10, 500)).await.unwrap();
    }
    store.runs().record_end(run_id("a"), "amended".into(), spend_of("ci", 12, 600)).await.unwrap();
    store.runs().record_end(run_id("b"), "ended".into(), spend_of("bot", 3, 0)).await.unwrap();
    // A person in a chat has no key.
    store.runs().record_end(run_id("c"), "ended".into(), RunSpend { key: None, ..spend_of("x", 7, 70) }).await.unwrap();
    let earlier = RunSpend { day: "2026-04-30".to_owned(), ..spend_of("ci", 1, 2) };
    store.runs().record_end(run_id("d"), "ended".into(), earlier).await.unwrap();
    store.runs().record_end(run_id("e"), "ended".into(), spend_of("idle", 0, 0)).await.unwrap();
    store.close().await;
    let store = home.open();
    let row = |key: &str, input, output, cost| (key.to_owned(), input, output, cost);
    let rows = key_spend(&store, TODAY, TODAY).await;
    assert_eq!(rows, [row("bot", 3, 1, 0), row("ci", 12, 1, 600), row("idle", 0, 1, 0)]);
    assert_eq!(key_spend(&store, "2026-04-30", TODAY).await[1], row("ci", 13, 2, 602));
    assert_eq!(key_spend(&store, "2026-05-02", "2026-05-31").await, []);
}

pub(crate) async fn a_deleted_run_is_counted_and_its_day_stays<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    store.runs().accept(accepted_row("a", "s")).await.unwrap();
    delete_session(&store, "s", &["a"]).await;
    let missing = store.runs().record_end(run_id("a"), "ended".into(), run_spend(5, 5)).await;
    assert!(missing.is_err(), "who stored it learns that it is gone");
    let again = RunSpend { already_counted: usage(5, 5), ..run_spend(6, 5) };
    let _ = store.runs().record_end(run_id("a"), "amended".into(), again).await;
    assert_eq!(spend_today(&store).await, [("main".to_owned(), usage(6, 5))]);
}

pub(crate) async fn a_run_that_a_crash_left_is_counted_when_it_is_sealed<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    store.runs().accept(accepted_row("a", "s")).await.unwrap();
    store.close().await;
    let store = home.open();
    let sealed = SealedRun {
        session: session_key("s"),
        run: run_id("a"),
        turn: None,
        view: "sealed".into(),
        spent: run_spend(30, 3),
    };
    store.runs().seal(vec![sealed.clone()]).await.unwrap();
    store.runs().seal(vec![sealed]).await.unwrap();
    assert_eq!(spend_today(&store).await, [("main".to_owned(), usage(30, 3))]);
}
