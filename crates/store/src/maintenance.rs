//! Operations on the store as a whole: health, size, copies, fencing and close.

use std::pin::Pin;

use tokio_util::sync::CancellationToken;

use crate::{StoreFuture, TempFile};

pub trait MaintenanceStore: Send + Sync {
    /// Cancelled once a write was refused because another daemon has taken over the database, see
    /// [`StoreError::Fenced`](crate::StoreError::Fenced). Each opening of a database fences off the earlier ones; one
    /// that cannot write at its opening does so with its first write.
    fn fenced(&self) -> &CancellationToken;

    /// Finishes the queued operations and releases the database. Later operations fail with
    /// [`StoreError::Closed`](crate::StoreError::Closed). Copies may be cut short. Continues when dropped after its
    /// first poll.
    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Writes to the database without changing anything in it.
    fn probe(&self) -> StoreFuture<'_, ()>;

    /// As [`MaintenanceStore::probe`], and fails when there is too little room for further writes.
    fn check_health(&self) -> StoreFuture<'_, ()>;

    /// Copies the whole database at one moment, without delaying writes.
    fn snapshot(&self) -> StoreFuture<'_, TempFile>;

    /// Reads the next chunk of an export or a snapshot from offset `at`; an empty one at the end of the file.
    fn read_chunk(&self, file: TempFile, at: u64) -> StoreFuture<'_, Vec<u8>>;

    /// Bytes in use. The database may occupy more.
    fn used_bytes(&self) -> StoreFuture<'_, u64>;

    /// Number of unused pages: room that can be returned to the file system.
    fn count_free_pages(&self) -> StoreFuture<'_, u64>;

    /// Returns at most `pages` free pages to the file system. Returns how many free pages remain. Not synced.
    fn release_free_pages(&self, pages: u32) -> StoreFuture<'_, u64>;
}
