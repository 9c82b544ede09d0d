//! Keep an installed package's daemon from starting: the tests start their own.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::Context;

use crate::{command, command_succeeds, run_checked};

/// Packages ask this program before they start a daemon; exit code 101 forbids it (Debian policy 9.3.3.1,
/// `invoke-rc.d(8)`).
const POLICY_FILE: &str = "/usr/sbin/policy-rc.d";

const INIT_SCRIPTS: &str = "/etc/init.d";

/// While this value lives, no package starts a daemon.
pub(super) struct AutostartBlock {
    /// The policy file to remove on drop. `None` where the machine has a policy of its own.
    created_file: Option<PathBuf>,
}

impl AutostartBlock {
    /// Writes the policy file, unless the machine has one of its own.
    pub(super) fn install() -> anyhow::Result<Self> {
        let mut file = match OpenOptions::new().write(true).create_new(true).open(POLICY_FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(Self { created_file: None }),
            Err(error) => return Err(error).with_context(|| format!("{POLICY_FILE} cannot be written")),
        };
        let block = Self { created_file: Some(PathBuf::from(POLICY_FILE)) };
        file.write_all(policy_script().as_bytes()).with_context(|| format!("{POLICY_FILE} cannot be written"))?;
        fs::set_permissions(POLICY_FILE, Permissions::from_mode(0o755)).context("its mode cannot be set")?;
        Ok(block)
    }
}

impl Drop for AutostartBlock {
    fn drop(&mut self) {
        if let Some(path) = self.created_file.take()
            && let Err(error) = fs::remove_file(&path)
        {
            eprintln!("{} could not be removed, remove it by hand: {error}", path.display());
        }
    }
}

/// Forbids starts while this process lives: if this process is killed, the file that it leaves does no harm.
fn policy_script() -> String {
    format!(
        "#!/bin/sh\n# Written by `cargo xtask test --full` during an installation.\n[ -d /proc/{} ] && exit 101\nexit 0\n",
        process::id()
    )
}

/// Prevents the daemon's start at boot, and stops it if the machine's own policy has let it start.
pub(super) fn disable_daemon(name: &str) -> anyhow::Result<()> {
    if Path::new(INIT_SCRIPTS).join(name).exists() {
        run_checked(&mut command("update-rc.d", [name, "disable"]))?;
    } else if command_succeeds("systemctl", ["--version"]) {
        // `update-rc.d` refuses a daemon that only has a unit of systemd.
        run_checked(&mut command("systemctl", ["--quiet", "disable", name]))?;
    }
    // Fails when nothing runs, and where the policy that forbade the start forbids the stop, too.
    let _ = command_succeeds("invoke-rc.d", ["--quiet", name, "stop"]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_no_while_this_process_lives() {
        let exit_code = |script: &str| command("sh", ["-c", script]).status().unwrap().code();
        assert_eq!(exit_code(&policy_script()), Some(101));
        let other = policy_script().replace(&process::id().to_string(), "4194305");
        assert_eq!(exit_code(&other), Some(0), "no process has a pid above 2^22");
    }
}
