//! The warden process: starts one command, ends everything that it started, says how.
//!
//! It is a child sub-reaper, so every descendant whose parent dies becomes its child. Hence the one exact test for "all gone",
//! which needs no look at /proc: the warden has no child left. What ends them is, in this order, a PID namespace, a cgroup, or
//! this process, which looks for them. No runtime, no threads, no allocation worth naming.

use std::collections::HashSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use quell_protocol::receipt::Containment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, set_dumpable_behavior, setsid, wait,
};

use super::cgroup::Cgroup;
use super::input;
use super::signals::{self, ChildChanges};
use super::start::{Started, close_output, name_process, receive_input};
use super::tree::{self, Census, Listing, Pass, Signalled};
use super::words::{self, Ended, Leftover, Order, Step, Word};
use super::{ProcessHow, record};

/// How long children that outlive their leader may take to end by themselves, as the last parts of a pipeline do.
const LINGER: Duration = Duration::from_millis(50);
/// From SIGTERM to SIGKILL for what a leader left behind when it ended by itself.
const LEFT_BEHIND_GRACE: Duration = Duration::from_millis(100);
/// How long SIGKILL may take before what is left is given up by name. Below the hard limit of a stop.
const KILL_PATIENCE: Duration = Duration::from_millis(4000);
/// Between two passes of SIGKILL, at first and at most.
const KILL_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// How often a warden looks whether somebody has stopped the daemon with SIGSTOP, which could then hear no stop.
const DAEMON_LOOK: Duration = Duration::from_secs(1);

/// Runs as a warden, to the end.
pub(super) fn serve() -> ExitCode {
    // First of all: from here on no process of this user can read its memory, take its descriptors, or trace it.
    if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        return ExitCode::from(2);
    }
    let Ok(order) = input::receive_descriptor(io::stdin()).and_then(Order::from_file) else {
        return ExitCode::from(2);
    };
    let word = match Warden::start(&order) {
        Ok(mut warden) => {
            let pid = warden.command.as_raw_nonzero().get();
            words::say(io::stdin(), &Word::Started { pid, held_by: warden.held_by() });
            warden.watch();
            warden.note_end();
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
    /// The command itself.
    command: Pid,
    /// Tells how the command inside the namespace ended.
    inside: Option<UnixStream>,
    /// Where there is no namespace.
    cgroup: Option<Cgroup>,
    census: Census,
    record: Option<OwnedFd>,
    changes: ChildChanges,
    /// False once the daemon is gone.
    daemon: bool,
    /// How the command ended.
    end: Option<(Option<i32>, Option<i32>)>,
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
        let warden = |error| (Step::Warden, error);
        become_warden().map_err(warden)?;
        let census = Census::open();
        let mut input = receive_input(order.input).map_err(warden)?;
        let record = order.record.then(|| input::receive_descriptor(io::stdin())).transpose().map_err(warden)?;
        let started = Started::new(order, &mut input)?;
        // After the start, so that the init of a namespace has none of it. A child that ended before is found by the first reap.
        let changes = signals::catch().map_err(warden)?;
        close_output().map_err(warden)?;
        let Started { leader, command, inside, cgroup } = started;
        Ok(Self {
            me: getpid(),
            term: order.term,
            leader,
            command,
            inside,
            cgroup,
            census,
            record,
            changes,
            daemon: true,
            end: None,
            gone: false,
            told: false,
            how: ProcessHow::Exited,
            termed: HashSet::new(),
            swept: HashSet::new(),
            leftovers: Vec::new(),
        })
    }

    fn held_by(&self) -> Containment {
        match (&self.inside, &self.cgroup) {
            (Some(_), _) => Containment::Namespace,
            (None, Some(_)) => Containment::Cgroup,
            (None, None) => Containment::Sweep,
        }
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
        match self.turn(Some(Instant::now() + DAEMON_LOOK)) {
            Turn::Asked(ask) => {
                self.told = true;
                match ask {
                    Ask::Gentle => terminate_within(self.term),
                    Ask::Forced => Phase::Killing,
                }
            }
            Turn::Deadline => {
                self.wake_daemon();
                Phase::Running
            }
            Turn::Changed => Phase::Running,
        }
    }

    /// Lets a daemon go on that was stopped with SIGSTOP.
    fn wake_daemon(&self) {
        let Some(daemon) = getppid().filter(|_| self.daemon) else { return };
        if tree::stat(daemon).is_some_and(|stat| stat.state == 'T') {
            // Not permitted when the daemon is another user's, which it never is.
            let _ = kill_process(daemon, Signal::CONT);
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
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            self.kill_groups(&listing);
            let mut pass = tree::signal_descendants(&listing, self.me, &HashSet::new(), Signal::KILL);
            if pass.sent.is_empty() {
                self.kill_children(&mut pass);
            }
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

    /// Kills the children that the kernel knows, whatever /proc shows of them. Theirs come up here when they are dead.
    fn kill_children(&self, pass: &mut Pass) {
        for child in self.census.children() {
            match kill_process(child, Signal::KILL) {
                Ok(()) => pass.sent.push(child),
                Err(Errno::PERM) => pass.refused.push(child),
                Err(_) => {}
            }
        }
    }

    /// Names what is left. That there are children is certain here, so it never names nothing.
    fn give_up(&mut self, refused: &[Pid]) {
        let mut left: HashSet<Pid> = self.census.children().into_iter().collect();
        left.extend(Listing::scan().descendants(self.me));
        left.retain(|pid| tree::stat(*pid).is_none_or(|stat| !stat.is_dead()));
        for pid in left {
            self.swept.remove(&pid);
            let name = tree::describe(pid, refused.contains(&pid));
            self.leftovers.push(Leftover { pid: pid.as_raw_nonzero().get(), name });
        }
        if self.leftovers.is_empty() {
            let me = self.me.as_raw_nonzero().get();
            self.leftovers.push(Leftover { pid: me, name: format!("children of pid {me} that /proc does not show") });
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
            let inside = self.inside.as_ref().filter(|_| self.end.is_none());
            if let Some(inside) = inside {
                fds.push(PollFd::from_borrowed_fd(inside.as_fd(), PollFlags::IN));
            }
            let ready = match poll(&mut fds, timeout.as_ref()) {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(_) => {
                    // Somebody has lowered the limit of open files below what it takes to hear a stop.
                    std::thread::sleep(left.map_or(KILL_PAUSES.1, |left| left.min(KILL_PAUSES.1)));
                    return Turn::Asked(Ask::Forced);
                }
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
            if let Word::Ended(ended) = word {
                self.end = Some((ended.code, ended.signal));
            }
        }
    }

    /// For the next daemon, where this one is gone: what could be ended is ended.
    fn note_end(&mut self) {
        if let Some(record) = self.record.take().filter(|_| self.leftovers.is_empty()) {
            record::note_own_end(record, self.me);
        }
    }

    fn last_word(mut self) -> Word {
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

fn become_warden() -> io::Result<()> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    name_process()
}
