//! Commits whose request or answer is lost with the connection.

use std::net::SocketAddr;

use futures_util::future::join_all;

use super::cutting_proxy::{Cut, CuttingProxy};
use super::*;
use crate::StoreError;
use crate::conformance::{accept_run, accepted_row, deletion_entry, find_run};

/// A store that reaches its server by the proxy.
struct CutStore {
    server: TestPostgres,
    proxy: CuttingProxy,
    store: Store,
    _home: TempDir,
}

impl CutStore {
    fn open() -> Option<Self> {
        let server = TestPostgres::start()?;
        let proxy = CuttingProxy::start(SocketAddr::from(([127, 0, 0, 1], server.port())));
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
        let home = tempfile::tempdir().unwrap();
        let settings = PostgresSettings { url, ..settings(&server) };
        let store = Store::new(PostgresStore::open(&settings, home.path()).unwrap());
        Some(Self { server, proxy, store, _home: home })
    }

    /// Appends an entry of the audit log, which a repeat would append twice.
    async fn append(&self, target: &str) -> Result<(), StoreError> {
        self.store.audit().append(vec![deletion_entry("2026-11-24", target)]).await
    }

    async fn targets(&self) -> Vec<String> {
        let (rows, _) = self.store.audit().list(0, 100).await.unwrap();
        rows.into_iter().filter_map(|row| row.target).collect()
    }

    fn open_transactions(&self) -> String {
        self.server.sql("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
    }
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_commit_whose_answer_was_lost_has_succeeded_and_is_made_once() {
    let Some(cut) = CutStore::open() else { return };
    cut.append("before").await.unwrap();
    cut.proxy.cut_next_commit(Cut::Answer);
    cut.append("in doubt").await.unwrap();
    assert!(cut.proxy.has_cut());
    cut.append("after").await.unwrap();
    assert_eq!(cut.targets().await, ["before", "in doubt", "after"]);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_commit_that_never_arrived_fails_and_changes_nothing() {
    let Some(cut) = CutStore::open() else { return };
    for request in [Cut::Request, Cut::RequestSilently] {
        cut.proxy.cut_next_commit(request);
        let failed = cut.append("lost").await.unwrap_err();
        assert!(failed.is_transient() && cut.proxy.has_cut(), "{failed}");
        assert_eq!(cut.open_transactions(), "0", "{request:?}");
    }
    cut.append("after").await.unwrap();
    assert_eq!(cut.targets().await, ["after"]);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_transaction_that_the_server_holds_for_a_lost_client_blocks_no_later_write() {
    let Some(cut) = CutStore::open() else { return };
    accept_run(&cut.store, "r", "s").await;
    cut.proxy.cut_next_commit(Cut::RequestSilently);
    let lost = cut.store.runs().record_start(crate::conformance::run_id("r"), "lost".into()).await;
    assert!(lost.is_err() && cut.proxy.has_cut());
    // The row of the run is locked until the server has ended that transaction.
    cut.store.runs().record_start(crate::conformance::run_id("r"), "started".into()).await.unwrap();
    assert_eq!(find_run(&cut.store, "r").await.view, "started");
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn writes_of_a_batch_that_was_lost_are_made_one_by_one() {
    let Some(cut) = CutStore::open() else { return };
    cut.append("before").await.unwrap();
    cut.proxy.cut_next_commit(Cut::Request);
    let names: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let answers = join_all(names.iter().map(|name| cut.append(name))).await;
    assert!(cut.proxy.has_cut());
    let mut made: Vec<String> = cut.targets().await.split_off(1);
    made.sort_by_key(|name| name.parse::<u32>().unwrap());
    let answered = names.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).map(|(name, _)| name.clone());
    assert_eq!(made, answered.collect::<Vec<_>>(), "each answered one once, and no other");
    assert!(made.len() >= 29, "only the one that was alone in its transaction may fail: {answers:?}");
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_connection_that_ends_in_a_write_leaves_nothing_of_it() {
    let Some(cut) = CutStore::open() else { return };
    // Ends the connection after the first statement of the write has changed something.
    cut.server.sql(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END';
         CREATE TRIGGER cut AFTER INSERT ON sessions FOR EACH ROW EXECUTE FUNCTION cut()",
    );
    let failed = cut.store.runs().accept(accepted_row("r", "s")).await.unwrap_err();
    assert!(failed.is_transient(), "{failed}");
    cut.server.sql("DROP TRIGGER cut ON sessions");
    assert_eq!(cut.store.runs().find(crate::conformance::run_id("r")).await, Ok(None));
    accept_run(&cut.store, "r", "s").await;
}
