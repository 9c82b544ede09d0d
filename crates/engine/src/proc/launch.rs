//! Starting a warden: the executable, the socket, the pipes.

use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{PidfdFlags, pidfd_open};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::input::{self, Input};
use super::output::Streams;
use super::start::pid_of;
use super::watch::Reins;
use super::words::{self, Order};
use super::{CommandSpec, RUN_ID_VARIABLE, Shared, SpawnError, WardenExe, births};

/// The binary that wardens are started from.
#[derive(Debug)]
pub(super) struct Executable {
    path: PathBuf,
    /// Keeps `path` valid when it names a descriptor.
    _file: Option<File>,
}

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
        Ok(Self { path, _file: file })
    }
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
    let order = Order {
        term: shared.times.term,
        isolate: spec.isolate,
        input,
        argv: spec.argv.clone(),
        env: spec.env.clone(),
        open_files: shared.open_files,
        record: shared.record.is_some(),
    };
    // They wait in the socket for the warden.
    input::send_descriptor(&ours, order.to_file()?)?;
    let writer = send_input(&ours, input)?;
    if let Some(record) = &shared.record {
        input::send_descriptor(&ours, record.as_ref())?;
    }
    ours.set_nonblocking(true)?;
    let socket = UnixStream::from_std(ours)?;
    let streams = Streams::new(receiver(stdout)?, receiver(stderr)?);
    let pid = births::note(|| spawn(shared, spec, (theirs, stdout_end, stderr_end)))?;
    if let Some(record) = &shared.record {
        record.born(pid, spec.run_id());
    }
    let reins = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from);
    let reins = reins.and_then(|pidfd| Reins::new(socket, pid, pidfd));
    // Without its socket the warden ends its command and itself; it is reaped later.
    let reins = reins.inspect_err(|_| births::abandon(pid))?;
    Ok(Launched { reins, streams, input: writer })
}

/// Makes the pipe that the command reads from, and sends its reading end.
fn send_input(socket: &std::os::unix::net::UnixStream, input: Input) -> io::Result<Option<Sender>> {
    match input {
        Input::Null => Ok(None),
        Input::Pipe => {
            let (reader, writer) = io::pipe()?;
            input::send_descriptor(socket, reader)?;
            Ok(Some(Sender::from_owned_fd(OwnedFd::from(writer))?))
        }
    }
}

type TheirEnds = (std::os::unix::net::UnixStream, PipeWriter, PipeWriter);

fn spawn(shared: &Shared, spec: &CommandSpec, ends: TheirEnds) -> io::Result<rustix::process::Pid> {
    let (stdin, stdout, stderr) = ends;
    #[expect(clippy::disallowed_methods, reason = "this is the one place where wardens are born")]
    let mut command = Command::new(&shared.executable.path);
    command
        .arg0(words::PROCESS_NAME)
        .arg(words::WARDEN)
        .current_dir(&spec.cwd)
        .env_clear()
        // What it may show of itself; the rest is in its order.
        .envs(spec.env.iter().filter(|(name, _)| name == RUN_ID_VARIABLE).map(|(name, value)| (name, value)))
        .stdin(OwnedFd::from(stdin))
        .stdout(stdout)
        .stderr(stderr);
    let child = command.spawn()?;
    pid_of(child.id())
}

fn receiver(reader: PipeReader) -> io::Result<Receiver> {
    Receiver::from_owned_fd(OwnedFd::from(reader))
}
