//! Keeps a daemon that comes with a package from running: the tests start their own.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process;

use anyhow::Context;

use crate::{checked, command, succeeds};

/// Debian policy, 9.3.3.1 and `invoke-rc.d(8)`: packages ask this program before they start a daemon; 101 means no.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// No package starts a daemon while this lives.
pub(super) struct NoStart {
    /// The answer that was put there, to be taken away again. None where the machine has one of its own.
    own: Option<PathBuf>,
}

impl NoStart {
    /// Declares it. A machine that has an answer of its own keeps it.
    pub(super) fn declare() -> anyhow::Result<Self> {
        let mut file = match OpenOptions::new().write(true).create_new(true).open(POLICY) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(Self { own: None }),
            Err(error) => return Err(error).with_context(|| format!("{POLICY} cannot be written")),
        };
        let declared = Self { own: Some(PathBuf::from(POLICY)) };
        file.write_all(answer().as_bytes()).with_context(|| format!("{POLICY} cannot be written"))?;
        fs::set_permissions(POLICY, Permissions::from_mode(0o755)).context("its mode cannot be set")?;
        Ok(declared)
    }
}

impl Drop for NoStart {
    fn drop(&mut self) {
        if let Some(path) = self.own.take()
            && let Err(error) = fs::remove_file(&path)
        {
            eprintln!("{} is left behind, remove it by hand: {error}", path.display());
        }
    }
}

/// Says no while this process lives: left behind by one that was killed it does no harm.
fn answer() -> String {
    format!(
        "#!/bin/sh\n# Of `cargo xtask test`, while it installs.\n[ -d /proc/{} ] && exit 101\nexit 0\n",
        process::id()
    )
}

/// Keeps it from being started with the machine, and ends it where the machine's own answer let it start.
pub(super) fn disable(name: &str) -> anyhow::Result<()> {
    checked(&mut command("update-rc.d", [name, "disable"]))?;
    // It says no when nothing runs, and where the same answer that kept it from starting keeps it from being stopped.
    let _ = succeeds("invoke-rc.d", ["--quiet", name, "stop"]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_no_while_this_process_lives() {
        let asked = |script: &str| command("sh", ["-c", script]).status().unwrap().code();
        assert_eq!(asked(&answer()), Some(101));
        let other = answer().replace(&process::id().to_string(), "4194305");
        assert_eq!(asked(&other), Some(0), "no process has a number above 2^22");
    }
}
