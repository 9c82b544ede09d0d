//! Counts scanned bytes in tests, to prove linear time: a count, unlike a clock, is the same on every machine. Other
//! builds do not count.

#[cfg(test)]
thread_local! {
    static BYTES_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
pub(super) fn count_bytes(bytes: usize) {
    BYTES_READ.with(|done| done.set(done.get() + bytes));
}

#[cfg(not(test))]
#[inline]
pub(super) fn count_bytes(_bytes: usize) {}

/// Returns how many bytes this thread scanned during the action.
#[cfg(test)]
pub(super) fn count_bytes_during(action: impl FnOnce()) -> usize {
    let before = BYTES_READ.with(std::cell::Cell::get);
    action();
    BYTES_READ.with(std::cell::Cell::get) - before
}
