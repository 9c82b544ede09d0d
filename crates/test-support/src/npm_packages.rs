//! Test support: install locked npm packages once below `target/` and run Node programs.
//!
//! Needs Node and npm. `QUELL_SKIP_NODE=1` skips the tests, with a message.

use std::fs::File;
use std::process::Stdio;

use tokio::process::Command;

use crate::prelude::*;
use crate::test_daemon::target_dir;

/// A folder of packages: its name and its source files.
pub struct NpmPackages {
    pub name: &'static str,
    pub files: &'static [(&'static str, &'static str)],
}

/// True when tests that need Node are to be skipped.
pub fn is_skipped() -> bool {
    quell_testkit::skip::is_switched_off("QUELL_SKIP_NODE")
}

/// Installs the locked packages once and updates the other files. Parallel tests wait for each other.
pub async fn install_packages(packages: &NpmPackages) -> PathBuf {
    let folder = target_dir().join("tmp").join(packages.name);
    std::fs::create_dir_all(&folder).unwrap();
    let install_lock = File::create(folder.join("turn")).unwrap();
    let turn = tokio::task::spawn_blocking(move || install_lock.lock().map(|()| install_lock)).await.unwrap().unwrap();
    let stamp = folder.join("installed");
    let lock = packages.files.iter().find(|(name, _)| *name == "package-lock.json").unwrap().1;
    let current = std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == lock);
    for (name, text) in packages.files {
        let path = folder.join(name);
        // Node programs of other tests may be reading the file.
        if std::fs::read_to_string(&path).is_ok_and(|written| written == *text) {
            continue;
        }
        std::fs::write(path, text).unwrap();
    }
    if !current {
        let mut npm = program_command("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(&folder);
        let done = npm.output().await.unwrap_or_else(|error| panic!("{NEEDS_NODE} ({error})"));
        assert!(done.status.success(), "npm ci failed: {}", String::from_utf8_lossy(&done.stderr));
        std::fs::write(stamp, lock).unwrap();
    }
    drop(turn);
    folder
}

const NEEDS_NODE: &str = "this test needs node and npm; install them, or leave it out with QUELL_SKIP_NODE=1";

/// A command whose process is killed when dropped.
pub fn program_command(program: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "starts an npm or Python program as the other side of a test")]
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}
