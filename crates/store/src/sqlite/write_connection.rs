//! The connection of the writer thread: commits as long as no later start has opened the database.

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio_util::sync::CancellationToken;

use super::boot::BootNumber;
use crate::StoreError;
use crate::batch_writer::{BatchDatabase, BatchFailure, SyncLevel};

pub(super) struct WriteConnection {
    connection: Connection,
    boot: BootNumber,
    /// Cancelled when a later start has taken a number.
    fenced: CancellationToken,
    sync: SyncLevel,
}

impl WriteConnection {
    pub(super) fn new(connection: Connection, boot: BootNumber, fenced: CancellationToken) -> Self {
        Self { connection, boot, fenced, sync: SyncLevel::Full }
    }

    fn begin_transaction(&mut self, sync: SyncLevel) -> Result<Transaction<'_>, StoreError> {
        // Must be synced, so it runs before the level can be lowered.
        let own = self.boot.claim(&mut self.connection).inspect_err(|error| self.cancel_if_fenced(error))?;
        if self.sync != sync {
            // Values for WAL mode.
            self.connection.execute_batch(match sync {
                SyncLevel::Normal => "PRAGMA synchronous = NORMAL",
                SyncLevel::Full => "PRAGMA synchronous = FULL",
            })?;
            self.sync = sync;
        }
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let boot: i64 = transaction.prepare_cached("SELECT number FROM boot")?.query_row([], |row| row.get(0))?;
        if boot == own {
            return Ok(transaction);
        }
        self.fenced.cancel();
        Err(StoreError::Fenced)
    }

    fn cancel_if_fenced(&self, error: &StoreError) {
        if *error == StoreError::Fenced {
            self.fenced.cancel();
        }
    }
}

impl BatchDatabase for WriteConnection {
    type Db = Connection;

    fn commit(
        &mut self,
        sync: SyncLevel,
        apply: &mut dyn FnMut(&Connection) -> Result<(), StoreError>,
    ) -> Result<(), BatchFailure> {
        let transaction = self.begin_transaction(sync).map_err(BatchFailure::Database)?;
        // Dropping the transaction on an error rolls it back.
        apply(&transaction).map_err(BatchFailure::NotCommitted)?;
        transaction.commit().map_err(|error| BatchFailure::NotCommitted(error.into()))
    }

    fn finish(&mut self) {
        // Leaves one file instead of three. If something cannot be moved now, the next start moves it.
        if let Err(error) = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            tracing::debug!(%error, "the database's log was not emptied at the close");
        }
    }
}
