//! Kernels that offer less than this one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// `landlock_create_ruleset` and the two after it, on every architecture.
const LANDLOCK_CALLS: [i64; 3] = [444, 445, 446];
/// `ENOSYS`, the answer of a kernel that does not know a call.
const UNKNOWN_CALL: u32 = 38;

/// Replaces this process by a program for which the kernel has no Landlock. Returns only on failure.
pub fn exec_without_landlock(program: &OsStr, arguments: &[&str]) -> io::Error {
    let error = |error: &dyn std::error::Error| io::Error::other(error.to_string());
    let architecture = match TargetArch::try_from(std::env::consts::ARCH) {
        Ok(architecture) => architecture,
        Err(unknown) => return error(&unknown),
    };
    let rules: BTreeMap<_, _> = LANDLOCK_CALLS.into_iter().map(|call| (call, Vec::new())).collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(UNKNOWN_CALL), architecture)
        .and_then(BpfProgram::try_from);
    let applied = match &filter {
        Ok(program) => seccompiler::apply_filter(program),
        Err(refused) => return error(refused),
    };
    if let Err(refused) = applied {
        return error(&refused);
    }
    #[expect(clippy::disallowed_methods, reason = "this process becomes the program")]
    Command::new(program).args(arguments).exec()
}
