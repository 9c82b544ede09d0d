//! Hold and release new runs, in memory first and then durably, with retries; check whether the database is writable.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::hold_order::{HoldOrder, UnstoredWrite};
use quell_kernel::registry::AdmissionGate;
use quell_protocol::api::Hold;
use quell_protocol::audit::Action;
use quell_store::StoreError;
use tokio::time::{Instant, sleep, timeout};

use super::{AuditAction, Caller, Engine, EngineNotice};

/// How long a result of [`Engine::check_writable`] is reused, because any client may ask.
const WRITABLE_CACHE_TTL: Duration = Duration::from_secs(1);
/// Time limit for a probe of the database.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two tries to store a hold that the database refused.
const HOLD_RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Engine {
    /// Holds new runs from this moment, not durably: for a caller that stops everything first and stores the hold then.
    pub fn hold_now(&self) {
        self.change_hold_order(|order| {
            order.hold_unstored();
            Some(true)
        });
    }

    /// Notes what `change` says, and holds or admits new runs if it returns that. Both under one lock, so that of two changes
    /// the later one is in force.
    fn change_hold_order(&self, change: impl FnOnce(&mut HoldOrder) -> Option<bool>) {
        let mut order = self.lock_hold_order();
        match change(&mut order) {
            Some(true) if self.is_open() => self.inner().runs.set_gate(AdmissionGate::Held),
            Some(false) => self.resume_admission(),
            Some(true) | None => {}
        }
    }

    fn lock_hold_order(&self) -> MutexGuard<'_, HoldOrder> {
        self.inner().hold_order.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut hold = Hold { held, reason: reason.filter(|_| held), since, by, ..Hold::default() };
        let action = if held { Action::Hold } else { Action::LiftHold };
        let audit_action = AuditAction { action, target: None, detail: hold.reason.clone() };
        if held {
            self.hold_now();
            // The hold is in force from now on, stored or not.
            self.audit(caller, audit_action.clone());
        }
        let (engine, requester, holds) = (self.clone(), caller.clone(), self.lock_hold_order().holds());
        let outcome = self.run_detached(async move {
            // Locked during the write, so that no older hold is written after this one.
            let mut unwritten = engine.inner().unwritten_hold.lock().await;
            let stored = engine.inner().store.runs().set_hold(&hold, None).await;
            if let Err(error) = stored {
                if held {
                    tracing::error!(%error, "the hold could not be stored: a restart would lift it");
                    let older = engine.inner().store.runs().hold().await.ok().map(|older| older.revision);
                    engine.lock_hold_order().refused_at(older);
                    if unwritten.replace(hold).is_none() {
                        engine.inner().runs.spawn(engine.clone().retry_hold_writes());
                    }
                    engine.inner().hub.publish(&EngineNotice::Hold { held });
                }
                return Err(error);
            }
            hold.revision = stored?.unwrap_or_default();
            *unwritten = None;
            if held {
                // A lift may have been written in between.
                engine.change_hold_order(|order| {
                    order.stored_hold(hold.revision);
                    Some(true)
                });
            } else {
                engine.audit(&requester, audit_action);
                engine.change_hold_order(|order| order.stored_lift(hold.revision, holds).then_some(false));
            }
            tracing::info!(principal = %requester.principal, held, "hold changed");
            engine.inner().hub.publish(&EngineNotice::Hold { held: engine.is_held() });
            Ok(hold)
        });
        outcome.await.ok_or(StoreError::Closed)?
    }

    /// Takes over a hold that another node has set or lifted.
    pub(super) async fn reload_hold(&self) -> Result<(), StoreError> {
        let stored = self.inner().store.runs().hold().await?;
        let before = self.is_held();
        self.change_hold_order(|order| order.read(stored.revision, stored.held));
        let held = self.is_held();
        if held != before {
            self.inner().hub.publish(&EngineNotice::Hold { held });
        }
        Ok(())
    }

    /// The hold that is in force on this node, also before it is stored.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn hold(&self) -> Result<Hold, StoreError> {
        let unwritten = self.inner().unwritten_hold.lock().await.clone();
        if let Some(unwritten) = unwritten.filter(|_| self.lock_hold_order().is_unstored()) {
            return Ok(Hold { unstored: true, ..unwritten });
        }
        let stored = self.inner().store.runs().hold().await?;
        Ok(match self.inner().runs.gate() {
            // Another node holds everything and has not stored that yet.
            AdmissionGate::Held if !stored.held => {
                Hold { held: true, unstored: true, revision: stored.revision, ..Hold::default() }
            }
            AdmissionGate::Open if stored.held => Hold { held: false, ..stored },
            AdmissionGate::Held | AdmissionGate::Open | AdmissionGate::Closing => stored,
        })
    }

    /// Stores a hold that the database refused, unless somebody has changed the hold since. Dropped, it tries once more
    /// the next time.
    async fn retry_hold_write(&self) -> Result<(), StoreError> {
        let mut unwritten = self.inner().unwritten_hold.lock().await;
        let Some(hold) = &*unwritten else { return Ok(()) };
        let write = self.lock_hold_order().unstored_write();
        let stored = match write {
            UnstoredWrite::Over(after) => self.inner().store.runs().set_hold(hold, after).await?,
            UnstoredWrite::Superseded => None,
        };
        if let Some(revision) = stored {
            tracing::info!("the hold is stored now");
            self.lock_hold_order().stored_hold(revision);
        } else {
            tracing::info!("the hold was changed before it could be stored; the newer word is in force");
            self.reload_hold().await?;
        }
        *unwritten = None;
        Ok(())
    }

    /// Tries to store a refused hold until that succeeds.
    ///
    /// # Cancel safety
    /// Safe: each try is one statement.
    async fn retry_hold_writes(self) {
        while self.has_unwritten_hold() {
            tokio::select! {
                () = self.inner().closing.cancelled() => return,
                () = sleep(HOLD_RETRY_INTERVAL) => {}
            }
            let _ = self.probe_database().await;
        }
    }

    fn has_unwritten_hold(&self) -> bool {
        // Locked means that one is just being written.
        self.inner().unwritten_hold.try_lock().map_or(true, |unwritten| unwritten.is_some())
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
