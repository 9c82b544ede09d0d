//! Accepting runs, state changes, and the writer thread.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::poll;
use rusqlite::Connection;

use super::super::{AcceptRunOutcome, StoreError, StoredRunState};
use super::*;

fn runs_on_disk(home: &TempDir) -> i64 {
    let other = Connection::open(home.path().join(FILE)).unwrap();
    other.query_row("SELECT count(*) FROM runs", [], |row| row.get(0)).unwrap()
}

type Pending = Pin<Box<dyn Future<Output = Result<(), StoreError>>>>;

/// A write that is alone in its transaction, and stays there until it gets a message.
async fn stuck_write(store: &Store) -> (Pending, mpsc::Sender<()>) {
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
async fn two_hundred_callers_at_once_each_get_their_own_answer() {
    let (store, home) = new_store();
    let callers = (0..200).map(|n| store.accept_run(accepted_row(&format!("run-{}", n % 100), "s")));
    let answers = join_all(callers).await;
    let new = answers.iter().filter(|answer| **answer == Ok(AcceptRunOutcome::New)).count();
    let repeats = answers.iter().filter(|answer| matches!(answer, Ok(AcceptRunOutcome::Existing(_)))).count();
    assert_eq!((new, repeats), (100, 100));
    for (n, answer) in answers.iter().enumerate() {
        if let Ok(AcceptRunOutcome::Existing(existing)) = answer {
            assert_eq!(existing.id.as_str(), format!("run-{}", n % 100));
        }
    }
    assert_eq!(runs_on_disk(&home), 100);
}

#[tokio::test]
async fn an_answered_write_is_committed_and_visible_to_others() {
    let (store, home) = new_store();
    for n in 0..20 {
        accept_run(&store, &format!("run-{n}"), "s").await;
        assert_eq!(runs_on_disk(&home), n + 1);
    }
}

#[tokio::test]
async fn queued_writes_are_committed_together() {
    let (store, home) = new_store();
    let (stuck, go) = stuck_write(&store).await;
    let seen = join_all((0..50).map(|n| {
        let (store, file) = (store.clone(), home.path().join(FILE));
        async move {
            store
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
    assert_eq!(store.list_tokens().await.unwrap().len(), 50);
}

#[tokio::test]
async fn a_repeat_answers_the_first_run_and_changes_nothing() {
    let (store, _home) = new_store();
    accept_run(&store, "a", "s").await;
    store.record_run_start(run_id("a"), "started".into()).await.unwrap();
    let mut repeat = accepted_row("a", "another");
    repeat.fingerprint = "other words".into();
    let Ok(AcceptRunOutcome::Existing(first)) = store.accept_run(repeat).await else { panic!("accepted twice") };
    assert_eq!((first.fingerprint.as_str(), first.view.as_str()), ("hash of a", "started"));
    assert_eq!(first.state, StoredRunState::Started);
    assert_eq!(store.find_session(session_key("another")).await, Ok(None));
}

#[tokio::test]
async fn a_run_only_moves_forward() {
    let (store, _home) = new_store();
    run_to_end(&store, "a", "s").await;
    store.record_run_start(run_id("a"), "late start".into()).await.unwrap();
    store.record_run_steered(run_id("a"), run_id("b")).await.unwrap();
    store.append_turn(session_key("s"), run_id("a"), "late turn".into(), "late view".into()).await.unwrap();
    let run = store.find_run(run_id("a")).await.unwrap().unwrap();
    assert_eq!((run.state, run.view.as_str()), (StoredRunState::Ended, "ended a"));
    store.record_run_end(run_id("a"), "amended".into(), no_spend()).await.unwrap();
    assert_eq!(store.find_run(run_id("a")).await.unwrap().unwrap().view, "amended");
}

#[tokio::test]
async fn a_turn_recorded_after_the_end_leaves_the_receipt_alone() {
    let (store, _home) = new_store();
    accept_run(&store, "a", "s").await;
    store.record_run_end(run_id("a"), "receipt: not recorded".into(), no_spend()).await.unwrap();
    store.append_turn(session_key("s"), run_id("a"), "turn".into(), "no receipt".into()).await.unwrap();
    assert_eq!(store.find_run(run_id("a")).await.unwrap().unwrap().view, "receipt: not recorded");
    assert_eq!(store.session_turns(session_key("s")).await.unwrap(), ["turn"]);
}

#[tokio::test]
async fn a_steered_run_says_where_its_text_went_and_is_not_open() {
    let (store, _home) = new_store();
    accept_run(&store, "a", "s").await;
    accept_run(&store, "b", "s").await;
    store.record_run_steered(run_id("b"), run_id("a")).await.unwrap();
    store.record_run_end(run_id("b"), "never was one".into(), no_spend()).await.unwrap();
    let run = store.find_run(run_id("b")).await.unwrap().unwrap();
    assert_eq!(run.state, StoredRunState::Steered { into: run_id("a") });
    assert_eq!(run.view, "accepted b");
    assert_eq!(run_ids(&store.list_open_runs().await.unwrap()), ["a"]);
}

#[tokio::test]
async fn an_unknown_run_is_named() {
    let (store, _home) = new_store();
    let missing = || Err(StoreError::NoSuchRun(run_id("x")));
    assert_eq!(store.record_run_start(run_id("x"), String::new()).await, missing());
    assert_eq!(store.record_run_end(run_id("x"), String::new(), no_spend()).await, missing());
    assert_eq!(store.record_run_steered(run_id("x"), run_id("y")).await, missing());
    assert_eq!(store.append_turn(session_key("s"), run_id("x"), "t".into(), String::new()).await, missing());
    assert_eq!(store.find_run(run_id("x")).await, Ok(None));
}

#[tokio::test]
async fn a_turn_of_another_session_is_refused() {
    let (store, _home) = new_store();
    accept_run(&store, "a", "s").await;
    accept_run(&store, "b", "t").await;
    let refused = store.append_turn(session_key("t"), run_id("a"), "turn".into(), String::new()).await;
    assert_eq!(refused, Err(StoreError::NoSuchRun(run_id("a"))));
    assert_eq!(store.session_turns(session_key("t")).await, Ok(vec![]));
}

#[tokio::test]
async fn a_caller_that_leaves_does_not_take_its_write_along() {
    let (store, _home) = new_store();
    for n in 0..50 {
        // Polled once, then dropped.
        let answer = store.accept_run(accepted_row(&format!("run-{n}"), "s")).now_or_never();
        assert!(answer.is_none(), "answered before its commit");
    }
    // Answered after all writes that were queued before.
    accept_run(&store, "last", "s").await;
    assert_eq!(store.list_open_runs().await.unwrap().len(), 51);
}

#[tokio::test]
async fn a_read_does_not_wait_for_a_long_write() {
    let (store, _home) = new_store();
    accept_run(&store, "a", "s").await;
    let (stuck, go) = stuck_write(&store).await;
    let read = async {
        let run = tokio::time::timeout(Duration::from_secs(10), store.find_run(run_id("a"))).await;
        go.send(()).unwrap();
        run.expect("the read waited for the write")
    };
    let (written, run) = tokio::join!(stuck, read);
    written.unwrap();
    assert_eq!(run.unwrap().unwrap().id, run_id("a"));
}

#[tokio::test]
async fn a_write_that_fails_does_not_fail_its_neighbours() {
    let (store, _home) = new_store();
    let (stuck, go) = stuck_write(&store).await;
    let good = join_all((0..20).map(|n| store.accept_run(accepted_row(&format!("run-{n}"), "s"))));
    let bad = store.write(|db| db.execute("INSERT INTO nowhere VALUES (1)", []));
    let more = join_all((20..40).map(|n| store.accept_run(accepted_row(&format!("run-{n}"), "s"))));
    // Polled last, when all others are queued.
    let release = async move { go.send(()).unwrap() };
    let (first, good, bad, more, ()) = tokio::join!(stuck, good, bad, more, release);
    first.unwrap();
    assert!(matches!(bad, Err(StoreError::Bug(_))), "{bad:?}");
    assert!(good.iter().chain(&more).all(|answer| *answer == Ok(AcceptRunOutcome::New)));
    let (rows, _) = store.list_runs(all_runs()).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<BTreeSet<_>>().len(), 40);
}

#[tokio::test]
#[ignore = "a measurement, not a check"]
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
            let batch = (0..callers).map(|n| store.accept_run(accepted_row(&format!("{callers}-{round}-{n}"), "s")));
            assert!(join_all(batch).await.iter().all(|answer| *answer == Ok(AcceptRunOutcome::New)));
        }
        let rate = 2048.0 / begun.elapsed().as_secs_f64();
        println!("{callers:>3} callers: {rate:>8.0} durable runs/s");
    }
    let begun = Instant::now();
    for _ in 0..2000 {
        store.find_run(run_id("1-0-0")).await.unwrap().unwrap();
    }
    println!("read: {:.1} us", begun.elapsed().as_secs_f64() * 1e6 / 2000.0);
    println!("after all that: {:.2} MB more", resident() - before);
    store.close().await;
    let begun = Instant::now();
    let store = open_store(&home);
    println!("open: {:.2} ms", begun.elapsed().as_secs_f64() * 1e3);
    store.close().await;
}
