//! Health, size, copies, fencing and close.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use rustix::fs::statvfs;
use tokio_util::sync::CancellationToken;

use super::columns::to_unsigned;
use super::{SqliteStore, backup};
use crate::temp_file::TempFileWriter;
use crate::{MaintenanceStore, StoreError, StoreFuture, TempFile};

/// Below this much free space a disk counts as full: the write-ahead log grows to about this size.
const MIN_FREE_BYTES: u64 = 4 << 20;

/// Pause between two interrupts of the copier while the store closes.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(10);

impl MaintenanceStore for SqliteStore {
    fn fenced(&self) -> &CancellationToken {
        &self.0.fenced
    }

    /// Moves the write-ahead log into the file, joins the threads and unlocks the directory.
    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            // A copy may be cut short: its caller gets an error.
            self.0.copies_cancelled.cancel();
            let mut copier = std::pin::pin!(self.0.copier.close());
            loop {
                self.0.copy_interrupt.interrupt();
                tokio::select! {
                    () = &mut copier => break,
                    // An interrupt ends only a statement that has begun, and a copy may be about to begin. So repeat it.
                    () = tokio::time::sleep(INTERRUPT_INTERVAL) => {}
                }
            }
            // Readers first: the writer must be the last connection, so that it can leave a single file behind.
            self.0.readers.close().await;
            self.0.writer.close().await;
        })
    }

    /// Takes the boot number of this start if that is still to be done.
    fn probe(&self) -> StoreFuture<'_, ()> {
        self.write_relaxed(|db| db.execute("UPDATE boot SET number = number", []).map(drop))
    }

    fn check_health(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            // A small write can find room in the log when the disk is full for everything else.
            let free = statvfs(&self.0.file).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
            if let Ok(free @ 0..MIN_FREE_BYTES) = free {
                return Err(StoreError::LowDiskSpace { file: self.0.file.clone(), free });
            }
            self.probe().await
        })
    }

    fn snapshot(&self) -> StoreFuture<'_, TempFile> {
        let data_dir = self.0.data_dir.clone();
        self.run_on_copier(move |connection| {
            let file_error = |error: io::Error| StoreError::from_io(&data_dir, &error);
            let file = TempFileWriter::new(&data_dir).map_err(file_error)?;
            backup::vacuum_into(connection, file.path())?;
            file.finish().map_err(file_error)
        })
    }

    fn read_chunk(&self, file: TempFile, at: u64) -> StoreFuture<'_, Vec<u8>> {
        self.read_raw(move |_| file.read_chunk(at).map_err(|error| StoreError::Unwritable(error.to_string())))
    }

    fn used_bytes(&self) -> StoreFuture<'_, u64> {
        self.read(|db| {
            let sql = "SELECT (page_count - freelist_count) * page_size
                       FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
            db.prepare_cached(sql)?.query_row([], |row| row.get(0)).map(to_unsigned)
        })
    }

    fn count_free_pages(&self) -> StoreFuture<'_, u64> {
        self.read(|db| db.pragma_query_value(None, "freelist_count", |row| row.get(0)).map(to_unsigned))
    }

    fn release_free_pages(&self, pages: u32) -> StoreFuture<'_, u64> {
        self.write_relaxed(move |db| {
            // Each step of the statement frees one page. An argument of 0 would mean all pages.
            let mut vacuum = db.prepare(&format!("PRAGMA incremental_vacuum({})", pages.max(1)))?;
            let mut steps = vacuum.query([])?;
            while steps.next()?.is_some() {}
            db.pragma_query_value(None, "freelist_count", |row| row.get(0)).map(to_unsigned)
        })
    }
}
