//! Start a warden: executable, socket, pipes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{PidfdFlags, pidfd_open};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::command_start::pid_from_u32;
use super::fd_passing::{self, CommandInput};
use super::output::OutputPipes;
use super::warden_protocol::{self, LaunchRequest};
use super::warden_watch::WardenControl;
use super::{CommandSpec, PROXY_PORT, RUN_ID_VARIABLE, SpawnError, WardenExe, WardensInner, live_wardens};

#[derive(Debug)]
pub(super) struct WardenExecutable {
    path: PathBuf,
    /// Keeps `path` valid when it names a descriptor.
    _file: Option<File>,
}

impl WardenExecutable {
    pub(super) fn open(executable: WardenExe) -> io::Result<Self> {
        let (path, file) = match executable {
            WardenExe::ThisProcess => {
                let file = File::open("/proc/self/exe")?;
                // The child resolves the path just before it executes the file; it still has the descriptor then.
                (PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())), Some(file))
            }
            WardenExe::Path(path) => (path, None),
        };
        Ok(Self { path, _file: file })
    }
}

/// A started command: its control, its output pipes, its standard input.
pub(super) struct LaunchedCommand {
    pub(super) control: WardenControl,
    pub(super) streams: OutputPipes,
    pub(super) input: Option<Sender>,
    /// The socket on which the init of the command's namespace sends the listener of the proxy.
    pub(super) listener_socket: Option<UnixStream>,
}

pub(super) fn launch(
    shared: &WardensInner,
    spec: &CommandSpec,
    input: CommandInput,
) -> Result<LaunchedCommand, SpawnError> {
    if shared.lifetime_limit.has_passed() {
        return Err(SpawnError::LifetimeOver);
    }
    let directory = |source| SpawnError::Directory { directory: spec.cwd.clone(), source };
    // Checked first, because a failed start does not tell a missing directory from a missing executable.
    let metadata = fs::metadata(&spec.cwd).map_err(directory)?;
    if !metadata.is_dir() {
        return Err(directory(io::ErrorKind::NotADirectory.into()));
    }
    if spec.argv.is_empty() {
        let source = io::ErrorKind::InvalidInput.into();
        return Err(SpawnError::Program { program: String::new(), source });
    }
    if let Some(problem) = spec.sandbox.as_ref().and_then(|sandbox| sandbox.create_temporary_directory().err()) {
        return Err(SpawnError::Sandbox { problem });
    }
    start_warden(shared, spec, input).map_err(SpawnError::Warden)
}

fn start_warden(shared: &WardensInner, spec: &CommandSpec, input: CommandInput) -> io::Result<LaunchedCommand> {
    let (daemon_end, warden_end) = std::os::unix::net::UnixStream::pair()?;
    let listener_pair = spec.network.as_ref().map(|_| std::os::unix::net::UnixStream::pair()).transpose()?;
    let session_network = spec.network_to_share();
    let proxy = spec
        .network
        .as_ref()
        .map(|_| session_network.map_or(Ipv4Addr::LOCALHOST, |session_network| session_network.next_proxy_address()));
    let (stdout, stdout_end) = io::pipe()?;
    let (stderr, stderr_end) = io::pipe()?;
    let request = LaunchRequest {
        term: shared.times.term,
        isolate: spec.isolate,
        sandbox: spec.sandbox.clone(),
        input,
        argv: spec.argv.clone(),
        env: spec.env.iter().cloned().chain(network_variables(spec, proxy)).collect(),
        open_files: shared.open_files,
        record: shared.warden_record.is_some(),
        proxy,
        shares_network: session_network.is_some(),
    };
    // The descriptors wait in the socket until the warden reads them.
    fd_passing::send_descriptor(&daemon_end, request.to_file()?)?;
    shared.lifetime_limit.send_to(&daemon_end)?;
    let writer = send_input_pipe(&daemon_end, input)?;
    if let Some(record) = &shared.warden_record {
        fd_passing::send_descriptor(&daemon_end, record.as_ref())?;
    }
    let listener_socket = match listener_pair {
        Some((own_end, init_end)) => {
            fd_passing::send_descriptor(&daemon_end, init_end)?;
            own_end.set_nonblocking(true)?;
            Some(UnixStream::from_std(own_end)?)
        }
        None => None,
    };
    if let Some(session_network) = session_network {
        session_network.send_to(&daemon_end)?;
    }
    daemon_end.set_nonblocking(true)?;
    let socket = UnixStream::from_std(daemon_end)?;
    let streams = OutputPipes::new(pipe_receiver(stdout)?, pipe_receiver(stderr)?);
    let pid = live_wardens::start_and_register(|| spawn_warden(shared, spec, (warden_end, stdout_end, stderr_end)))?;
    if let Some(record) = &shared.warden_record {
        record.note_start(pid, spec.run_id());
    }
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from);
    let control = pidfd.and_then(|pidfd| WardenControl::new(socket, pid, pidfd));
    // When its socket closes, the warden ends its command and itself; it is reaped later.
    let control = control.inspect_err(|_| live_wardens::abandon(pid))?;
    Ok(LaunchedCommand { control, streams, input: writer, listener_socket })
}

/// Creates the pipe for the command's standard input, and sends its reading end.
fn send_input_pipe(socket: &std::os::unix::net::UnixStream, input: CommandInput) -> io::Result<Option<Sender>> {
    match input {
        CommandInput::Null => Ok(None),
        CommandInput::Pipe => {
            let (reader, writer) = io::pipe()?;
            fd_passing::send_descriptor(socket, reader)?;
            Ok(Some(Sender::from_owned_fd(OwnedFd::from(writer))?))
        }
    }
}

fn network_variables(spec: &CommandSpec, proxy: Option<Ipv4Addr>) -> impl Iterator<Item = (OsString, OsString)> {
    let proxied = spec.network.iter().zip(proxy);
    let variables = proxied.flat_map(|(network, proxy)| network.environment(SocketAddrV4::new(proxy, PROXY_PORT)));
    variables.map(|(name, value)| (name.into(), value.into()))
}

type WardenEnds = (std::os::unix::net::UnixStream, PipeWriter, PipeWriter);

fn spawn_warden(shared: &WardensInner, spec: &CommandSpec, ends: WardenEnds) -> io::Result<rustix::process::Pid> {
    let (stdin, stdout, stderr) = ends;
    #[expect(clippy::disallowed_methods, reason = "the only place that starts wardens")]
    let mut command = Command::new(&shared.executable.path);
    command
        .arg0(warden_protocol::PROCESS_NAME)
        .arg(warden_protocol::WARDEN_ARGUMENT)
        .current_dir(&spec.cwd)
        .env_clear()
        // The only variable in the warden's own environment; all others are in the launch request.
        .envs(spec.env.iter().filter(|(name, _)| name == RUN_ID_VARIABLE).map(|(name, value)| (name, value)))
        .stdin(OwnedFd::from(stdin))
        .stdout(stdout)
        .stderr(stderr);
    let child = command.spawn()?;
    pid_from_u32(child.id())
}

fn pipe_receiver(reader: PipeReader) -> io::Result<Receiver> {
    Receiver::from_owned_fd(OwnedFd::from(reader))
}
