//! What is told after a run of tests: the slowest ones, those that were skipped, and how long the tier took.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::Context;

use crate::workspace_root;

/// Where nextest writes the last run (`.config/nextest.toml`).
const JUNIT_FILE: &str = "target/nextest/default/junit.xml";
/// Seconds of the last complete run of each tier, for `cargo xtask weight`.
const TIMES_FILE: &str = "target/test-times.json";

/// Prints the slowest of these tests.
pub(super) fn print_slowest(mut times: Vec<(String, f64)>, count: usize) {
    if times.is_empty() {
        return;
    }
    times.sort_by(|a, b| b.1.total_cmp(&a.1));
    eprintln!("the slowest of {} tests:", times.len());
    for (name, seconds) in times.iter().take(count) {
        eprintln!("{seconds:>8.1} s  {name}");
    }
}

/// Removes the file of the last run of nextest, so that it is not taken for that of a run which does not get so far.
pub(super) fn forget_last_run() {
    // There is none before the first run.
    let _ = fs::remove_file(workspace_root().join(JUNIT_FILE));
}

/// The name and seconds of each test of the last run of nextest, whose file is kept under this name.
pub(super) fn take_last_run(name: &str) -> anyhow::Result<Vec<(String, f64)>> {
    let file = workspace_root().join(JUNIT_FILE);
    // Plain `cargo test` writes none.
    let Ok(text) = fs::read_to_string(&file) else { return Ok(Vec::new()) };
    fs::rename(&file, file.with_file_name(format!("{name}.xml"))).context("the JUnit file cannot be renamed")?;
    Ok(parse_times(&text))
}

/// The name and seconds of each test in a JUnit file: binary and path, as nextest prints them.
fn parse_times(junit: &str) -> Vec<(String, f64)> {
    let cases = junit.split("<testcase ").skip(1);
    let parse = |case: &str| {
        let tag = case.split_once('>')?.0;
        let value = |name: &str| tag.split_once(&format!("{name}=\""))?.1.split_once('"').map(|(value, _)| value);
        let seconds = value("time")?.parse().ok()?;
        // The name stands before the class name, which ends with the same letters.
        Some((format!("{} {}", value("classname")?, value("name")?), seconds))
    };
    cases.filter_map(parse).collect()
}

/// Prints how many tests were skipped, by reason.
pub(super) fn print_skipped(reasons: &str) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons.lines() {
        *counts.entry(reason).or_default() += 1;
    }
    for (reason, count) in counts {
        eprintln!("skipped: {count} tests, because {reason}");
    }
}

/// Keeps the wall time of a tier, with its build.
pub(super) fn record_wall_time(tier: &str, wall: Duration) -> anyhow::Result<()> {
    let path = workspace_root().join(TIMES_FILE);
    // There is none before the first run.
    let kept = fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
    let mut times: BTreeMap<String, u64> = kept.unwrap_or_default();
    times.insert(tier.to_owned(), wall.as_secs());
    let text = serde_json::to_string_pretty(&times)? + "\n";
    fs::write(&path, text).with_context(|| format!("{TIMES_FILE} cannot be written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_junit() {
        let junit = r#"<testsuite name="quell::stop" tests="2"><testcase name="sweep::a" classname="quell::stop"
            timestamp="2026-11-28T00:00:00Z" time="1.250"></testcase><testcase name="b" classname="quell-kernel" time="0.010">
            <failure message="time=&quot;9&quot;"/></testcase></testsuite>"#;
        let expected = vec![("quell::stop sweep::a".to_owned(), 1.25), ("quell-kernel b".to_owned(), 0.01)];
        assert_eq!(parse_times(junit), expected);
    }
}
