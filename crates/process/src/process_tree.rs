//! The process tree as /proc shows it, and signals that can only reach processes of the tree.
//!
//! Children are read from `/proc/PID/task/*/children`, which takes a few file reads. Kernels without these files need
//! a scan of all of /proc.
//!
//! A signal goes through a pidfd. Whether its process belongs to the tree is checked *after* the pidfd was opened, so
//! a pid that was reused in between is never hit.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, test_kill_process, waitid,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessStat {
    pub(super) name: String,
    pub(super) state: char,
    pub(super) parent: i32,
    pub(super) process_group: i32,
    pub(super) session: i32,
    threads: u32,
    /// Start time in ticks since the boot of the machine. Together with the pid it identifies a process.
    pub(super) start_ticks: u64,
}

impl ProcessStat {
    /// True for a process that has ended and only waits to be reaped. The state letter alone is not enough: it is
    /// that of the first thread, which may end before the others.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, 'X' | 'x') || (self.state == 'Z' && self.threads <= 1)
    }

    fn parse(line: &str) -> Option<Self> {
        // The name is in parentheses, and can itself contain parentheses and blanks.
        let (head, rest) = line.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        // Fields 20 and 22 of proc_pid_stat(5); the last one read above is field 6.
        let threads = fields.nth(13)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self { name, state, parent, process_group: group, session, threads, start_ticks: started })
    }
}

/// Reads `/proc/PID/stat`; `None` when there is no such process.
pub(super) fn read_stat(pid: Pid) -> Option<ProcessStat> {
    // The name can be any bytes.
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    ProcessStat::parse(&String::from_utf8_lossy(&line))
}

/// False only for a process that has ended. Where `/proc` hides the processes of others (`hidepid`), the kernel answers.
pub(super) fn may_be_alive(pid: Pid) -> bool {
    match read_stat(pid) {
        Some(stat) => !stat.is_dead(),
        None => test_kill_process(pid) != Err(Errno::SRCH),
    }
}

/// Returns the pid that a process has in its own PID namespace.
pub(super) fn innermost_pid(pid: Pid) -> Option<i32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_ascii_whitespace().next_back()?.parse().ok()
}

/// True for a process that neither catches nor ignores SIGTERM: if it was sent one and lives, the signal was lost.
pub(super) fn dies_of_sigterm(pid: Pid) -> bool {
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let is_masked = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .is_none_or(|mask| mask >> (Signal::TERM.as_raw() - 1) & 1 == 1)
    };
    !is_masked("SigIgn:") && !is_masked("SigCgt:")
}

#[derive(Debug)]
pub(super) enum ChildLookup {
    /// Read the files of the parent, at each lookup.
    ThreadFiles,
    /// A scan of all processes, made once.
    Scan(BTreeMap<i32, Vec<Pid>>),
}

impl ChildLookup {
    /// Chooses the cheapest way that this kernel offers.
    pub(super) fn cheapest(me: Pid) -> Self {
        if fs::exists(format!("/proc/{me}/task/{me}/children")).unwrap_or(false) {
            Self::ThreadFiles
        } else {
            Self::scan_all()
        }
    }

    pub(super) fn scan_all() -> Self {
        let mut by_parent: BTreeMap<i32, Vec<Pid>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(parse_pid) else { continue };
            if let Some(stat) = read_stat(pid) {
                by_parent.entry(stat.parent).or_default().push(pid);
            }
        }
        Self::Scan(by_parent)
    }

    /// Returns the children of a process; none when it is gone.
    pub(super) fn children(&self, pid: Pid) -> Vec<Pid> {
        match self {
            Self::ThreadFiles => children_from_files(pid),
            Self::Scan(by_parent) => by_parent.get(&pid.as_raw_nonzero().get()).cloned().unwrap_or_default(),
        }
    }

    /// Returns all descendants of a process, parents first.
    pub(super) fn descendants(&self, root: Pid) -> Vec<Pid> {
        let mut found = self.children(root);
        let mut next = 0;
        while let Some(pid) = found.get(next).copied() {
            found.extend(self.children(pid));
            next += 1;
        }
        found
    }
}

/// An open directory /proc. It lists all pids without a new descriptor, so it works at the limit of open files, even
/// at a limit of 0.
#[derive(Debug)]
pub(super) struct ProcDirectory(Option<OwnedFd>);

impl ProcDirectory {
    pub(super) fn open() -> Self {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self(rustix::fs::open("/proc", flags, Mode::empty()).ok())
    }

    /// Returns the children of this process, including dead ones that are not reaped. Exact: the kernel lets a
    /// process wait for its own children only.
    pub(super) fn children(&self) -> Vec<Pid> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let is_child = |pid: &Pid| waitid(WaitId::Pid(*pid), options).is_ok();
        self.pids().into_iter().filter(is_child).collect()
    }

    fn pids(&self) -> Vec<Pid> {
        let mut found = Vec::new();
        let Some(directory) = &self.0 else { return found };
        if rustix::fs::seek(directory, SeekFrom::Start(0)).is_err() {
            return found;
        }
        let mut space = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(directory, &mut space);
        while let Some(Ok(entry)) = entries.next() {
            found.extend(entry.file_name().to_str().ok().and_then(parse_pid));
        }
        found
    }
}

fn children_from_files(pid: Pid) -> Vec<Pid> {
    let mut found = Vec::new();
    // Each thread lists the children that it forked.
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        if let Ok(line) = fs::read_to_string(task.path().join("children")) {
            found.extend(line.split_ascii_whitespace().filter_map(parse_pid));
        }
    }
    found
}

pub(super) fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalOutcome {
    Sent,
    Refused,
    /// The tree has no such process any more.
    Gone,
}

/// Sends a signal to a process if it is alive and its parent is one of `parents`.
pub(super) fn signal_member(pid: Pid, parents: &BTreeSet<i32>, signal: Signal) -> SignalOutcome {
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Some(pidfd),
        Err(Errno::SRCH) => return SignalOutcome::Gone,
        // Out of descriptors or memory: signal by pid, which was checked a moment ago.
        Err(_) => None,
    };
    let Some(stat) = read_stat(pid) else { return SignalOutcome::Gone };
    if stat.is_dead() || !parents.contains(&stat.parent) {
        return SignalOutcome::Gone;
    }
    let send = |signal| match &pidfd {
        Some(pidfd) => pidfd_send_signal(pidfd, signal),
        None => rustix::process::kill_process(pid, signal),
    };
    let sent = send(signal);
    if stat.state == 'T' && signal != Signal::KILL {
        // A stopped process would not act on SIGTERM.
        let _ = send(Signal::CONT);
    }
    match sent {
        Ok(()) => SignalOutcome::Sent,
        Err(Errno::PERM) => SignalOutcome::Refused,
        Err(_) => SignalOutcome::Gone,
    }
}

#[derive(Debug, Default)]
pub(super) struct SignalPass {
    pub(super) sent: Vec<Pid>,
    /// Processes that the kernel did not permit to signal.
    pub(super) refused: Vec<Pid>,
}

/// Sends a signal to all descendants of `root`. A parent gets it before its children are listed: a process with a
/// pending signal cannot fork, so no child is missed. Skips those in `skip`, and everything below them.
pub(super) fn signal_descendants(listing: &ChildLookup, root: Pid, skip: &HashSet<Pid>, signal: Signal) -> SignalPass {
    let mut pass = SignalPass::default();
    let mut parents = BTreeSet::from([root.as_raw_nonzero().get()]);
    let mut queue = listing.children(root);
    while let Some(pid) = queue.pop() {
        if skip.contains(&pid) {
            continue;
        }
        match signal_member(pid, &parents, signal) {
            SignalOutcome::Sent => pass.sent.push(pid),
            SignalOutcome::Refused => pass.refused.push(pid),
            // Its children, if it had any, become children of the root.
            SignalOutcome::Gone => continue,
        }
        if parents.insert(pid.as_raw_nonzero().get()) {
            queue.extend(listing.children(pid));
        }
    }
    pass
}

/// Describes a process that could not be ended, for people.
pub(super) fn describe_leftover(pid: Pid, is_refused: bool) -> String {
    let stat = read_stat(pid);
    let name = stat.as_ref().map_or("?", |stat| stat.name.as_str());
    let why = match stat.as_ref().map(|stat| stat.state) {
        _ if is_refused => "cannot be signalled",
        Some('D') => "in uninterruptible sleep",
        _ => "still there after SIGKILL",
    };
    format!("pid {pid} ({name}), {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_stat(state: char, threads: u32) -> ProcessStat {
        let line = format!("42 (a) b (c) {state} 1 40 39 0 -1 4194304 9 8 7 6 5 4 3 2 20 0 {threads} 0 777 1 2");
        ProcessStat::parse(&line).unwrap()
    }

    #[test]
    fn a_name_may_hold_anything() {
        let stat = parse_stat('S', 3);
        assert_eq!((stat.name.as_str(), stat.state), ("a) b (c", 'S'));
        assert_eq!((stat.parent, stat.process_group, stat.session), (1, 40, 39));
        assert_eq!((stat.threads, stat.start_ticks), (3, 777));
        assert_eq!(ProcessStat::parse("42 (sh"), None);
        assert_eq!(ProcessStat::parse("42 (sh) S 1"), None);
    }

    #[test]
    fn a_zombie_leader_with_living_threads_is_not_dead() {
        assert!(!parse_stat('Z', 2).is_dead());
        assert!(parse_stat('Z', 1).is_dead());
        assert!(parse_stat('X', 2).is_dead());
        assert!(!parse_stat('S', 1).is_dead());
    }

    #[test]
    fn a_process_outside_the_tree_is_not_signalled() {
        let me = rustix::process::getpid();
        assert_eq!(signal_member(me, &BTreeSet::from([-1]), Signal::KILL), SignalOutcome::Gone);
    }

    #[test]
    fn the_scan_and_the_files_agree_on_this_process() {
        let me = rustix::process::getpid();
        let parent = Pid::from_raw(read_stat(me).unwrap().parent).unwrap();
        assert!(ChildLookup::scan_all().children(parent).contains(&me));
        assert!(ChildLookup::ThreadFiles.children(parent).contains(&me));
    }
}
