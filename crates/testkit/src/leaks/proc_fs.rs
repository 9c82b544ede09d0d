//! Read `/proc`. A process that ends during the reading counts as gone.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedProcess {
    pub pid: u32,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// State letter of the kernel; `Z` waits to be reaped.
    pub state: char,
    /// Its arguments, joined; its short name in brackets if it has none.
    pub command: String,
}

/// Reads one process; `None` when it is gone.
pub fn read_process(pid: u32) -> Option<ObservedProcess> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything, so fields are counted after its last bracket.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&arguments).replace('\0', " ").trim().to_owned();
    let command = if text.is_empty() { format!("[{name}]") } else { text };
    Some(ObservedProcess { pid, parent, group, session, state, command })
}

fn list_pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A process of a fork storm lives for a millisecond, so it is read before the many old ones.
fn pids_newest_first() -> impl Iterator<Item = u32> {
    list_pids().into_iter().rev()
}

/// Live processes that were started with this exact environment entry.
pub fn processes_with_env(entry: &str) -> Vec<ObservedProcess> {
    let holds = |pid: &u32| has_env_entry(*pid, entry);
    pids_newest_first().filter(holds).filter_map(read_process).collect()
}

fn has_env_entry(pid: u32, entry: &str) -> bool {
    let environment = read_proc_file(pid, "environ");
    environment.split(|byte| *byte == 0).any(|held| held == entry.as_bytes())
}

/// Live processes with this text anywhere in their environment or arguments.
pub fn processes_with_marker(marker: &str) -> Vec<ObservedProcess> {
    let holds = |pid: &u32| has_marker(*pid, marker);
    pids_newest_first().filter(holds).filter_map(read_process).collect()
}

/// Every word that begins with `prefix` in the environment or arguments of a live process, with its processes: one
/// scan for many markers.
pub fn processes_by_marker(prefix: &str) -> HashMap<String, Vec<ObservedProcess>> {
    let mut found: HashMap<String, Vec<ObservedProcess>> = HashMap::new();
    for pid in list_pids() {
        let mut carried = BTreeSet::new();
        for file in ["environ", "cmdline"] {
            let bytes = read_proc_file(pid, file);
            let text = String::from_utf8_lossy(&bytes);
            carried.extend(text.match_indices(prefix).map(|(at, _)| marker_at(&text, at)));
        }
        if !carried.is_empty()
            && let Some(process) = read_process(pid)
        {
            carried.into_iter().for_each(|mark| found.entry(mark).or_default().push(process.clone()));
        }
    }
    found
}

fn marker_at(text: &str, at: usize) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    text.get(at..).unwrap_or_default().chars().take_while(|c| plain(*c)).collect()
}

/// Reads `environ` or `cmdline` of a process. If the first thread has exited, the process looks dead and empty while
/// other threads live; then a live thread's file is read.
fn read_proc_file(pid: u32, file: &str) -> Vec<u8> {
    match threads_beside_dead_leader(pid) {
        None => return fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default(),
        // A zombie. An init that does not reap may leave thousands of them, and the scan must stay quick.
        Some(0) => return Vec::new(),
        Some(_) => {}
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut shown = threads.filter_map(|thread| fs::read(thread.path().join(file)).ok());
    shown.find(|bytes| !bytes.is_empty()).unwrap_or_default()
}

/// Number of threads besides the first, if the first is dead; none when it is alive.
fn threads_beside_dead_leader(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_dead = fields.next()? == "Z";
    // Field 20 of proc_pid_stat(5); the last one read is field 3.
    let threads: u32 = fields.nth(16)?.parse().ok()?;
    is_dead.then(|| threads.saturating_sub(1))
}

pub(crate) fn has_marker(pid: u32, marker: &str) -> bool {
    let found = |file: &str| {
        let bytes = read_proc_file(pid, file);
        bytes.windows(marker.len()).any(|window| window == marker.as_bytes())
    };
    !marker.is_empty() && (found("environ") || found("cmdline"))
}

/// Direct children, including zombies.
pub fn children_of(pid: u32) -> Vec<ObservedProcess> {
    list_pids().into_iter().filter_map(read_process).filter(|process| process.parent == pid).collect()
}

/// Members of a process group, including zombies.
pub(crate) fn group_members(group: u32) -> Vec<ObservedProcess> {
    list_pids().into_iter().filter_map(read_process).filter(|process| process.group == group).collect()
}

/// All descendants, including zombies. Processes whose parent has ended belong to their new parent.
pub fn descendants_of(pid: u32) -> Vec<ObservedProcess> {
    let mut by_parent: HashMap<u32, Vec<ObservedProcess>> = HashMap::new();
    for process in list_pids().into_iter().filter_map(read_process) {
        by_parent.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        for child in by_parent.remove(&parent).unwrap_or_default() {
            open.push(child.pid);
            found.push(child);
        }
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DescriptorCounts {
    pub sockets: usize,
    pub pipes: usize,
    /// Files, directories and devices.
    pub files: usize,
    pub pidfds: usize,
    /// All others without a name in the file system: epoll, eventfd, timerfd, memfd.
    pub anonymous: usize,
}

impl DescriptorCounts {
    pub fn total(&self) -> usize {
        self.sockets + self.pipes + self.files + self.pidfds + self.anonymous
    }
}

/// Counts the open descriptors of a process.
///
/// # Errors
/// The process is gone, or may not be inspected (a non-dumpable one only by root).
pub fn count_descriptors(pid: u32) -> io::Result<DescriptorCounts> {
    let mut found = DescriptorCounts::default();
    let folder = format!("/proc/{pid}/fd");
    // The descriptor that reads this process's own directory is closed again when its link would be read.
    let links = fs::read_dir(&folder)?.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    for target in links.map(|target| target.to_string_lossy().into_owned()).filter(|target| *target != folder) {
        let kind = match target.as_str() {
            t if t.starts_with("socket:") => &mut found.sockets,
            t if t.starts_with("pipe:") => &mut found.pipes,
            t if t.starts_with("anon_inode:[pidfd]") || t.starts_with("pidfd:") => &mut found.pidfds,
            t if t.starts_with('/') && !t.starts_with("/memfd:") => &mut found.files,
            _ => &mut found.anonymous,
        };
        *kind += 1;
    }
    Ok(found)
}

/// Number of TCP connections to this local port whose handshake has no answer yet.
pub(crate) fn count_connecting(port: u16) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let remote_port = format!(":{port:04X}");
    let is_connecting = |row: &&str| {
        let mut fields = row.split_ascii_whitespace().skip(2);
        fields.next().is_some_and(|remote| remote.ends_with(&remote_port)) && fields.next() == Some("02")
    };
    table.lines().filter(is_connecting).count()
}

/// Resident memory in bytes; `None` when the process is gone.
pub fn rss_bytes(pid: u32) -> Option<u64> {
    read_status_field(pid, "VmRSS:").map(|kib| kib * 1024)
}

/// The part of the resident memory that no file holds, in bytes; `None` when the process is gone.
pub fn anonymous_bytes(pid: u32) -> Option<u64> {
    read_status_field(pid, "RssAnon:").map(|kib| kib * 1024)
}

/// Number of threads; `None` when the process is gone.
pub fn threads_of(pid: u32) -> Option<u64> {
    read_status_field(pid, "Threads:")
}

fn read_status_field(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
