//! Kernels that offer less than this one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// System calls that fail, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedCalls {
    /// The calls of Landlock, as by a kernel that has none.
    Landlock,
    /// The calls of Landlock and `seccomp`, as by a filter of a service manager or a container.
    Sandboxes,
}

impl RefusedCalls {
    /// The name that [`Self::parse`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::Sandboxes => "sandboxes",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Self::Landlock, Self::Sandboxes].into_iter().find(|refused| refused.name() == name)
    }

    /// The numbers of the calls, and that of the error.
    fn calls_and_error(self) -> (Vec<i64>, u32) {
        /// `landlock_create_ruleset` and the two after it, on every architecture.
        const LANDLOCK: [i64; 3] = [444, 445, 446];
        const SECCOMP: i64 = if cfg!(target_arch = "x86_64") { 317 } else { 277 };
        const EPERM: u32 = 1;
        const ENOSYS: u32 = 38;
        match self {
            Self::Landlock => (LANDLOCK.into(), ENOSYS),
            Self::Sandboxes => (LANDLOCK.into_iter().chain([SECCOMP]).collect(), EPERM),
        }
    }
}

/// Replaces this process by a program whose calls of this kind fail. Returns only on failure.
pub fn exec_with_refused_calls(refused: RefusedCalls, program: &OsStr, arguments: &[&str]) -> io::Error {
    let error = |error: &dyn std::error::Error| io::Error::other(error.to_string());
    let architecture = match TargetArch::try_from(std::env::consts::ARCH) {
        Ok(architecture) => architecture,
        Err(unknown) => return error(&unknown),
    };
    let (calls, number) = refused.calls_and_error();
    let rules: BTreeMap<_, _> = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(number), architecture)
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
