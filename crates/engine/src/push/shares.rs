//! What is sent for each client at the same time, so that one whose receivers are slow or gone delays no other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_protocol::Principal;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The most targets of one client that a daemon sends to: an eighth of all.
pub(super) const MAX_DELIVERIES_OF_CLIENT: usize = 512;
/// The most requests for one client at the same time: a quarter of all.
pub(super) const MAX_REQUESTS_OF_CLIENT: usize = 16;

/// The clients with targets at work. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct PushShares(Arc<Mutex<HashMap<Principal, PushShare>>>);

#[derive(Debug)]
struct PushShare {
    deliveries: usize,
    requests: Arc<Semaphore>,
}

/// The place of one target among those of its client. Given back when dropped.
#[derive(Debug)]
pub struct PushPlace {
    shares: PushShares,
    client: Principal,
    requests: Arc<Semaphore>,
}

impl PushShares {
    pub(super) fn is_full(&self, client: &Principal) -> bool {
        is_full(&self.lock(), client)
    }

    /// `None` if the client has as many as it may have.
    pub(super) fn take_place(&self, client: &Principal) -> Option<PushPlace> {
        let mut shares = self.lock();
        (!is_full(&shares, client)).then(|| self.add_place(&mut shares, client))
    }

    /// A place for a target that is stored already, so that its end has to be sent in any case.
    pub(super) fn take_place_beyond_limit(&self, client: &Principal) -> PushPlace {
        self.add_place(&mut self.lock(), client)
    }

    fn add_place(&self, shares: &mut HashMap<Principal, PushShare>, client: &Principal) -> PushPlace {
        let share = shares
            .entry(client.clone())
            .or_insert_with(|| PushShare { deliveries: 0, requests: Arc::new(Semaphore::new(MAX_REQUESTS_OF_CLIENT)) });
        share.deliveries += 1;
        PushPlace { shares: self.clone(), client: client.clone(), requests: Arc::clone(&share.requests) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, PushShare>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_full(shares: &HashMap<Principal, PushShare>, client: &Principal) -> bool {
    shares.get(client).is_some_and(|share| share.deliveries >= MAX_DELIVERIES_OF_CLIENT)
}

impl PushPlace {
    /// Waits until one more request may be sent for the client.
    pub(super) async fn acquire_request(&self) -> Option<SemaphorePermit<'_>> {
        // waits: in a task of the notifier, for requests with a timeout. The semaphore is never closed.
        self.requests.acquire().await.ok()
    }
}

impl Drop for PushPlace {
    fn drop(&mut self) {
        let mut shares = self.shares.lock();
        let Some(share) = shares.get_mut(&self.client) else { return };
        share.deliveries -= 1;
        if share.deliveries == 0 {
            shares.remove(&self.client);
        }
    }
}
