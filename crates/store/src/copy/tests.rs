//! Copies between real databases, both ways.

mod fill;
mod refusals;

use std::path::Path;
use std::thread;

use quell_protocol::memory::SenderRow;
use quell_testkit::postgres::TestPostgres;
use rusqlite::Connection;
use rusqlite::types::Value;
use tempfile::TempDir;

use super::*;
use crate::conformance::archive::export_text;
use crate::conformance::{
    accept_run, all_runs, all_sessions, deletion_entry, find_run, find_session, run_to_end, session_key,
};
use crate::postgres::PostgresStore;
use crate::{FoundNote, RunRow, Store, StoredSession, StoredToken};
use fill::{FILLED_SESSIONS, NOTE_QUERIES, fill_store};

const FILE: &str = "quell.db";

fn in_directory(home: &TempDir) -> CopyLocation {
    CopyLocation::Sqlite { data_dir: home.path().to_owned(), file: FILE.to_owned() }
}

fn settings(server: &TestPostgres) -> PostgresSettings {
    PostgresSettings { url: server.url(), password: None, tls_ca_file: None, cluster: None }
}

fn on_server(server: &TestPostgres) -> CopyLocation {
    CopyLocation::Postgres(settings(server))
}

/// Copies on a thread of its own: the client of PostgreSQL blocks.
fn copy(from: &CopyLocation, to: &CopyLocation) -> Result<Vec<TableCopy>, CopyError> {
    thread::scope(|scope| scope.spawn(|| copy_store(from, to, &mut |_| {})).join().unwrap())
}

async fn filled_directory() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path(), FILE).unwrap();
    fill_store(&store).await;
    store.close().await;
    home
}

/// All rows of all tables but `boot`, with the numbers that were given.
fn dump(home: &Path) -> Vec<String> {
    let db = Connection::open(home.join(FILE)).unwrap();
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'note_words%' AND name <> 'boot'
               AND name <> 'sqlite_stat1' ORDER BY name";
    let names: Vec<String> =
        db.prepare(sql).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let copied = TABLES.iter().map(|table| table.name);
    let mut expected: Vec<_> = copied.chain(["sqlite_sequence"]).collect();
    expected.sort_unstable();
    assert_eq!(names, expected, "a table is missing in the list of tables that are copied");
    let mut lines = Vec::new();
    for name in names {
        let mut rows = db.prepare(&format!("SELECT * FROM {name}")).unwrap();
        let width = rows.column_count();
        if let Some(table) = TABLES.iter().find(|table| table.name == name) {
            // Without generated columns, which the databases compute.
            let mut stored = db.prepare("SELECT name FROM pragma_table_info(?1) WHERE name <> 'only'").unwrap();
            let stored = stored.query_map([&name], |row| row.get(0)).unwrap();
            let mut columns: Vec<String> = stored.map(Result::unwrap).collect();
            let mut copied: Vec<_> = table.columns.iter().map(|column| column.name).collect();
            columns.sort_unstable();
            copied.sort_unstable();
            assert_eq!(copied, columns, "the columns of {name} that are copied");
        }
        let columns = rows.column_names().collect::<Vec<_>>().join(",");
        let mut found: Vec<String> = rows
            .query_map([], |row| (0..width).map(|at| row.get(at)).collect::<Result<Vec<Value>, _>>())
            .unwrap()
            .map(|row| format!("{name} ({columns}) {:?}", row.unwrap()))
            .collect();
        found.sort();
        assert!(!found.is_empty(), "the test fills no row of {name}");
        lines.extend(found);
    }
    lines
}

/// What a store answers, without the times at which it was opened.
#[derive(Debug, PartialEq)]
struct Answers {
    sessions: (Vec<StoredSession>, Option<String>),
    runs: (Vec<RunRow>, Option<String>),
    second_runs: Vec<RunRow>,
    tokens: Vec<StoredToken>,
    senders: Vec<SenderRow>,
    /// Keys by query.
    found: Vec<(&'static str, Vec<String>)>,
    audit: Vec<u64>,
    stale_replies: usize,
    exports: Vec<Option<String>>,
}

async fn answers(store: &Store) -> Answers {
    let two = crate::RunListFilter { limit: 2, ..all_runs() };
    let first = store.runs().list(two.clone()).await.unwrap();
    let second = store.runs().list(crate::RunListFilter { cursor: first.1.clone(), ..two }).await.unwrap();
    let mut found = Vec::new();
    for (scope, query) in NOTE_QUERIES {
        let notes: Vec<FoundNote> = store.notes().search(vec![scope.parse()], query, 10).await.unwrap().concat();
        found.push((*query, notes.into_iter().map(|found| found.note.key).collect()));
    }
    let mut exports = Vec::new();
    for session in FILLED_SESSIONS {
        exports.push(export_text(store, session).await);
    }
    Answers {
        sessions: store.sessions().list(all_sessions()).await.unwrap(),
        runs: first,
        second_runs: second.0,
        tokens: store.access().list_tokens().await.unwrap(),
        senders: store.notes().list_senders(10, None).await.unwrap().0,
        found,
        audit: store.audit().list(0, 100).await.unwrap().0.iter().map(|row| row.seq).collect(),
        stale_replies: store.channels().list_stale_replies().await.unwrap().len(),
        exports,
    }
}

/// The number of the audit entry that the store writes next.
async fn next_audit_number(store: &Store) -> u64 {
    store.audit().append(vec![deletion_entry("2030-01-01", "next")]).await.unwrap();
    store.audit().list(0, 1000).await.unwrap().0.last().unwrap().seq
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_copy_to_postgres_and_back_has_the_same_rows() {
    let Some(server) = TestPostgres::start() else { return };
    let (home, back) = (filled_directory().await, tempfile::tempdir().unwrap());
    let before = dump(home.path());
    let there = copy(&in_directory(&home), &on_server(&server)).unwrap();
    assert_eq!(dump(home.path()), before, "the source was changed");
    assert!(there.iter().all(|table| table.rows > 0), "{there:?}");
    assert_eq!(copy(&on_server(&server), &in_directory(&back)), Ok(there));
    let after = dump(back.path());
    for (one, other) in before.iter().zip(&after) {
        assert_eq!(one, other);
    }
    assert_eq!(before.len(), after.len());
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_copy_on_postgres_answers_as_its_source() {
    let Some(server) = TestPostgres::start() else { return };
    let (home, back, data) = (filled_directory().await, tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(&in_directory(&home), &on_server(&server)).unwrap();
    copy(&on_server(&server), &in_directory(&back)).unwrap();
    let stores = [
        Store::open(home.path(), FILE).unwrap(),
        Store::new(PostgresStore::open(&settings(&server), data.path()).unwrap()),
        Store::open(back.path(), FILE).unwrap(),
    ];
    let mut all = Vec::new();
    for store in &stores {
        all.push((answers(store).await, next_audit_number(store).await));
    }
    assert!(all[0].0.found.iter().all(|(_, keys)| !keys.is_empty()), "{:?}", all[0].0.found);
    assert!(all[0].0.exports.iter().all(Option::is_some));
    assert!(all[0].0.stale_replies > 0);
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
    for store in stores {
        run_to_end(&store, "new", "imported").await;
        let rows = store.runs().list(all_runs()).await.unwrap().0;
        assert_eq!(rows[0].id.as_str(), "new", "a new run is the newest");
        assert_eq!(store.sessions().list(all_sessions()).await.unwrap().0[0].key, session_key("imported"));
        assert_eq!(find_run(&store, "new").await.state, crate::StoredRunState::Ended);
        assert!(find_session(&store, "imported").await.turns > 0);
    }
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn progress_of_a_copy_to_postgres_ends_at_the_total() {
    let Some(server) = TestPostgres::start() else { return };
    let home = filled_directory().await;
    let (from, to) = (in_directory(&home), on_server(&server));
    let mut steps = Vec::new();
    let copied = thread::scope(|scope| {
        scope.spawn(|| copy_store(&from, &to, &mut |progress| steps.push(progress)).unwrap()).join().unwrap()
    });
    for step in [CopyStep::Write, CopyStep::Check] {
        let of_step = steps.iter().filter(|progress| progress.step == step);
        let last = |name| of_step.clone().rfind(|progress| progress.table == name).unwrap();
        for table in &copied {
            assert_eq!((last(table.name).rows, last(table.name).total), (table.rows, table.rows), "{step:?}");
        }
    }
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_postgres_copy_of_an_empty_database_is_empty() {
    let Some(server) = TestPostgres::start() else { return };
    let (home, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Store::open(home.path(), FILE).unwrap().close().await;
    copy(&in_directory(&home), &on_server(&server)).unwrap();
    let copied = copy(&on_server(&server), &in_directory(&back)).unwrap();
    assert!(copied.iter().all(|table| table.rows == 0), "{copied:?}");
    let store = Store::open(back.path(), FILE).unwrap();
    accept_run(&store, "r", "s").await;
    assert_eq!(next_audit_number(&store).await, 1);
}
