//! A PID namespace for one command, with a `/proc` of its own, under an init of ours. When that init is killed, the kernel
//! kills everything in the namespace, however fast it forks and whatever it looks like. Processes inside can neither see nor
//! signal those outside, the warden and the daemon among them.
//!
//! The init is a fork of the warden without an `exec`: it costs about a quarter of a millisecond more than a plain command.
//! The warden itself stays outside, so a namespace that is refused leaves it as it was.

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

use super::ProcessHow;
use super::start::{close_output, name_process, start_command};
use super::words::{self, Ended, Order, Step, Word};

/// The init of a namespace in which the command runs.
pub(super) struct Init {
    /// Its number outside.
    pub(super) pid: Pid,
    /// The command's number inside.
    pub(super) command: i32,
    /// Tells how the command ended.
    pub(super) words: UnixStream,
}

/// Starts the command in a new namespace; takes `input` when it has started. The error names the step: at [`Step::Isolate`]
/// nothing has happened, and the command can be started without a namespace.
pub(super) fn start(order: &Order, input: &mut Option<OwnedFd>) -> Result<Init, (Step, io::Error)> {
    let isolate = |error| (Step::Isolate, error);
    let (ours, theirs) = UnixStream::pair().map_err(isolate)?;
    let (child, owner) = fork().map_err(isolate)?;
    let Some(pid) = child else {
        drop(ours);
        serve(&theirs, order, input.take(), owner)
    };
    drop(theirs);
    match first_word(&ours) {
        Some(Word::Started { pid: command, .. }) => {
            input.take();
            ours.set_nonblocking(true).map_err(|error| (Step::Warden, error))?;
            Ok(Init { pid, command, words: ours })
        }
        other => {
            // It ends right after its last word.
            let _ = waitpid(Some(pid), WaitOptions::empty());
            Err(match other {
                Some(Word::Refused { step, errno }) => (step, io::Error::from_raw_os_error(errno)),
                _ => isolate(io::ErrorKind::UnexpectedEof.into()),
            })
        }
    }
}

fn first_word(words: &UnixStream) -> Option<Word> {
    let mut line = Vec::new();
    BufReader::with_capacity(1, words).read_until(b'\n', &mut line).ok()?;
    words::words(&line).next()
}

/// Who gave the right to make the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// This process had it.
    Privileged,
    /// A user namespace of its own, in which this user and this group keep their numbers.
    UserNamespace {
        /// The user outside.
        user: u32,
        /// The group outside.
        group: u32,
    },
}

/// Forks into a new PID namespace, with a user namespace around it where this process alone may not make one. Only `/proc` needs
/// the mount namespace: where that is forbidden (`RestrictNamespaces` of systemd), the rest holds without it.
fn fork() -> io::Result<(Option<Pid>, Owner)> {
    // Inside, until the map is written, they are nobody's.
    let user = Owner::UserNamespace { user: geteuid().as_raw(), group: getegid().as_raw() };
    let (pid, mounts, own_user) = (libc::CLONE_NEWPID, libc::CLONE_NEWNS, libc::CLONE_NEWUSER);
    let ways = [(pid | mounts, Owner::Privileged), (pid | mounts | own_user, user), (pid | own_user, user)];
    let mut refused = Errno::PERM.into();
    for (flags, owner) in ways {
        match fork_into(flags) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => refused = error,
            forked => return Ok((forked?, owner)),
        }
    }
    Err(refused)
}

/// Forks into new namespaces: the number of the child, and none in the child, which is process 1.
#[expect(unsafe_code, reason = "only the bare system call makes a child in a namespace that its parent stays out of")]
fn fork_into(flags: libc::c_int) -> io::Result<Option<Pid>> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM this is a fork. A warden has one thread, so no lock and no allocation is half done in the
    // child, and nothing of the C library's state about threads is used there: it ends by `exit` of its own.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?)),
    }
}

/// Runs as init of a namespace, to the end of its last process.
fn serve(outside: &UnixStream, order: &Order, input: Option<OwnedFd>, owner: Owner) -> ! {
    let started = prepare(outside, owner).map_err(|error| (Step::Isolate, error)).and_then(|()| {
        let input = input.map_or_else(Stdio::null, Stdio::from);
        start_command(order, input).map_err(|error| (Step::Program, error))
    });
    match started {
        Ok(leader) => {
            let pid = leader.as_raw_nonzero().get();
            words::say(outside, &Word::Started { pid, held_by: Containment::Namespace });
            reap_all(outside, leader);
        }
        Err((step, error)) => words::say(outside, &Word::Refused { step, errno: words::errno(&error) }),
    }
    std::process::exit(0)
}

fn prepare(outside: &UnixStream, owner: Owner) -> io::Result<()> {
    // For the case that warden and daemon are killed in the same instant.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if recv(outside, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT) == Ok((0, 0)) {
        // The warden died before the line above.
        return Err(Errno::PIPE.into());
    }
    // The warden's end of the daemon's socket.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    if let Owner::UserNamespace { user, group } = owner {
        keep_own_numbers(user, group)?;
    }
    // Refused where parts of /proc are hidden, as in containers: the command then sees the /proc of outside, and all that this
    // module is for holds.
    let _ = mount_own_proc();
    name_process()
}

fn mount_own_proc() -> io::Result<()> {
    // What is mounted here must not show outside.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?)
}

/// Maps the own user and group to themselves. The kernel permits that only through files that belong to this user, which
/// those of a process that is not dumpable do not.
fn keep_own_numbers(user: u32, group: u32) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

fn reap_all(outside: &UnixStream, leader: Pid) {
    // Failing would only keep the output's end from the daemon, which does not wait for it.
    let _ = close_output();
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == leader => {
                let ended = Ended {
                    code: status.exit_status(),
                    signal: status.terminating_signal(),
                    how: ProcessHow::Exited,
                    told: false,
                    swept: 0,
                    leftovers: Vec::new(),
                };
                words::say(outside, &Word::Ended(ended));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
