//! Budgets shared by all connections, and reservations from them that are returned on drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of one body or frame that no budget counts, so that a small request always gets in.
pub(crate) const UNBUDGETED_BYTES: usize = 8 * 1024;

/// Number of bytes, or of other things, that all holders together may reserve. Clones share the budget.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<AtomicUsize>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BudgetExhausted;

/// What one holder has reserved; returned to the budget when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Budget,
    amount: usize,
}

impl Budget {
    pub(crate) fn new(amount: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(amount)))
    }

    /// Creates an empty reservation, which can grow.
    pub(crate) fn empty_reservation(&self) -> Reservation {
        Reservation { budget: self.clone(), amount: 0 }
    }

    /// Reserves one; `None` when nothing is left.
    pub(crate) fn reserve_one(&self) -> Option<Reservation> {
        let mut reservation = self.empty_reservation();
        reservation.grow(1).ok()?;
        Some(reservation)
    }

    pub(crate) fn available(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Reservation {
    /// Reserves this much more, all of it or nothing.
    pub(crate) fn grow(&mut self, amount: usize) -> Result<(), BudgetExhausted> {
        let take = |left: usize| left.checked_sub(amount);
        self.budget.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).map_err(|_| BudgetExhausted)?;
        self.amount += amount;
        Ok(())
    }

    /// Returns the part above `amount` to the budget.
    pub(crate) fn shrink_to(&mut self, amount: usize) {
        let surplus = self.amount.saturating_sub(amount);
        self.budget.0.fetch_add(surplus, Ordering::AcqRel);
        self.amount -= surplus;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.amount == 0
    }

    /// Moves all that is reserved into a new reservation.
    pub(crate) fn split_off(&mut self) -> Self {
        Self { budget: self.budget.clone(), amount: std::mem::take(&mut self.amount) }
    }

    pub(crate) fn resize(&mut self, amount: usize) -> Result<(), BudgetExhausted> {
        self.shrink_to(amount);
        self.grow(amount - self.amount)
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
        let budget = Budget::new(100);
        let (mut one, mut other) = (budget.empty_reservation(), budget.clone().empty_reservation());
        assert_eq!((one.grow(60), other.grow(50), other.grow(40)), (Ok(()), Err(BudgetExhausted), Ok(())));
        assert_eq!(budget.available(), 0);
        one.shrink_to(10);
        assert_eq!((other.resize(91), other.resize(90), budget.available()), (Err(BudgetExhausted), Ok(()), 0));
        drop(one);
        drop(other);
        assert_eq!(budget.available(), 100);
    }
}
