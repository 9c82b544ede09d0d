//! Misbehaving commands for `sh -c`, each carrying a marker by which its survivors are found.
//!
//! They need only a POSIX shell, its usual tools and `setsid`. Every one ends by itself within ten minutes or so, whatever a
//! test does.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, getpgrp, kill_process_group, pidfd_open, pidfd_send_signal};

use crate::leaks::{self, Process};

/// Keeps a shell alive for ten minutes without ending in an `exec`, so that it keeps its arguments.
const LINGER: &str = "n=0; while [ $n -lt 60 ]; do sleep 10; n=$((n+1)); done";

/// Marks every process of one test. Dropping it kills whatever still carries it.
#[derive(Debug)]
pub struct Marker(String);

impl Marker {
    /// A marker no other test has.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each one is different")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(format!("{}{}-end", Self::prefix(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// What the texts of all markers of this process begin with.
    #[must_use]
    pub fn prefix() -> String {
        format!("quell-mark-{}-", std::process::id())
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Who carries it now.
    #[must_use]
    pub fn survivors(&self) -> Vec<Process> {
        leaks::marked(&self.0)
    }

    /// Waits until at least `n` processes carry it.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When there are fewer after 20 s.
    pub async fn at_least(&self, n: usize) {
        let marker = self.0.clone();
        leaks::settled(Duration::from_secs(20), move || {
            let found = leaks::marked(&marker);
            if found.len() >= n { Ok(()) } else { Err(format!("{} processes, not {n}: {found:#?}", found.len())) }
        })
        .await;
    }

    /// Waits until nobody carries it, and returns how long that took.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When somebody still does after `limit`.
    pub async fn gone(&self, limit: Duration) -> Duration {
        leaks::no_process_marked(&self.0, limit).await
    }

    /// Ends it without looking for survivors: for who has looked.
    pub fn retire(self) {
        // Its text is all that it holds.
        let mut kept = std::mem::ManuallyDrop::new(self);
        drop(std::mem::take(&mut kept.0));
    }

    /// Kills whoever carries it, again and again until nobody does or two hundred rounds are over.
    pub fn kill_survivors(&self) {
        for _ in 0..200 {
            let survivors = self.survivors();
            if survivors.is_empty() {
                return;
            }
            for survivor in survivors {
                self.kill(survivor.pid);
                self.kill_group(survivor.group);
            }
        }
    }

    /// Holds the process by a descriptor before looking once more, so that a reused number is never hit.
    fn kill(&self, pid: u32) {
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
        let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { return };
        if leaks::is_marked(pid, &self.0) {
            // It may have ended by itself.
            let _ = pidfd_send_signal(&held, Signal::KILL);
        }
    }

    /// Kills a group that holds marked processes only. A storm forks faster than it can be hit one by one; a signal to the
    /// group reaches every member, and no member can fork while one is pending.
    fn kill_group(&self, group: u32) {
        let Some(id) = i32::try_from(group).ok().filter(|id| *id > 1).and_then(Pid::from_raw) else { return };
        let members = leaks::group_of(group);
        let ours = |member: &Process| member.state == 'Z' || leaks::is_marked(member.pid, &self.0);
        if id != getpgrp() && !members.is_empty() && members.iter().all(ours) {
            // It may have ended by itself.
            let _ = kill_process_group(id, Signal::KILL);
        }
    }

    /// `script` in place of the calling shell. It carries the marker in its environment and as `$0`, and so do its forks.
    fn command(&self, script: &str) -> String {
        format!("exec {}", self.shell(script))
    }

    /// `script` as a simple command, for use inside another.
    fn shell(&self, script: &str) -> String {
        format!("env QUELL_TEST_MARK={0} sh -c {1} {0}", self.0, quoted(script))
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        self.kill_survivors();
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Waits quietly and obeys every signal.
#[must_use]
pub fn obedient(mark: &Marker) -> String {
    mark.command(LINGER)
}

/// Ignores TERM, INT and HUP, and so do its children; prints `deaf` once it does.
#[must_use]
pub fn ignores_signals(mark: &Marker) -> String {
    format!("exec {}", deaf(mark))
}

fn deaf(mark: &Marker) -> String {
    mark.shell(&format!("trap '' TERM INT HUP; echo deaf; {LINGER}"))
}

/// Starts a child in a session of its own and waits beside it.
#[must_use]
pub fn setsid_child(mark: &Marker) -> String {
    mark.command(&format!("setsid {} & {LINGER}", mark.shell(LINGER)))
}

/// As [`setsid_child`], and the child ignores TERM, INT and HUP; it prints `deaf` once it does.
#[must_use]
pub fn deaf_setsid_child(mark: &Marker) -> String {
    mark.command(&format!("setsid {} & {LINGER}", deaf(mark)))
}

/// Starts a grandchild whose parent ends at once, in a session of its own, and waits beside it.
#[must_use]
pub fn double_fork(mark: &Marker) -> String {
    mark.command(&format!("(setsid {} & ) ; {LINGER}", mark.shell(LINGER)))
}

/// On TERM it starts a successor in a session of its own, then ends; prints `armed` once it would.
#[must_use]
pub fn respawns_on_term(mark: &Marker) -> String {
    let successor = mark.shell(LINGER);
    mark.command(&format!(
        "again() {{ setsid {successor} & exit 0; }}; trap again TERM; echo armed; {}",
        interruptible_linger()
    ))
}

/// `wait` returns at a signal where a foreground `sleep` would delay the trap.
fn interruptible_linger() -> &'static str {
    "n=0; while [ $n -lt 60 ]; do sleep 10 & wait $!; n=$((n+1)); done"
}

/// Stops itself (SIGSTOP), so that TERM stays pending.
#[must_use]
pub fn stops_itself(mark: &Marker) -> String {
    mark.command(&format!("kill -STOP $$; {LINGER}"))
}

/// Closes its output and goes on: the reader sees the end long before the process does.
#[must_use]
pub fn closes_its_output(mark: &Marker) -> String {
    mark.command(&format!("exec >/dev/null 2>&1; {LINGER}"))
}

/// Clears its environment; only its arguments carry the marker.
#[must_use]
pub fn clears_its_environment(mark: &Marker) -> String {
    format!("exec env -i PATH=\"$PATH\" sh -c {} {}", quoted(LINGER), mark.as_str())
}

/// Ends at once with code 0 and leaves a server behind that holds the output open.
#[must_use]
pub fn background_server(mark: &Marker) -> String {
    mark.command(&format!("{} & echo started", mark.shell(LINGER)))
}

/// Ends at once and leaves a server behind in a session of its own, with no output open.
#[must_use]
pub fn detached_server(mark: &Marker) -> String {
    mark.command(&format!("setsid {} </dev/null >/dev/null 2>&1 & echo started", mark.shell(LINGER)))
}

/// Prints without end.
#[must_use]
pub fn output_flood(mark: &Marker) -> String {
    mark.command(&format!("yes {}; :", mark.as_str()))
}

/// Prints this many bytes and ends.
#[must_use]
pub fn output_of(mark: &Marker, bytes: usize) -> String {
    mark.command(&format!("yes {} | head -c {bytes}; :", mark.as_str()))
}

/// Prints bytes that are no UTF-8, and a character cut in half.
#[must_use]
pub fn invalid_utf8(mark: &Marker) -> String {
    mark.command(r"printf 'ok \377\376 \303\050 \342\202'")
}

/// Prints `lines` numbered lines quickly, then waits: output that a stopped command leaves.
#[must_use]
pub fn prints_then_waits(mark: &Marker, lines: u32) -> String {
    mark.command(&format!("i=1; while [ $i -le {lines} ]; do echo line $i; i=$((i+1)); done; {LINGER}"))
}

/// Does what `sudo` does to its caller: the payload runs in a session of its own, as another user where this one may change
/// users, behind a parent that hands no signal on.
#[must_use]
pub fn sudo_like(mark: &Marker) -> String {
    let payload = mark.shell(LINGER);
    mark.command(&format!(
        "trap '' TERM INT HUP; drop=; \
         if [ \"$(id -u)\" = 0 ] && command -v setpriv >/dev/null; then \
           drop='setpriv --reuid=65534 --clear-groups'; fi; \
         setsid $drop {payload} & wait $!; {LINGER}"
    ))
}

/// Writes the ids of a small tree to `file`, one per line, once all of it is up: the shell, a child, a `setsid` grandchild.
#[must_use]
pub fn writes_its_pids(mark: &Marker, file: &Path) -> String {
    let file = quoted(&file.display().to_string());
    let grandchild = mark.shell(&format!("echo $$ >> {file}; {LINGER}"));
    let child = mark.shell(&format!("setsid {grandchild} & echo $$ >> {file}; {LINGER}"));
    mark.command(&format!("{child} & echo $$ >> {file}; {LINGER}"))
}

/// A forking storm: every process of `chains` chains starts its successor and ends, so that no number is alive for long. At
/// most two processes of a chain are alive at once, `chains` is cut to 100, and each chain ends after `generations`.
#[must_use]
pub fn fork_storm(mark: &Marker, chains: u32, generations: u32) -> String {
    let chains = chains.clamp(1, 100);
    // Each generation is a fresh shell: a function that forks itself would grow its stack for ever.
    let link = "[ \"$QUELL_STORM_LEFT\" -gt 0 ] || exit 0; \
                QUELL_STORM_LEFT=$((QUELL_STORM_LEFT-1)) sh -c \"$QUELL_STORM\" \"$0\" & exit 0";
    mark.command(&format!(
        "export QUELL_STORM={} QUELL_STORM_LEFT={generations}; \
         i=0; while [ $i -lt {chains} ]; do sh -c \"$QUELL_STORM\" \"$0\" & i=$((i+1)); done; {LINGER}",
        quoted(link)
    ))
}
