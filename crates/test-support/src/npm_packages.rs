//! Test support: install locked npm packages once and run Node programs.
//!
//! Needs Node and npm. `QUELL_SKIP_NODE=1` skips the tests, with a message.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
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
///
/// Packages of one lock file are in one folder of `QUELL_DEV_CACHE`, which `cargo xtask test --full` sets, or else below
/// `target/`.
pub async fn install_packages(packages: &NpmPackages) -> PathBuf {
    let folder = target_dir().join("tmp").join(packages.name);
    std::fs::create_dir_all(&folder).unwrap();
    let turn = lock_file(folder.join("turn")).await;
    for (name, text) in packages.files {
        let path = folder.join(name);
        // Node programs of other tests may be reading the file.
        if std::fs::read_to_string(&path).is_ok_and(|written| written == *text) {
            continue;
        }
        std::fs::write(path, text).unwrap();
    }
    let modules = install_modules(packages).await;
    let link = folder.join("node_modules");
    if std::fs::read_link(&link).ok().as_ref() != Some(&modules) {
        match std::fs::symlink_metadata(&link) {
            Ok(found) if found.is_dir() => std::fs::remove_dir_all(&link).unwrap(),
            Ok(_) => std::fs::remove_file(&link).unwrap(),
            Err(_) => {}
        }
        std::os::unix::fs::symlink(modules, link).unwrap();
    }
    drop(turn);
    folder
}

/// Installs what the lock file names, unless that was done before. Returns the folder `node_modules`.
async fn install_modules(packages: &NpmPackages) -> PathBuf {
    let text_of = |wanted: &str| packages.files.iter().find(|(name, _)| *name == wanted).unwrap().1;
    let (manifest, lock) = (text_of("package.json"), text_of("package-lock.json"));
    let cache = std::env::var_os("QUELL_DEV_CACHE").map_or_else(|| target_dir().join("cache"), PathBuf::from);
    let mut hasher = DefaultHasher::new();
    (manifest, lock).hash(&mut hasher);
    let installed = cache.join(format!("npm-{}-{:016x}", packages.name, hasher.finish()));
    std::fs::create_dir_all(&cache).unwrap();
    let turn = lock_file(installed.with_extension("turn")).await;
    let modules = installed.join("node_modules");
    if !modules.exists() {
        // Under another name until it is complete.
        let unfinished = installed.with_extension("unfinished");
        let _ = std::fs::remove_dir_all(&unfinished);
        std::fs::create_dir_all(&unfinished).unwrap();
        std::fs::write(unfinished.join("package.json"), manifest).unwrap();
        std::fs::write(unfinished.join("package-lock.json"), lock).unwrap();
        let mut npm = program_command("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(&unfinished);
        let done = npm.output().await.unwrap_or_else(|error| panic!("{NEEDS_NODE} ({error})"));
        assert!(done.status.success(), "npm ci failed: {}", String::from_utf8_lossy(&done.stderr));
        std::fs::rename(unfinished, &installed).unwrap();
    }
    drop(turn);
    modules
}

/// Waits until no other test holds this file.
async fn lock_file(path: PathBuf) -> File {
    let file = File::create(path).unwrap();
    tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await.unwrap().unwrap()
}

const NEEDS_NODE: &str = "this test needs node and npm; install them, or leave it out with QUELL_SKIP_NODE=1";

/// A command whose process is killed when dropped.
pub fn program_command(program: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "starts an npm or Python program as the other side of a test")]
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}
