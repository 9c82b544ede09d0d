//! Seeds of random tests: printed, so that a failure can be repeated, and taken back from a variable.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::or_fail::OrFail as _;

/// The variable that gives a seed back.
const SEED_VARIABLE: &str = "QUELL_TEST_SEED";

/// Returns the seed for all random numbers of the calling test, and prints it: that of `QUELL_TEST_SEED`, or else another
/// each time.
///
/// # Panics
/// When the variable is no number.
pub fn test_seed() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "the switches of tests are variables")]
    let given = std::env::var(SEED_VARIABLE).ok();
    let seed = given.map_or_else(fresh_seed, |given| {
        given.parse().or_fail(format_args!("{SEED_VARIABLE} is {given:?}, which is no number"))
    });
    eprintln!("seed {seed}; {SEED_VARIABLE}={seed} repeats it");
    seed
}

/// A seed that is another each time, and short, so that people can type it.
pub fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_secs() ^ u64::from(now.subsec_nanos())) % 1_000_000
}
