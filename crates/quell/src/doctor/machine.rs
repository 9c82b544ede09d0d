//! What the machine has to bring: a clock that is right and a shell.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::fs::{Access, access};

use super::Patient;
use super::finding::Finding;

/// 2025-01-01T00:00:00Z. This program is younger.
const OLDEST_SANE: Duration = Duration::from_secs(1_735_689_600);

/// The clock is in every receipt, and certificates are judged by it.
pub(super) fn clock(patient: &Patient) -> Vec<Finding> {
    let sane = patient.now.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|since| since >= OLDEST_SANE);
    let finding = if sane {
        Finding::ok("the system clock is plausible")
    } else {
        Finding::fail(
            "the system clock is before 2025, so TLS certificates and the times of receipts cannot be right",
            "set the clock, for example by `timedatectl set-ntp true`",
        )
    };
    vec![finding]
}

/// The `shell` tool runs `sh -c` with the `PATH` that this process has.
pub(super) fn shell(patient: &Patient) -> Vec<Finding> {
    let path = patient.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let in_path = |program: &str| -> Option<PathBuf> {
        let places = std::env::split_paths(path?).map(|directory| directory.join(program));
        places.into_iter().find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
    };
    let finding = match in_path("sh") {
        Some(found) => Finding::ok(format!("the shell tool uses {}", found.display())),
        None => Finding::fail(
            "there is no `sh` in PATH, so the shell tool cannot run anything",
            "install a POSIX shell, or start quell with a PATH that has one",
        ),
    };
    vec![finding]
}
