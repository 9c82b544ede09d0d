//! A server that ends and comes back while the store is open, and callers that leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::join_all;

use super::*;
use crate::SealedRun;
use crate::conformance::{accept_run, accepted_row, no_spend, run_id, session_key};

/// A server, and a store on it.
fn start() -> Option<(TestPostgres, Store, TempDir)> {
    let server = TestPostgres::start()?;
    let home = tempfile::tempdir().unwrap();
    let store = open_store(&server, &home);
    Some((server, store, home))
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn what_was_answered_is_there_after_the_server_was_killed_in_the_middle() {
    let Some((mut server, store, _home)) = start() else { return };
    let (begin_outage, outage_begins) = mpsc::channel();
    let outage = thread::spawn(move || {
        outage_begins.recv().unwrap();
        server.kill();
        server.start_again();
        server
    });
    let (mut answered, mut failed) = (BTreeSet::new(), 0);
    for number in 0.. {
        let id = format!("r{number}");
        match store.runs().accept(accepted_row(&id, &format!("session of {id}"))).await {
            Ok(_) => drop(answered.insert(id)),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                failed += 1;
            }
        }
        if number == 50 {
            begin_outage.send(()).unwrap();
        }
        if outage.is_finished() {
            break;
        }
    }
    let server = outage.join().unwrap();
    accept_run(&store, "after", "session of after").await;
    assert!(answered.len() > 50 && failed > 0, "{} answered, {failed} failed", answered.len());
    let stored = |sql: &str| server.sql(sql).lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let runs = stored("SELECT id FROM runs");
    assert_eq!(answered.difference(&runs).next(), None, "it was answered");
    assert_eq!(runs, stored("SELECT substr(key, length('session of ') + 1) FROM sessions"), "one is there in part");
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_server_that_is_down_is_an_error_in_bounded_time_and_then_all_works_again() {
    let Some((mut server, store, _home)) = start() else { return };
    accept_run(&store, "before", "s").await;
    store.runs().list_open().await.unwrap();
    server.kill();
    let begin = Instant::now();
    let write = store.runs().accept(accepted_row("down", "s")).await.unwrap_err();
    let read = store.runs().find(run_id("before")).await.unwrap_err();
    let export = store.archive().export(session_key("s")).await.map(drop).unwrap_err();
    for error in [write, read, export, store.maintenance().probe().await.unwrap_err()] {
        assert!(error.is_transient() && error.to_string().contains("PostgreSQL"), "{error}");
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    server.start_again();
    accept_run(&store, "after", "s").await;
    assert_eq!(store.runs().list_open().await.unwrap().len(), 2);
    assert!(store.archive().export(session_key("s")).await.unwrap().is_some());
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_server_that_hangs_is_an_error_in_bounded_time_for_all_that_is_queued() {
    let Some(mut server) = TestPostgres::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let url = format!("{}?connect_timeout=2", server.url());
    let settings = PostgresSettings { url, ..settings(&server) };
    let store = Store::new(PostgresStore::open(&settings, home.path()).unwrap());
    accept_run(&store, "before", "s").await;
    store.runs().list_open().await.unwrap();
    server.pause();
    let begin = Instant::now();
    let reads = join_all((0..50).map(|_| store.runs().list_open()));
    let writes = join_all((0..50).map(|number| store.runs().accept(accepted_row(&format!("hangs{number}"), "s"))));
    let (reads, writes) = tokio::join!(reads, writes);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    for error in reads.into_iter().filter_map(Result::err).chain(writes.into_iter().map(Result::unwrap_err)) {
        assert!(error.is_transient() && error.to_string().contains("has not answered"), "{error}");
    }
    let start = PostgresStore::open(&settings, tempfile::tempdir().unwrap().path()).err().unwrap();
    assert!(start.to_string().contains("has not answered for 2 s"), "{start}");
    server.resume();
    let accepted = async || store.runs().accept(accepted_row("after", "s")).await;
    // What the server was asked meanwhile may hold locks until it notices that its client has gone.
    while accepted().await.is_err() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    }
    let open = store.runs().list_open().await.unwrap();
    assert!(crate::conformance::run_ids(&open).contains(&"after"));
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_table_that_another_program_locks_is_an_error_and_not_one_wait_for_each_write() {
    let Some((server, store, _home)) = start() else { return };
    accept_run(&store, "before", "s").await;
    let server = Arc::new(server);
    let locker = thread::spawn({
        let server = Arc::clone(&server);
        move || server.sql("BEGIN; LOCK TABLE runs; SELECT pg_advisory_lock(7), pg_sleep(60)")
    });
    while server.sql("SELECT count(*) FROM pg_locks WHERE objid = 7 AND granted") == "0" {}
    let begin = Instant::now();
    let writes = (0..20).map(|number| store.runs().accept(accepted_row(&format!("r{number}"), "s")));
    for error in join_all(writes).await.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, crate::StoreError::Locked(_)), "{error}");
    }
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    let pid = "SELECT pid FROM pg_locks WHERE objid = 7";
    server.sql(&format!("SELECT pg_terminate_backend(({pid}))"));
    assert!(locker.join().is_err(), "psql is told that its connection was ended");
    accept_run(&store, "after", "s").await;
    assert_eq!(store.runs().list_open().await.unwrap().len(), 2);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_write_that_waits_in_a_circle_with_another_one_is_made_again() {
    let Some((server, store, _home)) = start() else { return };
    accept_run(&store, "first", "s").await;
    accept_run(&store, "second", "s").await;
    let server = Arc::new(server);
    // It has the second row, and wants the first one as soon as the store has that and waits. It waits for longer before it
    // looks for a circle, so the server ends the store's transaction.
    let other = thread::spawn({
        let server = Arc::clone(&server);
        move || {
            server.sql(
                "SET deadlock_timeout = '60s'; BEGIN; SELECT 1 FROM runs WHERE id = 'second' FOR UPDATE; SELECT pg_advisory_lock(7);
                 DO $$ BEGIN
                     WHILE NOT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted) LOOP PERFORM pg_sleep(0.002); END LOOP;
                 END $$;
                 SELECT 1 FROM runs WHERE id = 'first' FOR UPDATE; COMMIT",
            )
        }
    });
    while server.sql("SELECT count(*) FROM pg_locks WHERE objid = 7 AND granted") == "0" {}
    let sealed = ["first", "second"].map(|run| SealedRun {
        session: session_key("s"),
        run: run_id(run),
        turn: None,
        view: "sealed".to_owned(),
        spent: no_spend(),
    });
    store.runs().seal(sealed.to_vec()).await.unwrap();
    other.join().unwrap();
    assert!(server.log().contains("deadlock detected"), "{}", server.log());
    assert_eq!(store.runs().list_open().await.unwrap(), []);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn an_orderly_restart_between_operations_is_not_noticed() {
    let Some((mut server, store, _home)) = start() else { return };
    accept_run(&store, "before", "s").await;
    store.runs().list_open().await.unwrap();
    server.stop();
    server.start_again();
    accept_run(&store, "after", "s").await;
    assert_eq!(store.runs().list_open().await.unwrap().len(), 2);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn callers_that_leave_leave_no_transaction_open() {
    let Some((server, store, _home)) = start() else { return };
    accept_run(&store, "r", "s").await;
    for number in 0..50 {
        // Polled once, which queues the operation, and dropped.
        drop(store.runs().accept(accepted_row(&format!("r{number}"), "s")).now_or_never());
        drop(store.runs().find(run_id("r")).now_or_never());
        drop(store.archive().export(session_key("s")).now_or_never());
        // Tokio lets a task that never yields queue nothing any more.
        tokio::task::yield_now().await;
    }
    accept_run(&store, "last", "s").await;
    store.archive().export(session_key("s")).await.unwrap();
    assert_eq!(store.runs().list_open().await.unwrap().len(), 52, "queued writes are made");
    let clients = "FROM pg_stat_activity WHERE application_name = 'quell'";
    assert_eq!(server.sql(&format!("SELECT DISTINCT state {clients}")), "idle");
    store.close().await;
    assert_eq!(server.sql(&format!("SELECT count(*) {clients} AND state <> 'idle'")), "0");
}
