//! Opening, closing, crashing, and databases of other versions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use quell_protocol::api::{Hold, Scope};
use rusqlite::Connection;

use super::super::{Database, Holder, Inspection, Past, StoreError, StoredState, inspect};
use super::*;

/// What schema 1 held, as it was written to disk. Never edited: it stands for the databases that people have.
const FIXTURE: &str = include_str!("fixture_1.sql");

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn shape(home: &TempDir) -> Vec<String> {
    let db = Connection::open(home.path().join(FILE)).unwrap();
    let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name";
    let mut statement = db.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    rows.map(|sql| sql.unwrap()).collect()
}

#[tokio::test]
async fn the_directory_and_the_file_are_private() {
    let home = tempfile::tempdir().unwrap();
    let deep = home.path().join("a/b");
    let store = Store::open(&deep, FILE).unwrap();
    accept(&store, "a", "s").await;
    assert_eq!(mode(&deep), 0o700);
    assert_eq!(mode(&home.path().join("a")), 0o700);
    for file in [FILE, "quell.db-wal", "quell.lock"] {
        assert_eq!(mode(&deep.join(file)), 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_reopened_store_finds_everything() {
    let (store, home) = fresh();
    live(&store, "a", "s").await;
    store.reset_session(key("s"), "noon".into()).await.unwrap();
    live(&store, "b", "s").await;
    accept(&store, "c", "s").await;
    let hold = Hold { held: true, ..Hold::default() };
    store.set_hold(&hold).await.unwrap();
    let before = store.runs(all_runs()).await.unwrap();
    store.close().await;
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the log was not folded into the file: {left:?}");

    let store = open(&home);
    assert_eq!(store.runs(all_runs()).await.unwrap(), before);
    assert_eq!(store.turns(key("s")).await.unwrap(), ["turn b"]);
    assert_eq!(store.hold().await, Ok(hold));
    accept(&store, "d", "s").await;
    assert_eq!(ids(&store.runs(all_runs()).await.unwrap().0), ["d", "c", "b", "a"]);
}

#[tokio::test]
async fn after_a_crash_everything_answered_is_there_and_open_runs_are_found() {
    let (store, home) = fresh();
    live(&store, "a", "s").await;
    accept(&store, "b", "s").await;
    store.start_run(run_id("b"), "started".into()).await.unwrap();
    accept(&store, "c", "s").await;
    // The files as they are while the daemon works are what a crash leaves.
    let crashed = tempfile::tempdir().unwrap();
    for file in [FILE, "quell.db-wal"] {
        fs::copy(home.path().join(file), crashed.path().join(file)).unwrap();
    }
    let after = open(&crashed);
    let left = after.open_runs().await.unwrap();
    assert_eq!(ids(&left), ["b", "c"]);
    assert_eq!(left.first().map(|run| run.state.clone()), Some(StoredState::Started));
    assert_eq!(after.turns(key("s")).await.unwrap(), ["turn a"]);
}

#[tokio::test]
async fn a_store_that_is_dropped_finishes_its_writes_and_unlocks() {
    let (store, home) = fresh();
    let answers = (0..20).map(|n| {
        use futures_util::FutureExt;
        store.accept_run(row(&format!("r{n}"), "s")).now_or_never().is_none()
    });
    assert!(answers.into_iter().all(|queued| queued));
    drop(store);
    let patience = Instant::now() + Duration::from_secs(20);
    let store = loop {
        match Store::open(home.path(), FILE) {
            Ok(store) => break store,
            Err(StoreError::Locked(_)) if Instant::now() < patience => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(store.open_runs().await.unwrap().len(), 20);
}

#[tokio::test]
async fn close_finishes_what_is_queued_and_refuses_the_rest() {
    let (store, home) = fresh();
    let clone = store.clone();
    let begun = futures_util::future::join_all((0..100).map(|n| clone.accept_run(row(&format!("r{n}"), "s"))));
    let (answers, ()) = tokio::join!(begun, store.close());
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(clone.accept_run(row("late", "s")).await, Err(StoreError::Closed));
    assert_eq!(clone.run(run_id("r1")).await, Err(StoreError::Closed));
    // Closing again is over at once, and the directory is free although a clone lives.
    clone.clone().close().await;
    assert_eq!(open(&home).open_runs().await.unwrap().len(), 100);
    drop(clone);
}

#[test]
fn a_second_daemon_is_refused_by_name_and_pid() {
    let (store, home) = fresh();
    let Err(StoreError::Locked(message)) = Store::open(home.path(), FILE) else { panic!("opened twice") };
    assert!(message.contains(&format!("pid {}", std::process::id())), "{message}");
    assert!(message.contains(&home.path().display().to_string()), "{message}");
    drop(store);
}

#[test]
fn a_newer_database_is_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(FILE);
    let db = Connection::open(&file).unwrap();
    db.execute_batch(FIXTURE).unwrap();
    db.pragma_update(None, "user_version", 1000).unwrap();
    drop(db);
    let before = fs::read(&file).unwrap();
    let error = Store::open(home.path(), FILE).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 1000, .. }), "{error:?}");
    assert!(error.to_string().contains("upgrade quell"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), before);
    // A refusal gives the lock back.
    fs::remove_file(&file).unwrap();
    assert!(Store::open(home.path(), FILE).is_ok());
}

#[test]
fn a_database_of_another_program_is_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(FILE);
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE photos (id)").unwrap();
    let before = fs::read(&file).unwrap();
    assert_eq!(Store::open(home.path(), FILE).unwrap_err(), StoreError::Foreign(file.clone()));
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[tokio::test]
async fn a_database_of_schema_1_opens_with_all_it_holds() {
    let home = tempfile::tempdir().unwrap();
    Connection::open(home.path().join(FILE)).unwrap().execute_batch(FIXTURE).unwrap();
    let store = open(&home);
    assert_eq!(ids(&store.runs(all_runs()).await.unwrap().0), ["r4", "r3", "r2", "r1"]);
    assert_eq!(ids(&store.open_runs().await.unwrap()), ["r4"]);
    let steered = store.run(run_id("r3")).await.unwrap().unwrap();
    assert_eq!(steered.state, StoredState::Steered { into: run_id("r2") });
    assert_eq!(store.turns(key("agent:main:main")).await.unwrap(), [r#"{"v":1,"runId":"r2"}"#]);
    let (past, _) = store.turn_page(key("agent:main:main"), 9, None).await.unwrap();
    assert_eq!(past.get(1), Some(&Past::Reset { at: "2026-11-20T11:00:00.000000Z".into() }));
    let session = store.session(key("agent:main:main")).await.unwrap().unwrap();
    assert_eq!((session.turns, session.agent.as_str()), (1, "main"));
    assert_eq!(store.hold().await.unwrap().reason.as_deref(), Some("upgrade"));
    let tokens = store.list_tokens().await.unwrap();
    assert_eq!(tokens.first().map(|token| token.row.scope), Some(Scope::Write));
    live(&store, "r5", "agent:main:main").await;
    store.close().await;

    let (new, fresh_home) = fresh();
    new.close().await;
    assert_eq!(shape(&home), shape(&fresh_home), "a migrated database differs from a new one");
}

#[tokio::test]
async fn a_look_changes_nothing_and_sees_the_holder_and_the_hold() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(inspect(home.path(), FILE).unwrap(), Inspection { holder: None, database: Database::Absent });
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    let store = open(&home);
    let hold = Hold { held: true, ..Hold::default() };
    store.set_hold(&hold).await.unwrap();
    let seen = inspect(home.path(), FILE).unwrap();
    assert_eq!(seen.holder, Some(Holder { pid: Some(std::process::id()) }));
    assert_eq!(seen.database, Database::Whole(hold));
    store.close().await;
    assert_eq!(inspect(home.path(), FILE).unwrap().holder, None);
    // The look gave the lock back.
    drop(open(&home));
}

#[test]
fn a_look_tells_newer_foreign_and_damaged_files() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(FILE);
    let db = Connection::open(&file).unwrap();
    db.execute_batch(FIXTURE).unwrap();
    db.pragma_update(None, "user_version", 1000).unwrap();
    drop(db);
    assert!(matches!(inspect(home.path(), FILE), Err(StoreError::Newer { found: 1000, .. })));
    fs::remove_file(&file).unwrap();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE photos (id)").unwrap();
    assert_eq!(inspect(home.path(), FILE), Err(StoreError::Foreign(file.clone())));
    fs::write(&file, "not a database at all, only a text of some length").unwrap();
    assert!(matches!(inspect(home.path(), FILE), Err(StoreError::Corrupt(_))));
}

#[tokio::test]
async fn a_lock_of_another_program_delays_the_first_write_and_not_the_start() {
    let (store, home) = fresh();
    accept(&store, "a", "s").await;
    store.close().await;
    let other = rusqlite::Connection::open(home.path().join(FILE)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let next = open(&home);
    assert!(next.run(run_id("a")).await.unwrap().is_some());
    assert!(matches!(next.touch().await, Err(StoreError::Locked(_))));
    other.execute_batch("ROLLBACK").unwrap();
    accept(&next, "b", "s").await;
    assert!(!next.fenced().is_cancelled());
}
