//! Copy and restore of the whole database.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::super::{check_database_copy, copy_database, restore_database};
use super::*;
use crate::{StoreError, TempFile};

/// Downloads an export or a backup into a file.
async fn write_to_file(store: &Store, temp_file: TempFile, to: &Path) {
    let mut bytes = Vec::new();
    while bytes.len() as u64 != temp_file.length() {
        bytes.extend(store.maintenance().read_chunk(temp_file.clone(), bytes.len() as u64).await.unwrap());
    }
    fs::write(to, bytes).unwrap();
}

pub(super) fn file_names(home: &TempDir) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A valid copy of a database with the run `r1`.
async fn good_copy(folder: &TempDir) -> PathBuf {
    let (store, home) = new_store();
    run_to_end(&store, "r1", "s").await;
    store.close().await;
    let to = folder.path().join("good.db");
    copy_database(home.path(), FILE, &to).unwrap();
    to
}

#[tokio::test]
async fn a_snapshot_is_of_one_moment_while_the_writer_goes_on() {
    let (store, home) = new_store();
    run_to_end(&store, "before", "s").await;
    let mut snapshot = std::pin::pin!(store.maintenance().snapshot());
    let mut written = 0;
    let temp_file = loop {
        let run = format!("r{written}");
        tokio::select! {
            biased;
            temp_file = &mut snapshot => break temp_file.unwrap(),
            () = run_to_end(&store, &run, "s") => written += 1,
        }
    };
    run_to_end(&store, "after", "s").await;
    let to = home.path().join("copy.db");
    write_to_file(&store, temp_file, &to).await;
    check_database_copy(&to).unwrap();
    let there = |db: &Connection, run: &str| {
        db.prepare("SELECT 1 FROM runs WHERE id = ?1 AND state = 'ended'").unwrap().exists([run]).unwrap()
    };
    let db = Connection::open(&to).unwrap();
    assert!(there(&db, "before") && !there(&db, "after"));
    // Each run in the copy is complete.
    let torn = "SELECT count(*) FROM runs LEFT JOIN history ON run = id WHERE state = 'ended' AND turn IS NULL";
    assert_eq!(db.query_row(torn, [], |row| row.get::<_, i64>(0)), Ok(0));
    assert!(!file_names(&home).iter().any(|name| name.contains("spool")), "{:?}", file_names(&home));
}

#[tokio::test]
async fn a_copy_of_a_database_whose_daemon_died_has_what_is_in_its_log() {
    let (store, home) = new_store();
    run_to_end(&store, "r1", "s").await;
    let crashed = tempfile::tempdir().unwrap();
    for name in [FILE, "quell.db-wal"] {
        fs::copy(home.path().join(name), crashed.path().join(name)).unwrap();
    }
    assert!(fs::metadata(crashed.path().join("quell.db-wal")).unwrap().len() > 0);
    let to = home.path().join("copy.db");
    copy_database(crashed.path(), FILE, &to).unwrap();
    check_database_copy(&to).unwrap();
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    let db = Connection::open(&to).unwrap();
    assert!(db.prepare("SELECT 1 FROM runs WHERE id = 'r1'").unwrap().exists([]).unwrap());
    assert_eq!(db.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i64>(0)), Ok(2));
    assert!(matches!(copy_database(crashed.path(), FILE, &to), Err(StoreError::Unwritable(_))), "never over a file");
}

#[tokio::test]
async fn a_restored_copy_is_what_opens_and_the_old_one_stays_whole_beside_it() {
    let (store, home) = new_store();
    run_to_end(&store, "old", "s").await;
    // The daemon was killed: the latest data is only in the log.
    let died = tempfile::tempdir().unwrap();
    for name in [FILE, "quell.db-wal"] {
        fs::copy(home.path().join(name), died.path().join(name)).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let restored = restore_database(died.path(), FILE, &good_copy(&folder).await, "now").unwrap();
    assert_eq!(restored.previous, Some(died.path().join("quell.db.before-now")));
    assert_eq!(file_names(&died), ["quell.db", "quell.db.before-now", "quell.lock"]);
    let kept = Connection::open(restored.previous.unwrap()).unwrap();
    assert!(kept.prepare("SELECT 1 FROM runs WHERE id = 'old'").unwrap().exists([]).unwrap());
    let store = open_store(&died);
    assert_eq!(run_ids(&store.runs().list(all_runs()).await.unwrap().0), ["r1"]);
    assert_eq!(turns(&store, "s").await, ["turn r1"]);
    // In an empty directory there is no previous database to keep.
    let empty = tempfile::tempdir().unwrap();
    let file = folder.path().join("good.db");
    assert_eq!(restore_database(&empty.path().join("new"), FILE, &file, "now").unwrap().previous, None);
}

#[tokio::test]
async fn restore_refuses_a_running_daemon_and_unusable_files() {
    let (store, home) = new_store();
    run_to_end(&store, "old", "s").await;
    let folder = tempfile::tempdir().unwrap();
    let good = good_copy(&folder).await;
    let under = restore_database(home.path(), FILE, &good, "now");
    assert!(matches!(&under, Err(StoreError::Locked(why)) if why.contains("another quell")), "{under:?}");
    store.close().await;
    let before = file_names(&home);

    let bad = folder.path().join("bad.db");
    let refused = |what: &str| {
        let refused = restore_database(home.path(), FILE, &bad, "now");
        assert!(refused.is_err(), "{what} was restored");
        assert_eq!(file_names(&home), before, "{what} left something behind");
        refused.unwrap_err()
    };
    assert!(matches!(refused("a file that is not there"), StoreError::Unwritable(_)));
    fs::write(&bad, "no database at all, but long enough to be one. ".repeat(100)).unwrap();
    assert!(matches!(refused("a text"), StoreError::Corrupt(_)));
    fs::write(&bad, "").unwrap();
    assert!(matches!(refused("an empty file"), StoreError::ForeignDatabase(_)));
    fs::remove_file(&bad).unwrap();
    Connection::open(&bad).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(matches!(refused("a foreign database"), StoreError::ForeignDatabase(_)));
    fs::copy(&good, &bad).unwrap();
    Connection::open(&bad).unwrap().execute_batch("PRAGMA user_version = 999").unwrap();
    assert!(matches!(refused("a newer database"), StoreError::NewerSchema { found: 999, .. }));
    // Half of the pages, as after an interrupted copy.
    let whole = fs::read(&good).unwrap();
    fs::write(&bad, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(refused("half a database"), StoreError::Corrupt(_)));
    let store = open_store(&home);
    assert_eq!(run_ids(&store.runs().list(all_runs()).await.unwrap().0), ["old"]);
}

#[tokio::test]
async fn a_closing_store_cuts_a_copy_short() {
    let (store, _home) = new_store();
    accept_run(&store, "r", "s").await;
    append_turn(&store, "s", "r", &"x".repeat(64 << 20), "").await.unwrap();
    let other = store.clone();
    let copying = other.maintenance().snapshot();
    let (copied, ()) = tokio::join!(copying, store.close());
    assert_eq!(copied.map(|temp_file| temp_file.length()), Err(StoreError::Closed));
}

/// Regression: a restored copy changed replies in chats back to their state at the time of the copy.
#[tokio::test]
async fn a_restored_copy_knows_nothing_of_what_chats_show() {
    let (store, home) = new_store();
    let trace = crate::conformance::channels::pending_reply("r1", "tg");
    store.channels().save_pending_reply(trace).await.unwrap();
    store.close().await;
    let (folder, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = folder.path().join("copy.db");
    copy_database(home.path(), FILE, &to).unwrap();
    restore_database(new.path(), FILE, &to, "now").unwrap();
    assert_eq!(file_names(&new), [FILE, "quell.lock"]);
    assert_eq!(open_store(&new).channels().list_stale_replies().await, Ok(Vec::new()));
    assert_eq!(open_store(&home).channels().list_stale_replies().await.unwrap().len(), 1);
}
