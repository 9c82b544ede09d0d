//! Read-only and full disks, damaged files, locks of other programs: each gives a typed error, and no operation hangs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;
use crate::{AcceptRunOutcome, StoreError};

/// Runs `work` on a thread without the capabilities that override file permissions, for tests that run as root.
fn without_privileges<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let unprivileged = move || {
        let mut sets = capabilities(None).unwrap();
        sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        set_capabilities(None, sets).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(unprivileged).join().unwrap())
}

fn set_mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

async fn filled_database() -> TempDir {
    let (store, home) = new_store();
    for n in 0..200 {
        run_to_end(&store, &format!("r{n}"), "s").await;
    }
    store.close().await;
    home
}

#[tokio::test]
async fn a_read_only_directory_is_unwritable() {
    let home = filled_database().await;
    set_mode(home.path(), 0o500);
    let error = without_privileges(|| Store::open(home.path(), FILE).unwrap_err());
    set_mode(home.path(), 0o700);
    assert!(matches!(&error, StoreError::Unwritable(_)), "{error:?}");
    assert!(error.to_string().contains(&home.path().display().to_string()), "{error}");
    assert!(Store::open(home.path(), FILE).is_ok());
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_unwritable() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("file"), "in the way").unwrap();
    let error = Store::open(&home.path().join("file/data"), FILE).unwrap_err();
    assert!(matches!(&error, StoreError::Unwritable(_)), "{error:?}");
}

#[tokio::test]
async fn a_read_only_file_is_unwritable() {
    let home = filled_database().await;
    let file = home.path().join(FILE);
    set_mode(&file, 0o400);
    let error = without_privileges(|| Store::open(home.path(), FILE).unwrap_err());
    assert!(matches!(&error, StoreError::Unwritable(_)), "{error:?}");
    assert!(error.to_string().contains("write-protected"), "{error}");
    set_mode(&file, 0o600);
    assert!(Store::open(home.path(), FILE).is_ok());
}

#[tokio::test]
async fn a_full_disk_fails_what_does_not_fit_and_nothing_else() {
    let (sqlite, store, _home) = new_sqlite_store();
    accept_run(&store, "a", "s").await;
    let pages: i64 = sqlite.read(|db| db.pragma_query_value(None, "page_count", |row| row.get(0))).await.unwrap();
    let limit = move |most: i64| move |db: &Connection| db.execute_batch(&format!("PRAGMA max_page_count = {most}"));
    sqlite.write(limit(pages + 2)).await.unwrap();
    let large = "x".repeat(1_000_000);
    let (turn, small) =
        tokio::join!(append_turn(&store, "s", "a", &large, &large), store.runs().accept(accepted_row("b", "s")));
    assert!(matches!(&turn, Err(StoreError::Unwritable(_))), "{turn:?}");
    assert!(turn.unwrap_err().to_string().contains("full"));
    assert_eq!(small, Ok(AcceptRunOutcome::New));
    assert_eq!(find_run(&store, "a").await.view, "accepted a");
    assert_eq!(turns(&store, "s").await, Vec::<String>::new());
    // With room again, the same turn is written.
    sqlite.write(limit(1_000_000)).await.unwrap();
    append_turn(&store, "s", "a", &large, "view").await.unwrap();
    assert_eq!(store.history().turns(session_key("s")).await, Ok(vec![large]));
}

#[tokio::test]
async fn a_lock_of_another_program_is_an_error_and_not_a_wait_for_ever() {
    let (sqlite, store, home) = new_sqlite_store();
    accept_run(&store, "a", "s").await;
    sqlite.write(|db| db.busy_timeout(std::time::Duration::ZERO)).await.unwrap();
    let other = Connection::open(home.path().join(FILE)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = store.runs().accept(accepted_row("b", "s")).await;
    assert!(matches!(&refused, Err(StoreError::Locked(_))), "{refused:?}");
    assert!(store.runs().find(run_id("a")).await.unwrap().is_some());
    other.execute_batch("ROLLBACK").unwrap();
    accept_run(&store, "b", "s").await;
}

#[tokio::test]
async fn a_file_that_is_no_database_is_corrupt() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join(FILE), "this is not a database, whatever its name says. ".repeat(100)).unwrap();
    let error = Store::open(home.path(), FILE).unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt(_)), "{error:?}");
    assert!(error.to_string().contains(FILE) && error.to_string().contains("backup"), "{error}");
}

#[tokio::test]
async fn a_damaged_page_is_an_error_where_it_is_read() {
    let home = filled_database().await;
    let file = home.path().join(FILE);
    let sql = "SELECT pageno FROM dbstat WHERE name IN ('sqlite_schema', 'boot')";
    let spared: Vec<i64> = {
        let db = Connection::open(&file).unwrap();
        let mut pages = db.prepare(sql).unwrap();
        pages.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    };
    let mut bytes = fs::read(&file).unwrap();
    // Keep the pages of the schema and the one that every start writes; overwrite all others with garbage.
    let others = bytes
        .chunks_mut(4096)
        .enumerate()
        .filter(|(at, _)| !i64::try_from(at + 1).is_ok_and(|page| spared.contains(&page)));
    others.for_each(|(_, page)| page.fill(0xa5));
    fs::write(&file, bytes).unwrap();
    let store = open_store(&home);
    let read = store.runs().list(all_runs()).await;
    assert!(matches!(&read, Err(StoreError::Corrupt(_))), "{read:?}");
    let written = store.runs().accept(accepted_row("new", "s")).await;
    assert!(matches!(&written, Err(StoreError::Corrupt(_))), "{written:?}");
    store.close().await;
}

#[tokio::test]
async fn a_value_that_no_version_wrote_is_corrupt_and_not_a_panic() {
    let (store, home) = new_store();
    accept_run(&store, "a", "s").await;
    let other = Connection::open(home.path().join(FILE)).unwrap();
    other.execute_batch("UPDATE runs SET agent = ''").unwrap();
    let read = store.runs().find(run_id("a")).await;
    assert!(matches!(&read, Err(StoreError::Corrupt(_))), "{read:?}");
}
