//! Journals of live runs, from which the next daemon seals what a killed one left.

use quell_protocol::RunId;

use crate::StoreFuture;

/// A line as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRow {
    pub run: RunId,
    /// Number of the row within the run. A later row with the same number replaces it.
    pub number: u32,
    /// JSON of a [`JournalLine`](quell_kernel::journal::JournalLine).
    pub line: String,
}

pub trait JournalStore: Send + Sync {
    /// Writes lines of journals without waiting for a sync of the disk. They survive the death of the daemon; they
    /// survive a crash of the machine once a later write was synced. Replaces rows that exist; leaves out rows of
    /// ended runs.
    fn write(&self, rows: Vec<JournalRow>) -> StoreFuture<'_, ()>;

    /// Returns the lines of a run's journal, in order, and its turn if that is recorded.
    fn read(&self, run: RunId) -> StoreFuture<'_, (Vec<String>, Option<String>)>;
}
