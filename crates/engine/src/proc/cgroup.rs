//! A cgroup for one command that has no PID namespace, where the daemon's own cgroup has been delegated to it: one write to
//! `cgroup.kill` ends every process in it, and no process can leave it.
//!
//! No controller is used, so the rule that inner cgroups hold no processes does not apply.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, geteuid, getpid};

use super::tree;

/// Where the version 2 hierarchy is mounted: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// What the names of the cgroups begin with; then come the warden's number and its time of birth.
const PREFIX: &str = "quell-command-";

/// The cgroup of one command. Dropping it removes it, which the kernel permits when it is empty.
#[derive(Debug)]
pub(super) struct Cgroup {
    directory: PathBuf,
    /// That of the warden.
    home: PathBuf,
}

impl Cgroup {
    /// None where the own cgroup is not delegated, or the kernel has no `cgroup.kill` (before 5.14).
    pub(super) fn create() -> Option<Self> {
        let home = delegated()?;
        let me = getpid();
        let directory = home.join(format!("{PREFIX}{me}-{}", tree::stat(me)?.started));
        fs::create_dir(&directory).ok()?;
        Some(Self { directory, home })
    }

    /// Starts something in it: this process enters, starts, and leaves again.
    ///
    /// # Errors
    /// What `start` says, and what the kernel says of entering and leaving.
    pub(super) fn start<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        move_to(&self.directory)?;
        let started = start();
        move_to(&self.home)?;
        started
    }

    /// Kills everything in it at once.
    pub(super) fn kill(&self) {
        // Fails when the cgroup has been removed, which only an empty one can be.
        let _ = fs::write(self.directory.join("cgroup.kill"), "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

fn move_to(directory: &Path) -> io::Result<()> {
    fs::write(directory.join("cgroup.procs"), "0")
}

/// Kills what is in the cgroups of wardens that are gone, and removes them.
pub(super) fn kill_abandoned() {
    let Some(home) = delegated() else { return };
    for entry in fs::read_dir(&home).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(born) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        if !is_alive(born) {
            drop(Cgroup { directory: entry.path(), home: home.clone() }.killed());
        }
    }
}

impl Cgroup {
    fn killed(self) -> Self {
        self.kill();
        self
    }
}

/// True when the process of this number and time of birth lives.
fn is_alive(born: &str) -> bool {
    let alive = || {
        let (pid, started) = born.split_once('-')?;
        let stat = tree::stat(Pid::from_raw(pid.parse().ok()?)?)?;
        Some(stat.started.to_string() == started && !stat.is_dead())
    };
    alive().unwrap_or(false)
}

/// The own cgroup, if it is one that this process may divide: systemd marks those with an attribute (`Delegate=yes`), and gives
/// those of an ordinary user to that user. The root of the hierarchy has no `cgroup.kill`, and is nobody's to divide.
fn delegated() -> Option<PathBuf> {
    let list = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = list.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let home = MOUNTS.iter().map(|mount| Path::new(mount).join(path)).find(|home| home.join("cgroup.kill").exists())?;
    let marked = ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0_u8; 1];
        rustix::fs::getxattr(&home, *name, &mut value[..]) == Ok(1) && value == *b"1"
    });
    let user = geteuid();
    let own = !user.is_root() && fs::metadata(&home).is_ok_and(|found| found.uid() == user.as_raw());
    (marked || own).then_some(home)
}
