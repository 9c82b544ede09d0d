//! Push targets of runs: store, read and delete them.

use std::sync::Arc;

use quell_protocol::RunId;

use super::{Caller, Engine};
use crate::push::{PushError, PushTarget, PushTranslator};

impl Engine {
    /// Accepts push targets and delivers notifications from now on. Call it once, before clients are served.
    pub fn serve_push(&self, translator: Arc<dyn PushTranslator>) {
        let _ = translator;
    }

    /// The Ed25519 key that receivers verify notifications with; `None` without a secret in `[hooks]`.
    #[must_use]
    pub fn push_public_key(&self) -> Option<[u8; 32]> {
        None
    }

    /// Stores a target, in place of the caller's one with the same id. It hears of everything that happens from now on,
    /// and of the end in any case.
    ///
    /// # Errors
    /// [`PushError`]; nothing was stored then.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn put_push_target(
        &self,
        _caller: &Caller,
        _run: &RunId,
        _target: PushTarget,
    ) -> Result<PushTarget, PushError> {
        Err(PushError::NotAvailable)
    }

    /// A target that the caller has stored.
    ///
    /// # Errors
    /// [`PushError`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn push_target(&self, _caller: &Caller, _run: &RunId, _id: &str) -> Result<PushTarget, PushError> {
        Err(PushError::NotAvailable)
    }

    /// The targets that the caller has stored, the oldest first. Those of others are not listed.
    ///
    /// # Errors
    /// [`PushError`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn push_targets(&self, _caller: &Caller, _run: &RunId) -> Result<Vec<PushTarget>, PushError> {
        Err(PushError::NotAvailable)
    }

    /// Deletes a target that the caller has stored. It gets nothing more, except what is being sent.
    ///
    /// # Errors
    /// [`PushError`].
    ///
    /// # Cancel safety
    /// Safe: it is deleted or not.
    pub async fn delete_push_target(&self, _caller: &Caller, _run: &RunId, _id: &str) -> Result<(), PushError> {
        Err(PushError::NotAvailable)
    }
}
