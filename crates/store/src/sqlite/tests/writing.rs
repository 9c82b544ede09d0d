//! The writer thread, and the threads beside it.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::poll;

use super::*;
use crate::{AcceptRunOutcome, StoreError};

type Pending = Pin<Box<dyn Future<Output = Result<(), StoreError>>>>;

fn runs_on_disk(home: &TempDir) -> i64 {
    let other = Connection::open(home.path().join(FILE)).unwrap();
    other.query_row("SELECT count(*) FROM runs", [], |row| row.get(0)).unwrap()
}

/// A write that is alone in its transaction, and stays there until it gets a message.
async fn stuck_write(store: &SqliteStore) -> (Pending, mpsc::Sender<()>) {
    let (go, gate) = mpsc::channel();
    let (entered, inside) = mpsc::channel();
    let store = store.clone();
    let work = move |_: &Connection| {
        entered.send(()).unwrap();
        gate.recv().unwrap();
        Ok(())
    };
    let mut write: Pending = Box::pin(async move { store.write(work).await });
    assert!(poll!(&mut write).is_pending());
    inside.recv().unwrap();
    (write, go)
}

#[tokio::test]
async fn what_is_answered_is_committed_and_visible_to_others() {
    let (store, home) = new_store();
    for n in 0..20 {
        accept_run(&store, &format!("run-{n}"), "s").await;
        assert_eq!(runs_on_disk(&home), n + 1);
    }
}

#[tokio::test]
async fn what_queued_up_is_committed_together() {
    let (sqlite, store, home) = new_sqlite_store();
    let (stuck, go) = stuck_write(&sqlite).await;
    let seen = join_all((0..50).map(|n| {
        let (sqlite, file) = (sqlite.clone(), home.path().join(FILE));
        async move {
            sqlite
                .write(move |db| {
                    db.execute(
                        "INSERT INTO tokens (name, scope, created_at, sha256) VALUES (?1, 'read', '', ?1)",
                        [n],
                    )?;
                    Connection::open(&file)?.query_row("SELECT count(*) FROM tokens", [], |row| row.get::<_, i64>(0))
                })
                .await
        }
    }));
    // Polled last, when all fifty are queued.
    let release = async move { go.send(()).unwrap() };
    let (first, seen, ()) = tokio::join!(stuck, seen, release);
    first.unwrap();
    // Each write read the file from outside during the transaction, when none of the others was committed.
    assert_eq!(seen, vec![Ok(0); 50]);
    assert_eq!(store.access().list_tokens().await.unwrap().len(), 50);
}

#[tokio::test]
async fn a_caller_that_leaves_does_not_take_its_write_along() {
    let (store, _home) = new_store();
    for n in 0..50 {
        // Polled once, then dropped.
        let answer = store.runs().accept(accepted_row(&format!("run-{n}"), "s")).now_or_never();
        assert!(answer.is_none(), "answered before its commit");
    }
    // Answered after all writes that were queued before.
    accept_run(&store, "last", "s").await;
    assert_eq!(store.runs().list_open().await.unwrap().len(), 51);
}

#[tokio::test]
async fn a_read_does_not_wait_for_a_long_write() {
    let (sqlite, store, _home) = new_sqlite_store();
    accept_run(&store, "a", "s").await;
    let (stuck, go) = stuck_write(&sqlite).await;
    let read = async {
        let run = tokio::time::timeout(Duration::from_secs(10), store.runs().find(run_id("a"))).await;
        go.send(()).unwrap();
        run.expect("the read waited for the write")
    };
    let (written, run) = tokio::join!(stuck, read);
    written.unwrap();
    assert_eq!(run.unwrap().unwrap().id, run_id("a"));
}

#[tokio::test]
async fn a_write_that_fails_does_not_fail_its_neighbours() {
    let (sqlite, store, _home) = new_sqlite_store();
    let (stuck, go) = stuck_write(&sqlite).await;
    let good = join_all((0..20).map(|n| store.runs().accept(accepted_row(&format!("run-{n}"), "s"))));
    let bad = sqlite.write(|db| db.execute("INSERT INTO nowhere VALUES (1)", []));
    let more = join_all((20..40).map(|n| store.runs().accept(accepted_row(&format!("run-{n}"), "s"))));
    // Polled last, when all others are queued.
    let release = async move { go.send(()).unwrap() };
    let (first, good, bad, more, ()) = tokio::join!(stuck, good, bad, more, release);
    first.unwrap();
    assert!(matches!(bad, Err(StoreError::Bug(_))), "{bad:?}");
    assert!(good.iter().chain(&more).all(|answer| *answer == Ok(AcceptRunOutcome::New)));
    let (rows, _) = store.runs().list(all_runs()).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<BTreeSet<_>>().len(), 40);
}

#[tokio::test]
#[ignore = "full: a measurement"]
async fn measure_commits_and_the_start() {
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4.0 / 1024.0
    };
    let before = resident();
    let (store, home) = new_store();
    accept_run(&store, "first", "s").await;
    println!("an open store: {:.2} MB more", resident() - before);
    for callers in [1_usize, 16, 64, 256] {
        let rounds = 2048 / callers;
        let begun = Instant::now();
        for round in 0..rounds {
            let batch = (0..callers).map(|n| store.runs().accept(accepted_row(&format!("{callers}-{round}-{n}"), "s")));
            assert!(join_all(batch).await.iter().all(|answer| *answer == Ok(AcceptRunOutcome::New)));
        }
        let rate = 2048.0 / begun.elapsed().as_secs_f64();
        println!("{callers:>3} callers: {rate:>8.0} durable runs/s");
    }
    let begun = Instant::now();
    for _ in 0..2000 {
        find_run(&store, "1-0-0").await;
    }
    println!("read: {:.1} us", begun.elapsed().as_secs_f64() * 1e6 / 2000.0);
    println!("after all that: {:.2} MB more", resident() - before);
    store.close().await;
    let begun = Instant::now();
    let store = open_store(&home);
    println!("open: {:.2} ms", begun.elapsed().as_secs_f64() * 1e3);
    store.close().await;
}
