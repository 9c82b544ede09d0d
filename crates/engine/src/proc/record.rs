//! What a killed daemon leaves to the next one: a file of the wardens that were born and of those that came to their own end.
//! A warden whose end is missing was killed, and what it guarded may live.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use quell_protocol::RunId;
use rustix::process::Pid;

use super::tree;

/// The file is begun anew when no warden lives and it is longer than this.
const LONG: u64 = 64 * 1024;

/// In place of a run's id.
const NO_RUN: &str = "-";

/// A warden that was born, and whose end is not in the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Birth {
    pub(super) warden: Pid,
    /// In ticks since the machine started.
    pub(super) started: u64,
    pub(super) run: Option<RunId>,
}

/// The record of this daemon. Each entry is one append, so that a kill cuts none in two.
#[derive(Debug)]
pub(super) struct Record {
    file: File,
    boot: String,
    living: Mutex<u64>,
}

impl Record {
    /// Opens the record, and tells the births of the last daemon that have no end.
    ///
    /// # Errors
    /// When the file can be neither read nor made.
    pub(super) fn open(path: &Path) -> io::Result<(Arc<Self>, Vec<Birth>)> {
        let mut file = File::options().read(true).append(true).create(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // Numbers and times of birth mean nothing after a restart of the machine.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let open = unfinished(&text, &boot);
        Ok((Arc::new(Self { file, boot, living: Mutex::default() }), open))
    }

    /// Begins anew, unless a warden of this daemon is in it: what the last one left has been seen to.
    pub(super) fn forget(&self) {
        if *self.living.lock().unwrap_or_else(PoisonError::into_inner) == 0 {
            self.clear();
        }
    }

    fn clear(&self) {
        // An old entry costs the next start a look and nothing else.
        let _ = self.file.set_len(0);
    }

    /// Notes a warden. On a full disk there is no note; the namespace, the cgroup and the warden hold all the same.
    pub(super) fn born(&self, warden: Pid, run: Option<&str>) {
        let Some(stat) = tree::stat(warden) else { return };
        let line = format!("born {} {warden} {} {}\n", self.boot, stat.started, run.unwrap_or(NO_RUN));
        *self.living.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let _ = (&self.file).write_all(line.as_bytes());
    }

    /// Notes the end of a warden whose command was seen to.
    pub(super) fn ended(&self, warden: Pid) {
        let _ = (&self.file).write_all(end_of(warden).as_bytes());
        let mut living = self.living.lock().unwrap_or_else(PoisonError::into_inner);
        *living = living.saturating_sub(1);
        if *living == 0 && self.file.metadata().is_ok_and(|found| found.len() > LONG) {
            self.clear();
        }
    }
}

impl AsFd for Record {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Notes the own end of a warden in the record that was sent to it.
pub(super) fn note_own_end(record: OwnedFd, warden: Pid) {
    let _ = File::from(record).write_all(end_of(warden).as_bytes());
}

fn end_of(warden: Pid) -> String {
    format!("ended {warden}\n")
}

fn unfinished(text: &str, boot: &str) -> Vec<Birth> {
    let mut open = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        match words.next() {
            Some("born") if words.next() == Some(boot) => open.extend(birth(words)),
            Some("ended") => {
                let ended = words.next().and_then(tree::parse_pid);
                open.retain(|birth: &Birth| Some(birth.warden) != ended);
            }
            _ => {}
        }
    }
    open
}

fn birth<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Birth> {
    let warden = tree::parse_pid(words.next()?)?;
    let started = words.next()?.parse().ok()?;
    let run = words.next().filter(|run| *run != NO_RUN).and_then(|run| RunId::parse(run).ok());
    Some(Birth { warden, started, run })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_birth_without_its_end_is_unfinished() {
        let text = "born b1 7 70 r1\nborn b1 8 80 -\nended 7\nborn b0 9 90 r2\nborn b1";
        let birth = Birth { warden: Pid::from_raw(8).unwrap(), started: 80, run: None };
        assert_eq!(unfinished(text, "b1"), [birth]);
    }

    #[test]
    fn the_next_daemon_learns_who_was_not_seen_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wardens");
        let me = rustix::process::getpid();
        let (record, open) = Record::open(&path).unwrap();
        assert_eq!(open, []);
        record.born(me, Some("run-1"));
        let (next, open) = Record::open(&path).unwrap();
        assert_eq!(open.iter().map(|birth| birth.warden).collect::<Vec<_>>(), [me]);
        assert_eq!(open[0].run.as_ref().map(RunId::as_str), Some("run-1"));
        next.forget();
        record.ended(me);
        assert_eq!(Record::open(&path).unwrap().1, []);
    }
}
