//! Open, close and crash; databases of other versions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use quell_protocol::api::{Hold, TokenScope};
use quell_protocol::{Principal, Usage};
use rstest::rstest;

use super::super::{inspect_database, restore_database};
use super::*;
use crate::location::{DatabaseInspection, DatabaseState};
use crate::{HistoryItem, LockHolder, NoteScope, PrivateEndpoints, StoreError, StoredRunState};

/// A database of the oldest supported schema as SQL. Never edit it: it stands for the databases that users have.
const FIXTURE: &str = include_str!("fixture_12.sql");

/// A data directory with the fixture's database, which says that it has another schema.
fn database_with_schema(version: i32) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let db = Connection::open(home.path().join(FILE)).unwrap();
    db.execute_batch(FIXTURE).unwrap();
    db.pragma_update(None, "user_version", version).unwrap();
    home
}

fn file_mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The statements of the schema, without comments and white space.
fn schema_sql(home: &TempDir) -> Vec<String> {
    let db = Connection::open(home.path().join(FILE)).unwrap();
    let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name";
    let mut statement = db.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let without_comments = |sql: String| sql.lines().map(|line| line.split("--").next().unwrap().to_owned()).collect();
    rows.map(|sql| without_comments(sql.unwrap())).map(|sql: String| sql.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn the_directory_and_the_file_are_private() {
    let home = tempfile::tempdir().unwrap();
    let deep = home.path().join("a/b");
    let store = Store::open(&deep, FILE).unwrap();
    accept_run(&store, "a", "s").await;
    assert_eq!(file_mode(&deep), 0o700);
    assert_eq!(file_mode(&home.path().join("a")), 0o700);
    for file in [FILE, "quell.db-wal", "quell.lock"] {
        assert_eq!(file_mode(&deep.join(file)), 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_reopened_store_finds_everything() {
    let (store, home) = new_store();
    run_to_end(&store, "a", "s").await;
    store.history().reset(session_key("s"), "noon".into()).await.unwrap();
    run_to_end(&store, "b", "s").await;
    accept_run(&store, "c", "s").await;
    let hold = Hold { held: true, ..Hold::default() };
    store.runs().set_hold(&hold, None).await.unwrap();
    let before = store.runs().list(all_runs()).await.unwrap();
    store.close().await;
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the log was not folded into the file: {left:?}");

    let store = open_store(&home);
    assert_eq!(store.runs().list(all_runs()).await.unwrap(), before);
    assert_eq!(turns(&store, "s").await, ["turn b"]);
    assert_eq!(store.runs().hold().await, Ok(Hold { revision: 1, ..hold }));
    accept_run(&store, "d", "s").await;
    assert_eq!(run_ids(&store.runs().list(all_runs()).await.unwrap().0), ["d", "c", "b", "a"]);
}

#[tokio::test]
async fn after_a_crash_everything_answered_is_there_and_open_runs_are_found() {
    let (store, home) = new_store();
    run_to_end(&store, "a", "s").await;
    accept_run(&store, "b", "s").await;
    store.runs().record_start(run_id("b"), "started".into()).await.unwrap();
    accept_run(&store, "c", "s").await;
    // A crash leaves the files as they are while the daemon runs.
    let crashed = tempfile::tempdir().unwrap();
    for file in [FILE, "quell.db-wal"] {
        fs::copy(home.path().join(file), crashed.path().join(file)).unwrap();
    }
    let after = open_store(&crashed);
    let left = after.runs().list_open().await.unwrap();
    assert_eq!(run_ids(&left), ["b", "c"]);
    assert_eq!(left.first().map(|run| run.state.clone()), Some(StoredRunState::Started));
    assert_eq!(after.history().turns(session_key("s")).await.unwrap(), ["turn a"]);
}

#[tokio::test]
async fn a_store_that_is_dropped_finishes_its_writes_and_unlocks() {
    let (store, home) = new_store();
    let answers = (0..20).map(|n| {
        use futures_util::FutureExt;
        store.runs().accept(accepted_row(&format!("r{n}"), "s")).now_or_never().is_none()
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
    assert_eq!(store.runs().list_open().await.unwrap().len(), 20);
}

#[tokio::test]
async fn close_finishes_what_is_queued_and_refuses_the_rest() {
    let (store, home) = new_store();
    let clone = store.clone();
    let begun =
        futures_util::future::join_all((0..100).map(|n| clone.runs().accept(accepted_row(&format!("r{n}"), "s"))));
    let (answers, ()) = tokio::join!(begun, store.close());
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(clone.runs().accept(accepted_row("late", "s")).await, Err(StoreError::Closed));
    assert_eq!(clone.runs().find(run_id("r1")).await, Err(StoreError::Closed));
    // A second close returns at once, and the directory is unlocked although a clone still exists.
    clone.clone().close().await;
    assert_eq!(open_store(&home).runs().list_open().await.unwrap().len(), 100);
    drop(clone);
}

#[test]
fn a_second_daemon_is_refused_by_name_and_pid() {
    let (store, home) = new_store();
    let Err(StoreError::Locked(message)) = Store::open(home.path(), FILE) else { panic!("opened twice") };
    assert!(message.contains(&format!("pid {}", std::process::id())), "{message}");
    assert!(message.contains(&home.path().display().to_string()), "{message}");
    drop(store);
}

#[rstest]
#[case::first(1, "schema 1 of an early version of quell (this version knows 12 to 24) and was left unchanged; restore")]
#[case::last_unsupported(11, "schema 11 of an early version of quell (this version knows 12 to 24)")]
#[case::newer(1000, "its schema is 1000, this version knows up to 24); upgrade quell or restore an older backup")]
fn an_unsupported_schema_is_refused_and_left_alone(#[case] version: i32, #[case] message: &str) {
    let home = database_with_schema(version);
    let file = home.path().join(FILE);
    let before = fs::read(&file).unwrap();
    let error = Store::open(home.path(), FILE).unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    assert_eq!(inspect_database(home.path(), FILE), Err(error.clone()));
    let new = tempfile::tempdir().unwrap();
    assert_eq!(restore_database(new.path(), FILE, &file, "now"), Err(error));
    assert_eq!(fs::read_dir(new.path()).unwrap().count(), 0);
    assert_eq!(fs::read(&file).unwrap(), before);
    // After the refusal the lock is free.
    fs::remove_file(&file).unwrap();
    assert!(Store::open(home.path(), FILE).is_ok());
}

#[test]
fn a_database_of_another_program_is_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(FILE);
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE photos (id)").unwrap();
    let before = fs::read(&file).unwrap();
    assert_eq!(Store::open(home.path(), FILE).unwrap_err(), StoreError::ForeignDatabase(file.clone()));
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[tokio::test]
async fn a_database_of_schema_12_opens_with_all_it_holds() {
    let home = database_with_schema(12);
    let store = open_store(&home);
    assert_eq!(run_ids(&store.runs().list(all_runs()).await.unwrap().0), ["r4", "r3", "r2", "r1"]);
    assert_eq!(run_ids(&store.runs().list_open().await.unwrap()), ["r4"]);
    let steered = find_run(&store, "r3").await;
    assert_eq!(steered.state, StoredRunState::Steered { into: run_id("r2") });
    assert_eq!(turns(&store, "agent:main:main").await, [r#"{"v":1,"runId":"r2"}"#]);
    let (past, _) = store.history().page(session_key("agent:main:main"), 9, None).await.unwrap();
    assert_eq!(past.get(1), Some(&HistoryItem::Reset { at: "2026-11-20T11:00:00.000000Z".into() }));
    let session = find_session(&store, "agent:main:main").await;
    assert_eq!((session.turns, session.agent.as_str()), (1, "main"));
    assert_eq!(session.owner, Principal::parse("admin").ok(), "the principal of its first run");
    assert!(session.shared, "every token could read it until now");
    let imported = find_session(&store, "imported").await;
    assert_eq!((imported.owner, imported.private_endpoints), (None, PrivateEndpoints::default()));
    assert_eq!(store.runs().hold().await.unwrap().reason.as_deref(), Some("upgrade"));
    let tokens = store.access().list_tokens().await.unwrap();
    assert_eq!(tokens.first().map(|token| token.row.scopes.clone()), Some(vec![TokenScope::Write]));
    assert_eq!(store.journal().read(run_id("r4")).await.unwrap().0, ["a line"]);
    let found =
        store.notes().search(vec![NoteScope::Session(session_key("agent:main:main"))], "green", 9).await.unwrap();
    assert_eq!(found.concat().first().map(|found| found.note.key.as_str()), Some("tea"));
    let spent = Usage { input_tokens: 5, output_tokens: 2, cached_tokens: 0, estimated: false };
    assert_eq!(store.spend().on_day("2026-11-20".into()).await, Ok(vec![(AgentId::parse("main").unwrap(), spent)]));
    assert_eq!(store.channels().cursor("tg".into()).await, Ok(Some("77".into())));
    run_to_end(&store, "r5", "agent:main:main").await;
    store.close().await;

    let (new, fresh_home) = new_store();
    new.close().await;
    assert_eq!(schema_sql(&home), schema_sql(&fresh_home), "a migrated database differs from a new one");
}

#[tokio::test]
async fn a_look_changes_nothing_and_sees_the_holder_and_the_hold() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(
        inspect_database(home.path(), FILE).unwrap(),
        DatabaseInspection { holder: None, database: DatabaseState::Absent, server: None }
    );
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    let store = open_store(&home);
    let hold = Hold { held: true, ..Hold::default() };
    store.runs().set_hold(&hold, None).await.unwrap();
    let seen = inspect_database(home.path(), FILE).unwrap();
    assert_eq!(seen.holder, Some(LockHolder { pid: Some(std::process::id()) }));
    assert_eq!(seen.database, DatabaseState::Readable(Hold { revision: 1, ..hold }));
    store.close().await;
    assert_eq!(inspect_database(home.path(), FILE).unwrap().holder, None);
    // The inspection released the lock.
    drop(open_store(&home));
}

#[test]
fn a_look_tells_foreign_and_damaged_files() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(FILE);
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE photos (id)").unwrap();
    assert_eq!(inspect_database(home.path(), FILE), Err(StoreError::ForeignDatabase(file.clone())));
    fs::write(&file, "not a database at all, only a text of some length").unwrap();
    assert!(matches!(inspect_database(home.path(), FILE), Err(StoreError::Corrupt(_))));
}

#[tokio::test]
async fn a_lock_of_another_program_delays_the_first_write_and_not_the_start() {
    let (store, home) = new_store();
    accept_run(&store, "a", "s").await;
    store.close().await;
    let other = rusqlite::Connection::open(home.path().join(FILE)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let next = open_store(&home);
    assert!(next.runs().find(run_id("a")).await.unwrap().is_some());
    assert!(matches!(next.maintenance().probe().await, Err(StoreError::Locked(_))));
    other.execute_batch("ROLLBACK").unwrap();
    accept_run(&next, "b", "s").await;
    assert!(!next.fenced().is_cancelled());
}
