//! Figures of tests that measure. They are printed and judge nothing: what a machine needs depends on the machine.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::or_fail::OrFail as _;

/// Prints a measured time beside the floor of this moment: the time to start and end one process, the worst of three.
pub fn report_time(what: &str, took: Duration) {
    let floor = (0..3).map(|_| time_one_process()).max().unwrap_or_default();
    eprintln!("{what}: {took:.1?}; one process: {floor:.1?}");
}

#[expect(clippy::disallowed_methods, reason = "the process is a measurement and belongs to no run")]
fn time_one_process() -> Duration {
    let begun = Instant::now();
    let ended = Command::new("sh").args(["-c", ":"]).stdin(Stdio::null()).status();
    assert!(ended.or_fail("no process can be started").success(), "a process failed");
    begun.elapsed()
}
