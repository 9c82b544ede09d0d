//! The order of holds on new runs that several nodes set and lift: an older one never replaces a newer one.
//!
//! Each write to the database raises the revision of the hold. A node that holds new runs before that is stored, for
//! itself or for another node, remembers the newest revision that it knew then. Only a later revision ends that hold.

/// What a node knows of the hold in the database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HoldOrder {
    /// The newest revision that was read or written.
    seen: u64,
    /// For a hold that is in force here and not stored: the newest revision that is older than it.
    unstored_after: Option<u64>,
}

impl HoldOrder {
    /// Notes a hold that is in force from now on and not stored yet.
    pub fn hold_unstored(&mut self) {
        self.unstored_after.get_or_insert(self.seen);
    }

    /// Notes that the database refused the hold while it had this revision, which is older.
    pub fn refused_at(&mut self, revision: u64) {
        self.seen = self.seen.max(revision);
        self.unstored_after = Some(self.seen);
    }

    /// The revision that a hold which is not stored may replace.
    #[must_use]
    pub fn unstored_after(&self) -> Option<u64> {
        self.unstored_after
    }

    /// Notes that this node has stored its word with this revision.
    pub fn stored(&mut self, revision: u64) {
        *self = Self { seen: self.seen.max(revision), unstored_after: None };
    }

    /// Notes what was read from the database. Returns whether new runs are to be held, or `None` if what is in force stays:
    /// it is newer.
    #[must_use]
    pub fn read(&mut self, revision: u64, held: bool) -> Option<bool> {
        if revision < self.seen || self.unstored_after.is_some_and(|after| revision <= after) {
            return None;
        }
        self.stored(revision);
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_that_is_not_stored_ends_by_a_later_word_alone() {
        let mut order = HoldOrder::default();
        assert_eq!(order.read(3, false), Some(false));
        order.hold_unstored();
        assert_eq!((order.read(3, false), order.read(2, false)), (None, None), "both are older");
        assert_eq!(order.unstored_after(), Some(3));
        assert_eq!(order.read(4, false), Some(false), "somebody has lifted it");
        assert_eq!(order.unstored_after(), None);
    }

    #[test]
    fn what_was_stored_unheard_before_a_refused_hold_is_older() {
        let mut order = HoldOrder::default();
        order.hold_unstored();
        order.refused_at(7);
        assert_eq!((order.read(7, false), order.unstored_after()), (None, Some(7)));
        order.stored(8);
        assert_eq!((order.read(7, false), order.read(8, true)), (None, Some(true)));
    }

    #[test]
    fn an_older_row_that_is_read_late_changes_nothing() {
        let mut order = HoldOrder::default();
        order.stored(5);
        assert_eq!((order.read(4, true), order.read(6, true)), (None, Some(true)));
    }
}
