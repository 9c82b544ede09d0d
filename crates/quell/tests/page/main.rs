//! The page in a real browser. Part of the full tests: it needs Chromium and Node.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests run outside of any scope, and a failing test panics"
)]

mod page;

use quell_test_support::prelude;
