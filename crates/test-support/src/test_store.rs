//! Test support: the stores that a script runs on. A script has its store as parameter, so its cases are the same on each.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quell_bus::ClusterSecret;
use quell_engine::EngineConfig;
use quell_kernel::lease::LeaseTiming;
use quell_protocol::NodeName;
use quell_store::postgres::PostgresSettings;
use quell_store::test_support::OtherProgram;
use quell_store::{ClusterSettings, StoreLocation};
use quell_testkit::postgres::TestPostgres;
use serde::{Deserialize, Serialize};

const SECRET: &str = "a secret of this cluster, which is for tests only";
/// The default of the configuration.
const LEASE: Duration = Duration::from_secs(10);
/// Connections that a daemon keeps: a writer and four readers.
const CONNECTIONS: usize = 5;
/// Those of a node besides: for its lease, and for notifications.
const NODE_CONNECTIONS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreKind {
    Sqlite,
    Postgres,
    /// PostgreSQL, with each daemon as the only node of a cluster.
    ClusterNode,
}

/// Where the daemons of a test have their databases: in their data directories, or on one server.
pub struct TestStore {
    kind: StoreKind,
    server: Option<Arc<TestPostgres>>,
}

/// The database of one daemon and of those that follow it. A process that reads it from JSON can use it as long as the
/// server lives.
#[derive(Clone, Serialize, Deserialize)]
pub struct TestDatabase {
    kind: StoreKind,
    /// `None` for a file in the data directory.
    url: Option<String>,
    #[serde(skip)]
    server: Option<Arc<TestPostgres>>,
}

impl StoreKind {
    /// `None` if a server that it needs is switched off for the tests.
    pub fn start(self) -> Option<TestStore> {
        let server = match self {
            Self::Sqlite => None,
            Self::Postgres | Self::ClusterNode => Some(Arc::new(TestPostgres::start()?)),
        };
        Some(TestStore { kind: self, server })
    }

    /// As [`StoreKind::start`], for a test with one database.
    pub fn start_database(self) -> Option<TestDatabase> {
        self.start().map(|store| store.new_database())
    }
}

impl TestStore {
    /// Makes an empty database.
    pub fn new_database(&self) -> TestDatabase {
        let url = self.server.as_ref().map(|server| {
            let name = new_name();
            server.create_database(&name);
            server.database_url(&name)
        });
        TestDatabase { kind: self.kind, url, server: self.server.clone() }
    }
}

impl TestDatabase {
    pub fn sqlite() -> Self {
        Self { kind: StoreKind::Sqlite, url: None, server: None }
    }

    /// Copies a database that may be in use. A file is copied with its data directory.
    pub fn copy(&self) -> Self {
        let (Some(server), Some(source)) = (&self.server, self.name()) else { return self.clone() };
        let name = new_name();
        server.copy_database(source, &name);
        Self { url: Some(server.database_url(&name)), ..self.clone() }
    }

    pub fn configure(&self, config: &mut EngineConfig) {
        config.store = self.location();
        if self.kind == StoreKind::ClusterNode {
            config.cluster.secret = Some(ClusterSecret::parse(SECRET).unwrap());
            config.cluster.lease = LEASE;
        }
    }

    /// The sections of a configuration file for this database, without a cluster.
    pub fn config_toml(&self) -> String {
        self.url.as_ref().map(|url| format!("[store]\nurl = \"{url}\"\n")).unwrap_or_default()
    }

    pub fn connect(&self, data_dir: &Path) -> OtherProgram {
        OtherProgram::connect_to(&self.location(), data_dir)
    }

    /// True if all connections are there that a daemon keeps, and one of another program.
    pub fn is_fully_connected(&self) -> bool {
        let (Some(server), Some(name)) = (&self.server, self.name()) else { return true };
        let wanted = 1 + match self.kind {
            StoreKind::Sqlite => 0,
            StoreKind::Postgres => CONNECTIONS,
            StoreKind::ClusterNode => CONNECTIONS + NODE_CONNECTIONS,
        };
        let found = server.sql(&format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"));
        found.parse::<usize>().unwrap() >= wanted
    }

    fn name(&self) -> Option<&str> {
        self.url.as_ref()?.rsplit('/').next()
    }

    fn location(&self) -> StoreLocation {
        let Some(url) = self.url.clone() else { return StoreLocation::Sqlite { file: "quell.db".to_owned() } };
        let cluster = (self.kind == StoreKind::ClusterNode).then(|| ClusterSettings {
            node: NodeName::parse("node-0").unwrap(),
            timing: LeaseTiming::new(LEASE),
            version: "test".to_owned(),
        });
        StoreLocation::Postgres(PostgresSettings { url, password: None, tls_ca_file: None, cluster })
    }
}

fn new_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("quell_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
