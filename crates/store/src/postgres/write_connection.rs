//! The connection of the writer thread: commits as long as no later start has opened the database.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::boot::BootNumber;
use super::cluster;
use super::connection::PgConnection;
use super::schema;
use crate::batch_writer::{BatchDatabase, BatchFailure, SyncLevel};
use crate::{ClusterSettings, Membership, StoreError};

/// How long the outcome of a commit is asked for whose answer was lost. After that the write counts as failed, although
/// it may have been made: a repeat with the same id changes nothing.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(5);
const OUTCOME_INTERVAL: Duration = Duration::from_millis(50);

/// How often a transaction is tried that the server ends because it and that of another node wait for each other.
const MAX_ATTEMPTS: usize = 5;

pub(super) struct WriteConnection {
    db: PgConnection,
    boot: BootNumber,
    /// Number of the newest batch that was begun.
    batch: i64,
    /// The transaction that was lost with its connection. As long as the server does not know that, it holds locks.
    abandoned: Option<String>,
    /// Cancelled when a later start has taken a number.
    fenced: CancellationToken,
}

impl WriteConnection {
    /// Connects, migrates the schema and takes the number of this start, or joins the cluster. The data directory must be
    /// locked.
    pub(super) fn open(
        db: PgConnection,
        cluster: Option<&ClusterSettings>,
        data_dir: &Path,
        fenced: CancellationToken,
    ) -> Result<Self, StoreError> {
        db.ensure_connected()?;
        schema::migrate(&db)?;
        let boot = match cluster {
            Some(settings) => BootNumber::of_member(cluster::join(&db, settings, data_dir)?.epoch),
            None => BootNumber::claim(&db)?,
        };
        db.set_writer(boot);
        if cluster.is_some() {
            // It is made again with the name of its membership.
            db.disconnect();
        }
        Ok(Self { db, boot, batch: 0, abandoned: None, fenced })
    }

    /// The membership of a node.
    pub(super) fn membership(&self, settings: &ClusterSettings) -> Membership {
        self.boot.membership(settings)
    }

    /// Begins a transaction; returns its id. A connection that was lost while nothing was written is made again.
    fn begin(&mut self, sync: SyncLevel) -> Result<String, StoreError> {
        let was_connected = !self.db.is_lost();
        let begun = match self.connect_and_begin(sync) {
            Err(_) if was_connected && self.db.is_lost() => self.connect_and_begin(sync),
            begun => begun,
        };
        begun.inspect_err(|error| {
            if *error == StoreError::Fenced {
                self.fenced.cancel();
            }
            self.roll_back();
        })
    }

    fn connect_and_begin(&mut self, sync: SyncLevel) -> Result<String, StoreError> {
        self.db.ensure_connected()?;
        if let Some(transaction) = &self.abandoned {
            self.boot.terminate_transaction(&self.db, transaction)?;
            self.abandoned = None;
        }
        self.batch += 1;
        self.boot.begin_transaction(&self.db, sync, self.batch)
    }

    fn roll_back(&self) {
        if !self.db.is_lost() && self.db.run("ROLLBACK").is_err() {
            self.db.disconnect();
        }
    }

    /// Decides whether the newest batch was committed, whose answer was lost with the connection.
    fn find_outcome(&self, transaction: &str, lost: StoreError) -> Result<(), BatchFailure> {
        let deadline = Instant::now() + OUTCOME_TIMEOUT;
        while Instant::now() < deadline {
            match self.is_committed(transaction) {
                Ok(Some(true)) => return Ok(()),
                Ok(Some(false)) => return Err(BatchFailure::NotCommitted(lost)),
                Ok(None) | Err(_) => thread::sleep(OUTCOME_INTERVAL),
            }
        }
        Err(BatchFailure::Database(lost))
    }

    /// `None` while the transaction is in progress, which this ends. Its row counts and not its id: a server that has
    /// crashed gives the id of a lost transaction to another one.
    fn is_committed(&self, transaction: &str) -> Result<Option<bool>, StoreError> {
        self.db.ensure_connected()?;
        if self.boot.terminate_transaction(&self.db, transaction)? {
            return Ok(None);
        }
        Ok(Some(self.boot.committed_batch(&self.db)? == Some(self.batch)))
    }
}

impl BatchDatabase for WriteConnection {
    type Db = PgConnection;

    fn commit(
        &mut self,
        sync: SyncLevel,
        apply: &mut dyn FnMut(&PgConnection) -> Result<(), StoreError>,
    ) -> Result<(), BatchFailure> {
        let mut attempt = 1;
        loop {
            match self.commit_once(sync, apply) {
                // The other transaction goes on, so the next attempt waits for its end.
                Err(BatchFailure::NotCommitted(StoreError::Conflict(_))) if attempt < MAX_ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    fn finish(&mut self) {
        self.db.disconnect();
    }
}

impl WriteConnection {
    fn commit_once(
        &mut self,
        sync: SyncLevel,
        apply: &mut dyn FnMut(&PgConnection) -> Result<(), StoreError>,
    ) -> Result<(), BatchFailure> {
        let transaction = self.begin(sync).map_err(BatchFailure::Database)?;
        if let Err(error) = apply(&self.db) {
            self.roll_back();
            self.abandoned = self.db.is_lost().then_some(transaction);
            return Err(match error {
                StoreError::Locked(_) => BatchFailure::Database(error),
                _ => BatchFailure::NotCommitted(error),
            });
        }
        match self.db.run("COMMIT") {
            Err(error) if self.db.is_lost() => {
                let outcome = self.find_outcome(&transaction, error);
                self.abandoned = matches!(outcome, Err(BatchFailure::Database(_))).then_some(transaction);
                outcome
            }
            committed => committed.map_err(BatchFailure::NotCommitted),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quell_testkit::postgres::TestPostgres;

    use super::super::PostgresSettings;
    use super::super::settings::Connector;
    use super::*;

    #[test]
    #[ignore = "full: PostgreSQL"]
    fn a_lost_transaction_whose_id_another_one_has_got_was_not_committed() {
        let Some(server) = TestPostgres::start() else { return };
        let home = tempfile::tempdir().unwrap();
        let settings = PostgresSettings { url: server.url(), password: None, tls_ca_file: None, cluster: None };
        let db = PgConnection::new(Arc::new(Connector::new(&settings).unwrap()));
        let mut writer = WriteConnection::open(db, None, home.path(), CancellationToken::new()).unwrap();
        assert!(writer.commit(SyncLevel::Full, &mut |_| Ok(())).is_ok());
        let of_another = server.sql("SELECT pg_current_xact_id()");
        let lost = || StoreError::Unwritable("the connection is lost".to_owned());
        assert!(writer.find_outcome(&of_another, lost()).is_ok(), "the newest batch is there");
        // A batch of which the server has kept nothing.
        writer.batch += 1;
        assert!(matches!(writer.find_outcome(&of_another, lost()), Err(BatchFailure::NotCommitted(_))));
    }
}
