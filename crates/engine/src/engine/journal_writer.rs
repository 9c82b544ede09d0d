//! Background task that writes due journal batches to the database until the engine closes.

use quell_store::Store;

use crate::journal::{Journal, JournalBatch};

use super::Engine;

pub(super) async fn run_journal_writer(engine: Engine, journal: Journal) {
    loop {
        tokio::select! {
            () = engine.0.closing.cancelled() => return,
            taken = journal.next_batches() => write_batches(&engine.0.store, taken).await,
        }
    }
}

/// Writes all due batches in one transaction. Lines that arrive meanwhile go into the next one.
async fn write_batches(store: &Store, batches: Vec<JournalBatch>) {
    let rows = batches.iter().flat_map(|taken| &taken.rows).cloned().collect();
    let outcome = store.journal().write(rows).await.map_err(|error| error.to_string());
    if let Err(problem) = &outcome {
        tracing::error!(problem, "the journal could not be written; it is tried again");
    }
    for batch in batches {
        batch.report_outcome(outcome.clone());
    }
}
