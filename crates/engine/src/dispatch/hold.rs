//! The hold: it acts in memory first, and is written down. What could not be written is tried again until it is.

use std::time::Duration;

use quell_kernel::registry::Gate;
use quell_protocol::api::Hold;
use quell_protocol::audit::Action;
use tokio::time::{Instant, timeout};

use super::{Caller, Deed, Engine, Notice};
use crate::store::StoreError;

/// How long an answer whether the database can be written counts. Anybody may ask.
const FRESH: Duration = Duration::from_secs(1);
/// How long the database has to answer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Engine {
    /// Holds new runs from this moment, not yet durable: for a caller that stops everything first and stores the hold then.
    pub fn hold_now(&self) {
        if self.is_open() {
            self.inner().runs.set_gate(Gate::Held);
        }
    }

    /// True while new runs are refused by a hold.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner().runs.gate() == Gate::Held
    }

    /// Holds new runs, or lets them in again. Holding acts at once and is durable when this returns; lifting is durable first.
    ///
    /// # Errors
    /// The store's error. A hold that could not be stored holds all the same, and is stored as soon as that can be done; a
    /// daemon that ends before forgets it.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn set_hold(&self, caller: &Caller, held: bool, reason: Option<String>) -> Result<Hold, StoreError> {
        let since = held.then(|| self.inner().clock.rfc3339(self.inner().clock.now()));
        let by = held.then(|| caller.principal.clone());
        let hold = Hold { held, reason: reason.filter(|_| held), since, by };
        let action = if held { Action::Hold } else { Action::LiftHold };
        let deed = Deed { action, target: None, detail: hold.reason.clone() };
        if held {
            self.hold_now();
            // It acts from now on, stored or not.
            self.audit(caller, deed.clone());
        }
        let (engine, who) = (self.clone(), caller.clone());
        let done = self.seen_through(async move {
            // Held over the write, so that no older hold is written behind this one.
            let mut unwritten = engine.inner().unwritten_hold.lock().await;
            if let Err(error) = engine.inner().store.set_hold(&hold).await {
                if held {
                    tracing::error!(%error, "the hold is not written down: a restart would lift it");
                    *unwritten = Some(hold);
                    engine.inner().hub.publish(&Notice::Hold { held });
                }
                return Err(error);
            }
            *unwritten = None;
            if !held {
                engine.audit(&who, deed);
                engine.let_in_again();
            }
            tracing::info!(principal = %who.principal, held, "hold changed");
            engine.inner().hub.publish(&Notice::Hold { held });
            Ok(hold)
        });
        done.await.ok_or(StoreError::Closed)?
    }

    /// The hold that is in force.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn hold(&self) -> Result<Hold, StoreError> {
        if let Some(unwritten) = &*self.inner().unwritten_hold.lock().await {
            return Ok(unwritten.clone());
        }
        self.inner().store.hold().await
    }

    /// Tries again to write a hold that was refused.
    pub(super) async fn write_hold_again(&self) {
        let mut unwritten = self.inner().unwritten_hold.lock().await;
        let Some(hold) = &*unwritten else { return };
        if let Ok(Ok(())) = timeout(PATIENCE, self.inner().store.set_hold(hold)).await {
            tracing::info!("the hold is written down now");
            *unwritten = None;
        }
    }

    /// Whether the database takes writes; the reason when it does not. Answers of the last second count.
    ///
    /// # Errors
    /// Why not, in words.
    ///
    /// # Cancel safety
    /// Safe: what was asked of the database is answered whether or not anybody waits.
    pub async fn writable(&self) -> Result<(), String> {
        if let Some(why) = self.why_unsealed() {
            return Err(why.to_string());
        }
        let mut known = self.inner().writable.lock().await;
        if let Some((at, answer)) = &*known
            && at.elapsed() < FRESH
        {
            return answer.clone();
        }
        let answer = match timeout(PATIENCE, self.inner().store.probe()).await {
            Ok(probed) => probed.map_err(|error| error.to_string()),
            Err(_elapsed) => Err(format!("the database has not answered for {} s", PATIENCE.as_secs())),
        };
        *known = Some((Instant::now(), answer.clone()));
        answer
    }
}
