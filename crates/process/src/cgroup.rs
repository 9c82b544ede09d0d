//! A cgroup for one command without a PID namespace, where the daemon's own cgroup is delegated to it.
//!
//! One write to `cgroup.kill` ends every process in it, and no process can leave it. No controller is used, so the
//! rule that inner cgroups hold no processes does not apply.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, geteuid, getpid};

use super::process_tree;

/// Mount points of the cgroup v2 hierarchy: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Prefix of the cgroups' names; pid and start time of the warden follow.
const NAME_PREFIX: &str = "quell-command-";

/// The cgroup of one command. Dropping it removes it, which the kernel permits only when it is empty.
#[derive(Debug)]
pub(super) struct Cgroup {
    directory: PathBuf,
    parent: PathBuf,
}

impl Cgroup {
    /// Returns `None` where the own cgroup is not delegated, or the kernel has no `cgroup.kill` (before 5.14).
    pub(super) fn create() -> Option<Self> {
        let parent = delegated_cgroup()?;
        let own_pid = getpid();
        let directory =
            parent.join(format!("{NAME_PREFIX}{own_pid}-{}", process_tree::read_stat(own_pid)?.start_ticks));
        fs::create_dir(&directory).ok()?;
        Some(Self { directory, parent })
    }

    /// Starts a process in the cgroup: this process enters, runs `start`, and leaves again.
    pub(super) fn start<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        move_self_to(&self.directory)?;
        let started = start();
        move_self_to(&self.parent)?;
        started
    }

    /// Kills all processes in the cgroup at once.
    pub(super) fn kill(&self) {
        // Fails when the cgroup has been removed; only an empty one can be.
        let _ = fs::write(self.directory.join("cgroup.kill"), "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

fn move_self_to(directory: &Path) -> io::Result<()> {
    fs::write(directory.join("cgroup.procs"), "0")
}

/// Kills the processes in the cgroups of dead wardens, and removes these cgroups.
pub(super) fn kill_orphaned_cgroups() {
    let Some(parent) = delegated_cgroup() else { return };
    for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(warden_id) = name.to_str().and_then(|name| name.strip_prefix(NAME_PREFIX)) else { continue };
        if !is_warden_alive(warden_id) {
            drop(Cgroup { directory: entry.path(), parent: parent.clone() }.into_killed());
        }
    }
}

impl Cgroup {
    fn into_killed(self) -> Self {
        self.kill();
        self
    }
}

/// True when a process with this pid and start time lives (`PID-TICKS`).
fn is_warden_alive(warden_id: &str) -> bool {
    let alive = || {
        let (pid, started) = warden_id.split_once('-')?;
        let stat = process_tree::read_stat(Pid::from_raw(pid.parse().ok()?)?)?;
        Some(stat.start_ticks.to_string() == started && !stat.is_dead())
    };
    alive().unwrap_or(false)
}

/// Returns the own cgroup if this process may create cgroups in it. systemd marks a delegated cgroup with an
/// attribute (`Delegate=yes`). It makes an ordinary user the owner of that user's cgroup. The root of the hierarchy
/// has no `cgroup.kill` and is never delegated.
fn delegated_cgroup() -> Option<PathBuf> {
    let list = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = list.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let own_cgroup =
        MOUNTS.iter().map(|mount| Path::new(mount).join(path)).find(|home| home.join("cgroup.kill").exists())?;
    let is_marked = ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0_u8; 1];
        rustix::fs::getxattr(&own_cgroup, *name, &mut value[..]) == Ok(1) && value == *b"1"
    });
    let user = geteuid();
    let is_owned = !user.is_root() && fs::metadata(&own_cgroup).is_ok_and(|found| found.uid() == user.as_raw());
    (is_marked || is_owned).then_some(own_cgroup)
}
