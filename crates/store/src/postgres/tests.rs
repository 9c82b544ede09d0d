//! Tests of the PostgreSQL store against real servers.

mod cluster;
mod cutting_proxy;
mod fencing;
mod lost_commits;
mod maintenance;
mod opening;
mod outages;
mod texts;

use std::cell::Cell;

use quell_testkit::postgres::TestPostgres;
use tempfile::TempDir;

use super::{PostgresSettings, PostgresStore};
use crate::Store;
use crate::conformance::{TestDatabase, conformance_tests};

thread_local! {
    /// Started by [`TestDatabase::is_available`] for the database that the test creates next.
    static STARTED: Cell<Option<TestPostgres>> = const { Cell::new(None) };
}

pub(crate) struct PostgresDatabase {
    server: TestPostgres,
    home: TempDir,
    /// The data directory of the other daemon.
    other_home: TempDir,
}

impl TestDatabase for PostgresDatabase {
    fn is_available() -> bool {
        let server = TestPostgres::start();
        let started = server.is_some();
        STARTED.set(server);
        started
    }

    fn create() -> Self {
        let server = STARTED.take().or_else(TestPostgres::start).unwrap();
        Self { server, home: tempfile::tempdir().unwrap(), other_home: tempfile::tempdir().unwrap() }
    }

    fn open(&self) -> Store {
        open_store(&self.server, &self.home)
    }

    fn take_over(&self) -> Store {
        open_store(&self.server, &self.other_home)
    }

    fn count_indexed_notes(&self) -> i64 {
        self.server.sql("SELECT count(*) FROM notes WHERE length(words) > 0").parse().unwrap()
    }

    fn stores_scope_name(&self, name: &str) -> bool {
        self.server.sql(&format!("SELECT count(*) FROM note_scopes WHERE name = '{name}'")) != "0"
    }
}

mod conformance {
    super::conformance_tests!(
        #[ignore = "full: PostgreSQL"]
        crate::postgres::tests::PostgresDatabase
    );
}

fn settings(server: &TestPostgres) -> PostgresSettings {
    PostgresSettings { url: server.url(), password: None, tls_ca_file: None, cluster: None }
}

fn open_store(server: &TestPostgres, home: &TempDir) -> Store {
    Store::new(PostgresStore::open(&settings(server), home.path()).unwrap())
}
