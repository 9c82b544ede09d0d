//! The process tree as /proc shows it, and signals that reach the right process.
//!
//! Children come from `/proc/PID/task/*/children`, which costs a few file reads; a scan of all of /proc is the second rung,
//! for kernels without these files. A signal goes through a pidfd whose process was checked to belong to the tree *after* the
//! pidfd was opened, so a number that was given to somebody else in between is never hit.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};

/// What `/proc/PID/stat` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) name: String,
    pub(super) state: char,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    threads: u32,
    /// When it was born, in ticks since the machine started. With the number it names a process for ever.
    pub(super) started: u64,
}

impl Stat {
    /// True for a process that is over and only waits to be reaped. The letter alone does not say it: it is that of the first
    /// thread, which may end before the others.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, 'X' | 'x') || (self.state == 'Z' && self.threads <= 1)
    }

    fn parse(line: &str) -> Option<Self> {
        // The name stands in parentheses and may itself hold parentheses and blanks.
        let (head, rest) = line.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        // Fields 20 and 22 of proc_pid_stat(5); the last one read above is field 6.
        let threads = fields.nth(13)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self { name, state, parent, group, session, threads, started })
    }
}

/// `/proc/PID/stat`, or none when there is no such process.
pub(super) fn stat(pid: Pid) -> Option<Stat> {
    // The name may be any bytes.
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    Stat::parse(&String::from_utf8_lossy(&line))
}

/// The number that a process has in its own PID namespace.
pub(super) fn innermost_number(pid: Pid) -> Option<i32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_ascii_whitespace().next_back()?.parse().ok()
}

/// True for a process that neither catches nor ignores SIGTERM: if it got one and lives, it has lost it.
pub(super) fn dies_of_sigterm(pid: Pid) -> bool {
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let spared = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .is_none_or(|mask| mask >> (Signal::TERM.as_raw() - 1) & 1 == 1)
    };
    !spared("SigIgn:") && !spared("SigCgt:")
}

/// Where children are looked up.
#[derive(Debug)]
pub(super) enum Listing {
    /// In the files of their parent, when asked.
    Files,
    /// In a scan of all processes, made once.
    Scan(BTreeMap<i32, Vec<Pid>>),
}

impl Listing {
    /// The cheapest that this kernel offers.
    pub(super) fn cheapest(me: Pid) -> Self {
        if fs::exists(format!("/proc/{me}/task/{me}/children")).unwrap_or(false) { Self::Files } else { Self::scan() }
    }

    /// All processes, now.
    pub(super) fn scan() -> Self {
        let mut by_parent: BTreeMap<i32, Vec<Pid>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(parse_pid) else { continue };
            if let Some(stat) = stat(pid) {
                by_parent.entry(stat.parent).or_default().push(pid);
            }
        }
        Self::Scan(by_parent)
    }

    /// The children of a process; none when it is gone.
    pub(super) fn children(&self, pid: Pid) -> Vec<Pid> {
        match self {
            Self::Files => children_from_files(pid),
            Self::Scan(by_parent) => by_parent.get(&pid.as_raw_nonzero().get()).cloned().unwrap_or_default(),
        }
    }

    /// All descendants of a process, parents first.
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

/// A look at all numbers of processes that needs no new descriptor, so that it works at the limit of open files, also at a
/// limit of none.
#[derive(Debug)]
pub(super) struct Census(Option<OwnedFd>);

impl Census {
    /// Opens it, once.
    pub(super) fn open() -> Self {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self(rustix::fs::open("/proc", flags, Mode::empty()).ok())
    }

    /// The children of this process, dead ones that are not reaped included. The kernel itself says which they are: it waits
    /// for those alone.
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
    // Each thread has the children that it forked.
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

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signalled {
    /// It was sent to a living process.
    Sent,
    /// The kernel did not permit it.
    Refused,
    /// There is no such process in the tree any more.
    Gone,
}

/// Sends a signal to a process if it is alive and its parent is one of `family`.
pub(super) fn signal(pid: Pid, family: &BTreeSet<i32>, signal: Signal) -> Signalled {
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Some(pidfd),
        Err(Errno::SRCH) => return Signalled::Gone,
        // Out of descriptors or memory: the number has to do, it was checked a moment ago.
        Err(_) => None,
    };
    let Some(stat) = stat(pid) else { return Signalled::Gone };
    if stat.is_dead() || !family.contains(&stat.parent) {
        return Signalled::Gone;
    }
    let send = |signal| match &pidfd {
        Some(pidfd) => pidfd_send_signal(pidfd, signal),
        None => rustix::process::kill_process(pid, signal),
    };
    let sent = send(signal);
    if stat.state == 'T' && signal != Signal::KILL {
        // A stopped process would sleep on its SIGTERM.
        let _ = send(Signal::CONT);
    }
    match sent {
        Ok(()) => Signalled::Sent,
        Err(Errno::PERM) => Signalled::Refused,
        Err(_) => Signalled::Gone,
    }
}

/// What one pass over a tree did.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Processes that got the signal.
    pub(super) sent: Vec<Pid>,
    /// Processes that must not be signalled.
    pub(super) refused: Vec<Pid>,
}

/// Sends a signal to all descendants of `root`, parents before their children are listed: a process with a pending signal
/// cannot fork, so none is missed below it. Those in `skip` are left alone together with what they have started since.
pub(super) fn signal_descendants(listing: &Listing, root: Pid, skip: &HashSet<Pid>, with: Signal) -> Pass {
    let mut pass = Pass::default();
    let mut family = BTreeSet::from([root.as_raw_nonzero().get()]);
    let mut queue = listing.children(root);
    while let Some(pid) = queue.pop() {
        if skip.contains(&pid) {
            continue;
        }
        match signal(pid, &family, with) {
            Signalled::Sent => pass.sent.push(pid),
            Signalled::Refused => pass.refused.push(pid),
            // Its children, if it had any, are on their way up to the root.
            Signalled::Gone => continue,
        }
        if family.insert(pid.as_raw_nonzero().get()) {
            queue.extend(listing.children(pid));
        }
    }
    pass
}

/// A process that could not be ended, in the words that a person needs.
pub(super) fn describe(pid: Pid, refused: bool) -> String {
    let stat = stat(pid);
    let name = stat.as_ref().map_or("?", |stat| stat.name.as_str());
    let why = match stat.as_ref().map(|stat| stat.state) {
        _ if refused => "cannot be signalled",
        Some('D') => "in uninterruptible sleep",
        _ => "still there after SIGKILL",
    };
    format!("pid {pid} ({name}), {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(state: char, threads: u32) -> Stat {
        let line = format!("42 (a) b (c) {state} 1 40 39 0 -1 4194304 9 8 7 6 5 4 3 2 20 0 {threads} 0 777 1 2");
        Stat::parse(&line).unwrap()
    }

    #[test]
    fn a_name_may_hold_anything() {
        let stat = parse('S', 3);
        assert_eq!((stat.name.as_str(), stat.state), ("a) b (c", 'S'));
        assert_eq!((stat.parent, stat.group, stat.session), (1, 40, 39));
        assert_eq!((stat.threads, stat.started), (3, 777));
        assert_eq!(Stat::parse("42 (sh"), None);
        assert_eq!(Stat::parse("42 (sh) S 1"), None);
    }

    #[test]
    fn a_zombie_leader_with_living_threads_is_not_dead() {
        assert!(!parse('Z', 2).is_dead());
        assert!(parse('Z', 1).is_dead());
        assert!(parse('X', 2).is_dead());
        assert!(!parse('S', 1).is_dead());
    }

    #[test]
    fn a_process_outside_the_tree_is_not_signalled() {
        let me = rustix::process::getpid();
        assert_eq!(signal(me, &BTreeSet::from([-1]), Signal::KILL), Signalled::Gone);
    }

    #[test]
    fn the_scan_and_the_files_agree_on_this_process() {
        let me = rustix::process::getpid();
        let parent = Pid::from_raw(stat(me).unwrap().parent).unwrap();
        assert!(Listing::scan().children(parent).contains(&me));
        assert!(Listing::Files.children(parent).contains(&me));
    }
}
