//! Two daemons on one database: the later one writes, the earlier one does not.

use std::thread;

use super::*;
use crate::StoreError;
use crate::conformance::{accept_run, deletion_entry, session_key};

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn every_write_of_an_earlier_daemon_is_refused_and_it_learns_so() {
    let Some(server) = TestPostgres::start() else { return };
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let old = open_store(&server, &homes[0]);
    accept_run(&old, "r", "s").await;
    let new = open_store(&server, &homes[1]);
    assert!(!old.fenced().is_cancelled(), "it is noticed at the next write");
    assert_eq!(old.maintenance().probe().await, Err(StoreError::Fenced));
    assert!(old.fenced().is_cancelled() && !new.fenced().is_cancelled());
    assert_eq!(old.channels().save_cursor("c".into(), "1".into()).await, Err(StoreError::Fenced));
    assert_eq!(old.sessions().touch(session_key("s"), "later".into()).await, Err(StoreError::Fenced));
    assert_eq!(old.runs().list_open().await.unwrap().len(), 1, "reading goes on");
    accept_run(&new, "r2", "s").await;
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn no_write_of_the_earlier_daemon_passes_the_start_of_the_later_one() {
    let Some(server) = TestPostgres::start() else { return };
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let old = open_store(&server, &homes[0]);
    let (settings, home) = (settings(&server), homes[1].path().to_owned());
    let start = thread::spawn(move || {
        let new = PostgresStore::open(&settings, &home).unwrap();
        (Store::new(new), std::time::Instant::now())
    });
    let mut answered = 0;
    let last_answer = loop {
        let begin = std::time::Instant::now();
        match old.audit().append(vec![deletion_entry("2026-11-24", "s")]).await {
            Ok(()) => answered += 1,
            Err(error) => {
                assert_eq!(error, StoreError::Fenced);
                break begin;
            }
        }
    };
    let (new, opened) = start.join().unwrap();
    assert_eq!(new.audit().list(0, 1_000_000).await.unwrap().0.len(), answered, "after {:?}", last_answer - opened);
    assert!(old.fenced().is_cancelled());
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn the_data_directory_is_locked_too() {
    let Some(server) = TestPostgres::start() else { return };
    let home = tempfile::tempdir().unwrap();
    let store = open_store(&server, &home);
    let refused = PostgresStore::open(&settings(&server), home.path()).err().unwrap();
    assert!(matches!(&refused, StoreError::Locked(cause) if cause.contains("quell")), "{refused}");
    assert_eq!(store.maintenance().probe().await, Ok(()), "the refused one fenced nobody");
}
