//! Copies of the whole database, and putting them into its place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::super::{Spool, StoreError, check_copy, copy, restore};
use super::*;

/// Writes a spool into a file, as who downloads it does.
async fn downloaded(store: &Store, spool: Spool, to: &Path) {
    let mut bytes = Vec::new();
    while bytes.len() as u64 != spool.length() {
        bytes.extend(store.piece(spool.clone(), bytes.len() as u64).await.unwrap());
    }
    fs::write(to, bytes).unwrap();
}

fn names(home: &TempDir) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A good copy of a database with the run `r1`.
async fn good(folder: &TempDir) -> PathBuf {
    let (store, home) = fresh();
    live(&store, "r1", "s").await;
    store.close().await;
    let to = folder.path().join("good.db");
    copy(home.path(), FILE, &to).unwrap();
    to
}

#[tokio::test]
async fn a_snapshot_is_of_one_moment_while_the_writer_goes_on() {
    let (store, home) = fresh();
    live(&store, "before", "s").await;
    let mut snapshot = std::pin::pin!(store.snapshot());
    let mut written = 0;
    let spool = loop {
        let run = format!("r{written}");
        tokio::select! {
            biased;
            spool = &mut snapshot => break spool.unwrap(),
            () = live(&store, &run, "s") => written += 1,
        }
    };
    live(&store, "after", "s").await;
    let to = home.path().join("copy.db");
    downloaded(&store, spool, &to).await;
    check_copy(&to).unwrap();
    let there = |db: &Connection, run: &str| {
        db.prepare("SELECT 1 FROM runs WHERE id = ?1 AND state = 'ended'").unwrap().exists([run]).unwrap()
    };
    let db = Connection::open(&to).unwrap();
    assert!(there(&db, "before") && !there(&db, "after"));
    // Each run in it is as whole as it was at that moment.
    let torn = "SELECT count(*) FROM runs LEFT JOIN history ON run = id WHERE state = 'ended' AND turn IS NULL";
    assert_eq!(db.query_row(torn, [], |row| row.get::<_, i64>(0)), Ok(0));
    assert!(!names(&home).iter().any(|name| name.contains("spool")), "{:?}", names(&home));
}

#[tokio::test]
async fn a_copy_of_a_database_whose_daemon_died_has_what_is_in_its_log() {
    let (store, home) = fresh();
    live(&store, "r1", "s").await;
    let crashed = tempfile::tempdir().unwrap();
    for name in [FILE, "quell.db-wal"] {
        fs::copy(home.path().join(name), crashed.path().join(name)).unwrap();
    }
    assert!(fs::metadata(crashed.path().join("quell.db-wal")).unwrap().len() > 0);
    let to = home.path().join("copy.db");
    copy(crashed.path(), FILE, &to).unwrap();
    check_copy(&to).unwrap();
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    let db = Connection::open(&to).unwrap();
    assert!(db.prepare("SELECT 1 FROM runs WHERE id = 'r1'").unwrap().exists([]).unwrap());
    assert_eq!(db.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i64>(0)), Ok(2));
    assert!(matches!(copy(crashed.path(), FILE, &to), Err(StoreError::Unwritable(_))), "never over a file");
}

#[tokio::test]
async fn a_restored_copy_is_what_opens_and_the_old_one_stays_whole_beside_it() {
    let (store, home) = fresh();
    live(&store, "old", "s").await;
    // Its daemon died: the newest of it is only in the log.
    let died = tempfile::tempdir().unwrap();
    for name in [FILE, "quell.db-wal"] {
        fs::copy(home.path().join(name), died.path().join(name)).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let restored = restore(died.path(), FILE, (&good(&folder).await, "now")).unwrap();
    assert_eq!(restored.kept, Some(died.path().join("quell.db.before-now")));
    assert_eq!(names(&died), ["quell.db", "quell.db.before-now", "quell.lock"]);
    let kept = Connection::open(restored.kept.unwrap()).unwrap();
    assert!(kept.prepare("SELECT 1 FROM runs WHERE id = 'old'").unwrap().exists([]).unwrap());
    let store = open(&died);
    assert_eq!(ids(&store.runs(all_runs()).await.unwrap().0), ["r1"]);
    assert_eq!(store.turns(key("s")).await.unwrap(), ["turn r1"]);
    // Into an empty directory nothing has to be kept.
    let empty = tempfile::tempdir().unwrap();
    let file = folder.path().join("good.db");
    assert_eq!(restore(&empty.path().join("new"), FILE, (&file, "now")).unwrap().kept, None);
}

#[tokio::test]
async fn nothing_is_restored_under_a_daemon_or_from_a_file_of_no_use() {
    let (store, home) = fresh();
    live(&store, "old", "s").await;
    let folder = tempfile::tempdir().unwrap();
    let good = good(&folder).await;
    let under = restore(home.path(), FILE, (&good, "now"));
    assert!(matches!(&under, Err(StoreError::Locked(why)) if why.contains("another quell")), "{under:?}");
    store.close().await;
    let before = names(&home);

    let bad = folder.path().join("bad.db");
    let refused = |what: &str| {
        let refused = restore(home.path(), FILE, (&bad, "now"));
        assert!(refused.is_err(), "{what} was restored");
        assert_eq!(names(&home), before, "{what} left something behind");
        refused.unwrap_err()
    };
    assert!(matches!(refused("a file that is not there"), StoreError::Unwritable(_)));
    fs::write(&bad, "no database at all, but long enough to be one. ".repeat(100)).unwrap();
    assert!(matches!(refused("a text"), StoreError::Corrupt(_)));
    fs::write(&bad, "").unwrap();
    assert!(matches!(refused("an empty file"), StoreError::Foreign(_)));
    fs::remove_file(&bad).unwrap();
    Connection::open(&bad).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(matches!(refused("a foreign database"), StoreError::Foreign(_)));
    fs::copy(&good, &bad).unwrap();
    Connection::open(&bad).unwrap().execute_batch("PRAGMA user_version = 999").unwrap();
    assert!(matches!(refused("a newer database"), StoreError::Newer { found: 999, .. }));
    // Half of the pages are there, as after a broken copy.
    let whole = fs::read(&good).unwrap();
    fs::write(&bad, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(refused("half a database"), StoreError::Corrupt(_)));
    let store = open(&home);
    assert_eq!(ids(&store.runs(all_runs()).await.unwrap().0), ["old"]);
}

#[tokio::test]
async fn a_closing_store_cuts_a_copy_short() {
    let (store, _home) = fresh();
    accept(&store, "r", "s").await;
    store.append_turn(key("s"), run_id("r"), "x".repeat(64 << 20), String::new()).await.unwrap();
    let other = store.clone();
    let copying = other.snapshot();
    let (copied, ()) = tokio::join!(copying, store.close());
    assert_eq!(copied.map(|spool| spool.length()), Err(StoreError::Closed));
}

/// Answers that chats show by now were changed back to what they were when the copy was made.
#[tokio::test]
async fn a_restored_copy_knows_nothing_of_what_chats_show() {
    let (store, home) = fresh();
    let trace = super::traces::trace("r1", "tg");
    store.keep_trace(trace).await.unwrap();
    store.close().await;
    let (folder, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = folder.path().join("copy.db");
    copy(home.path(), FILE, &to).unwrap();
    restore(new.path(), FILE, (&to, "now")).unwrap();
    assert_eq!(names(&new), [FILE, "quell.lock"]);
    assert_eq!(open(&new).left_traces().await, Ok(Vec::new()));
    assert_eq!(open(&home).left_traces().await.unwrap().len(), 1);
}
