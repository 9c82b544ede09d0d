//! The Unix socket in the data directory: how it is made, and which processes may use it.
//!
//! Processes of the same user and of root may, but for those that the daemon itself has started: the commands of agents are
//! processes of the same user, too.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::{geteuid, getpid};
use tokio::net::{UnixListener, UnixStream};

/// The socket's name in the data directory.
pub const SOCKET_FILE: &str = "quell.sock";
/// While it is made.
const NEW_FILE: &str = "quell.sock.new";
/// Parents that are looked at before a process counts as one that cannot be told.
const MOST_PARENTS: usize = 4096;
/// A process whose parent ends while it is looked at has another one then.
const LOOKS: usize = 8;

/// The socket of a data directory, removed when dropped.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    /// The directory: a path through its descriptor is short, whatever the directory is called.
    directory: File,
    /// Device and number of the socket's file.
    own: (u64, u64),
}

impl LocalListener {
    /// Makes the socket, in the place of one that a killed daemon left. The caller holds the lock of the directory, so that no
    /// living daemon has one there.
    ///
    /// # Errors
    /// What the system says; some file systems have no sockets.
    pub fn bind(data_dir: &Path) -> io::Result<Self> {
        let directory = File::open(data_dir)?;
        let (new, path) = (within(&directory, NEW_FILE), within(&directory, SOCKET_FILE));
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&new)?;
        // Who connects before this is looked at all the same.
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
        let own = identity(&new)?;
        fs::rename(&new, &path)?;
        Ok(Self { listener, directory, own })
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        let path = within(&self.directory, SOCKET_FILE);
        // The next daemon may have put its own there already.
        if identity(&path).ok() == Some(self.own) {
            // One that stays is replaced by the next daemon.
            let _ = fs::remove_file(path);
        }
    }
}

/// A file of a directory by a path that is short enough for the address of a socket.
fn within(directory: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// A process of the same user, or of root, that this daemon has not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalPeer {
    /// Its number; none for one that is outside of this container.
    pub(crate) pid: Option<i32>,
}

/// Looks at who connected: the peer, or why it may not use the socket.
///
/// # Errors
/// When the process cannot be looked at for want of descriptors.
pub(super) fn check(stream: &UnixStream) -> io::Result<Result<LocalPeer, String>> {
    let found = stream.peer_cred()?;
    if found.uid() != geteuid().as_raw() && found.uid() != 0 {
        return Ok(Err("this socket is for the user of the daemon; use the daemon's address and a token".to_owned()));
    }
    // What has no number here is outside of this container, and was not started by what is inside.
    let Some(pid) = found.pid().filter(|pid| *pid > 0) else { return Ok(Ok(LocalPeer { pid: None })) };
    let own = getpid().as_raw_nonzero().get();
    Ok(match ancestry(pid, own, parent_of)? {
        Ancestry::Foreign => Ok(LocalPeer { pid: Some(pid) }),
        Ancestry::Descendant => {
            Err("this socket is not for what the daemon has started itself; use its address and a token".to_owned())
        }
        // A daemon that sees no processes of others does not see root's; what is root's needs no socket to end it.
        Ancestry::Unknown if found.uid() == 0 && !geteuid().is_root() => Ok(LocalPeer { pid: Some(pid) }),
        Ancestry::Unknown => Err(format!("process {pid} cannot be looked at; use the daemon's address and a token")),
    })
}

/// How a process is related to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ancestry {
    Foreign,
    Descendant,
    /// It is gone, or hidden.
    Unknown,
}

/// Follows the parents of `pid` up to `own` or to the first process.
fn ancestry(pid: i32, own: i32, parent_of: impl Fn(i32) -> io::Result<Option<i32>>) -> io::Result<Ancestry> {
    'look: for _ in 0..LOOKS {
        let mut at = pid;
        for _ in 0..MOST_PARENTS {
            if at == own {
                return Ok(if pid == own { Ancestry::Foreign } else { Ancestry::Descendant });
            }
            match parent_of(at)? {
                None if at == pid => return Ok(Ancestry::Unknown),
                // Gone in this moment: its children have another parent by now.
                None => continue 'look,
                Some(0 | 1) if own != 1 => return Ok(Ancestry::Foreign),
                Some(0) => return Ok(Ancestry::Foreign),
                Some(parent) => at = parent,
            }
        }
        return Ok(Ancestry::Unknown);
    }
    Ok(Ancestry::Unknown)
}

/// The parent of a process; none when there is no such process any more.
fn parent_of(pid: i32) -> io::Result<Option<i32>> {
    let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if super::descriptors::are_used_up(&error) => return Err(error),
        Err(_) => return Ok(None),
    };
    // The name in parentheses may hold anything.
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
    #[case::a_shell_of_the_person(50, Ancestry::Foreign)]
    #[case::a_command_under_its_warden(13, Ancestry::Descendant)]
    #[case::an_orphan_that_the_daemon_adopted(14, Ancestry::Descendant)]
    #[case::the_daemon_itself(10, Ancestry::Foreign)]
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
        assert_eq!((of(7), of(21)), (Ancestry::Descendant, Ancestry::Foreign));
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
        let listener = LocalListener::bind(&long).unwrap();
        let mode = fs::metadata(long.join(SOCKET_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let directory = File::open(&long).unwrap();
        let client = UnixStream::connect(within(&directory, SOCKET_FILE)).await.unwrap();
        let server = listener.accept().await.unwrap();
        // Both ends are this process.
        assert!(check(&server).unwrap().is_ok());
        drop(client);
    }

    #[tokio::test]
    async fn what_a_killed_daemon_left_is_replaced_and_a_successor_is_not_removed() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join(SOCKET_FILE);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).await.is_err(), "a socket that nobody listens on");
        let first = LocalListener::bind(dir.path()).unwrap();
        UnixStream::connect(&path).await.unwrap();
        let second = LocalListener::bind(dir.path()).unwrap();
        drop(first);
        UnixStream::connect(&path).await.unwrap();
        drop(second);
        assert!(!path.exists());
    }
}
