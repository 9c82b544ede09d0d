//! Health, size, fencing and close. Backups are those of the server: `pg_dump`, or an archive of its log.

use std::pin::Pin;

use tokio_util::sync::CancellationToken;

use super::PostgresStore;
use super::columns::{get, to_unsigned};
use crate::{MaintenanceStore, StoreError, StoreFuture, TempFile};

impl MaintenanceStore for PostgresStore {
    fn fenced(&self) -> &CancellationToken {
        &self.0.fenced
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            self.0.copier.close().await;
            self.0.readers.close().await;
            self.0.writer.close().await;
        })
    }

    fn probe(&self) -> StoreFuture<'_, ()> {
        self.write_relaxed(|db| db.execute("UPDATE boot SET number = number", &[]).map(drop))
    }

    fn check_health(&self) -> StoreFuture<'_, ()> {
        self.probe()
    }

    /// # Errors
    /// Always [`StoreError::Settings`], which names the tool of PostgreSQL that does it.
    fn snapshot(&self) -> StoreFuture<'_, TempFile> {
        Box::pin(async {
            Err(StoreError::Settings(
                "the data is in PostgreSQL: back it up there, with `pg_dump --format=custom`".to_owned(),
            ))
        })
    }

    fn read_chunk(&self, file: TempFile, at: u64) -> StoreFuture<'_, Vec<u8>> {
        self.read(move |_| file.read_chunk(at).map_err(|error| StoreError::Unwritable(error.to_string())))
    }

    fn used_bytes(&self) -> StoreFuture<'_, u64> {
        self.read(|db| get(&db.query_row("SELECT pg_database_size(current_database())", &[])?, 0).map(to_unsigned))
    }

    /// The server returns its free room by itself (autovacuum).
    fn count_free_pages(&self) -> StoreFuture<'_, u64> {
        Box::pin(async { Ok(0) })
    }

    fn release_free_pages(&self, _: u32) -> StoreFuture<'_, u64> {
        Box::pin(async { Ok(0) })
    }
}
