//! Find the Unix socket and the process of the daemon of a data directory, and verify who listens at its address.
//!
//! The directory belongs to the user, so whatever answers at the socket in it is the daemon. A port proves nothing:
//! after a daemon has died, any user of the machine may listen there.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

const SOCKET_FILE: &str = "quell.sock";
const LOCK_FILE: &str = "quell.lock";
/// Longest path that fits into a Unix socket address, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// Path of a Unix socket, however long the path of its directory is.
#[derive(Debug, Clone)]
pub(super) struct LocalSocket {
    path: PathBuf,
    /// Keeps `path` valid when it goes through `/proc/self/fd`.
    _directory: Option<Arc<File>>,
}

impl LocalSocket {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn in_data_dir(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join(SOCKET_FILE);
        if path.as_os_str().len() <= MAX_SOCKET_PATH {
            return Ok(Self { path, _directory: None });
        }
        let directory = File::open(data_dir)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_FILE}", directory.as_raw_fd()));
        Ok(Self { path, _directory: Some(Arc::new(directory)) })
    }

    fn connect(&self) -> Result<UnixStream, Errno> {
        let (flags, address) = (SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, SocketAddrUnix::new(&self.path)?);
        let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)?;
        Ok(socket.into())
    }
}

/// Finds the socket of a data directory and the process that listens there; none when nobody listens. Needs a tokio
/// runtime.
///
/// # Errors
/// Says why the listener is not trusted.
pub(super) fn find_daemon_socket(data_dir: &Path) -> Result<Option<(LocalSocket, Option<DaemonProcess>)>, String> {
    let Ok(socket) = LocalSocket::in_data_dir(data_dir) else { return Ok(None) };
    let stream = match socket.connect() {
        Ok(stream) => stream,
        // The backlog is full: the daemon is stopped or hangs. Its lock names its process.
        Err(Errno::AGAIN) => return Ok(Some((socket, lock_holder(data_dir).flatten()))),
        Err(_) => return Ok(None),
    };
    let listening = tokio::net::UnixStream::from_std(stream).and_then(|stream| stream.peer_cred());
    let listening = listening.map_err(|error| format!("{}: {error}", data_dir.join(SOCKET_FILE).display()))?;
    if !is_trusted(data_dir, listening.uid()) {
        return Err(format!("{} belongs to user {}", data_dir.join(SOCKET_FILE).display(), listening.uid()));
    }
    Ok(Some((socket, listening.pid().and_then(DaemonProcess::open_process))))
}

/// Verifies that the listener at this address is the daemon of this data directory, as far as another user could listen
/// there. Returns its process, if known.
///
/// # Errors
/// Says why it is not; the caller appends "so no token was sent".
pub(super) fn verify_daemon_listener(
    data_dir: &Path,
    host: Option<IpAddr>,
    port: u16,
) -> Result<Option<DaemonProcess>, String> {
    let Some(holder) = lock_holder(data_dir) else {
        return Err(format!("no daemon uses the data directory {} any more", data_dir.display()));
    };
    let listeners = listening_uids(host, port);
    if let Some(uid) = listeners.iter().find(|uid| !is_trusted(data_dir, **uid)) {
        return Err(format!("user {uid} listens on port {port}, not the daemon of {}", data_dir.display()));
    }
    if listeners.is_empty() {
        return Err(format!("nobody listens on port {port} any more"));
    }
    Ok(holder)
}

/// True for root, this user and the owner of the data directory.
fn is_trusted(data_dir: &Path, uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw() || fs::metadata(data_dir).is_ok_and(|found| found.uid() == uid)
}

/// Finds who holds the lock of a data directory, by trying to take it. The kernel releases the lock of a dead process.
fn lock_holder(data_dir: &Path) -> Option<Option<DaemonProcess>> {
    let mut file = File::open(data_dir.join(LOCK_FILE)).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let _ = (&mut file).take(32).read_to_string(&mut text);
            Some(text.trim().parse().ok().and_then(DaemonProcess::open_process))
        }
        _ => None,
    }
}

/// User ids of the listeners on a port of this machine, at this address or at every address.
fn listening_uids(host: Option<IpAddr>, port: u16) -> Vec<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(parse_listener_row);
    let fits = |at: IpAddr| at.is_unspecified() || host.map_or(at.is_loopback(), |host| host.to_canonical() == at);
    rows.filter(|(at, of, _)| *of == port && fits(at.to_canonical())).map(|(_, _, uid)| uid).collect()
}

/// Parses address, port and user of a listening socket from a row of `/proc/net/tcp`.
fn parse_listener_row(row: &str) -> Option<(IpAddr, u16, u32)> {
    const LISTEN_STATE: &str = "0A";
    let fields: Vec<&str> = row.split_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    if *fields.get(3)? != LISTEN_STATE {
        return None;
    }
    // Words of four bytes in the byte order of this machine.
    let words = (0..address.len() / 8).map(|n| u32::from_str_radix(address.get(n * 8..n * 8 + 8)?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let address = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::from(four),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?),
    };
    Some((address, u16::from_str_radix(port, 16).ok()?, fields.get(7)?.parse().ok()?))
}

/// The process of a daemon on this machine. Clones refer to the same process.
#[derive(Debug, Clone)]
pub(crate) struct DaemonProcess {
    pid: i32,
    /// Identifies the process even after its pid is reused.
    process: Arc<OwnedFd>,
}

impl DaemonProcess {
    fn open_process(pid: i32) -> Option<Self> {
        let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        Some(Self { pid, process: Arc::new(process) })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Resumes the process if it was stopped (`kill -STOP`), so that it handles the next request.
    pub(super) fn continue_if_stopped(&self) {
        if self.read_kernel_state().is_some_and(|state| matches!(state, 'T' | 't')) {
            // Fails if the daemon belongs to another user, who then sees that it does not answer.
            let _ = pidfd_send_signal(&self.process, Signal::CONT);
        }
    }

    /// Asks the daemon to shut down, which stops everything.
    ///
    /// # Errors
    /// The signal failed; the process may belong to another user.
    pub(crate) fn terminate(&self) -> io::Result<()> {
        pidfd_send_signal(&self.process, Signal::TERM)?;
        Ok(pidfd_send_signal(&self.process, Signal::CONT)?)
    }

    pub(crate) fn has_exited(&self) -> bool {
        matches!(self.read_kernel_state(), None | Some('Z' | 'X'))
    }

    fn read_kernel_state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::TcpListener;

    use rustix::fs::FlockOperation;
    use tempfile::TempDir;

    use super::*;

    /// Creates the lock of a live daemon, with its pid in it.
    pub(in crate::daemon_client) fn lock(data_dir: &Path) -> File {
        let path = data_dir.join(LOCK_FILE);
        fs::write(&path, format!("{}\n", std::process::id())).unwrap();
        let file = File::open(path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    }

    fn is_this_process(found: Option<DaemonProcess>) -> bool {
        found.is_some_and(|found| u32::try_from(found.pid()) == Ok(std::process::id()))
    }

    #[test]
    fn a_row_of_the_kernel_says_who_listens_where() {
        let v4 = "   0: 0100007F:1C03 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0";
        assert_eq!(parse_listener_row(v4), Some(("127.0.0.1".parse().unwrap(), 7171, 1000)));
        let v6 = "   1: 00000000000000000000000001000000:1C03 00000000000000000000000000000000:0000 0A 0:0 00:0 0     0        0 4712 1";
        assert_eq!(parse_listener_row(v6), Some(("::1".parse().unwrap(), 7171, 0)));
        assert_eq!(parse_listener_row(&v4.replace(" 0A ", " 01 ")), None);
    }

    #[test]
    fn an_address_is_proven_by_the_lock_and_by_its_owner() {
        let (dir, listener) = (TempDir::new().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let prove = || verify_daemon_listener(dir.path(), Some(address.ip()), address.port());
        assert!(prove().unwrap_err().contains("no daemon uses"), "without a lock nobody is there");
        let held = lock(dir.path());
        assert!(is_this_process(prove().unwrap()));
        drop(listener);
        assert!(prove().unwrap_err().contains("nobody listens"));
        drop(held);
    }

    #[tokio::test]
    async fn the_socket_names_the_process_behind_it() {
        let dir = TempDir::new().unwrap();
        assert!(find_daemon_socket(dir.path()).unwrap().is_none(), "there is no socket");
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET_FILE)).unwrap();
        let (_, process) = find_daemon_socket(dir.path()).unwrap().unwrap();
        assert!(is_this_process(process));
        drop(listener);
        assert!(find_daemon_socket(dir.path()).unwrap().is_none(), "nobody listens there any more");
    }

    #[tokio::test]
    async fn a_socket_that_takes_no_more_is_known_by_the_lock() {
        let dir = TempDir::new().unwrap();
        let _held = lock(dir.path());
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET_FILE)).unwrap();
        let socket = LocalSocket::in_data_dir(dir.path()).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = socket.connect() {
            waiting.push(stream);
        }
        let (_, process) = find_daemon_socket(dir.path()).unwrap().unwrap();
        assert!(is_this_process(process));
    }
}
