//! The start of a warden's command, and what holds it: a PID namespace, a cgroup, or the warden alone.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getpid, getrlimit, setrlimit};

use super::cgroup::Cgroup;
use super::input::{self, Input};
use super::tree::{self, Listing};
use super::words::{self, Order, Step};
use super::{Isolate, namespace};

/// A command that runs, and what holds it.
pub(super) struct Started {
    /// The command, or the init of its namespace.
    pub(super) leader: Pid,
    /// The command itself.
    pub(super) command: Pid,
    /// Tells how the command inside the namespace ended.
    pub(super) inside: Option<UnixStream>,
    /// Where there is no namespace.
    pub(super) cgroup: Option<Cgroup>,
}

impl Started {
    pub(super) fn new(order: &Order, input: &mut Option<OwnedFd>) -> Result<Self, (Step, io::Error)> {
        match order.isolate {
            Isolate::Auto | Isolate::Pid => match namespace::start(order, input) {
                Err((Step::Isolate, _)) if order.isolate == Isolate::Auto => Self::without_namespace(order, input),
                inside => Ok(Self::inside(inside?)),
            },
            Isolate::None => Self::without_namespace(order, input),
        }
    }

    fn inside(init: namespace::Init) -> Self {
        let mut children = Listing::cheapest(getpid()).children(init.pid).into_iter();
        // It may be over already; the init has told of it then.
        let command = children.find(|child| tree::innermost_number(*child) == Some(init.command)).unwrap_or(init.pid);
        Self { leader: init.pid, command, inside: Some(init.words), cgroup: None }
    }

    fn without_namespace(order: &Order, input: &mut Option<OwnedFd>) -> Result<Self, (Step, io::Error)> {
        let cgroup = Cgroup::create();
        let mut start = || start_command(order, input.take().map_or_else(Stdio::null, Stdio::from));
        let started = match &cgroup {
            Some(cgroup) => cgroup.start(&mut start),
            None => start(),
        };
        let leader = started.map_err(|error| (Step::Program, error))?;
        Ok(Self { leader, command: leader, inside: None, cgroup })
    }
}

/// Shows [`words::PROCESS_NAME`] to `ps` and `pkill`.
pub(super) fn name_process() -> io::Result<()> {
    let name = std::ffi::CString::new(words::PROCESS_NAME)?;
    Ok(rustix::thread::set_name(&name)?)
}

/// What the command will read from, received from the socket when it is a pipe.
pub(super) fn receive_input(input: Input) -> io::Result<Option<OwnedFd>> {
    match input {
        Input::Null => Ok(None),
        Input::Pipe => input::receive_descriptor(io::stdin()).map(Some),
    }
}

/// Starts the command in a group of its own, with the output that this process has.
pub(super) fn start_command(order: &Order, input: Stdio) -> io::Result<Pid> {
    let Some((program, args)) = order.argv.split_first() else { return Err(Errno::INVAL.into()) };
    #[expect(clippy::disallowed_methods, reason = "this is the one place where commands are born")]
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(order.env.iter().map(|(name, value)| (name, value)));
    command.stdin(input).process_group(0);
    let child = with_open_files(order.open_files, || command.spawn())?;
    pid_of(child.id())
}

/// Starts something under this soft limit of open files, which it inherits: programs may take long, or fail, under the daemon's.
fn with_open_files<T>(limit: Option<u64>, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = getrlimit(Resource::Nofile);
    let Some(limit) = limit else { return start() };
    let current = Some(own.maximum.map_or(limit, |most| most.min(limit)));
    setrlimit(Resource::Nofile, Rlimit { current, ..own })?;
    let started = start();
    setrlimit(Resource::Nofile, own)?;
    started
}

/// A child's number as a [`Pid`].
pub(super) fn pid_of(id: u32) -> io::Result<Pid> {
    let raw = i32::try_from(id).ok().and_then(Pid::from_raw);
    raw.ok_or_else(|| Errno::SRCH.into())
}

/// Gives up this process's copies of the command's output, so that the daemon sees its end.
pub(super) fn close_output() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
