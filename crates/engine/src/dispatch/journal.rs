//! Who carries the journal's pages to the database, and keeps them until the engine closes.

use crate::journal::{Journal, Taken};
use crate::store::Store;

use super::Engine;

pub(super) async fn keep_journal(engine: Engine, journal: Journal) {
    loop {
        tokio::select! {
            () = engine.0.closing.cancelled() => return,
            taken = journal.due() => write(&engine.0.store, taken).await,
        }
    }
}

/// One transaction for all that was due. What comes meanwhile goes into the next.
async fn write(store: &Store, taken: Vec<Taken>) {
    let rows = taken.iter().flat_map(|taken| &taken.rows).cloned().collect();
    let outcome = store.write_journal(rows).await.map_err(|error| error.to_string());
    if let Err(problem) = &outcome {
        tracing::error!(problem, "the journal could not be written; it is tried again");
    }
    for taken in taken {
        taken.settle(outcome.clone());
    }
}
