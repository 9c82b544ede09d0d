//! Starting a warden: the executable, the socket, the pipes.

use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{PidfdFlags, pidfd_open};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::input::{self, Input};
use super::output::Streams;
use super::warden::pid_of;
use super::watch::Reins;
use super::words::{self, Order};
use super::{CommandSpec, Shared, SpawnError, WardenExe};

/// The binary that wardens are started from.
#[derive(Debug)]
pub(super) struct Executable {
    path: PathBuf,
    identity: Identity,
    /// Keeps `path` valid when it names a descriptor.
    _file: Option<File>,
}

/// Device and inode of a file.
pub(super) type Identity = (u64, u64);

impl Executable {
    pub(super) fn open(executable: WardenExe) -> io::Result<Self> {
        let (path, file) = match executable {
            WardenExe::ThisProcess => {
                let file = File::open("/proc/self/exe")?;
                // Resolved by the child itself just before it executes, when it still has the descriptor.
                (PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())), Some(file))
            }
            WardenExe::Path(path) => (path, None),
        };
        let identity = identity(&path)?;
        Ok(Self { path, identity, _file: file })
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }
}

/// Device and inode of what a path leads to.
pub(super) fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// A command that was started: how it is told, what it prints, where it reads.
pub(super) struct Launched {
    pub(super) reins: Reins,
    pub(super) streams: Streams,
    pub(super) input: Option<Sender>,
}

/// Starts a warden for a command.
pub(super) fn launch(shared: &Shared, spec: &CommandSpec, input: Input) -> Result<Launched, SpawnError> {
    let directory = |source| SpawnError::Directory { directory: spec.cwd.clone(), source };
    // Looked at first, because a failed start does not tell a missing directory from a missing binary.
    let found = fs::metadata(&spec.cwd).map_err(directory)?;
    if !found.is_dir() {
        return Err(directory(io::ErrorKind::NotADirectory.into()));
    }
    if spec.argv.is_empty() {
        let source = io::ErrorKind::InvalidInput.into();
        return Err(SpawnError::Program { program: String::new(), source });
    }
    start(shared, spec, input).map_err(SpawnError::Warden)
}

fn start(shared: &Shared, spec: &CommandSpec, input: Input) -> io::Result<Launched> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let (stdout, stdout_end) = io::pipe()?;
    let (stderr, stderr_end) = io::pipe()?;
    let writer = send_input(&ours, input)?;
    ours.set_nonblocking(true)?;
    let socket = UnixStream::from_std(ours)?;
    let streams = Streams::new(receiver(stdout)?, receiver(stderr)?);
    let order = Order { term: shared.times.term, isolate: spec.isolate, input, argv: spec.argv.clone() };
    let pid = shared.live.birth(|| spawn(shared, spec, &order, (theirs, stdout_end, stderr_end)))?;
    let reins = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from);
    let reins = reins.and_then(|pidfd| Reins::new(socket, pid, pidfd));
    // Without its socket the warden ends its command and itself; it is reaped later.
    let reins = reins.inspect_err(|_| shared.live.abandoned(pid))?;
    Ok(Launched { reins, streams, input: writer })
}

/// Makes the pipe that the command reads from, and sends its reading end ahead of the warden's birth.
fn send_input(socket: &std::os::unix::net::UnixStream, input: Input) -> io::Result<Option<Sender>> {
    match input {
        Input::Null => Ok(None),
        Input::Pipe => {
            let (reader, writer) = io::pipe()?;
            input::give(socket, reader)?;
            Ok(Some(Sender::from_owned_fd(OwnedFd::from(writer))?))
        }
    }
}

type TheirEnds = (std::os::unix::net::UnixStream, PipeWriter, PipeWriter);

fn spawn(shared: &Shared, spec: &CommandSpec, order: &Order, ends: TheirEnds) -> io::Result<rustix::process::Pid> {
    let (stdin, stdout, stderr) = ends;
    #[expect(clippy::disallowed_methods, reason = "this is the one place where wardens are born")]
    let mut command = Command::new(&shared.executable.path);
    command
        .arg0(words::PROCESS_NAME)
        .args(order.to_args())
        .current_dir(&spec.cwd)
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .stdin(OwnedFd::from(stdin))
        .stdout(stdout)
        .stderr(stderr);
    let child = command.spawn()?;
    pid_of(child.id())
}

fn receiver(reader: PipeReader) -> io::Result<Receiver> {
    Receiver::from_owned_fd(OwnedFd::from(reader))
}
