//! CPU time of ended child processes, and peak memory of a running one, as Linux tells them.

use std::fs;

use anyhow::Context;

/// Linux tells CPU times to programs in hundredths of a second, whatever its own clock does.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds, user and system, of all children that have ended and were waited for, with their own children.
pub(super) fn children_cpu_seconds() -> anyhow::Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat").context("CPU times are read from /proc, which needs Linux")?;
    parse_children_seconds(&stat).context("/proc/self/stat has another form")
}

/// The name of the program, which may contain spaces and brackets, stands in brackets in front of the numbers.
fn parse_children_seconds(stat: &str) -> Option<f64> {
    let (_, numbers) = stat.rsplit_once(") ")?;
    let mut ticks = numbers.split_whitespace().skip(13).map(str::parse::<u64>);
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

/// The most memory that a process has used so far, in KiB. `None` if it has ended.
pub(super) fn peak_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    parse_kib(&status, "VmHWM")
}

/// Finds `NAME:   12 kB` in a file of /proc.
pub(super) fn parse_kib(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_of_children_is_behind_a_name_with_spaces() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 1 2 3 4 50 60 700 88 20 0 1 0 100 0";
        assert_eq!(parse_children_seconds(stat), Some(7.88));
        assert_eq!(parse_children_seconds("42 (a) S 1"), None);
    }

    #[test]
    fn kilobytes_are_found_by_their_whole_name() {
        let text = "VmHWM2:\t 7 kB\nVmHWM:\t  1234 kB\n";
        assert_eq!(parse_kib(text, "VmHWM"), Some(1234));
        assert_eq!(parse_kib(text, "Pss"), None);
    }
}
