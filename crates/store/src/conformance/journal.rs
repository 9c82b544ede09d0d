//! The journal in the database, and the fence between one daemon and the next.

use super::*;
use crate::JournalRow;
use crate::{SealedRun, StoreError, StoredRunState};

fn journal_row(run: &str, number: u32, line: &str) -> JournalRow {
    JournalRow { run: run_id(run), number, line: line.to_owned() }
}

async fn journal_lines(store: &Store, run: &str) -> Vec<String> {
    store.journal().read(run_id(run)).await.unwrap().0
}

async fn count_journal_rows(store: &Store, runs: &[&str]) -> usize {
    let mut rows = 0;
    for run in runs {
        rows += journal_lines(store, run).await.len();
    }
    rows
}

pub(crate) async fn lines_come_back_in_order_and_the_later_of_one_number_stands<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    accept_run(&store, "b", "s").await;
    store
        .journal()
        .write(vec![journal_row("a", 1, "two"), journal_row("b", 0, "of b"), journal_row("a", 0, "one")])
        .await
        .unwrap();
    store
        .journal()
        .write(vec![journal_row("a", 1, "two again"), journal_row("a", 2, "three"), journal_row("nobody", 0, "?")])
        .await
        .unwrap();
    assert_eq!(journal_lines(&store, "a").await, ["one", "two again", "three"]);
    assert_eq!(journal_lines(&store, "b").await, ["of b"]);
}

pub(crate) async fn the_journal_goes_with_the_turn_and_with_the_end<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for run in ["a", "b", "c"] {
        accept_run(&store, run, run).await;
        store.journal().write(vec![journal_row(run, 0, "something")]).await.unwrap();
    }
    append_turn(&store, "a", "a", "turn a", "ending").await.unwrap();
    store.runs().record_end(run_id("b"), "ended".into(), no_spend()).await.unwrap();
    assert_eq!(delete_session(&store, "c", &["c"]).await, DeleteSessionOutcome::Deleted);
    assert_eq!(count_journal_rows(&store, &["a", "b", "c"]).await, 0);
    store.runs().record_end(run_id("a"), "ended".into(), no_spend()).await.unwrap();
    store.journal().write(vec![journal_row("a", 1, "late"), journal_row("b", 1, "late")]).await.unwrap();
    assert_eq!(count_journal_rows(&store, &["a", "b", "c"]).await, 0, "a line was written for a run that is over");
}

pub(crate) async fn a_run_of_a_dead_daemon_is_sealed_once<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    store.journal().write(vec![journal_row("a", 0, "something")]).await.unwrap();
    let sealed = |turn: &str, view: &str| {
        vec![SealedRun {
            session: session_key("s"),
            run: run_id("a"),
            turn: Some(turn.into()),
            view: view.into(),
            spent: no_spend(),
        }]
    };
    store.runs().seal(sealed("turn a", "sealed")).await.unwrap();
    assert_eq!(count_journal_rows(&store, &["a"]).await, 0);
    store.runs().seal(sealed("other turn", "sealed again")).await.unwrap();
    assert_eq!(turns(&store, "s").await, ["turn a"]);
    let row = find_run(&store, "a").await;
    assert_eq!((row.state, row.view.as_str()), (StoredRunState::Ended, "sealed"));
    assert_eq!(store.journal().read(run_id("a")).await.unwrap(), (vec![], Some("turn a".into())));
    let session = find_session(&store, "s").await;
    assert_eq!(session.turns, 1);
}

pub(crate) async fn a_daemon_whose_lock_was_taken_away_writes_no_more<D: TestDatabase>() {
    let (old, home) = new_store::<D>();
    accept_run(&old, "a", "s").await;
    let new = home.take_over();
    assert_eq!(old.runs().accept(accepted_row("late", "s")).await, Err(StoreError::Fenced));
    assert_eq!(old.journal().write(vec![journal_row("a", 0, "late")]).await, Err(StoreError::Fenced));
    assert_eq!(run_ids(&old.runs().list_open().await.unwrap()), ["a"], "reading goes on");
    accept_run(&new, "b", "s").await;
    assert_eq!(run_ids(&new.runs().list_open().await.unwrap()), ["a", "b"]);
    new.close().await;
    assert_eq!(
        old.runs().accept(accepted_row("later", "s")).await,
        Err(StoreError::Fenced),
        "the fence fell with its daemon"
    );
}

pub(crate) async fn what_is_durable_stays_so_beside_the_journal<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    for number in 0..50 {
        let (journal, started) = tokio::join!(
            store.journal().write(vec![journal_row("a", number, "something")]),
            store.runs().accept(accepted_row(&format!("r{number}"), "s")),
        );
        assert!(journal.is_ok() && started.is_ok());
    }
    assert_eq!(count_journal_rows(&store, &["a"]).await, 50);
    assert_eq!(store.runs().list_open().await.unwrap().len(), 51);
}
