//! The journal in the database, and the fence between one daemon and the next.

use std::fs;

use rusqlite::Connection;

use super::super::{DeleteSessionOutcome, SealedRun, StoreError, StoredRunState};
use super::*;
use crate::journal::JournalRow;

fn journal_row(run: &str, number: u32, line: &str) -> JournalRow {
    JournalRow { run: run_id(run), number, line: line.to_owned() }
}

async fn journal_lines(store: &Store, run: &str) -> Vec<String> {
    store.read_journal(run_id(run)).await.unwrap().0
}

fn count_journal_rows(home: &TempDir) -> i64 {
    let db = Connection::open(home.path().join(FILE)).unwrap();
    db.query_row("SELECT count(*) FROM journal", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn lines_come_back_in_order_and_the_later_of_one_number_stands() {
    let (store, _home) = new_store();
    accept_run(&store, "a", "s").await;
    accept_run(&store, "b", "s").await;
    store
        .write_journal(vec![journal_row("a", 1, "two"), journal_row("b", 0, "of b"), journal_row("a", 0, "one")])
        .await
        .unwrap();
    store
        .write_journal(vec![
            journal_row("a", 1, "two again"),
            journal_row("a", 2, "three"),
            journal_row("nobody", 0, "?"),
        ])
        .await
        .unwrap();
    assert_eq!(journal_lines(&store, "a").await, ["one", "two again", "three"]);
    assert_eq!(journal_lines(&store, "b").await, ["of b"]);
}

#[tokio::test]
async fn the_journal_goes_with_the_turn_and_with_the_end() {
    let (store, home) = new_store();
    for run in ["a", "b", "c"] {
        accept_run(&store, run, run).await;
        store.write_journal(vec![journal_row(run, 0, "something")]).await.unwrap();
    }
    store.append_turn(session_key("a"), run_id("a"), "turn a".into(), "ending".into()).await.unwrap();
    store.record_run_end(run_id("b"), "ended".into(), no_spend()).await.unwrap();
    assert_eq!(store.delete_session(session_key("c"), vec![run_id("c")]).await, Ok(DeleteSessionOutcome::Deleted));
    assert_eq!(count_journal_rows(&home), 0);
    store.record_run_end(run_id("a"), "ended".into(), no_spend()).await.unwrap();
    store.write_journal(vec![journal_row("a", 1, "late"), journal_row("b", 1, "late")]).await.unwrap();
    assert_eq!(count_journal_rows(&home), 0, "a line was written for a run that is over");
}

#[tokio::test]
async fn a_run_of_a_dead_daemon_is_sealed_once() {
    let (store, home) = new_store();
    accept_run(&store, "a", "s").await;
    store.write_journal(vec![journal_row("a", 0, "something")]).await.unwrap();
    let sealed = |turn: &str, view: &str| {
        vec![SealedRun {
            session: session_key("s"),
            run: run_id("a"),
            turn: Some(turn.into()),
            view: view.into(),
            spent: no_spend(),
        }]
    };
    store.seal_runs(sealed("turn a", "sealed")).await.unwrap();
    assert_eq!(count_journal_rows(&home), 0);
    store.seal_runs(sealed("other turn", "sealed again")).await.unwrap();
    assert_eq!(store.session_turns(session_key("s")).await.unwrap(), ["turn a"]);
    let row = store.find_run(run_id("a")).await.unwrap().unwrap();
    assert_eq!((row.state, row.view.as_str()), (StoredRunState::Ended, "sealed"));
    assert_eq!(store.read_journal(run_id("a")).await.unwrap(), (vec![], Some("turn a".into())));
    let session = store.find_session(session_key("s")).await.unwrap().unwrap();
    assert_eq!(session.turns, 1);
}

#[tokio::test]
async fn a_daemon_whose_lock_was_taken_away_writes_no_more() {
    let (old, home) = new_store();
    accept_run(&old, "a", "s").await;
    fs::remove_file(home.path().join("quell.lock")).unwrap();
    let new = open_store(&home);
    assert_eq!(old.accept_run(accepted_row("late", "s")).await, Err(StoreError::Fenced));
    assert_eq!(old.write_journal(vec![journal_row("a", 0, "late")]).await, Err(StoreError::Fenced));
    assert_eq!(run_ids(&old.list_open_runs().await.unwrap()), ["a"], "reading goes on");
    accept_run(&new, "b", "s").await;
    assert_eq!(run_ids(&new.list_open_runs().await.unwrap()), ["a", "b"]);
    new.close().await;
    assert_eq!(
        old.accept_run(accepted_row("later", "s")).await,
        Err(StoreError::Fenced),
        "the fence fell with its daemon"
    );
}

#[tokio::test]
async fn durable_writes_stay_durable_beside_the_journal() {
    let (store, home) = new_store();
    accept_run(&store, "a", "s").await;
    for number in 0..50 {
        let (journal, started) = tokio::join!(
            store.write_journal(vec![journal_row("a", number, "something")]),
            store.accept_run(accepted_row(&format!("r{number}"), "s")),
        );
        assert!(journal.is_ok() && started.is_ok());
    }
    assert_eq!(count_journal_rows(&home), 50);
    assert_eq!(store.list_open_runs().await.unwrap().len(), 51);
}
