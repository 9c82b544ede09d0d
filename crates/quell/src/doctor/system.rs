//! Check system clock and shell.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::fs::{Access, access};

use super::CheckInput;
use super::finding::DoctorFinding;

/// 2025-01-01T00:00:00Z: this program is younger.
const EARLIEST_PLAUSIBLE: Duration = Duration::from_secs(1_735_689_600);

/// The clock is in every receipt, and decides whether a certificate is valid.
pub(super) fn clock(input: &CheckInput) -> Vec<DoctorFinding> {
    let sane = input.now.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|since| since >= EARLIEST_PLAUSIBLE);
    vec![if sane {
        DoctorFinding::ok("the system clock is plausible")
    } else {
        DoctorFinding::fail(
            "the system clock is before 2025, so TLS certificates and the times of receipts cannot be right",
            "set the clock, for example by `timedatectl set-ntp true`",
        )
    }]
}

/// The `shell` tool runs `sh -c` with the `PATH` of this process.
pub(super) fn shell(input: &CheckInput) -> Vec<DoctorFinding> {
    let path = input.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let in_path = |program: &str| -> Option<PathBuf> {
        let places = std::env::split_paths(path?).map(|directory| directory.join(program));
        places.into_iter().find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
    };
    vec![match in_path("sh") {
        Some(found) => DoctorFinding::ok(format!("the shell tool uses {}", found.display())),
        None => DoctorFinding::fail(
            "there is no `sh` in PATH, so the shell tool cannot run anything",
            "install a POSIX shell, or start quell with a PATH that has one",
        ),
    }]
}
