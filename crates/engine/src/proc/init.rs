//! The rung `isolate = "pid"`: the command runs in a PID namespace under an init of ours. When that init is killed, the
//! kernel kills everything in the namespace, however fast it forks.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getegid, geteuid, set_parent_process_death_signal, wait};
use rustix::thread::UnshareFlags;

use super::ProcessHow;
use super::input::{self, Input};
use super::warden::{close_output, name_process, pid_of, start_command, take_input};
use super::words::{self, Ended, Order, Step, Word};

/// Starts the init of a new PID namespace. It says how the command ended on the socket.
pub(super) fn start(order: &Order) -> io::Result<(Pid, UnixStream)> {
    enter_namespace()?;
    let (ours, theirs) = UnixStream::pair()?;
    if order.input == Input::Pipe {
        input::give(&ours, input::take(io::stdin())?)?;
    }
    ours.set_nonblocking(true)?;
    #[expect(clippy::disallowed_methods, reason = "the init is this binary again, as process 1 of the namespace")]
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(words::PROCESS_NAME)
        .arg(words::INIT)
        .arg(order.input.word())
        .args(&order.argv)
        .stdin(OwnedFd::from(theirs));
    let child = command.spawn()?;
    Ok((pid_of(child.id())?, ours))
}

/// The next child will be process 1 of a new PID namespace. Without the right to do that, a user namespace in which everybody
/// keeps the own number gives it.
fn enter_namespace() -> io::Result<()> {
    match unshare(UnshareFlags::NEWPID) {
        Err(Errno::PERM) => {}
        other => return Ok(other?),
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWPID)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

#[expect(unsafe_code, reason = "the call is unsafe because of one flag, which is not used here")]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: only `UnshareFlags::FILES` can take descriptors away from other threads; it is never passed, and a warden has
    // one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Runs as init of a namespace: starts the command, reaps, and ends when no process is left in it.
pub(super) fn serve(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let input = args.next().and_then(|word| Input::from_word(word.to_str()?));
    let Some(input) = input else { return ExitCode::from(2) };
    let argv: Vec<OsString> = args.collect();
    match prepare().and_then(|()| start_command(&argv, take_input(input)?)) {
        Ok(leader) => reap_all(leader),
        Err(error) => words::say(io::stdin(), &Word::Refused { step: Step::Program, errno: words::errno(&error) }),
    }
    ExitCode::SUCCESS
}

fn prepare() -> io::Result<()> {
    // Only for the case that warden and daemon are killed in the same instant; the promise does not rest on it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    name_process()
}

fn reap_all(leader: Pid) {
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
                words::say(io::stdin(), &Word::Ended(ended));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
