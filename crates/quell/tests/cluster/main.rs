//! Several nodes on one database, and the program on PostgreSQL. Part of the full tests: it needs servers of others.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failing test panics")]

mod cluster;
mod postgres;

use quell_test_support::prelude;
