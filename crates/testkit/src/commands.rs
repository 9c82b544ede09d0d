//! Misbehaving commands for `sh -c`, each with a marker by which its surviving processes are found.
//!
//! They need only a POSIX shell, its usual tools and `setsid`. Each ends by itself within about ten minutes, whatever a
//! test does.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, getpgrp, kill_process_group, pidfd_open, pidfd_send_signal};

use crate::leaks::{self, ObservedProcess};

/// Keeps a shell alive for ten minutes without a final `exec`, so that it keeps its arguments.
const SLEEP_LOOP: &str = "n=0; while [ $n -lt 60 ]; do sleep 10; n=$((n+1)); done";

/// Marks every process of one test. Dropping it kills all processes that still carry it.
#[derive(Debug)]
pub struct ProcessMarker(String);

impl ProcessMarker {
    /// Creates a marker that no other test has.
    #[expect(clippy::new_without_default, reason = "every marker is unique")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(format!("{}{}-end", Self::prefix(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Common prefix of all markers of this process.
    pub fn prefix() -> String {
        format!("quell-mark-{}-", std::process::id())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Processes that carry the marker now.
    pub fn marked_processes(&self) -> Vec<ObservedProcess> {
        leaks::processes_with_marker(&self.0)
    }

    /// Waits until at least `n` processes carry the marker.
    pub async fn wait_for_count(&self, n: usize) {
        let marker = self.0.clone();
        leaks::wait_until(Duration::from_secs(20), move || {
            let found = leaks::processes_with_marker(&marker);
            if found.len() >= n { Ok(()) } else { Err(format!("{} processes, not {n}: {found:#?}", found.len())) }
        })
        .await;
    }

    /// Waits until no process carries the marker; returns how long that took.
    pub async fn wait_gone(&self, limit: Duration) -> Duration {
        leaks::wait_no_process_with_marker(&self.0, limit).await
    }

    /// Drops the marker without killing survivors, for a test that has checked for them.
    pub fn disarm(self) {
        // The text is all that the marker owns.
        let mut kept = std::mem::ManuallyDrop::new(self);
        drop(std::mem::take(&mut kept.0));
    }

    /// Kills the processes that carry the marker, in at most two hundred rounds.
    pub fn kill_survivors(&self) {
        for _ in 0..200 {
            let survivors = self.marked_processes();
            if survivors.is_empty() {
                return;
            }
            for survivor in survivors {
                self.kill(survivor.pid);
                self.kill_group(survivor.group);
            }
        }
    }

    /// Opens a pidfd before checking again, so that a reused pid is never killed.
    fn kill(&self, pid: u32) {
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
        let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { return };
        if leaks::has_marker(pid, &self.0) {
            // It may have ended by itself.
            let _ = pidfd_send_signal(&held, Signal::KILL);
        }
    }

    /// Kills a group that has only marked processes. A fork storm forks faster than single kills. A signal to the group
    /// reaches every member, and no member can fork while one is pending.
    fn kill_group(&self, group: u32) {
        let Some(id) = i32::try_from(group).ok().filter(|id| *id > 1).and_then(Pid::from_raw) else { return };
        let members = leaks::group_members(group);
        let ours = |member: &ObservedProcess| member.state == 'Z' || leaks::has_marker(member.pid, &self.0);
        if id != getpgrp() && !members.is_empty() && members.iter().all(ours) {
            // It may have ended by itself.
            let _ = kill_process_group(id, Signal::KILL);
        }
    }

    /// Replaces the calling shell by `script`, with the marker in its environment and as `$0`; its forks inherit both.
    fn exec_marked_shell(&self, script: &str) -> String {
        format!("exec {}", self.marked_shell(script))
    }

    /// `script` as a simple command, for use inside another.
    fn marked_shell(&self, script: &str) -> String {
        format!("env QUELL_TEST_MARK={0} sh -c {1} {0}", self.0, shell_quote(script))
    }
}

impl Drop for ProcessMarker {
    fn drop(&mut self) {
        self.kill_survivors();
    }
}

fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Waits and obeys every signal.
pub fn obeys_signals(mark: &ProcessMarker) -> String {
    mark.exec_marked_shell(SLEEP_LOOP)
}

/// Ignores TERM, INT and HUP, also in its children; prints `deaf` when it does.
pub fn ignores_signals(mark: &ProcessMarker) -> String {
    format!("exec {}", signal_ignoring_shell(mark))
}

fn signal_ignoring_shell(mark: &ProcessMarker) -> String {
    mark.marked_shell(&format!("trap '' TERM INT HUP; echo deaf; {SLEEP_LOOP}"))
}

/// Starts a child in its own session and waits beside it.
pub fn setsid_child(mark: &ProcessMarker) -> String {
    mark.exec_marked_shell(&format!("setsid {} & {SLEEP_LOOP}", mark.marked_shell(SLEEP_LOOP)))
}

/// Like [`setsid_child`], but the child ignores TERM, INT and HUP; it prints `deaf` when it does.
pub fn signal_ignoring_setsid_child(mark: &ProcessMarker) -> String {
    mark.exec_marked_shell(&format!("setsid {} & {SLEEP_LOOP}", signal_ignoring_shell(mark)))
}

/// Starts a grandchild in its own session whose parent ends at once, and waits beside it.
pub fn double_fork(mark: &ProcessMarker) -> String {
    mark.exec_marked_shell(&format!("(setsid {} & ) ; {SLEEP_LOOP}", mark.marked_shell(SLEEP_LOOP)))
}

/// On TERM starts a successor in its own session and exits; prints `armed` when the trap is set.
pub fn respawns_on_term(mark: &ProcessMarker) -> String {
    let successor = mark.marked_shell(SLEEP_LOOP);
    mark.exec_marked_shell(&format!(
        "again() {{ setsid {successor} & exit 0; }}; trap again TERM; echo armed; {}",
        interruptible_sleep_loop()
    ))
}

/// `wait` returns at a signal; a foreground `sleep` would delay the trap.
fn interruptible_sleep_loop() -> &'static str {
    "n=0; while [ $n -lt 60 ]; do sleep 10 & wait $!; n=$((n+1)); done"
}

/// Stops itself with SIGSTOP, so that TERM stays pending.
pub fn stops_itself(mark: &ProcessMarker) -> String {
    mark.exec_marked_shell(&format!("kill -STOP $$; {SLEEP_LOOP}"))
}

/// Closes its output and continues: the reader sees the end long before the process ends.
pub fn closes_its_output(mark: &ProcessMarker) -> String {
    mark.exec_marked_shell(&format!("exec >/dev/null 2>&1; {SLEEP_LOOP}"))
}

/// Exits at once with code 0 and leaves a server behind that keeps the output open.
pub fn background_server(mark: &ProcessMarker) -> String {
    mark.exec_marked_shell(&format!("{} & echo started", mark.marked_shell(SLEEP_LOOP)))
}

/// Exits at once and leaves a server behind in its own session, with the output closed.
pub fn detached_server(mark: &ProcessMarker) -> String {
    mark.exec_marked_shell(&format!(
        "setsid {} </dev/null >/dev/null 2>&1 & echo started",
        mark.marked_shell(SLEEP_LOOP)
    ))
}

pub fn output_flood(mark: &ProcessMarker) -> String {
    mark.exec_marked_shell(&format!("yes {}; :", mark.as_str()))
}

/// Prints this many bytes and exits.
pub fn prints_bytes(mark: &ProcessMarker, bytes: usize) -> String {
    mark.exec_marked_shell(&format!("yes {} | head -c {bytes}; :", mark.as_str()))
}

/// Behaves like `sudo`: the payload runs in its own session, as another user if this one may change users, below a
/// parent that forwards no signals.
pub fn sudo_like(mark: &ProcessMarker) -> String {
    let payload = mark.marked_shell(SLEEP_LOOP);
    mark.exec_marked_shell(&format!(
        "trap '' TERM INT HUP; drop=; \
         if [ \"$(id -u)\" = 0 ] && command -v setpriv >/dev/null; then \
           drop='setpriv --reuid=65534 --clear-groups'; fi; \
         setsid $drop {payload} & wait $!; {SLEEP_LOOP}"
    ))
}

/// A fork storm: every process of `chains` chains starts its successor and exits, so that no pid lives long. At most
/// two processes of a chain live at once, `chains` is limited to 100, and each chain ends after `generations`.
pub fn fork_storm(mark: &ProcessMarker, chains: u32, generations: u32) -> String {
    let chains = chains.clamp(1, 100);
    // Each generation is a fresh shell: a function that forks itself would grow its stack without end.
    let link = "[ \"$QUELL_STORM_LEFT\" -gt 0 ] || exit 0; \
                QUELL_STORM_LEFT=$((QUELL_STORM_LEFT-1)) sh -c \"$QUELL_STORM\" \"$0\" & exit 0";
    mark.exec_marked_shell(&format!(
        "export QUELL_STORM={} QUELL_STORM_LEFT={generations}; \
         i=0; while [ $i -lt {chains} ]; do sh -c \"$QUELL_STORM\" \"$0\" & i=$((i+1)); done; {SLEEP_LOOP}",
        shell_quote(link)
    ))
}
