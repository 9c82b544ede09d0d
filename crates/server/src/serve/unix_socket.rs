//! Create the Unix socket of the data directory and authorize the connecting process.
//!
//! Processes of the same user and of root may use it, except those that the daemon itself has started: the commands of
//! agents are processes of the same user, too.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::{geteuid, getpid};
use tokio::net::{UnixListener, UnixStream};

pub const SOCKET_FILE: &str = "quell.sock";
/// Name of the socket until it is complete and renamed.
const NEW_SOCKET_FILE: &str = "quell.sock.new";
/// Maximum number of ancestors to follow before the result is unknown.
const MAX_ANCESTORS: usize = 4096;
/// Maximum number of restarts: a process gets another parent if its parent ends during the check.
const MAX_ATTEMPTS: usize = 8;

/// The socket of a data directory, removed when dropped.
#[derive(Debug)]
pub struct UnixSocketListener {
    listener: UnixListener,
    /// The data directory. A path through its descriptor is short enough for a socket address, whatever the directory's
    /// name.
    directory: File,
    /// Device and inode of the socket file.
    socket_id: (u64, u64),
}

impl UnixSocketListener {
    /// Creates the socket and replaces one that a killed daemon left. The caller must hold the lock of the directory,
    /// so that no running daemon has a socket there.
    ///
    /// # Errors
    /// An IO error, also on file systems that support no sockets.
    pub fn bind(data_dir: &Path) -> io::Result<Self> {
        let directory = File::open(data_dir)?;
        let (new, path) = (path_in(&directory, NEW_SOCKET_FILE), path_in(&directory, SOCKET_FILE));
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&new)?;
        // A connection before this call is authorized like any other.
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
        let socket_id = device_and_inode(&new)?;
        fs::rename(&new, &path)?;
        Ok(Self { listener, directory, socket_id })
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for UnixSocketListener {
    fn drop(&mut self) {
        let path = path_in(&self.directory, SOCKET_FILE);
        // The next daemon may have created its own socket already.
        if device_and_inode(&path).ok() == Some(self.socket_id) {
            // If the removal fails, the next daemon replaces the file.
            let _ = fs::remove_file(path);
        }
    }
}

/// The path of a file in the directory, short enough for a socket address.
fn path_in(directory: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// A process of the same user, or of root, that this daemon has not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnixPeer {
    /// `None` for a process outside of this container.
    pub(crate) pid: Option<i32>,
}

/// Authorizes the connected process. The inner error says why it may not use the socket.
///
/// # Errors
/// The process could not be inspected for lack of descriptors.
pub(super) fn authorize_peer(stream: &UnixStream) -> io::Result<Result<UnixPeer, String>> {
    let credentials = stream.peer_cred()?;
    if credentials.uid() != geteuid().as_raw() && credentials.uid() != 0 {
        return Ok(Err("this socket is for the user of the daemon; use the daemon's address and a token".to_owned()));
    }
    // A process without a PID here is outside of this container, so nothing inside has started it.
    let Some(pid) = credentials.pid().filter(|pid| *pid > 0) else { return Ok(Ok(UnixPeer { pid: None })) };
    let own = getpid().as_raw_nonzero().get();
    Ok(match ancestry(pid, own, parent_of)? {
        Ancestry::Unrelated => Ok(UnixPeer { pid: Some(pid) }),
        Ancestry::Descendant => {
            Err("processes that the daemon has started may not use this socket; use the daemon's address and a token"
                .to_owned())
        }
        // A daemon that may not see other users' processes does not see root's. A root process could kill the daemon
        // without the socket.
        Ancestry::Unknown if credentials.uid() == 0 && !geteuid().is_root() => Ok(UnixPeer { pid: Some(pid) }),
        Ancestry::Unknown => Err(format!("process {pid} cannot be inspected; use the daemon's address and a token")),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ancestry {
    Unrelated,
    Descendant,
    /// The process has ended or is hidden.
    Unknown,
}

/// Follows the parents of `pid` up to `own` or to process 1.
fn ancestry(pid: i32, own: i32, parent_of: impl Fn(i32) -> io::Result<Option<i32>>) -> io::Result<Ancestry> {
    'retry: for _ in 0..MAX_ATTEMPTS {
        let mut at = pid;
        for _ in 0..MAX_ANCESTORS {
            if at == own {
                return Ok(if pid == own { Ancestry::Unrelated } else { Ancestry::Descendant });
            }
            match parent_of(at)? {
                None if at == pid => return Ok(Ancestry::Unknown),
                // It has just ended: its children have another parent by now.
                None => continue 'retry,
                Some(0 | 1) if own != 1 => return Ok(Ancestry::Unrelated),
                Some(0) => return Ok(Ancestry::Unrelated),
                Some(parent) => at = parent,
            }
        }
        return Ok(Ancestry::Unknown);
    }
    Ok(Ancestry::Unknown)
}

/// The parent of a process; `None` if the process does not exist any more.
fn parent_of(pid: i32) -> io::Result<Option<i32>> {
    let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if super::descriptors::is_out_of_descriptors(&error) => return Err(error),
        Err(_) => return Ok(None),
    };
    // The name in parentheses may contain any character.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    Ok(fields.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rstest::rstest;
    use tempfile::TempDir;

    use super::*;

    #[rstest]
    #[case::a_shell_of_the_person(50, Ancestry::Unrelated)]
    #[case::a_command_under_its_warden(13, Ancestry::Descendant)]
    #[case::an_orphan_that_the_daemon_adopted(14, Ancestry::Descendant)]
    #[case::the_daemon_itself(10, Ancestry::Unrelated)]
    #[case::one_that_is_gone(99, Ancestry::Unknown)]
    fn the_commands_of_agents_are_told_from_others(#[case] pid: i32, #[case] wanted: Ancestry) {
        let parents: HashMap<i32, i32> =
            [(10, 5), (5, 1), (11, 10), (12, 11), (13, 12), (14, 10), (50, 49), (49, 1)].into();
        assert_eq!(ancestry(pid, 10, |pid| Ok(parents.get(&pid).copied())).unwrap(), wanted);
    }

    #[test]
    fn a_daemon_that_is_the_first_process_knows_its_own() {
        let parents: HashMap<i32, i32> = [(1, 0), (7, 1), (20, 0), (21, 20)].into();
        let of = |pid| ancestry(pid, 1, |pid| Ok(parents.get(&pid).copied())).unwrap();
        assert_eq!((of(7), of(21)), (Ancestry::Descendant, Ancestry::Unrelated));
    }

    #[test]
    fn this_process_has_the_parent_that_the_system_names() {
        let own = getpid().as_raw_nonzero().get();
        let parent = std::os::unix::process::parent_id();
        assert_eq!(parent_of(own).unwrap(), i32::try_from(parent).ok());
        assert_eq!(parent_of(i32::MAX).unwrap(), None);
    }

    #[tokio::test]
    async fn a_socket_is_made_below_a_path_that_is_too_long_for_one() {
        let dir = TempDir::new().unwrap();
        let long = dir.path().join("x".repeat(200)).join("y".repeat(100));
        fs::create_dir_all(&long).unwrap();
        let listener = UnixSocketListener::bind(&long).unwrap();
        let mode = fs::metadata(long.join(SOCKET_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let directory = File::open(&long).unwrap();
        let client = UnixStream::connect(path_in(&directory, SOCKET_FILE)).await.unwrap();
        let server = listener.accept().await.unwrap();
        // Both ends are this process.
        assert!(authorize_peer(&server).unwrap().is_ok());
        drop(client);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_successors_is_kept() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join(SOCKET_FILE);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).await.is_err(), "a socket that nobody listens on");
        let first = UnixSocketListener::bind(dir.path()).unwrap();
        UnixStream::connect(&path).await.unwrap();
        let second = UnixSocketListener::bind(dir.path()).unwrap();
        drop(first);
        UnixStream::connect(&path).await.unwrap();
        drop(second);
        assert!(!path.exists());
    }
}
