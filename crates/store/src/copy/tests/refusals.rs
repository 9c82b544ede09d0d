//! Copies that are refused or fail: the target stays as it was.

use super::*;
use crate::conformance::run_ids;

/// Rows of all copied tables.
fn count_rows(server: &TestPostgres) -> u64 {
    TABLES.iter().map(|table| server.sql(&format!("SELECT count(*) FROM {}", table.name)).parse::<u64>().unwrap()).sum()
}

async fn directory_with_runs(runs: usize) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path(), FILE).unwrap();
    let ids: Vec<String> = (0..runs).map(|number| format!("r{number}")).collect();
    futures_util::future::join_all(ids.iter().map(|id| accept_run(&store, id, "s"))).await;
    store.close().await;
    home
}

/// Executes a statement that the daemon would not.
fn damage(home: &TempDir, sql: &str) {
    let db = Connection::open(home.path().join(FILE)).unwrap();
    db.execute_batch(&format!("PRAGMA foreign_keys = OFF; {sql}")).unwrap();
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_postgres_target_with_rows_is_refused_and_unchanged() {
    let Some(server) = TestPostgres::start() else { return };
    let (home, data) = (directory_with_runs(3).await, tempfile::tempdir().unwrap());
    let store = Store::new(PostgresStore::open(&settings(&server), data.path()).unwrap());
    store.audit().append(vec![deletion_entry("2026-11-20", "theirs")]).await.unwrap();
    store.close().await;
    let refused = copy(&in_directory(&home), &on_server(&server)).unwrap_err();
    assert_eq!(refused, CopyError::TargetNotEmpty("audit"));
    assert!(refused.to_string().contains("name an empty database"), "{refused}");
    assert_eq!((count_rows(&server), server.sql("SELECT target FROM audit")), (1, "theirs".to_owned()));
    // The other way.
    let other = directory_with_runs(1).await;
    let before = std::fs::read(other.path().join(FILE)).unwrap();
    assert_eq!(copy(&on_server(&server), &in_directory(&other)), Err(CopyError::TargetNotEmpty("sessions")));
    assert_eq!(std::fs::read(other.path().join(FILE)).unwrap(), before);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn databases_that_a_daemon_uses_are_refused_also_postgres() {
    let Some(server) = TestPostgres::start() else { return };
    let (home, data) = (directory_with_runs(1).await, tempfile::tempdir().unwrap());
    let daemon = Store::new(PostgresStore::open(&settings(&server), data.path()).unwrap());
    let empty = tempfile::tempdir().unwrap();
    let from = copy(&on_server(&server), &in_directory(&empty)).unwrap_err().to_string();
    let to = copy(&in_directory(&home), &on_server(&server)).unwrap_err().to_string();
    for refused in [from, to] {
        assert!(refused.contains("a quell is connected to the database") && refused.contains("pid"), "{refused}");
    }
    accept_run(&daemon, "r", "s").await;
    daemon.close().await;
    let daemon = Store::open(home.path(), FILE).unwrap();
    let refused = copy(&in_directory(&home), &on_server(&server)).unwrap_err().to_string();
    assert!(refused.contains(&format!("pid {}", std::process::id())), "{refused}");
    drop(daemon);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_postgres_target_that_dies_in_the_middle_stays_empty() {
    let Some(mut server) = TestPostgres::start() else { return };
    let home = directory_with_runs(2500).await;
    let (from, to) = (in_directory(&home), on_server(&server));
    let killed = thread::scope(|scope| {
        let copying = scope.spawn(|| {
            copy_store(&from, &to, &mut |progress| {
                if (progress.step, progress.table, progress.rows) == (CopyStep::Write, "runs", 1000) {
                    server.kill();
                }
            })
        });
        copying.join().unwrap()
    });
    assert!(matches!(killed, Err(CopyError::WriteTable { table: "runs", .. })), "{killed:?}");
    server.start_again();
    assert_eq!(count_rows(&server), 0);
    let copied = copy(&from, &to).unwrap();
    assert_eq!(copied.iter().find(|table| table.name == "runs").unwrap().rows, 2500);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_postgres_source_that_dies_in_the_middle_leaves_no_row() {
    let Some(mut server) = TestPostgres::start() else { return };
    let (home, back) = (directory_with_runs(2500).await, tempfile::tempdir().unwrap());
    copy(&in_directory(&home), &on_server(&server)).unwrap();
    let (from, to) = (on_server(&server), in_directory(&back));
    let killed = thread::scope(|scope| {
        let copying = scope.spawn(|| {
            copy_store(&from, &to, &mut |progress| {
                if (progress.step, progress.table) == (CopyStep::Write, "sessions") {
                    server.kill();
                }
            })
        });
        copying.join().unwrap()
    });
    assert!(matches!(killed, Err(CopyError::ReadTable { table: "runs", .. })), "{killed:?}");
    let store = Store::open(back.path(), FILE).unwrap();
    assert_eq!(run_ids(&store.runs().list(all_runs()).await.unwrap().0), Vec::<&str>::new());
    assert_eq!(store.sessions().count().await, Ok(0));
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_damaged_row_is_not_copied_to_postgres_and_names_its_table() {
    let Some(server) = TestPostgres::start() else { return };
    let home = directory_with_runs(3).await;
    damage(&home, "UPDATE runs SET view = CAST(x'ff' AS TEXT) WHERE seq = 2");
    let refused = copy(&in_directory(&home), &on_server(&server)).unwrap_err().to_string();
    assert!(refused.contains("table runs of the source") && refused.contains("column view"), "{refused}");
    let home = directory_with_runs(3).await;
    damage(&home, "INSERT INTO history (session, run, turn) VALUES ('s', 'nobody', '{}')");
    let refused = copy(&in_directory(&home), &on_server(&server)).unwrap_err().to_string();
    assert!(refused.contains("table history") && refused.contains("foreign key"), "{refused}");
    assert!(!refused.contains("bug in quell"), "{refused}");
    assert_eq!(count_rows(&server), 0);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_postgres_target_that_changes_rows_is_noticed() {
    let Some(server) = TestPostgres::start() else { return };
    let (home, data) = (filled_directory().await, tempfile::tempdir().unwrap());
    PostgresStore::open(&settings(&server), data.path()).map(Store::new).unwrap().close().await;
    server.sql(
        "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.attempts := 9; RETURN NEW; END $$",
    );
    server.sql("CREATE TRIGGER spoil BEFORE INSERT ON hook_outbox FOR EACH ROW EXECUTE FUNCTION spoil()");
    let refused = copy(&in_directory(&home), &on_server(&server)).unwrap_err();
    assert!(matches!(refused, CopyError::Different { table: "hook_outbox", .. }), "{refused}");
    assert_eq!(count_rows(&server), 0);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn sources_that_are_no_databases_are_named() {
    let Some(server) = TestPostgres::start() else { return };
    let (empty, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let refused = copy(&in_directory(&empty), &in_directory(&to)).unwrap_err().to_string();
    assert!(refused.contains("there is no database") && refused.contains("quell.db"), "{refused}");
    let refused = copy(&on_server(&server), &in_directory(&to)).unwrap_err().to_string();
    assert!(refused.contains("no tables of quell"), "{refused}");
    assert_eq!(server.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), "0");
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0, "the target was touched");
}
