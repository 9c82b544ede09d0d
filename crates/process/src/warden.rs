//! The warden process: start one command, end everything that it started, report how.
//!
//! The warden is a child sub-reaper, so each descendant whose parent dies becomes its child. All processes are gone
//! exactly when the warden has no child left; this test needs no look at /proc.
//!
//! A stop ends the processes by the PID namespace, else by the cgroup, else by a search for descendants. A warden has
//! no async runtime and one thread, and allocates little.

use std::collections::HashSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use quell_protocol::receipt::Containment;
use quell_protocol::sandbox::SandboxFacts;
use quell_scope::StopLevel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, set_dumpable_behavior, setsid, wait,
};

use super::cgroup::Cgroup;
use super::command_start::{close_inherited, close_output, name_process, receive_input};
use super::containment::StartedCommand;
use super::fd_passing;
use super::lifetime_limit::ReceivedLimit;
use super::namespace::NetworkSetup;
use super::process_tree::{self, ChildLookup, ProcDirectory, SignalOutcome, SignalPass};
use super::signals::{self, ChildChanges};
use super::warden_protocol::{self, CommandEndReport, LaunchRequest, LeftoverProcess, StartFailure, WardenReport};
use super::{ProcessEndMethod, warden_record};

/// Time for children that outlive their leader to end by themselves, such as the last parts of a pipeline.
const LINGER_TIMEOUT: Duration = Duration::from_millis(50);
/// Time between SIGTERM and SIGKILL for what a leader left behind when it exited by itself.
const LEFT_BEHIND_GRACE: Duration = Duration::from_millis(100);
/// Time for SIGKILL to work before the rest is given up as leftovers. Below the hard limit of a stop.
const KILL_TIMEOUT: Duration = Duration::from_millis(4000);
/// First and longest pause between two passes of SIGKILL.
const KILL_RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// How often a warden checks whether somebody has stopped the daemon with SIGSTOP, because a stopped daemon receives
/// no stop.
const DAEMON_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs this process as a warden until everything has ended.
pub(super) fn run_warden() -> ExitCode {
    // Before anything else: from here on no process of this user can read its memory, take its descriptors or trace it.
    if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        return ExitCode::from(2);
    }
    close_inherited();
    signals::restore_defaults();
    let Ok(request) = fd_passing::receive_descriptor(io::stdin()).and_then(LaunchRequest::from_file) else {
        return ExitCode::from(2);
    };
    let report = match Warden::start(&request) {
        Ok(mut warden) => {
            let pid = warden.command.as_raw_nonzero().get();
            let started = WardenReport::Started { pid, held_by: warden.held_by(), sandbox: warden.sandbox.take() };
            warden_protocol::send_report(io::stdin(), &started);
            warden.run_until_gone();
            warden.note_end_in_record();
            warden.into_final_report()
        }
        Err(failure) => WardenReport::Refused(failure),
    };
    warden_protocol::send_report(io::stdin(), &report);
    ExitCode::SUCCESS
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wakeup {
    StopRequested(StopLevel),
    ChildChanged,
    Deadline,
    LimitPassed,
}

#[derive(Debug, Clone, Copy)]
enum WardenPhase {
    /// The leader lives, and nobody has asked for a stop.
    Running,
    /// The leader exited by itself and left children, which may end by themselves until this time.
    Lingering(Instant),
    /// Everything got SIGTERM. At the first time it gets SIGTERM again, at the second SIGKILL.
    Terminating(Option<Instant>, Instant),
    /// Everything gets SIGKILL.
    Killing,
}

struct Warden {
    own_pid: Pid,
    term_grace: Duration,
    /// The command, or the init of its namespace.
    leader: Pid,
    command: Pid,
    /// The socket on which the namespace's init reports how the command ended.
    namespace_reports: Option<UnixStream>,
    /// Only without a namespace.
    cgroup: Option<Cgroup>,
    /// Until it has been reported.
    sandbox: Option<SandboxFacts>,
    proc_directory: ProcDirectory,
    record: Option<OwnedFd>,
    limit: ReceivedLimit,
    child_changes: ChildChanges,
    is_daemon_alive: bool,
    /// Exit code and signal of the command.
    command_end: Option<(Option<i32>, Option<i32>)>,
    is_all_gone: bool,
    was_told_to_stop: bool,
    ended_by_lifetime_limit: bool,
    how: ProcessEndMethod,
    sigterm_sent: HashSet<Pid>,
    /// Processes that were ended by a signal of this warden, or reaped after the first such signal.
    ended_descendants: HashSet<Pid>,
    leftovers: Vec<LeftoverProcess>,
}

impl Warden {
    fn start(request: &LaunchRequest) -> Result<Self, StartFailure> {
        become_warden().map_err(StartFailure::warden)?;
        let proc_directory = ProcDirectory::open();
        let mut limit = ReceivedLimit::receive_from(io::stdin()).map_err(StartFailure::warden)?;
        let mut input = receive_input(request.input).map_err(StartFailure::warden)?;
        let record = request
            .record
            .then(|| fd_passing::receive_descriptor(io::stdin()))
            .transpose()
            .map_err(StartFailure::warden)?;
        let network = NetworkSetup::receive(request).map_err(StartFailure::warden)?;
        let started = StartedCommand::new(request, &mut input, network, &mut limit)?;
        // Installed after the start, so that the init of a namespace does not inherit them. The first reap finds a
        // child that ended before.
        let child_changes = signals::install_handlers().map_err(StartFailure::warden)?;
        close_output().map_err(StartFailure::warden)?;
        let StartedCommand { leader, command, namespace_reports, cgroup, sandbox } = started;
        Ok(Self {
            own_pid: getpid(),
            term_grace: request.term,
            leader,
            command,
            namespace_reports,
            cgroup,
            sandbox,
            proc_directory,
            record,
            limit,
            child_changes,
            is_daemon_alive: true,
            command_end: None,
            is_all_gone: false,
            was_told_to_stop: false,
            ended_by_lifetime_limit: false,
            how: ProcessEndMethod::Exited,
            sigterm_sent: HashSet::new(),
            ended_descendants: HashSet::new(),
            leftovers: Vec::new(),
        })
    }

    fn held_by(&self) -> Containment {
        match (&self.namespace_reports, &self.cgroup) {
            (Some(_), _) => Containment::Namespace,
            (None, Some(_)) => Containment::Cgroup,
            (None, None) => Containment::Sweep,
        }
    }

    /// Runs until all processes have ended, or are given up as leftovers.
    fn run_until_gone(&mut self) {
        let mut phase = WardenPhase::Running;
        loop {
            self.reap();
            if self.is_all_gone {
                return;
            }
            if self.limit.update() {
                self.ended_by_lifetime_limit = true;
                self.was_told_to_stop |= self.command_end.is_none();
                phase = WardenPhase::Killing;
            }
            phase = match phase {
                WardenPhase::Running => self.running_phase(),
                WardenPhase::Lingering(until) => self.lingering_phase(until),
                WardenPhase::Terminating(half, until) => self.terminating_phase(half, until),
                WardenPhase::Killing => return self.kill_all(),
            };
        }
    }

    fn running_phase(&mut self) -> WardenPhase {
        if self.command_end.is_some() {
            return WardenPhase::Lingering(Instant::now() + LINGER_TIMEOUT);
        }
        match self.wait_for_wakeup(Some(Instant::now() + DAEMON_CHECK_INTERVAL)) {
            Wakeup::StopRequested(command) => {
                self.was_told_to_stop = true;
                match command {
                    StopLevel::Gentle => terminating_for(self.term_grace),
                    StopLevel::Forced => WardenPhase::Killing,
                }
            }
            Wakeup::Deadline => {
                self.wake_daemon();
                WardenPhase::Running
            }
            Wakeup::ChildChanged => WardenPhase::Running,
            Wakeup::LimitPassed => WardenPhase::Killing,
        }
    }

    /// Continues a daemon that was stopped with SIGSTOP.
    fn wake_daemon(&self) {
        let Some(daemon) = getppid().filter(|_| self.is_daemon_alive) else { return };
        if process_tree::read_stat(daemon).is_some_and(|stat| stat.state == 'T') {
            // Not permitted if the daemon runs as another user, which it never does.
            let _ = kill_process(daemon, Signal::CONT);
        }
    }

    fn lingering_phase(&mut self, until: Instant) -> WardenPhase {
        match self.wait_for_wakeup(Some(until)) {
            Wakeup::ChildChanged => WardenPhase::Lingering(until),
            Wakeup::StopRequested(StopLevel::Gentle) | Wakeup::Deadline => {
                terminating_for(LEFT_BEHIND_GRACE.min(self.term_grace))
            }
            Wakeup::StopRequested(StopLevel::Forced) | Wakeup::LimitPassed => WardenPhase::Killing,
        }
    }

    fn terminating_phase(&mut self, resend_at: Option<Instant>, kill_at: Instant) -> WardenPhase {
        // Each process gets it once, and processes that were started to clean up on SIGTERM do not get it. Processes
        // that become children of the warden because their parent died of the signal are reached by the next pass.
        loop {
            let pass = process_tree::signal_descendants(
                &ChildLookup::cheapest(self.own_pid),
                self.orphan_root(),
                &self.sigterm_sent,
                Signal::TERM,
            );
            if pass.sent.is_empty() {
                break;
            }
            self.note_sigterm_sent(pass.sent);
        }
        match self.wait_for_wakeup(Some(resend_at.unwrap_or(kill_at))) {
            Wakeup::ChildChanged | Wakeup::StopRequested(StopLevel::Gentle) => {
                WardenPhase::Terminating(resend_at, kill_at)
            }
            Wakeup::Deadline if resend_at.is_some() => {
                self.resend_sigterm();
                WardenPhase::Terminating(None, kill_at)
            }
            Wakeup::StopRequested(StopLevel::Forced) | Wakeup::Deadline | Wakeup::LimitPassed => WardenPhase::Killing,
        }
    }

    /// Sends SIGTERM to those that the first round missed. A process that a shell forks at that moment may lose the
    /// signal to the shell's handler before `exec`, or appear a moment too late. The shell would then wait for it
    /// until the end.
    fn resend_sigterm(&mut self) {
        let all = ChildLookup::cheapest(self.own_pid).descendants(self.orphan_root());
        let parents = all.iter().chain([&self.orphan_root()]).map(|pid| pid.as_raw_nonzero().get()).collect();
        let missed = all.iter().filter(|pid| !self.sigterm_sent.contains(pid) || process_tree::dies_of_sigterm(**pid));
        let sent = missed
            .filter(|pid| process_tree::signal_member(**pid, &parents, Signal::TERM) == SignalOutcome::Sent)
            .copied()
            .collect();
        self.note_sigterm_sent(sent);
    }

    fn note_sigterm_sent(&mut self, sent: Vec<Pid>) {
        self.how = self.how.max(ProcessEndMethod::Term);
        self.ended_descendants.extend(&sent);
        self.sigterm_sent.extend(sent);
    }

    /// The process that inherits orphans of the command: this one, or the init of its namespace.
    fn orphan_root(&self) -> Pid {
        if self.namespace_reports.is_some() { self.leader } else { self.own_pid }
    }

    fn kill_all(&mut self) {
        let deadline = Instant::now() + KILL_TIMEOUT;
        let mut pause = KILL_RETRY_PAUSES.0;
        let mut listing = ChildLookup::cheapest(self.own_pid);
        if self.namespace_reports.is_some() {
            // They die with their init: this is the last moment to count them.
            self.ended_descendants.extend(listing.descendants(self.own_pid));
        }
        loop {
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            self.kill_groups(&listing);
            let mut pass = process_tree::signal_descendants(&listing, self.own_pid, &HashSet::new(), Signal::KILL);
            if pass.sent.is_empty() {
                self.kill_children(&mut pass);
            }
            if !(pass.sent.is_empty() && pass.refused.is_empty()) {
                self.how = ProcessEndMethod::Kill;
            }
            self.ended_descendants.extend(&pass.sent);
            self.reap();
            if self.is_all_gone {
                return;
            }
            let only_refused = pass.sent.is_empty() && !pass.refused.is_empty() && pause > KILL_RETRY_PAUSES.0;
            if only_refused || Instant::now() > deadline {
                return self.give_up(&pass.refused);
            }
            self.wait_for_wakeup(Some(Instant::now() + pause));
            pause = (pause * 2).min(KILL_RETRY_PAUSES.1);
            // There are children, but the cheap lookup shows none that can be killed: scan all of /proc.
            listing = if pass.sent.is_empty() { ChildLookup::scan_all() } else { ChildLookup::cheapest(self.own_pid) };
        }
    }

    /// Kills the process groups of all children. The kernel signals a whole group at once, so a fork storm inside of
    /// it cannot outrun the signal. A child that is not reaped keeps the number of its group in use.
    fn kill_groups(&mut self, listing: &ChildLookup) {
        let mut seen = HashSet::from([self.own_pid]);
        if self.namespace_reports.is_none() && self.command_end.is_none() {
            // Needs no /proc, so it comes first.
            seen.insert(self.leader);
            self.how = ProcessEndMethod::Kill;
            let _ = kill_process_group(self.leader, Signal::KILL);
        }
        for child in listing.children(self.own_pid) {
            let alive = process_tree::read_stat(child).is_some_and(|stat| !stat.is_dead());
            let Ok(group) = getpgid(Some(child)) else { continue };
            if seen.insert(group) && kill_process_group(group, Signal::KILL).is_ok() && alive {
                self.how = ProcessEndMethod::Kill;
                self.ended_descendants.insert(child);
            }
        }
    }

    /// Kills the children that the kernel knows, whatever /proc shows of them. When they are dead, their children
    /// become children of this process.
    fn kill_children(&self, pass: &mut SignalPass) {
        for child in self.proc_directory.children() {
            match kill_process(child, Signal::KILL) {
                Ok(()) => pass.sent.push(child),
                Err(Errno::PERM) => pass.refused.push(child),
                Err(_) => {}
            }
        }
    }

    /// Names the leftovers. Since there are children, the list is never empty.
    fn give_up(&mut self, refused: &[Pid]) {
        let mut remaining: HashSet<Pid> = self.proc_directory.children().into_iter().collect();
        remaining.extend(ChildLookup::scan_all().descendants(self.own_pid));
        remaining.retain(|pid| process_tree::may_be_alive(*pid));
        for pid in remaining {
            self.ended_descendants.remove(&pid);
            let name = process_tree::describe_leftover(pid, refused.contains(&pid));
            self.leftovers.push(LeftoverProcess { pid: pid.as_raw_nonzero().get(), name });
        }
        if self.leftovers.is_empty() {
            let me = self.own_pid.as_raw_nonzero().get();
            self.leftovers
                .push(LeftoverProcess { pid: me, name: format!("children of pid {me} that /proc does not show") });
        }
    }

    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.leader => self.note_leader_end(status),
                Ok(Some((pid, _))) if self.how != ProcessEndMethod::Exited => {
                    self.ended_descendants.insert(pid);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => {
                    self.is_all_gone = true;
                    return;
                }
            }
        }
    }

    fn note_leader_end(&mut self, status: WaitStatus) {
        self.read_namespace_reports();
        let end = (status.exit_status(), status.terminating_signal());
        self.command_end.get_or_insert(end);
    }

    /// Waits for a stop by the daemon, a change of a child, the deadline, or the lifetime limit.
    fn wait_for_wakeup(&mut self, deadline: Option<Instant>) -> Wakeup {
        loop {
            let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = remaining.and_then(|left| Timespec::try_from(left).ok());
            let stdin = io::stdin();
            let mut fds = vec![PollFd::from_borrowed_fd(self.child_changes.as_fd(), PollFlags::IN)];
            if self.is_daemon_alive {
                fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
            }
            let inside = self.namespace_reports.as_ref().filter(|_| self.command_end.is_none());
            if let Some(inside) = inside {
                fds.push(PollFd::from_borrowed_fd(inside.as_fd(), PollFlags::IN));
            }
            let timer = self.limit.timer();
            if let Some(timer) = timer {
                fds.push(PollFd::from_borrowed_fd(timer, PollFlags::IN));
            }
            let ready = match poll(&mut fds, timeout.as_ref()) {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(_) => {
                    // Somebody has lowered the limit of open files below the number of descriptors that `poll` gets
                    // here.
                    std::thread::sleep(remaining.map_or(KILL_RETRY_PAUSES.1, |left| left.min(KILL_RETRY_PAUSES.1)));
                    return Wakeup::StopRequested(StopLevel::Forced);
                }
            };
            let has_command = self.is_daemon_alive && fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            let is_timer_ready = timer.is_some() && fds.last().is_some_and(|fd| !fd.revents().is_empty());
            self.child_changes.drain();
            self.read_namespace_reports();
            if let Some(command) = has_command.then(|| self.read_stop_command(stdin.as_fd())).flatten() {
                return Wakeup::StopRequested(command);
            }
            return match ready {
                0 => Wakeup::Deadline,
                1 if is_timer_ready => match self.limit.update() {
                    true => Wakeup::LimitPassed,
                    // Extended in time: nothing that a phase waits for has happened.
                    false => continue,
                },
                _ => Wakeup::ChildChanged,
            };
        }
    }

    fn read_stop_command(&mut self, control: BorrowedFd<'_>) -> Option<StopLevel> {
        let mut bytes = [0_u8; 16];
        match rustix::io::read(control, &mut bytes) {
            Err(Errno::INTR | Errno::AGAIN) => None,
            Ok(0) | Err(_) => {
                self.is_daemon_alive = false;
                Some(StopLevel::Forced)
            }
            Ok(_) if bytes.contains(&warden_protocol::FORCED_STOP_BYTE) => Some(StopLevel::Forced),
            Ok(_) if bytes.contains(&warden_protocol::GENTLE_STOP_BYTE) => Some(StopLevel::Gentle),
            Ok(_) => None,
        }
    }

    /// Reads the report of the namespace's init, if it has arrived.
    fn read_namespace_reports(&mut self) {
        let Some(inside) = &mut self.namespace_reports else { return };
        let mut bytes = [0_u8; 512];
        let Ok(read @ 1..) = inside.read(&mut bytes) else { return };
        for report in warden_protocol::parse_reports(bytes.get(..read).unwrap_or_default()) {
            if let WardenReport::Ended(ended) = report {
                self.command_end = Some((ended.code, ended.signal));
            }
        }
    }

    /// Tells the next daemon that this warden has ended everything, for the case that this daemon is gone.
    fn note_end_in_record(&mut self) {
        if let Some(record) = self.record.take().filter(|_| self.leftovers.is_empty()) {
            warden_record::note_own_end(record, self.own_pid);
        }
    }

    fn into_final_report(mut self) -> WardenReport {
        self.ended_descendants.remove(&self.leader);
        self.ended_descendants.remove(&self.command);
        let (code, signal) = self.command_end.unwrap_or_default();
        WardenReport::Ended(CommandEndReport {
            code,
            signal,
            how: self.how,
            leader_alive_at_stop: self.was_told_to_stop,
            ended_by_lifetime_limit: self.ended_by_lifetime_limit,
            swept: u32::try_from(self.ended_descendants.len()).unwrap_or(u32::MAX),
            leftovers: self.leftovers,
        })
    }
}

fn terminating_for(grace: Duration) -> WardenPhase {
    let now = Instant::now();
    WardenPhase::Terminating(Some(now + grace / 2), now + grace)
}

fn become_warden() -> io::Result<()> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    name_process()
}
