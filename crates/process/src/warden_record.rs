//! The record of wardens that a daemon leaves to the next one: started wardens, and wardens that ended properly.
//!
//! A warden without an end in the file was killed, and processes of its command may be alive.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use quell_protocol::RunId;
use rustix::process::Pid;

use super::process_tree;

/// Above this size the file is cleared once no warden lives.
const MAX_RECORD_BYTES: u64 = 64 * 1024;

const NO_RUN: &str = "-";

/// A started warden whose end is not in the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnfinishedWarden {
    pub(super) warden: Pid,
    /// In ticks since the boot of the machine.
    pub(super) start_ticks: u64,
    pub(super) run: Option<RunId>,
}

/// The record of this daemon. Each entry is one append, so that a kill leaves no partial entry.
#[derive(Debug)]
pub(super) struct WardenRecord {
    file: File,
    boot_id: String,
    live_count: Mutex<u64>,
}

impl WardenRecord {
    /// Opens the record. Returns the wardens of the previous daemon whose end is missing.
    ///
    /// # Errors
    /// When the file can be neither read nor created.
    pub(super) fn open(path: &Path) -> io::Result<(Arc<Self>, Vec<UnfinishedWarden>)> {
        let mut file = File::options().read(true).append(true).create(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // Pids and start times are worthless after a reboot of the machine.
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let unfinished = parse_unfinished(&text, &boot_id);
        Ok((Arc::new(Self { file, boot_id, live_count: Mutex::default() }), unfinished))
    }

    /// Clears the record of what the previous daemon left, unless a warden of this daemon is in it.
    pub(super) fn clear_if_unused(&self) {
        if *self.live_count.lock().unwrap_or_else(PoisonError::into_inner) == 0 {
            self.clear();
        }
    }

    fn clear(&self) {
        // An old entry only costs the next start a check.
        let _ = self.file.set_len(0);
    }

    /// Records the start of a warden. Ignores errors such as a full disk: the containment works without the record.
    pub(super) fn note_start(&self, warden: Pid, run: Option<&str>) {
        let Some(stat) = process_tree::read_stat(warden) else { return };
        let line = format!("born {} {warden} {} {}\n", self.boot_id, stat.start_ticks, run.unwrap_or(NO_RUN));
        *self.live_count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let _ = (&self.file).write_all(line.as_bytes());
    }

    /// Records the end of a warden whose command has ended.
    pub(super) fn note_end(&self, warden: Pid) {
        let _ = (&self.file).write_all(end_line(warden).as_bytes());
        let mut live_count = self.live_count.lock().unwrap_or_else(PoisonError::into_inner);
        *live_count = live_count.saturating_sub(1);
        if *live_count == 0 && self.file.metadata().is_ok_and(|metadata| metadata.len() > MAX_RECORD_BYTES) {
            self.clear();
        }
    }
}

impl AsFd for WardenRecord {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Records the warden's own end in the record that it was sent.
pub(super) fn note_own_end(record: OwnedFd, warden: Pid) {
    let _ = File::from(record).write_all(end_line(warden).as_bytes());
}

fn end_line(warden: Pid) -> String {
    format!("ended {warden}\n")
}

fn parse_unfinished(text: &str, boot_id: &str) -> Vec<UnfinishedWarden> {
    let mut unfinished = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        match words.next() {
            Some("born") if words.next() == Some(boot_id) => unfinished.extend(parse_start_line(words)),
            Some("ended") => {
                let ended = words.next().and_then(process_tree::parse_pid);
                unfinished.retain(|entry: &UnfinishedWarden| Some(entry.warden) != ended);
            }
            _ => {}
        }
    }
    unfinished
}

fn parse_start_line<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<UnfinishedWarden> {
    let warden = process_tree::parse_pid(words.next()?)?;
    let started = words.next()?.parse().ok()?;
    let run = words.next().filter(|run| *run != NO_RUN).and_then(|run| RunId::parse(run).ok());
    Some(UnfinishedWarden { warden, start_ticks: started, run })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_birth_without_its_end_is_unfinished() {
        let text = "born b1 7 70 r1\nborn b1 8 80 -\nended 7\nborn b0 9 90 r2\nborn b1";
        let entry = UnfinishedWarden { warden: Pid::from_raw(8).unwrap(), start_ticks: 80, run: None };
        assert_eq!(parse_unfinished(text, "b1"), [entry]);
    }

    #[test]
    fn the_next_daemon_learns_who_was_not_seen_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wardens");
        let me = rustix::process::getpid();
        let (record, open) = WardenRecord::open(&path).unwrap();
        assert_eq!(open, []);
        record.note_start(me, Some("run-1"));
        let (next, open) = WardenRecord::open(&path).unwrap();
        assert_eq!(open.iter().map(|entry| entry.warden).collect::<Vec<_>>(), [me]);
        assert_eq!(open[0].run.as_ref().map(RunId::as_str), Some("run-1"));
        next.clear_if_unused();
        record.note_end(me);
        assert_eq!(WardenRecord::open(&path).unwrap().1, []);
    }
}
