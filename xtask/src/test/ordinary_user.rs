//! Runs the tests as a user without rights, while root runs xtask: as people do who type `cargo xtask test`.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::{command, workspace_root};

/// `nobody`, as in the script.
const USER: u32 = 65534;
const SCRIPT: &str = "xtask/src/test/as_ordinary_user.sh";

/// The home directory of the user.
pub(super) fn home() -> PathBuf {
    workspace_root().join("target/ordinary-user")
}

/// Makes the home directory, and lets nextest start each test as the user. Nextest itself builds as root.
///
/// # Errors
/// This is not root, the directory cannot be made, or the path of the workspace has a space, which cargo's variable
/// cannot express.
pub(super) fn run_tests_as_user(nextest: &mut Command) -> anyhow::Result<()> {
    let (root, home) = (workspace_root().display().to_string(), home());
    if root.contains(char::is_whitespace) {
        bail!("--ordinary-user takes a path without spaces; the workspace is {root:?}");
    }
    fs::create_dir_all(&home).with_context(|| format!("{} cannot be made", home.display()))?;
    if chown(&home, Some(USER), Some(USER)).is_err() {
        bail!("--ordinary-user is for root; you are an ordinary user already: leave the option out");
    }
    let closed = closed_directory(workspace_root()).map_or("-".to_owned(), |closed| closed.display().to_string());
    let runner = format!("{root}/{SCRIPT} {} {root} {closed}", home.display());
    nextest.env(format!("CARGO_TARGET_{}_RUNNER", host_target()?), runner);
    Ok(())
}

/// The outermost directory above this one that others may not pass.
fn closed_directory(path: &Path) -> Option<&Path> {
    let above = path.ancestors().skip(1);
    above.filter(|above| fs::metadata(above).is_ok_and(|found| found.mode() & 0o001 == 0)).last()
}

/// The target of this machine, as the names of cargo's variables have it.
fn host_target() -> anyhow::Result<String> {
    let output = command("rustc", ["-vV"]).output().context("rustc cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    Ok(host.to_uppercase().replace('-', "_"))
}
