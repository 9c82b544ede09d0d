//! The warden process: starts one command, ends everything that it started, says how.
//!
//! It is a child sub-reaper, so every descendant whose parent dies becomes its child. Hence the one exact test for "all gone",
//! which needs no look at /proc: the warden has no child left. No runtime, no threads, no allocation worth naming.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, kill_process_group, set_child_subreaper, setsid, wait,
};

use super::input::{self, Input};
use super::signals::{self, ChildChanges};
use super::tree::{self, Listing, Signalled};
use super::words::{self, Ended, Leftover, Order, Step, Word};
use super::{Isolate, ProcessHow, init};

/// How long children that outlive their leader may take to end by themselves, as the last parts of a pipeline do.
const LINGER: Duration = Duration::from_millis(50);
/// From SIGTERM to SIGKILL for what a leader left behind when it ended by itself.
const LEFT_BEHIND_GRACE: Duration = Duration::from_millis(100);
/// How long SIGKILL may take before what is left is given up by name. Below the hard limit of a stop.
const KILL_PATIENCE: Duration = Duration::from_millis(4000);
/// Between two passes of SIGKILL, at first and at most.
const KILL_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Runs as a warden, to the end.
pub(super) fn serve(args: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(order) = Order::from_args(args) else { return ExitCode::from(2) };
    let word = match Warden::start(&order) {
        Ok(mut warden) => {
            words::say(io::stdin(), &Word::Started { pid: warden.leader.as_raw_nonzero().get() });
            warden.watch();
            warden.last_word()
        }
        Err((step, error)) => Word::Refused { step, errno: words::errno(&error) },
    };
    words::say(io::stdin(), &word);
    ExitCode::SUCCESS
}

/// What a warden is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Gentle,
    Forced,
}

/// What a wait ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Asked(Ask),
    Changed,
    Deadline,
}

/// Where the warden stands.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The leader lives and nobody asked for its end.
    Running,
    /// The leader ended by itself and left children.
    Lingering(Instant),
    /// Everything got SIGTERM; the second round is due at the first moment, SIGKILL at the second.
    Terminating(Option<Instant>, Instant),
    /// Everything gets SIGKILL.
    Killing,
}

struct Warden {
    me: Pid,
    term: Duration,
    /// The command, or the init of its namespace.
    leader: Pid,
    /// The command itself, once somebody asked for its end.
    command: Pid,
    /// Tells how the command inside the namespace ended.
    inside: Option<UnixStream>,
    changes: ChildChanges,
    /// False once the daemon is gone.
    daemon: bool,
    /// How the command ended.
    end: Option<(Option<i32>, Option<i32>)>,
    /// Why it did not start, inside the namespace.
    refused: Option<Word>,
    /// No child is left: all is over.
    gone: bool,
    told: bool,
    how: ProcessHow,
    /// Got SIGTERM.
    termed: HashSet<Pid>,
    /// Ended by a signal of ours, or reaped after the first one.
    swept: HashSet<Pid>,
    leftovers: Vec<Leftover>,
}

impl Warden {
    fn start(order: &Order) -> Result<Self, (Step, io::Error)> {
        let changes = become_warden().map_err(|error| (Step::Warden, error))?;
        let (leader, inside) = match order.isolate {
            Isolate::None => {
                let input = take_input(order.input).map_err(|error| (Step::Warden, error))?;
                (start_command(&order.argv, input).map_err(|error| (Step::Program, error))?, None)
            }
            Isolate::Pid => {
                let (init, inside) = init::start(order).map_err(|error| (Step::Isolate, error))?;
                (init, Some(inside))
            }
        };
        close_output().map_err(|error| (Step::Warden, error))?;
        Ok(Self {
            me: getpid(),
            term: order.term,
            leader,
            command: leader,
            inside,
            changes,
            daemon: true,
            end: None,
            refused: None,
            gone: false,
            told: false,
            how: ProcessHow::Exited,
            termed: HashSet::new(),
            swept: HashSet::new(),
            leftovers: Vec::new(),
        })
    }

    /// Until nothing is left.
    fn watch(&mut self) {
        let mut phase = Phase::Running;
        loop {
            self.reap();
            if self.gone {
                return;
            }
            phase = match phase {
                Phase::Running => self.running(),
                Phase::Lingering(until) => self.lingering(until),
                Phase::Terminating(half, until) => self.terminating(half, until),
                Phase::Killing => return self.kill_all(),
            };
        }
    }

    fn running(&mut self) -> Phase {
        if self.end.is_some() {
            return Phase::Lingering(Instant::now() + LINGER);
        }
        match self.turn(None) {
            Turn::Asked(ask) => {
                self.told = true;
                // The eldest child of an init is the command that it was made for.
                let inside = self.inside.is_some().then(|| Listing::cheapest(self.me).children(self.leader));
                self.command = inside.and_then(|children| children.first().copied()).unwrap_or(self.leader);
                match ask {
                    Ask::Gentle => terminate_within(self.term),
                    Ask::Forced => Phase::Killing,
                }
            }
            Turn::Changed | Turn::Deadline => Phase::Running,
        }
    }

    fn lingering(&mut self, until: Instant) -> Phase {
        match self.turn(Some(until)) {
            Turn::Changed => Phase::Lingering(until),
            Turn::Asked(Ask::Gentle) | Turn::Deadline => terminate_within(LEFT_BEHIND_GRACE.min(self.term)),
            Turn::Asked(Ask::Forced) => Phase::Killing,
        }
    }

    fn terminating(&mut self, half: Option<Instant>, until: Instant) -> Phase {
        // Each process once, and none of those that a process started on its SIGTERM to clean up. What comes up to the warden
        // because its parent died of the signal is reached by the next pass.
        loop {
            let pass = tree::signal_descendants(&Listing::cheapest(self.me), self.root(), &self.termed, Signal::TERM);
            if pass.sent.is_empty() {
                break;
            }
            self.termed(pass.sent);
        }
        match self.turn(Some(half.unwrap_or(until))) {
            Turn::Changed | Turn::Asked(Ask::Gentle) => Phase::Terminating(half, until),
            Turn::Deadline if half.is_some() => {
                self.second_round();
                Phase::Terminating(None, until)
            }
            Turn::Asked(Ask::Forced) | Turn::Deadline => Phase::Killing,
        }
    }

    /// SIGTERM for those that the first round missed. A process that a shell forks just then may lose the signal to the shell's
    /// handler before it executes, or come a moment too late, and the shell would wait for it to the end.
    fn second_round(&mut self) {
        let all = Listing::cheapest(self.me).descendants(self.root());
        let family = all.iter().chain([&self.root()]).map(|pid| pid.as_raw_nonzero().get()).collect();
        let missed = all.iter().filter(|pid| !self.termed.contains(pid) || tree::dies_of_sigterm(**pid));
        let sent =
            missed.filter(|pid| tree::signal(**pid, &family, Signal::TERM) == Signalled::Sent).copied().collect();
        self.termed(sent);
    }

    fn termed(&mut self, sent: Vec<Pid>) {
        self.how = self.how.max(ProcessHow::Term);
        self.swept.extend(&sent);
        self.termed.extend(sent);
    }

    /// Where orphans of the command come up: here, or at the init of its namespace.
    fn root(&self) -> Pid {
        if self.inside.is_some() { self.leader } else { self.me }
    }

    fn kill_all(&mut self) {
        let patience = Instant::now() + KILL_PATIENCE;
        let mut pause = KILL_PAUSES.0;
        let mut listing = Listing::cheapest(self.me);
        if self.inside.is_some() {
            // They die with their init; this is the last moment to count them.
            self.swept.extend(listing.descendants(self.me));
        }
        loop {
            self.kill_groups(&listing);
            let pass = tree::signal_descendants(&listing, self.me, &HashSet::new(), Signal::KILL);
            if !(pass.sent.is_empty() && pass.refused.is_empty()) {
                self.how = ProcessHow::Kill;
            }
            self.swept.extend(&pass.sent);
            self.reap();
            if self.gone {
                return;
            }
            let only_refused = pass.sent.is_empty() && !pass.refused.is_empty() && pause > KILL_PAUSES.0;
            if only_refused || Instant::now() > patience {
                return self.give_up(&pass.refused);
            }
            self.turn(Some(Instant::now() + pause));
            pause = (pause * 2).min(KILL_PAUSES.1);
            // There are children, and the first rung shows none that can be killed: look closer.
            listing = if pass.sent.is_empty() { Listing::scan() } else { Listing::cheapest(self.me) };
        }
    }

    /// Kills the groups of all children. The kernel does a group at once, so that a storm inside one cannot outrun it. A child
    /// that is not reaped pins the number of its group.
    fn kill_groups(&mut self, listing: &Listing) {
        let mut seen = HashSet::from([self.me]);
        if self.inside.is_none() && self.end.is_none() {
            // Needs no /proc, and comes first.
            seen.insert(self.leader);
            self.how = ProcessHow::Kill;
            let _ = kill_process_group(self.leader, Signal::KILL);
        }
        for child in listing.children(self.me) {
            let alive = tree::stat(child).is_some_and(|stat| !stat.is_dead());
            let Ok(group) = getpgid(Some(child)) else { continue };
            if seen.insert(group) && kill_process_group(group, Signal::KILL).is_ok() && alive {
                self.how = ProcessHow::Kill;
                self.swept.insert(child);
            }
        }
    }

    fn give_up(&mut self, refused: &[Pid]) {
        for pid in Listing::scan().descendants(self.me) {
            if tree::stat(pid).is_some_and(|stat| !stat.is_dead()) {
                self.swept.remove(&pid);
                let name = tree::describe(pid, refused.contains(&pid));
                self.leftovers.push(Leftover { pid: pid.as_raw_nonzero().get(), name });
            }
        }
    }

    /// Reaps every child that is over.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.leader => self.leader_ended(status),
                Ok(Some((pid, _))) if self.how != ProcessHow::Exited => {
                    self.swept.insert(pid);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => {
                    self.gone = true;
                    return;
                }
            }
        }
    }

    fn leader_ended(&mut self, status: WaitStatus) {
        self.hear_inside();
        let end = (status.exit_status(), status.terminating_signal());
        self.end.get_or_insert(end);
    }

    /// Waits for a word of the daemon or a change of a child.
    fn turn(&mut self, deadline: Option<Instant>) -> Turn {
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let stdin = io::stdin();
            let mut fds = vec![PollFd::from_borrowed_fd(self.changes.as_fd(), PollFlags::IN)];
            if self.daemon {
                fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
            }
            let inside = self.inside.as_ref().filter(|_| self.end.is_none() && self.refused.is_none());
            if let Some(inside) = inside {
                fds.push(PollFd::from_borrowed_fd(inside.as_fd(), PollFlags::IN));
            }
            let ready = match poll(&mut fds, timeout.as_ref()) {
                Ok(ready) => ready,
                Err(_) => continue,
            };
            let spoken = self.daemon && fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            self.changes.drain();
            self.hear_inside();
            if let Some(ask) = spoken.then(|| self.hear_daemon(stdin.as_fd())).flatten() {
                return Turn::Asked(ask);
            }
            return if ready == 0 { Turn::Deadline } else { Turn::Changed };
        }
    }

    fn hear_daemon(&mut self, control: BorrowedFd<'_>) -> Option<Ask> {
        let mut bytes = [0_u8; 16];
        match rustix::io::read(control, &mut bytes) {
            Err(Errno::INTR | Errno::AGAIN) => None,
            Ok(0) | Err(_) => {
                self.daemon = false;
                Some(Ask::Forced)
            }
            Ok(_) if bytes.contains(&words::FORCED) => Some(Ask::Forced),
            Ok(_) if bytes.contains(&words::GENTLE) => Some(Ask::Gentle),
            Ok(_) => None,
        }
    }

    /// Takes the word from inside the namespace, when it is there.
    fn hear_inside(&mut self) {
        let Some(inside) = &mut self.inside else { return };
        let mut bytes = [0_u8; 512];
        let Ok(read @ 1..) = inside.read(&mut bytes) else { return };
        for word in words::words(bytes.get(..read).unwrap_or_default()) {
            match word {
                Word::Ended(ended) => self.end = Some((ended.code, ended.signal)),
                refused @ Word::Refused { .. } => self.refused = Some(refused),
                Word::Started { .. } => {}
            }
        }
    }

    fn last_word(mut self) -> Word {
        if let Some(refused) = self.refused {
            return refused;
        }
        self.swept.remove(&self.leader);
        self.swept.remove(&self.command);
        let (code, signal) = self.end.unwrap_or_default();
        Word::Ended(Ended {
            code,
            signal,
            how: self.how,
            told: self.told,
            swept: u32::try_from(self.swept.len()).unwrap_or(u32::MAX),
            leftovers: self.leftovers,
        })
    }
}

fn terminate_within(grace: Duration) -> Phase {
    let now = Instant::now();
    Phase::Terminating(Some(now + grace / 2), now + grace)
}

fn become_warden() -> io::Result<ChildChanges> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    name_process()?;
    signals::catch()
}

/// Shows [`words::PROCESS_NAME`] to `ps` and `pkill`.
pub(super) fn name_process() -> io::Result<()> {
    let name = std::ffi::CString::new(words::PROCESS_NAME)?;
    Ok(rustix::thread::set_name(&name)?)
}

/// What the command will read from, taken from the socket when it is a pipe.
pub(super) fn take_input(input: Input) -> io::Result<Stdio> {
    match input {
        Input::Null => Ok(Stdio::null()),
        Input::Pipe => Ok(input::take(io::stdin())?.into()),
    }
}

/// Starts the command in a group of its own, with the output that this process has.
pub(super) fn start_command(argv: &[OsString], input: Stdio) -> io::Result<Pid> {
    let Some((program, args)) = argv.split_first() else { return Err(Errno::INVAL.into()) };
    #[expect(clippy::disallowed_methods, reason = "this is the one place where commands are born")]
    let mut command = Command::new(program);
    let child = command.args(args).stdin(input).process_group(0).spawn()?;
    pid_of(child.id())
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
