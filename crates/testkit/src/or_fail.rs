//! How test support fails a test.

use std::fmt::{Debug, Display};

pub(crate) trait OrFail<T> {
    /// The value; without one the test fails with this text and the error.
    fn or_fail(self, what: impl Display) -> T;
}

impl<T, E: Debug> OrFail<T> for Result<T, E> {
    #[track_caller]
    fn or_fail(self, what: impl Display) -> T {
        match self {
            Ok(value) => value,
            Err(error) => panic!("{what}: {error:?}"),
        }
    }
}

impl<T> OrFail<T> for Option<T> {
    #[track_caller]
    fn or_fail(self, what: impl Display) -> T {
        match self {
            Some(value) => value,
            None => panic!("{what}"),
        }
    }
}
