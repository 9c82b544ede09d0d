//! The order of holds on new runs that several nodes set and lift: a hold that is stored late does not replace a newer
//! word of another node.
//!
//! Each write to the database raises the revision of the hold. A node that holds new runs before that is stored, for
//! itself or for another node, remembers the newest revision that it knew then. Only a later revision ends that hold. If
//! the order is not known, the hold stays.

/// What a node knows of the hold in the database, and of one that is in force before it is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HoldOrder {
    /// The newest revision that was read or written.
    seen: u64,
    unstored: Option<UnstoredHold>,
    /// The number of holds that have come into force before they were stored.
    holds: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UnstoredHold {
    /// The newest revision that is older; `None` if that is not known.
    after: Option<u64>,
}

/// Whether a hold that is in force and not stored may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnstoredWrite {
    /// In any case, or over this revision alone.
    Over(Option<u64>),
    /// No: a newer word was read.
    Superseded,
}

impl HoldOrder {
    /// Notes a hold that is in force from now on and not stored yet.
    pub fn hold_unstored(&mut self) {
        self.holds += 1;
        self.unstored = Some(UnstoredHold { after: Some(self.seen) });
    }

    /// The number of holds so far, for a lift that begins.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.holds
    }

    /// Notes that the database refused the hold, and the revision that it had then; `None` if it could not be read.
    pub fn refused_at(&mut self, revision: Option<u64>) {
        self.seen = self.seen.max(revision.unwrap_or_default());
        self.unstored = Some(UnstoredHold { after: revision.map(|_| self.seen) });
    }

    /// Whether a hold that the database refused may be written now.
    #[must_use]
    pub fn unstored_write(&self) -> UnstoredWrite {
        self.unstored.map_or(UnstoredWrite::Superseded, |unstored| UnstoredWrite::Over(unstored.after))
    }

    /// True while a hold is in force that is not stored.
    #[must_use]
    pub fn is_unstored(&self) -> bool {
        self.unstored.is_some()
    }

    /// Notes that this node has stored a hold with this revision.
    pub fn stored_hold(&mut self, revision: u64) {
        self.seen = self.seen.max(revision);
        self.unstored = None;
    }

    /// Notes that this node has stored a lift that began after `holds` holds. Returns whether new runs are admitted: not
    /// if a hold has come since.
    #[must_use]
    pub fn stored_lift(&mut self, revision: u64, holds: u64) -> bool {
        self.seen = self.seen.max(revision);
        let is_newest = holds == self.holds;
        self.unstored = if is_newest { None } else { Some(UnstoredHold { after: Some(self.seen) }) };
        is_newest
    }

    /// Notes what was read from the database. Returns whether new runs are to be held, or `None` if what is in force stays:
    /// it is newer, or may be.
    #[must_use]
    pub fn read(&mut self, revision: u64, held: bool) -> Option<bool> {
        let is_older = |unstored: UnstoredHold| unstored.after.is_none_or(|after| revision <= after);
        if revision < self.seen || self.unstored.is_some_and(is_older) {
            return None;
        }
        self.stored_hold(revision);
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order_after(revision: u64) -> HoldOrder {
        let mut order = HoldOrder::default();
        order.stored_hold(revision);
        order
    }

    #[test]
    fn a_hold_that_is_not_stored_ends_by_a_later_word_alone() {
        let mut order = order_after(3);
        order.hold_unstored();
        assert_eq!((order.read(3, false), order.read(2, false)), (None, None), "both are older");
        assert_eq!(order.unstored_write(), UnstoredWrite::Over(Some(3)));
        assert_eq!(order.read(4, false), Some(false), "somebody has lifted it");
        assert_eq!(order.unstored_write(), UnstoredWrite::Superseded);
    }

    #[test]
    fn what_was_stored_unheard_before_a_refused_hold_is_older() {
        let mut order = order_after(0);
        order.hold_unstored();
        order.refused_at(Some(7));
        assert_eq!((order.read(7, false), order.unstored_write()), (None, UnstoredWrite::Over(Some(7))));
        order.stored_hold(8);
        assert_eq!((order.read(7, false), order.read(8, true)), (None, Some(true)));
    }

    #[test]
    fn a_hold_stays_whose_order_is_not_known() {
        let mut order = order_after(1);
        order.hold_unstored();
        order.refused_at(None);
        assert_eq!((order.read(9, false), order.unstored_write()), (None, UnstoredWrite::Over(None)));
    }

    #[test]
    fn a_hold_that_comes_while_a_lift_is_written_stays() {
        let mut order = order_after(1);
        let began = order.holds();
        order.hold_unstored();
        assert!(!order.stored_lift(2, began));
        assert_eq!((order.read(2, false), order.unstored_write()), (None, UnstoredWrite::Over(Some(2))));
        assert!(order.stored_lift(3, order.holds()));
        assert!(!order.is_unstored());
    }

    #[test]
    fn an_older_row_that_is_read_late_changes_nothing() {
        let mut order = order_after(5);
        assert_eq!((order.read(4, true), order.read(6, true)), (None, Some(true)));
    }
}
