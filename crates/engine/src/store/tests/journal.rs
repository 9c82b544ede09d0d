//! The journal in the database, and the fence between one boot and the next.

use std::fs;

use rusqlite::Connection;

use super::super::{Deleted, SealedRun, StoreError, StoredState};
use super::*;
use crate::journal::Row;

fn line(run: &str, number: u32, line: &str) -> Row {
    Row { run: run_id(run), number, line: line.to_owned() }
}

async fn lines(store: &Store, run: &str) -> Vec<String> {
    store.journal(run_id(run)).await.unwrap().0
}

fn rows(home: &TempDir) -> i64 {
    let db = Connection::open(home.path().join(FILE)).unwrap();
    db.query_row("SELECT count(*) FROM journal", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn lines_come_back_in_order_and_the_later_of_one_number_stands() {
    let (store, _home) = fresh();
    accept(&store, "a", "s").await;
    accept(&store, "b", "s").await;
    store.write_journal(vec![line("a", 1, "two"), line("b", 0, "of b"), line("a", 0, "one")]).await.unwrap();
    store.write_journal(vec![line("a", 1, "two again"), line("a", 2, "three"), line("nobody", 0, "?")]).await.unwrap();
    assert_eq!(lines(&store, "a").await, ["one", "two again", "three"]);
    assert_eq!(lines(&store, "b").await, ["of b"]);
}

#[tokio::test]
async fn the_journal_goes_with_the_turn_and_with_the_end() {
    let (store, home) = fresh();
    for run in ["a", "b", "c"] {
        accept(&store, run, run).await;
        store.write_journal(vec![line(run, 0, "something")]).await.unwrap();
    }
    store.append_turn(key("a"), run_id("a"), "turn a".into(), "ending".into()).await.unwrap();
    store.end_run(run_id("b"), "ended".into(), nothing()).await.unwrap();
    assert_eq!(store.delete_session(key("c"), vec![run_id("c")]).await, Ok(Deleted::Yes));
    assert_eq!(rows(&home), 0);
    store.end_run(run_id("a"), "ended".into(), nothing()).await.unwrap();
    store.write_journal(vec![line("a", 1, "late"), line("b", 1, "late")]).await.unwrap();
    assert_eq!(rows(&home), 0, "a line was written for a run that is over");
}

#[tokio::test]
async fn a_run_of_a_dead_daemon_is_sealed_once() {
    let (store, home) = fresh();
    accept(&store, "a", "s").await;
    store.write_journal(vec![line("a", 0, "something")]).await.unwrap();
    let sealed = |turn: &str, view: &str| {
        vec![SealedRun {
            session: key("s"),
            run: run_id("a"),
            turn: Some(turn.into()),
            view: view.into(),
            spent: nothing(),
        }]
    };
    store.seal_runs(sealed("turn a", "sealed")).await.unwrap();
    assert_eq!(rows(&home), 0);
    store.seal_runs(sealed("other turn", "sealed again")).await.unwrap();
    assert_eq!(store.turns(key("s")).await.unwrap(), ["turn a"]);
    let row = store.run(run_id("a")).await.unwrap().unwrap();
    assert_eq!((row.state, row.view.as_str()), (StoredState::Ended, "sealed"));
    assert_eq!(store.journal(run_id("a")).await.unwrap(), (vec![], Some("turn a".into())));
    let session = store.session(key("s")).await.unwrap().unwrap();
    assert_eq!(session.turns, 1);
}

#[tokio::test]
async fn a_daemon_whose_lock_was_taken_away_writes_no_more() {
    let (old, home) = fresh();
    accept(&old, "a", "s").await;
    fs::remove_file(home.path().join("quell.lock")).unwrap();
    let new = open(&home);
    assert_eq!(old.accept_run(row("late", "s")).await, Err(StoreError::Fenced));
    assert_eq!(old.write_journal(vec![line("a", 0, "late")]).await, Err(StoreError::Fenced));
    assert_eq!(ids(&old.open_runs().await.unwrap()), ["a"], "reading goes on");
    accept(&new, "b", "s").await;
    assert_eq!(ids(&new.open_runs().await.unwrap()), ["a", "b"]);
    new.close().await;
    assert_eq!(old.accept_run(row("later", "s")).await, Err(StoreError::Fenced), "the fence fell with its daemon");
}

#[tokio::test]
async fn what_is_durable_stays_so_beside_the_journal() {
    let (store, home) = fresh();
    accept(&store, "a", "s").await;
    for number in 0..50 {
        let (journal, started) = tokio::join!(
            store.write_journal(vec![line("a", number, "something")]),
            store.accept_run(row(&format!("r{number}"), "s")),
        );
        assert!(journal.is_ok() && started.is_ok());
    }
    assert_eq!(rows(&home), 50);
    assert_eq!(store.open_runs().await.unwrap().len(), 51);
}
