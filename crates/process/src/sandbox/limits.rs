//! Limits of a command: how many processes it may have, and how much memory each of them.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::system::uname;

/// Limits the ids of processes and threads in the own PID namespace. Before Linux 6.14 the file is that of the whole
/// system (`kernel.pid_max`), so it is not touched there.
///
/// # Errors
/// Why the system permits no limit, for people.
pub(super) fn limit_processes(most: Option<u32>, has_pid_namespace: bool) -> Result<(), String> {
    let Some(most) = most else { return Ok(()) };
    if !has_pid_namespace {
        return Err("without a PID namespace processes are not counted".to_owned());
    }
    if !has_limit_of_its_own(uname().release().to_str().unwrap_or_default()) {
        return Err("a PID namespace has a limit of its own from Linux 6.14 on".to_owned());
    }
    fs::write("/proc/sys/kernel/pid_max", most.to_string())
        .map_err(|error| format!("the system refuses a limit of processes: {error}"))
}

/// Limits the writable memory of the calling process, and of what it starts. Address space that is only reserved, as
/// JavaScript engines do, does not count (`RLIMIT_DATA`, Linux 4.7).
pub(super) fn limit_memory(bytes: u64) -> io::Result<()> {
    let maximum = getrlimit(Resource::Data).maximum.map_or(bytes, |most| most.min(bytes));
    Ok(setrlimit(Resource::Data, Rlimit { current: Some(maximum), maximum: Some(maximum) })?)
}

fn has_limit_of_its_own(release: &str) -> bool {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => major > 6 || (major == 6 && minor >= 14),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_namespace_came_with_linux_6_14() {
        for (release, expected) in [
            ("6.14.0", true),
            ("6.18.1-cloud-amd64", true),
            ("7.0", true),
            ("6.8.0-45-generic", false),
            ("5.15", false),
            ("", false),
        ] {
            assert_eq!(has_limit_of_its_own(release), expected, "{release}");
        }
    }
}
