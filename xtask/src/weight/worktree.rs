//! Another commit of this repository, checked out beside the tree for as long as it is needed.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::cold_build::remove_dir;
use crate::{command, run_checked};

/// Removed when it is dropped.
pub(super) struct Worktree {
    folder: PathBuf,
    /// Abbreviated.
    pub(super) commit: String,
}

impl Worktree {
    pub(super) fn add(folder: PathBuf, revision: &str) -> anyhow::Result<Self> {
        let commit = short_commit(revision)?;
        // An interrupted run has left one.
        remove_dir(&folder)?;
        git(&["worktree", "prune"])?;
        let mut add = command("git", ["worktree", "add", "--quiet", "--detach"]);
        run_checked(add.arg(&folder).arg(&commit))?;
        Ok(Self { folder, commit })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Worktree {
    fn drop(&mut self) {
        let mut remove = command("git", ["worktree", "remove", "--force"]);
        if let Err(error) = run_checked(remove.arg(&self.folder)) {
            eprintln!("{} is left: {error:#}", self.folder.display());
        }
    }
}

/// The abbreviated hash of a commit.
pub(super) fn short_commit(revision: &str) -> anyhow::Result<String> {
    let name = format!("{revision}^{{commit}}");
    git(&["rev-parse", "--verify", "--quiet", "--short", &name])
        .with_context(|| format!("this clone has no commit {revision:?}; a shallow clone has no earlier ones"))
}

/// True if tracked files differ from the last commit.
pub(super) fn has_changes() -> anyhow::Result<bool> {
    Ok(!git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty())
}

fn git(arguments: &[&str]) -> anyhow::Result<String> {
    let output = command("git", arguments).output().context("git cannot be started")?;
    ensure!(output.status.success(), "git {} failed: {}", arguments[0], String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
