//! Work that one node of a cluster does for all: retention, listening to a chat network.
//!
//! A duty has a lease of its own, which is shorter than that of a node, so that another node goes on soon after the
//! holder has died. The rules are those of `quell_kernel::lease`: the holder ends the work before anybody else can take
//! the duty.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::lease::{Epoch, HeldLease, LeaseDuty, LeaseTiming};
use quell_store::{DutyClaim, DutyOutcome, Membership, StoreError};
use tokio::time::{Instant, sleep_until};

use super::Engine;
use crate::cluster::Cluster;

/// The longest lease of a duty.
const MAX_DUTY_LEASE: Duration = Duration::from_secs(4);
/// After the lease of another holder has ended: until the duty is claimed.
const CLAIM_MARGIN: Duration = Duration::from_millis(10);

/// Whether this node may do the work of a duty now. Always true without a cluster. Clones share one lease.
#[derive(Debug, Clone)]
pub struct DutyPermit(Option<Arc<HeldDuty>>);

#[derive(Debug)]
struct HeldDuty {
    cluster: Cluster,
    timing: LeaseTiming,
    /// `None` when the work has ended.
    lease: Mutex<Option<HeldLease>>,
}

impl DutyPermit {
    /// Checked before each effect: a process that was paused finds out here.
    pub fn permits_work(&self) -> bool {
        self.0.as_ref().is_none_or(|held| held.permits_work())
    }
}

impl HeldDuty {
    fn permits_work(&self) -> bool {
        let now = self.cluster.now();
        self.cluster.permits_work() && self.lock().is_some_and(|lease| lease.permits_work(now, self.timing))
    }

    fn lease_duty(&self) -> LeaseDuty {
        match *self.lock() {
            Some(lease) if self.cluster.permits_work() => lease.duty(self.cluster.now(), self.timing),
            _ => LeaseDuty::EndEverything,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<HeldLease>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases a duty when its work has ended or was dropped.
struct DutyGuard<'a> {
    engine: &'a Engine,
    name: &'a str,
    epoch: Epoch,
    held: Arc<HeldDuty>,
}

impl DutyGuard<'_> {
    fn renewal(&self) -> DutyClaim {
        DutyClaim { name: self.name.to_owned(), lease: self.held.timing.lease(), renewed: Some(self.epoch) }
    }
}

impl Drop for DutyGuard<'_> {
    fn drop(&mut self) {
        *self.held.lock() = None;
        let (store, name, epoch) = (Arc::clone(self.held.cluster.store()), self.name.to_owned(), self.epoch);
        tracing::info!(duty = name, epoch, "this node has the duty no more");
        self.engine.inner().runs.spawn(async move {
            if let Err(error) = store.release_duty(name.clone(), epoch).await {
                tracing::debug!(duty = name, %error, "a duty was not released; its lease ends by itself");
            }
        });
    }
}

impl Engine {
    /// Does `work` while this node has the duty `name`, and again whenever it has it again. Without a cluster, does it
    /// once. Returns when the work has ended by itself, or the engine closes.
    ///
    /// # Cancel safety
    /// Safe: the work is dropped, then the duty is released.
    pub async fn run_duty<W>(&self, name: &str, mut work: impl FnMut(DutyPermit) -> W)
    where
        W: Future<Output = ()>,
    {
        let Some(cluster) = self.cluster() else { return work(DutyPermit(None)).await };
        let timing = LeaseTiming::new(cluster.timing().lease().min(MAX_DUTY_LEASE));
        while let Some(guard) = self.wait_for_duty(cluster, name, timing).await {
            tracing::info!(duty = name, epoch = guard.epoch, "this node has the duty");
            // Dropped before the guard.
            let work = std::pin::pin!(work(DutyPermit(Some(Arc::clone(&guard.held)))));
            tokio::select! {
                () = work => return,
                () = self.keep_duty(&guard) => {}
                () = self.inner().closing.cancelled() => return,
            }
        }
    }

    /// The permit of all duties without a cluster.
    pub fn duty_without_cluster(&self) -> Option<DutyPermit> {
        self.cluster().is_none().then_some(DutyPermit(None))
    }

    /// The node that has a duty, if that is another one.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn other_duty_holder(&self, name: &str) -> Result<Option<Membership>, StoreError> {
        let Some(cluster) = self.cluster() else { return Ok(None) };
        let duties = cluster.store().list_duties().await?;
        let holder = duties.into_iter().find(|duty| duty.name == name).map(|duty| duty.holder);
        Ok(holder.filter(|holder| holder != cluster.membership()))
    }

    /// Claims a duty until this node has it. `None` when the engine closes or the node has lost its lease.
    async fn wait_for_duty<'a>(
        &'a self,
        cluster: &Cluster,
        name: &'a str,
        timing: LeaseTiming,
    ) -> Option<DutyGuard<'a>> {
        let mut wakeups = cluster.store().wakeups();
        loop {
            wakeups.mark_unchanged();
            let sent = cluster.now();
            let next_at = if self.is_draining() || !cluster.permits_work() {
                Instant::now() + timing.renewal_interval()
            } else {
                let claim = DutyClaim { name: name.to_owned(), lease: timing.lease(), renewed: None };
                let claimed = tokio::select! {
                    claimed = cluster.store().claim_duty(claim) => claimed,
                    () = self.inner().closing.cancelled() => return None,
                    () = cluster.lost().cancelled() => return None,
                };
                match claimed {
                    Ok(DutyOutcome::Held { epoch }) => {
                        let lease = Mutex::new(Some(HeldLease::granted(epoch, sent)));
                        let held = Arc::new(HeldDuty { cluster: cluster.clone(), timing, lease });
                        return Some(DutyGuard { engine: self, name, epoch, held });
                    }
                    Ok(DutyOutcome::HeldByOther { expires_in }) => Instant::now() + expires_in + CLAIM_MARGIN,
                    Err(error) => {
                        tracing::debug!(duty = name, %error, "a duty could not be claimed");
                        Instant::now() + timing.renewal_interval()
                    }
                }
            };
            tokio::select! {
                () = sleep_until(next_at) => {}
                // The sender lives as long as the store.
                _ = wakeups.changed() => {}
                () = self.inner().closing.cancelled() => return None,
                () = cluster.lost().cancelled() => return None,
            }
        }
    }

    /// Renews a duty until it is lost, or this node drains.
    async fn keep_duty(&self, guard: &DutyGuard<'_>) {
        let (held, cluster) = (&guard.held, &guard.held.cluster);
        loop {
            match held.lease_duty() {
                LeaseDuty::EndEverything => return tracing::warn!(duty = guard.name, "a duty was not renewed in time"),
                LeaseDuty::WaitUntil(moment) => sleep_until(self.clock().instant(moment)).await,
                LeaseDuty::Renew if self.is_draining() => return,
                LeaseDuty::Renew => {
                    let sent = cluster.now();
                    if let Some(lease) = &mut *held.lock() {
                        lease.request_sent(sent);
                    }
                    let renewed = tokio::select! {
                        renewed = cluster.store().claim_duty(guard.renewal()) => renewed,
                        () = self.wait_for_duty_end(held) => continue,
                    };
                    match renewed {
                        Ok(DutyOutcome::Held { epoch }) if epoch == guard.epoch => {
                            if let Some(lease) = &mut *held.lock() {
                                lease.renewed(sent, cluster.now(), held.timing);
                            }
                        }
                        Ok(DutyOutcome::Held { .. } | DutyOutcome::HeldByOther { .. }) | Err(StoreError::Fenced) => {
                            return tracing::warn!(duty = guard.name, "a duty was lost");
                        }
                        Err(error) => tracing::debug!(duty = guard.name, %error, "a duty could not be renewed"),
                    }
                }
            }
        }
    }

    /// Waits until the time for work without a renewal is over.
    async fn wait_for_duty_end(&self, held: &HeldDuty) {
        while held.permits_work() {
            let Some(ends_at) = held.lock().map(|lease| lease.work_ends_at(held.timing)) else { return };
            let until = ends_at.min(held.cluster.work_ends_at());
            sleep_until(self.clock().instant(until).max(Instant::now() + CLAIM_MARGIN)).await;
        }
    }
}
