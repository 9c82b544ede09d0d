//! How many bytes were looked at. Tests hold the sanitiser to its linear time with it, because a count, unlike a clock, is the
//! same on every machine; other builds do not count.

#[cfg(test)]
thread_local! {
    static DONE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Notes that so many bytes were looked at.
#[cfg(test)]
pub(super) fn count(bytes: usize) {
    DONE.with(|done| done.set(done.get() + bytes));
}

/// Notes that so many bytes were looked at: for tests alone.
#[cfg(not(test))]
#[inline]
pub(super) fn count(_bytes: usize) {}

/// How many bytes this thread looked at while it did something.
#[cfg(test)]
pub(super) fn of(something: impl FnOnce()) -> usize {
    let before = DONE.with(std::cell::Cell::get);
    something();
    DONE.with(std::cell::Cell::get) - before
}
