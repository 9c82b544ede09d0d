//! Start a daemon in a home of its own, and measure its time to ready and its memory.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::cold_build::remove_dir;
use super::cpu_clock::parse_kib;
use crate::{command, run_checked};

/// The daemon prints this when it answers clients.
const READY: &str = "quell is ready on";

/// What a daemon allocates while it becomes ready is given back within this time.
const SETTLE_TIME: Duration = Duration::from_millis(300);

/// A binary, with a home in which it has been started before.
pub(super) struct DaemonHome {
    binary: PathBuf,
    folder: PathBuf,
}

pub(super) struct DaemonStart {
    /// From the call that starts the process to the line that says that it is ready.
    pub(super) ready: Duration,
    /// `None` if this user may not see it: the daemon hides its memory from all but root.
    pub(super) memory: Option<DaemonMemory>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DaemonMemory {
    /// Memory that is shared with other processes counts in parts.
    pub(super) pss_kib: u64,
    pub(super) anonymous_kib: u64,
}

impl DaemonHome {
    /// Makes an empty home. The first start makes the database and is not measured.
    pub(super) fn create(binary: PathBuf, folder: PathBuf) -> anyhow::Result<Self> {
        remove_dir(&folder)?;
        fs::create_dir_all(&folder)?;
        let home = Self { binary, folder };
        home.start()?;
        Ok(home)
    }

    /// Starts the daemon with the default configuration, measures it and stops it.
    pub(super) fn start(&self) -> anyhow::Result<DaemonStart> {
        let begun = Instant::now();
        let mut child = self.serve().spawn().with_context(|| format!("{} did not start", self.binary.display()))?;
        let started = wait_ready(&mut child).map(|()| begun.elapsed());
        let memory = started.is_ok().then(|| read_memory(child.id())).flatten();
        let stopped = stop(&mut child);
        let ready = started?;
        stopped?;
        Ok(DaemonStart { ready, memory })
    }

    fn serve(&self) -> Command {
        let mut command = command(&self.binary, ["serve", "--listen", "127.0.0.1:0"]);
        command.env_clear().env("HOME", &self.folder).env("QUELL_HOME", self.folder.join("data"));
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }
}

fn wait_ready(child: &mut Child) -> anyhow::Result<()> {
    let output = child.stdout.take().context("the daemon has no output")?;
    for line in BufReader::new(output).lines() {
        if line?.contains(READY) {
            return Ok(());
        }
    }
    bail!("the daemon ended before it was ready")
}

/// SIGTERM, because a killed daemon would have to recover at its next start.
fn stop(child: &mut Child) -> anyhow::Result<()> {
    // Fails if the daemon has ended by itself.
    let asked = run_checked(command("sh", ["-c", "kill -TERM \"$0\""]).arg(child.id().to_string()));
    if asked.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    asked?;
    ensure!(status.success(), "the daemon ended with {status}");
    Ok(())
}

fn read_memory(pid: u32) -> Option<DaemonMemory> {
    thread::sleep(SETTLE_TIME);
    parse_memory(&fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("smaps_rollup")).ok()?)
}

fn parse_memory(smaps_rollup: &str) -> Option<DaemonMemory> {
    let (pss, anonymous) = (parse_kib(smaps_rollup, "Pss")?, parse_kib(smaps_rollup, "Anonymous")?);
    Some(DaemonMemory { pss_kib: pss, anonymous_kib: anonymous })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_sums_of_the_kernel() {
        let text = "55d0-7ffe ---p 00000000 00:00 0    [rollup]\nRss:       50000 kB\nPss:       32768 kB\n\
                    Pss_Dirty:     7000 kB\nPss_Anon:      4095 kB\nAnonymous:     4096 kB\n";
        assert_eq!(parse_memory(text), Some(DaemonMemory { pss_kib: 32_768, anonymous_kib: 4096 }));
        assert_eq!(parse_memory(""), None);
    }
}
