//! How many bytes of what comes in and goes out are held at the same time. It counts, and knows no protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that all who share it may hold together. Clones are the same budget.
#[derive(Debug, Clone)]
pub(crate) struct ByteBudget(Arc<AtomicUsize>);

/// The budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// What one holder has taken from a budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: ByteBudget,
    bytes: usize,
}

impl ByteBudget {
    /// A budget of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// A reservation of nothing, which can grow.
    pub(crate) fn reserve(&self) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }

    /// Bytes that are left.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Reservation {
    /// Takes more, all of it or nothing.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let take = |left: usize| left.checked_sub(bytes);
        self.budget.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).map_err(|_| Exhausted)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives back what is above `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.budget.0.fetch_add(surplus, Ordering::AcqRel);
        self.bytes -= surplus;
    }

    /// True when it holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// All that it holds, as a reservation of its own; this one holds nothing then.
    pub(crate) fn split_off(&mut self) -> Self {
        Self { budget: self.budget.clone(), bytes: std::mem::take(&mut self.bytes) }
    }

    /// Takes or gives back until `bytes` are reserved.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.shrink_to(bytes);
        self.grow(bytes - self.bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_shared_and_given_back() {
        let budget = ByteBudget::new(100);
        let (mut one, mut other) = (budget.reserve(), budget.clone().reserve());
        assert_eq!((one.grow(60), other.grow(50), other.grow(40)), (Ok(()), Err(Exhausted), Ok(())));
        assert_eq!(budget.left(), 0);
        one.shrink_to(10);
        assert_eq!((other.resize(91), other.resize(90), budget.left()), (Err(Exhausted), Ok(()), 0));
        drop(one);
        drop(other);
        assert_eq!(budget.left(), 100);
    }
}
