//! Reads `/proc`. A process that ends while it is read counts as gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// A process, as the system shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Its session.
    pub session: u32,
    /// The system's letter for its state; `Z` waits to be reaped.
    pub state: char,
    /// Its arguments, joined; its short name in brackets where it has none.
    pub command: String,
}

/// One process; `None` when it is gone.
#[must_use]
pub fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, so the fields are counted from its last bracket.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&arguments).replace('\0', " ").trim().to_owned();
    let command = if text.is_empty() { format!("[{name}]") } else { text };
    Some(Process { pid, parent, group, session, state, command })
}

fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A process of a storm lives for a millisecond: it is looked at before the many that have been there for long.
fn newest_first() -> impl Iterator<Item = u32> {
    pids().into_iter().rev()
}

/// Living processes with this exact entry in the environment they were started with.
#[must_use]
pub fn with_environment(entry: &str) -> Vec<Process> {
    let holds = |pid: &u32| has_entry(*pid, entry);
    newest_first().filter(holds).filter_map(process).collect()
}

fn has_entry(pid: u32, entry: &str) -> bool {
    let environment = memory_of(pid, "environ");
    environment.split(|byte| *byte == 0).any(|held| held == entry.as_bytes())
}

/// Living processes with this text anywhere in their environment or arguments.
#[must_use]
pub fn marked(marker: &str) -> Vec<Process> {
    let holds = |pid: &u32| is_marked(*pid, marker);
    newest_first().filter(holds).filter_map(process).collect()
}

/// Every word beginning with `prefix` in the environment or arguments of a living process, with who carries it: one look for
/// many markers.
#[must_use]
pub fn marks(prefix: &str) -> Vec<(String, Process)> {
    let mut found = Vec::new();
    for pid in pids() {
        let mut carried = BTreeSet::new();
        for file in ["environ", "cmdline"] {
            let bytes = memory_of(pid, file);
            let text = String::from_utf8_lossy(&bytes);
            carried.extend(text.match_indices(prefix).map(|(at, _)| word_at(&text, at)));
        }
        if !carried.is_empty()
            && let Some(process) = process(pid)
        {
            found.extend(carried.into_iter().map(|mark| (mark, process.clone())));
        }
    }
    found
}

fn word_at(text: &str, at: usize) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    text.get(at..).unwrap_or_default().chars().take_while(|c| plain(*c)).collect()
}

/// A file that shows the memory of a process, `environ` or `cmdline`. One whose first thread has left looks dead and empty while
/// others go on: then one of those shows it.
fn memory_of(pid: u32, file: &str) -> Vec<u8> {
    match threads_beside_a_dead_first(pid) {
        None => return fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default(),
        // Nothing but to be reaped. An init that does not may leave thousands of them, and this look has to stay quick.
        Some(0) => return Vec::new(),
        Some(_) => {}
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut shown = threads.filter_map(|thread| fs::read(thread.path().join(file)).ok());
    shown.find(|bytes| !bytes.is_empty()).unwrap_or_default()
}

/// How many threads a process has besides its first, if that one is dead; none when it is alive.
fn threads_beside_a_dead_first(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_dead = fields.next()? == "Z";
    // Field 20 of proc_pid_stat(5); the last one read is field 3.
    let threads: u32 = fields.nth(16)?.parse().ok()?;
    is_dead.then(|| threads.saturating_sub(1))
}

pub(crate) fn is_marked(pid: u32, marker: &str) -> bool {
    let found = |file: &str| {
        let bytes = memory_of(pid, file);
        bytes.windows(marker.len()).any(|window| window == marker.as_bytes())
    };
    !marker.is_empty() && (found("environ") || found("cmdline"))
}

/// Direct children, unreaped ones included.
#[must_use]
pub fn children_of(pid: u32) -> Vec<Process> {
    pids().into_iter().filter_map(process).filter(|process| process.parent == pid).collect()
}

/// Members of a process group, unreaped ones included.
#[must_use]
pub fn group_of(group: u32) -> Vec<Process> {
    pids().into_iter().filter_map(process).filter(|process| process.group == group).collect()
}

/// Children and their children, unreaped ones included. Those whose parent has ended belong to whoever adopted them.
#[must_use]
pub fn descendants_of(pid: u32) -> Vec<Process> {
    let mut by_parent: HashMap<u32, Vec<Process>> = HashMap::new();
    for process in pids().into_iter().filter_map(process) {
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

/// Open descriptors by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptors {
    /// Sockets.
    pub sockets: usize,
    /// Pipes.
    pub pipes: usize,
    /// Files, directories and devices.
    pub files: usize,
    /// Process descriptors.
    pub pidfds: usize,
    /// Everything else without a name in the file system: epoll, eventfd, timerfd, memfd.
    pub anonymous: usize,
}

impl Descriptors {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> usize {
        self.sockets + self.pipes + self.files + self.pidfds + self.anonymous
    }
}

/// Counts the open descriptors of a process.
///
/// # Errors
/// When the process is gone, or is not ours to look into (a non-dumpable one shows them to root only).
pub fn descriptors_of(pid: u32) -> io::Result<Descriptors> {
    let mut found = Descriptors::default();
    for target in targets(pid)? {
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

fn targets(pid: u32) -> io::Result<Vec<String>> {
    let folder = format!("/proc/{pid}/fd");
    // The descriptor that reads the own folder is gone again when its link would be read.
    let links = fs::read_dir(folder)?.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let own = format!("/proc/{pid}/fd");
    Ok(links.map(|target| target.to_string_lossy().into_owned()).filter(|target| *target != own).collect())
}

/// States of a TCP socket that tests ask about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpState {
    /// Both sides are there.
    Established,
    /// The handshake has no answer yet.
    Connecting,
    /// Waits for connections.
    Listening,
    /// The other side has closed, this one has not.
    CloseWait,
    /// Anything on its way out.
    Closing,
}

/// A TCP socket of this network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketRow {
    /// Its own address.
    pub local: SocketAddr,
    /// The other side's.
    pub remote: SocketAddr,
    /// Its state.
    pub state: TcpState,
    /// Names it among the descriptors; 0 when no process holds it.
    pub inode: u64,
}

/// Every TCP socket of this network namespace.
#[must_use]
pub fn tcp_sockets() -> Vec<SocketRow> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(socket_row).collect()
}

fn socket_row(line: &str) -> Option<SocketRow> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let state = match *fields.get(3)? {
        "01" => TcpState::Established,
        "02" => TcpState::Connecting,
        "08" => TcpState::CloseWait,
        "0A" => TcpState::Listening,
        _ => TcpState::Closing,
    };
    let inode = fields.get(9)?.parse().ok()?;
    Some(SocketRow { local: address(fields.get(1)?)?, remote: address(fields.get(2)?)?, state, inode })
}

/// Addresses stand in words of 32 bits in the machine's own order.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for at in (0..host.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(host.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    if let Ok(four) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some((Ipv4Addr::from(four), port).into());
    }
    Some((Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?), port).into())
}

/// The TCP sockets that a process holds.
///
/// # Errors
/// As [`descriptors_of`].
pub fn sockets_of(pid: u32) -> io::Result<Vec<SocketRow>> {
    let table: BTreeMap<String, SocketRow> =
        tcp_sockets().into_iter().map(|row| (format!("socket:[{}]", row.inode), row)).collect();
    Ok(targets(pid)?.iter().filter_map(|target| table.get(target).copied()).collect())
}

/// Resident memory in bytes; `None` when the process is gone.
#[must_use]
pub fn rss_bytes(pid: u32) -> Option<u64> {
    status(pid, "VmRSS:").map(|kib| kib * 1024)
}

/// Number of threads; `None` when the process is gone.
#[must_use]
pub fn threads_of(pid: u32) -> Option<u64> {
    status(pid, "Threads:")
}

fn status(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
