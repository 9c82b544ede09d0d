//! Health, size, fencing and close. Backups are those of the server: `pg_dump`, or an archive of its log.

use std::pin::Pin;

use tokio_util::sync::CancellationToken;

use super::PostgresStore;
use super::columns::{get, to_unsigned};
use crate::{MaintenanceStore, StoreError, StoreFuture, TempFile};

/// The columns that take the room, as they are stored: compressed, which is known without reading them. Indices and the
/// other columns are counted with 200 bytes for each row.
const USED_BYTES: &str = "SELECT (
    (SELECT coalesce(sum(200 + coalesce(pg_column_size(config), 0)), 0) FROM sessions)
    + (SELECT coalesce(sum(200 + pg_column_size(view)), 0) FROM runs)
    + (SELECT coalesce(sum(200 + coalesce(pg_column_size(turn), 0)), 0) FROM history)
    + (SELECT coalesce(sum(200 + pg_column_size(line)), 0) FROM journal)
    + (SELECT coalesce(sum(200 + pg_column_size(text) + pg_column_size(words)), 0) FROM notes)
    + (SELECT coalesce(sum(200 + pg_column_size(view)), 0) FROM receipts)
    + (SELECT coalesce(sum(200 + pg_column_size(body)), 0) FROM hook_outbox)
    + (SELECT count(*) * 200 FROM audit)
    + (SELECT coalesce(sum(500 + pg_column_size(response) + pg_column_size(input)
                           + coalesce(pg_column_size(events), 0)), 0) FROM responses)
    + (SELECT coalesce(sum(500 + pg_column_size(metadata)), 0) FROM conversations)
    + (SELECT coalesce(sum(200 + pg_column_size(item)), 0) FROM conversation_items)
)::bigint";

impl MaintenanceStore for PostgresStore {
    fn fenced(&self) -> &CancellationToken {
        &self.0.fenced
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            if let Some(node) = &self.0.node {
                node.close().await;
            }
            self.0.copier.close().await;
            self.0.readers.close().await;
            self.0.writer.close().await;
        })
    }

    fn probe(&self) -> StoreFuture<'_, ()> {
        self.write_relaxed(|db| db.execute("UPDATE boot SET number = number", &[]).map(drop))
    }

    /// Needs a new file with a new page, and gives both back: an update alone finds room in its own page when the disk of
    /// the server is full.
    fn check_health(&self) -> StoreFuture<'_, ()> {
        self.write_relaxed(|db| {
            db.run("SAVEPOINT probe")?;
            let inserted = db.run("TRUNCATE room_probe; INSERT INTO room_probe VALUES (repeat('x', 7000))");
            db.run("ROLLBACK TO SAVEPOINT probe")?;
            inserted?;
            db.execute("UPDATE boot SET number = number", &[]).map(drop)
        })
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

    /// Of rows that exist: the files of the server keep their size when rows are deleted.
    fn used_bytes(&self) -> StoreFuture<'_, u64> {
        self.read(|db| get(&db.query_row(USED_BYTES, &[])?, 0).map(to_unsigned))
    }

    /// The server returns its free room by itself (autovacuum).
    fn count_free_pages(&self) -> StoreFuture<'_, u64> {
        Box::pin(async { Ok(0) })
    }

    fn release_free_pages(&self, _: u32) -> StoreFuture<'_, u64> {
        Box::pin(async { Ok(0) })
    }
}
