//! Skip a test in the open: it prints why, and `cargo xtask test` counts it.

use std::fs::File;
use std::io::Write;

/// File to which every skipped test adds a line, if the variable is set.
const LIST_VARIABLE: &str = "QUELL_SKIPPED_TESTS";

/// Says that the calling test is skipped, and why. The caller returns afterwards.
pub fn announce_skip(why: &str) {
    eprintln!("skipped: {why}");
    if let Some(list) = variable(LIST_VARIABLE)
        && let Ok(mut list) = File::options().create(true).append(true).open(list)
    {
        let _ = writeln!(list, "{why}");
    }
}

/// True when this variable switches tests off; says so.
#[must_use]
pub fn is_switched_off(variable_name: &str) -> bool {
    let is_set = variable(variable_name).is_some();
    if is_set {
        announce_skip(&format!("{variable_name} is set"));
    }
    is_set
}

/// True when the test does not run as root, which it needs; says so.
#[must_use]
pub fn lacks_root() -> bool {
    let lacks = !rustix::process::geteuid().is_root();
    if lacks {
        announce_skip("it takes root");
    }
    lacks
}

fn variable(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the switches of tests are variables")]
    std::env::var(name).ok()
}
