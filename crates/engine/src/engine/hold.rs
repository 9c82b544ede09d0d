//! Hold and release new runs, in memory first and then durably, with retries; check whether the database is writable.

use std::time::Duration;

use quell_kernel::registry::AdmissionGate;
use quell_protocol::api::Hold;
use quell_protocol::audit::Action;
use quell_store::StoreError;
use tokio::time::{Instant, timeout};

use super::{AuditAction, Caller, Engine, EngineNotice};

/// How long a result of [`Engine::check_writable`] is reused, because any client may ask.
const WRITABLE_CACHE_TTL: Duration = Duration::from_secs(1);
/// Time limit for a probe of the database.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(2);

impl Engine {
    /// Holds new runs from this moment, not durably: for a caller that stops everything first and stores the hold then.
    pub fn hold_now(&self) {
        if self.is_open() {
            self.inner().runs.set_gate(AdmissionGate::Held);
        }
    }

    /// True while new runs are refused by a hold.
    pub fn is_held(&self) -> bool {
        self.inner().runs.gate() == AdmissionGate::Held
    }

    /// Holds new runs, or admits them again. Holding acts at once and is durable when this returns; lifting is durable
    /// first.
    ///
    /// # Errors
    /// The store's error. A hold that could not be stored is in force all the same, and is stored as soon as possible.
    /// A daemon that ends before that forgets it.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn set_hold(&self, caller: &Caller, held: bool, reason: Option<String>) -> Result<Hold, StoreError> {
        let since = held.then(|| self.inner().clock.rfc3339(self.inner().clock.now()));
        let by = held.then(|| caller.principal.clone());
        let hold = Hold { held, reason: reason.filter(|_| held), since, by };
        let action = if held { Action::Hold } else { Action::LiftHold };
        let audit_action = AuditAction { action, target: None, detail: hold.reason.clone() };
        if held {
            self.hold_now();
            // The hold is in force from now on, stored or not.
            self.audit(caller, audit_action.clone());
        }
        let (engine, requester) = (self.clone(), caller.clone());
        let outcome = self.run_detached(async move {
            // Locked during the write, so that no older hold is written after this one.
            let mut unwritten = engine.inner().unwritten_hold.lock().await;
            if let Err(error) = engine.inner().store.runs().set_hold(&hold).await {
                if held {
                    tracing::error!(%error, "the hold could not be stored: a restart would lift it");
                    *unwritten = Some(hold);
                    engine.inner().hub.publish(&EngineNotice::Hold { held });
                }
                return Err(error);
            }
            *unwritten = None;
            if !held {
                engine.audit(&requester, audit_action);
                engine.resume_admission();
            }
            tracing::info!(principal = %requester.principal, held, "hold changed");
            engine.inner().hub.publish(&EngineNotice::Hold { held });
            Ok(hold)
        });
        outcome.await.ok_or(StoreError::Closed)?
    }

    /// Takes over a hold that another node has set or lifted.
    pub(super) async fn reload_hold(&self) -> Result<(), StoreError> {
        let held = self.inner().store.runs().hold().await?.held;
        if held != self.is_held() {
            if held {
                self.hold_now();
            } else {
                self.resume_admission();
            }
            self.inner().hub.publish(&EngineNotice::Hold { held });
        }
        Ok(())
    }

    /// The hold that is in force.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn hold(&self) -> Result<Hold, StoreError> {
        if let Some(unwritten) = &*self.inner().unwritten_hold.lock().await {
            return Ok(unwritten.clone());
        }
        self.inner().store.runs().hold().await
    }

    /// Stores a hold that the database refused. Dropped, it stores it once more the next time.
    async fn retry_hold_write(&self) -> Result<(), StoreError> {
        let mut unwritten = self.inner().unwritten_hold.lock().await;
        if let Some(hold) = &*unwritten {
            self.inner().store.runs().set_hold(hold).await?;
            tracing::info!("the hold is stored now");
            *unwritten = None;
        }
        Ok(())
    }

    fn has_unwritten_hold(&self) -> bool {
        // Locked means that one is just being written.
        self.inner().unwritten_hold.try_lock().map_or(true, |unwritten| unwritten.is_some())
    }

    /// Tries again to store a hold that the database refused, for a caller that comes again.
    pub(super) async fn store_refused_hold(&self) {
        if self.has_unwritten_hold() {
            let _ = self.probe_database().await;
        }
    }

    /// Tries whether the database takes writes, and stores a hold that it refused.
    async fn probe_database(&self) -> Result<(), String> {
        let probe = async {
            // It says best what is wrong, so it comes first.
            self.inner().store.maintenance().check_health().await?;
            // Nobody is told that the daemon is ready while a restart would lift its hold.
            self.retry_hold_write().await
        };
        match timeout(DATABASE_TIMEOUT, probe).await {
            Ok(probed) => probed.map_err(|error| error.to_string()),
            Err(_elapsed) => Err(format!("the database has not answered for {} s", DATABASE_TIMEOUT.as_secs())),
        }
    }

    /// Checks whether the database takes writes, and stores a hold that it refused before. A result of the last second
    /// is reused while no hold waits.
    ///
    /// # Errors
    /// The reason, in words.
    ///
    /// # Cancel safety
    /// Safe: a dropped check is made again by the next caller.
    pub async fn check_writable(&self) -> Result<(), String> {
        if let Some(why) = self.unsealed_reason() {
            return Err(why.to_string());
        }
        let mut cached = self.inner().writable_check.lock().await;
        if let Some((at, answer)) = &*cached
            && at.elapsed() < WRITABLE_CACHE_TTL
            && !self.has_unwritten_hold()
        {
            return answer.clone();
        }
        let answer = self.probe_database().await;
        *cached = Some((Instant::now(), answer.clone()));
        answer
    }
}
