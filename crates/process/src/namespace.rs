//! A PID namespace for one command, with its own `/proc`, under an init of ours.
//!
//! When the init is killed, the kernel kills everything in the namespace, however fast it forks. Processes inside can
//! neither see nor signal those outside, such as the warden and the daemon.
//!
//! The init is a fork of the warden without an `exec`: it costs 0.7 to 1 ms more than a plain command. The warden
//! itself stays outside, so a refused namespace does not change it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use quell_protocol::receipt::Containment;
use quell_protocol::sandbox::SandboxFacts;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, getegid, geteuid, set_dumpable_behavior,
    set_parent_process_death_signal, wait, waitpid,
};

use super::ProcessEndMethod;
use super::command_start::{close_output, name_process, start_command};
use super::fd_passing;
use super::lifetime_limit::ReceivedLimit;
use super::sandbox::{OwnNamespaces, PreparedSandbox, listen_for_proxy, mount_own_proc};
use super::session_network::{NamespaceExchange, SharedNamespace};
use super::warden_protocol::{self, CommandEndReport, LaunchRequest, StartFailure, WardenReport};

/// What the network namespace of a command needs, as the daemon has sent it.
#[derive(Debug)]
pub(super) struct NetworkSetup {
    /// Where the listener of the proxy goes, and its address.
    proxy: Option<(OwnedFd, Ipv4Addr)>,
    /// Where the namespace is found, or left for others.
    shared: Option<NamespaceExchange>,
}

impl NetworkSetup {
    pub(super) fn receive(request: &LaunchRequest) -> io::Result<Self> {
        let receive_socket = |address| fd_passing::receive_descriptor(io::stdin()).map(|socket| (socket, address));
        let proxy = request.proxy.map(receive_socket).transpose()?;
        let shared = request.shares_network.then(|| NamespaceExchange::receive_from(io::stdin())).transpose()?;
        Ok(Self { proxy, shared })
    }

    /// In the warden: enters the namespace of the session, if there is one.
    fn enter_shared(&self) -> Result<Option<SharedNamespace>, StartFailure> {
        let entered = self.shared.as_ref().map(|shared| shared.enter(io::stdin())).transpose();
        entered.map_err(|error| StartFailure::network("enter the network of the session", &error))
    }

    /// In the init of the command's namespace: sends the listener of the proxy, and leaves a new namespace for the next
    /// command of the session.
    fn set_up(&self, privilege: NamespacePrivilege, entered: Option<SharedNamespace>) -> Result<(), StartFailure> {
        if let Some((socket, address)) = &self.proxy {
            let listener = listen_for_proxy(*address).map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => StartFailure::proxy_port_in_use(),
                _ => StartFailure::network("listen for the proxy", &error),
            })?;
            let sent = fd_passing::send_descriptor(socket, listener);
            sent.map_err(|error| StartFailure::network("send the listener of the proxy", &error))?;
        }
        match &self.shared {
            Some(shared) if entered == Some(SharedNamespace::ToCreate) => {
                let has_user_namespace = privilege != NamespacePrivilege::Privileged;
                let left = shared.leave_own(has_user_namespace);
                left.map_err(|error| StartFailure::network("share the network with the session", &error))
            }
            _ => Ok(()),
        }
    }
}

pub(super) struct NamespaceInit {
    /// Its pid outside of the namespace.
    pub(super) pid: Pid,
    /// The command's pid inside of the namespace.
    pub(super) command: i32,
    /// The socket on which the init reports how the command ended.
    pub(super) reports: UnixStream,
    pub(super) sandbox: Option<SandboxFacts>,
}

/// Starts the command in a new namespace. Takes `input` once it has started. The error names the step: after
/// `StartStep::Isolate` nothing has been started, and the command can be started without a namespace.
pub(super) fn start_in_namespace(
    request: &LaunchRequest,
    input: &mut Option<OwnedFd>,
    network: NetworkSetup,
    limit: &mut ReceivedLimit,
) -> Result<NamespaceInit, StartFailure> {
    let (warden_end, init_end) = UnixStream::pair().map_err(StartFailure::isolate)?;
    let further_namespaces = request.sandbox.as_ref().map_or(0, |sandbox| sandbox.namespace_flags());
    let entered = network.enter_shared()?;
    let ForkedInit { child, privilege, namespaces } =
        fork_into_namespace(further_namespaces, entered).map_err(StartFailure::isolate)?;
    let Some(pid) = child else {
        drop(warden_end);
        NamespaceStart { warden: &init_end, request, privilege, namespaces, network, entered, limit }
            .run_init(input.take())
    };
    drop(init_end);
    match read_first_report(&warden_end) {
        Some(WardenReport::Started { pid: command, sandbox, .. }) => {
            input.take();
            warden_end.set_nonblocking(true).map_err(StartFailure::warden)?;
            Ok(NamespaceInit { pid, command, reports: warden_end, sandbox })
        }
        other => {
            // The init exits right after its last report.
            let _ = waitpid(Some(pid), WaitOptions::empty());
            Err(match other {
                Some(WardenReport::Refused(failure)) => failure,
                _ => StartFailure::isolate(io::ErrorKind::UnexpectedEof),
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

struct ForkedInit {
    /// The pid of the child, or `None` in the child.
    child: Option<Pid>,
    privilege: NamespacePrivilege,
    namespaces: OwnNamespaces,
}

/// Forks into a new PID namespace and these further ones, inside a user namespace where this process lacks the
/// privilege. Where further ones or the mount namespace are forbidden (systemd's `RestrictNamespaces`), the rest works
/// without them.
///
/// With `entered`, this process is in the network namespace already, and in the user namespace that owns it.
fn fork_into_namespace(further: libc::c_int, entered: Option<SharedNamespace>) -> io::Result<ForkedInit> {
    // Read now: inside, the ids belong to nobody until the map is written.
    let user = NamespacePrivilege::UserNamespace { user: geteuid().as_raw(), group: getegid().as_raw() };
    let (pid, user_ns) = (libc::CLONE_NEWPID, libc::CLONE_NEWUSER);
    let entered = match entered {
        Some(SharedNamespace::Entered { has_user_namespace: true }) => libc::CLONE_NEWNET | user_ns,
        Some(SharedNamespace::Entered { has_user_namespace: false }) => libc::CLONE_NEWNET,
        Some(SharedNamespace::ToCreate) | None => 0,
    };
    let most = pid | libc::CLONE_NEWNS | (further & !entered);
    let fewer = pid | libc::CLONE_NEWNS;
    let attempts = [
        (most, NamespacePrivilege::Privileged),
        (most | user_ns, user),
        (fewer, NamespacePrivilege::Privileged),
        (fewer | user_ns, user),
        (pid | user_ns, user),
    ];
    let mut last_error = Errno::PERM.into();
    for (flags, privilege) in attempts {
        match clone_with_flags(flags) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => last_error = error,
            forked => {
                return Ok(ForkedInit {
                    child: forked?,
                    privilege,
                    namespaces: OwnNamespaces::of_flags(flags | entered),
                });
            }
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

/// What the init of a new namespace knows.
struct NamespaceStart<'a> {
    /// The socket to the warden.
    warden: &'a UnixStream,
    request: &'a LaunchRequest,
    privilege: NamespacePrivilege,
    namespaces: OwnNamespaces,
    network: NetworkSetup,
    entered: Option<SharedNamespace>,
    limit: &'a mut ReceivedLimit,
}

impl NamespaceStart<'_> {
    /// Runs as init of the namespace until its last process has ended.
    fn run_init(&mut self, input: Option<OwnedFd>) -> ! {
        match self.start(input) {
            Ok((leader, sandbox)) => {
                let pid = leader.as_raw_nonzero().get();
                let started = WardenReport::Started { pid, held_by: Containment::Namespace, sandbox };
                warden_protocol::send_report(self.warden, &started);
                reap_until_empty(self.warden, leader);
            }
            Err(failure) => warden_protocol::send_report(self.warden, &WardenReport::Refused(failure)),
        }
        std::process::exit(0)
    }

    fn start(&mut self, input: Option<OwnedFd>) -> Result<(Pid, Option<SandboxFacts>), StartFailure> {
        prepare_init(self.warden, self.privilege).map_err(StartFailure::isolate)?;
        let sandbox = match &self.request.sandbox {
            Some(spec) => Some(PreparedSandbox::new(spec, self.namespaces)?),
            None => {
                // Refused where parts of /proc are hidden, as in containers. The command then sees the /proc of
                // outside; the containment holds all the same.
                let _ = mount_own_proc();
                None
            }
        };
        if self.namespaces.network {
            self.network.set_up(self.privilege, self.entered)?;
        }
        let facts = sandbox.as_ref().map(|sandbox| sandbox.facts().clone());
        let input = input.map_or_else(Stdio::null, Stdio::from);
        // As late as possible: the steps above may have waited.
        self.limit.check()?;
        let leader = start_command(self.request, input, sandbox).map_err(StartFailure::program)?;
        Ok((leader, facts))
    }
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
    name_process()
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
                    ended_by_lifetime_limit: false,
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
