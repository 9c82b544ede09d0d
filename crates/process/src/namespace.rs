//! A PID namespace for one command, with its own `/proc`, under an init of ours.
//!
//! When the init is killed, the kernel kills everything in the namespace, however fast it forks. Processes inside can
//! neither see nor signal those outside, such as the warden and the daemon.
//!
//! The init is a fork of the warden without an `exec`: it costs 0.7 to 1 ms more than a plain command. The warden
//! itself stays outside, so a refused namespace does not change it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use quell_protocol::receipt::Containment;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{RecvFlags, recv};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, getegid, geteuid, set_dumpable_behavior,
    set_parent_process_death_signal, wait, waitpid,
};

use super::ProcessEndMethod;
use super::command_start::{close_output, name_process, start_command};
use super::warden_protocol::{self, CommandEndReport, LaunchRequest, StartStep, WardenReport};

pub(super) struct NamespaceInit {
    /// Its pid outside of the namespace.
    pub(super) pid: Pid,
    /// The command's pid inside of the namespace.
    pub(super) command: i32,
    /// The socket on which the init reports how the command ended.
    pub(super) reports: UnixStream,
}

/// Starts the command in a new namespace. Takes `input` once it has started. The error names the step: after
/// [`StartStep::Isolate`] nothing has been started, and the command can be started without a namespace.
pub(super) fn start_in_namespace(
    request: &LaunchRequest,
    input: &mut Option<OwnedFd>,
) -> Result<NamespaceInit, (StartStep, io::Error)> {
    let isolate_error = |error| (StartStep::Isolate, error);
    let (warden_end, init_end) = UnixStream::pair().map_err(isolate_error)?;
    let (child, privilege) = fork_into_namespace().map_err(isolate_error)?;
    let Some(pid) = child else {
        drop(warden_end);
        run_init(&init_end, request, input.take(), privilege)
    };
    drop(init_end);
    match read_first_report(&warden_end) {
        Some(WardenReport::Started { pid: command, .. }) => {
            input.take();
            warden_end.set_nonblocking(true).map_err(|error| (StartStep::Warden, error))?;
            Ok(NamespaceInit { pid, command, reports: warden_end })
        }
        other => {
            // The init exits right after its last report.
            let _ = waitpid(Some(pid), WaitOptions::empty());
            Err(match other {
                Some(WardenReport::Refused { step, errno }) => (step, io::Error::from_raw_os_error(errno)),
                _ => isolate_error(io::ErrorKind::UnexpectedEof.into()),
            })
        }
    }
}

fn read_first_report(reports: &UnixStream) -> Option<WardenReport> {
    let mut line = Vec::new();
    BufReader::with_capacity(1, reports).read_until(b'\n', &mut line).ok()?;
    warden_protocol::parse_reports(&line).next()
}

/// The privilege that allowed to create the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamespacePrivilege {
    Privileged,
    /// A user namespace, in which this user and this group keep their ids.
    UserNamespace {
        /// User id outside.
        user: u32,
        /// Group id outside.
        group: u32,
    },
}

/// Forks into a new PID namespace, inside a user namespace where this process lacks the privilege. The mount
/// namespace is only needed for `/proc`: where it is forbidden (systemd's `RestrictNamespaces`), the rest works
/// without it.
fn fork_into_namespace() -> io::Result<(Option<Pid>, NamespacePrivilege)> {
    // Read now: inside, the ids belong to nobody until the map is written.
    let user = NamespacePrivilege::UserNamespace { user: geteuid().as_raw(), group: getegid().as_raw() };
    let (pid, mount_ns, user_ns) = (libc::CLONE_NEWPID, libc::CLONE_NEWNS, libc::CLONE_NEWUSER);
    let attempts =
        [(pid | mount_ns, NamespacePrivilege::Privileged), (pid | mount_ns | user_ns, user), (pid | user_ns, user)];
    let mut last_error = Errno::PERM.into();
    for (flags, privilege) in attempts {
        match clone_with_flags(flags) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => last_error = error,
            forked => return Ok((forked?, privilege)),
        }
    }
    Err(last_error)
}

/// Forks into new namespaces. Returns the child's pid, or `None` in the child, which is process 1.
#[expect(
    unsafe_code,
    reason = "only the raw system call creates a child in a namespace that its parent does not enter"
)]
fn clone_with_flags(flags: libc::c_int) -> io::Result<Option<Pid>> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM this is a fork. A warden has one thread, so in the child no lock is held and no
    // allocation is half done. The child uses no state of the C library about threads, and ends by its own `exit`.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?)),
    }
}

/// Runs as init of the namespace until its last process has ended.
fn run_init(warden: &UnixStream, request: &LaunchRequest, input: Option<OwnedFd>, privilege: NamespacePrivilege) -> ! {
    let started = prepare_init(warden, privilege).map_err(|error| (StartStep::Isolate, error)).and_then(|()| {
        let input = input.map_or_else(Stdio::null, Stdio::from);
        start_command(request, input).map_err(|error| (StartStep::Program, error))
    });
    match started {
        Ok(leader) => {
            let pid = leader.as_raw_nonzero().get();
            warden_protocol::send_report(warden, &WardenReport::Started { pid, held_by: Containment::Namespace });
            reap_until_empty(warden, leader);
        }
        Err((step, error)) => {
            warden_protocol::send_report(warden, &WardenReport::Refused { step, errno: warden_protocol::errno(&error) })
        }
    }
    std::process::exit(0)
}

fn prepare_init(warden: &UnixStream, privilege: NamespacePrivilege) -> io::Result<()> {
    // For the case that warden and daemon are killed at the same moment.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if recv(warden, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT) == Ok((0, 0)) {
        // The warden died before the line above.
        return Err(Errno::PIPE.into());
    }
    // Standard input is the warden's end of the daemon's socket: the init must not keep it open.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    if let NamespacePrivilege::UserNamespace { user, group } = privilege {
        map_own_ids(user, group)?;
    }
    // Refused where parts of /proc are hidden, as in containers. The command then sees the /proc of outside; the
    // containment holds all the same.
    let _ = mount_own_proc();
    name_process()
}

fn mount_own_proc() -> io::Result<()> {
    // Mounts made here must not appear outside.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?)
}

/// Maps the own user and group to themselves. The kernel permits this only through files that belong to this user;
/// those of a non-dumpable process do not.
fn map_own_ids(user: u32, group: u32) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

fn reap_until_empty(warden: &UnixStream, leader: Pid) {
    // A failure would only delay end of file at the daemon, which does not wait for it.
    let _ = close_output();
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == leader => {
                let ended = CommandEndReport {
                    code: status.exit_status(),
                    signal: status.terminating_signal(),
                    how: ProcessEndMethod::Exited,
                    leader_alive_at_stop: false,
                    swept: 0,
                    leftovers: Vec::new(),
                };
                warden_protocol::send_report(warden, &WardenReport::Ended(ended));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
