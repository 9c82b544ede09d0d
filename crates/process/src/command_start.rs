//! Start the command of a warden, and prepare the process that does.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use super::fd_passing::{self, CommandInput};
use super::sandbox::PreparedSandbox;
use super::warden_protocol::{self, LaunchRequest};

/// Sets [`warden_protocol::PROCESS_NAME`], for `ps` and `pkill`.
pub(super) fn name_process() -> io::Result<()> {
    let name = std::ffi::CString::new(warden_protocol::PROCESS_NAME)?;
    Ok(rustix::thread::set_name(&name)?)
}

/// Closes every descriptor but standard input, output and error. Whoever started the daemon may have left some open, which
/// each program would pass on to the next: to the warden, and to the command in its sandbox. Linux before 5.9 refuses, and
/// they stay open.
#[expect(unsafe_code, reason = "a descriptor that is in use must not be closed")]
pub(super) fn close_inherited() {
    // SAFETY: the first thing that a warden does, so it has opened nothing. A refusal has no effect.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Receives the command's standard input from the socket when it is a pipe.
pub(super) fn receive_input(input: CommandInput) -> io::Result<Option<OwnedFd>> {
    match input {
        CommandInput::Null => Ok(None),
        CommandInput::Pipe => fd_passing::receive_descriptor(io::stdin()).map(Some),
    }
}

/// Starts the command in a process group of its own, with the standard output and error of this process, bound by its
/// sandbox.
pub(super) fn start_command(
    request: &LaunchRequest,
    input: Stdio,
    sandbox: Option<PreparedSandbox>,
) -> io::Result<Pid> {
    let Some((program, args)) = request.argv.split_first() else { return Err(Errno::INVAL.into()) };
    #[expect(clippy::disallowed_methods, reason = "the only place that starts commands")]
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(request.env.iter().map(|(name, value)| (name, value)));
    command.stdin(input).process_group(0);
    command.envs(sandbox.iter().flat_map(PreparedSandbox::environment));
    let (open_files, mut sandbox) = (request.open_files, sandbox);
    enter_before_exec(&mut command, move || {
        open_files.map_or(Ok(()), limit_open_files)?;
        sandbox.as_mut().map_or(Ok(()), PreparedSandbox::enter)
    });
    pid_from_u32(command.spawn()?.id())
}

#[expect(
    unsafe_code,
    reason = "limits and sandbox must bind the command and not this process, so between fork and exec"
)]
fn enter_before_exec(command: &mut Command, enter: impl FnMut() -> io::Result<()> + Send + Sync + 'static) {
    // SAFETY: wardens and inits have one thread, so no lock is held at the fork, and the child may allocate.
    unsafe { command.pre_exec(enter) };
}

/// Sets the soft limit of open files: with the daemon's high limit some programs are slow or fail. In the process of the
/// command, so that a command that changes the limits of its parent cannot make its own start look failed.
fn limit_open_files(limit: u64) -> io::Result<()> {
    let own = getrlimit(Resource::Nofile);
    let current = Some(own.maximum.map_or(limit, |most| most.min(limit)));
    Ok(setrlimit(Resource::Nofile, Rlimit { current, ..own })?)
}

pub(super) fn pid_from_u32(id: u32) -> io::Result<Pid> {
    let raw = i32::try_from(id).ok().and_then(Pid::from_raw);
    raw.ok_or_else(|| Errno::SRCH.into())
}

/// Closes this process's copies of the command's output pipes, so that the daemon sees end of file.
pub(super) fn close_output() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
