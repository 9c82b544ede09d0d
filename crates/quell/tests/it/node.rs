//! Programs of the npm registry as the other side of a test: installed once below `target/`, as their lock files say.
//!
//! They need Node and npm. `QUELL_SKIP_NODE=1` leaves their tests out, and says so.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

/// A folder of packages: its name, and its files as they stand in the source.
pub(crate) struct Packages {
    pub(crate) name: &'static str,
    pub(crate) files: &'static [(&'static str, &'static str)],
}

/// True when tests that need Node are to be left out.
#[expect(clippy::print_stdout, reason = "a test that is left out says so")]
pub(crate) fn is_skipped() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the one switch of tests that need another program")]
    let skipped = std::env::var("QUELL_SKIP_NODE").is_ok();
    if skipped {
        println!("skipped: QUELL_SKIP_NODE is set");
    }
    skipped
}

/// Installs the locked packages once, and brings the other files up to date. Tests that run at the same time wait for each
/// other.
pub(crate) async fn install(packages: &Packages) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(packages.name);
    std::fs::create_dir_all(&folder).unwrap();
    let turn = File::create(folder.join("turn")).unwrap();
    let turn = tokio::task::spawn_blocking(move || turn.lock().map(|()| turn)).await.unwrap().unwrap();
    let stamp = folder.join("installed");
    let lock = packages.files.iter().find(|(name, _)| *name == "package-lock.json").unwrap().1;
    let current = std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == lock);
    for (name, text) in packages.files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    if !current {
        let mut npm = command("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(&folder);
        let done = npm.output().await.unwrap_or_else(|error| panic!("{NEEDS_NODE} ({error})"));
        assert!(done.status.success(), "npm ci failed: {}", String::from_utf8_lossy(&done.stderr));
        std::fs::write(stamp, lock).unwrap();
    }
    drop(turn);
    folder
}

const NEEDS_NODE: &str = "this test needs node and npm; install them, or leave it out with QUELL_SKIP_NODE=1";

/// A program that ends with its test.
pub(crate) fn command(program: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the other side is a program of its own")]
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}
