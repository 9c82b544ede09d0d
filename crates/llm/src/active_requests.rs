//! Count the model requests that are in progress, with a guard that counts one out on drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of model calls in progress, back-off included. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ActiveRequests(Arc<AtomicUsize>);

/// One call. Dropping the guard counts it out, however the call ends.
#[derive(Debug)]
pub(super) struct ActiveRequestGuard(ActiveRequests);

impl ActiveRequests {
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn register(&self) -> ActiveRequestGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        ActiveRequestGuard(self.clone())
    }
}

impl Drop for ActiveRequestGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_counted_until_it_is_over() {
        let active = ActiveRequests::default();
        let (old, new) = (active.register(), active.clone().register());
        drop(old);
        assert_eq!(active.count(), 1);
        drop(new);
        assert_eq!(active.count(), 0);
    }
}
