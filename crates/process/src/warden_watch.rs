//! The daemon's side of a warden: the control that stops it, and the task that waits for its last report.
//!
//! The task owns the entry in the ledger. It ends when the warden has reported that nothing is left and is reaped, or
//! when the daemon has ended what a killed warden left.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quell_protocol::receipt::{Containment, ProcessFacts};
use quell_protocol::sandbox::SandboxFacts;
use quell_scope::{Held, Release, Scope, StopLevel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpid, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::orphans::{self, LostWarden, TakeOverOutcome};
use super::process_tree::{self, ChildLookup};
use super::running::LiveProcess;
use super::warden_protocol::{self, CommandEndReport, StartFailure, StartStep, WardenReport};
use super::{
    CapturedOutput, CommandNetwork, CommandSpec, Isolate, ProcessEnd, ProcessEndMethod, ProcessEndReason,
    SessionNetwork, SpawnError, WardensInner, fd_passing, into_async_fd, live_wardens,
};

/// After a forced stop, how often the daemon checks whether a warden that does not answer needs help.
const RESCUE_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopCause {
    Stopped,
    TimedOut,
    /// The daemon itself, because a gentle stop takes too long.
    Escalated,
    LifetimeOver,
}

/// The stop that was sent to a warden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SentStop {
    level: StopLevel,
    sent_at: Instant,
    cause: StopCause,
}

/// Stops a warden from any thread, without waiting.
#[derive(Debug)]
pub(super) struct WardenControl {
    socket: UnixStream,
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
    sent_stop: watch::Sender<Option<SentStop>>,
    /// Set once the command has started.
    held_by: OnceLock<Containment>,
}

impl WardenControl {
    pub(super) fn new(socket: UnixStream, pid: Pid, pidfd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket,
            pid,
            pidfd: into_async_fd(pidfd)?,
            sent_stop: watch::Sender::new(None),
            held_by: OnceLock::new(),
        })
    }

    /// Sends a stop to the warden, once per level.
    pub(super) fn send_stop(&self, level: StopLevel, cause: StopCause) {
        let is_stronger = self.sent_stop.send_if_modified(|sent| {
            if sent.is_some_and(|sent| sent.level >= level) {
                return false;
            }
            let cause = sent.map_or(cause, |sent| sent.cause);
            *sent = Some(SentStop { level, sent_at: Instant::now(), cause });
            true
        });
        if !is_stronger {
            return;
        }
        let byte = match level {
            StopLevel::Gentle => warden_protocol::GENTLE_STOP_BYTE,
            StopLevel::Forced => warden_protocol::FORCED_STOP_BYTE,
        };
        // Both fail only when the warden is gone, which the watch task notices by itself.
        let _ = rustix::io::write(&self.socket, &[byte]);
        // The command may have stopped its warden with SIGSTOP.
        self.signal(Signal::CONT);
    }

    /// The living processes of the command, as `/proc` shows them.
    pub(super) fn processes(&self) -> Vec<LiveProcess> {
        let listing = ChildLookup::cheapest(getpid());
        let mut pids = Vec::new();
        for child in listing.children(self.pid) {
            let is_init = match self.held_by.get() {
                Some(held_by) => *held_by == Containment::Namespace,
                // The report of the start is not read yet.
                None => process_tree::innermost_pid(child) == Some(1),
            };
            // The init of the namespace is no process of the command.
            pids.extend((!is_init).then_some(child));
            pids.extend(listing.descendants(child));
        }
        let found = pids.into_iter().filter_map(LiveProcess::read).collect();
        // A warden that is alive afterwards was alive before, so its pid was not that of another process.
        if self.is_warden_alive() { found } else { Vec::new() }
    }

    fn is_warden_alive(&self) -> bool {
        let mut ended = [PollFd::new(self.pidfd.get_ref(), PollFlags::IN)];
        poll(&mut ended, Some(&Timespec::default())) == Ok(0)
    }

    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(self.pidfd.get_ref().as_fd(), signal);
    }

    fn sent_stop(&self) -> Option<SentStop> {
        *self.sent_stop.borrow()
    }

    /// Reads more of the warden's reports into the buffer; false at end of file.
    async fn read_reports(&self, buffer: &mut Vec<u8>) -> bool {
        loop {
            if self.socket.readable().await.is_err() {
                return false;
            }
            match self.socket.try_read_buf(buffer) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
    }
}

/// What starts the network of a command, once the init of its namespace has sent the listener.
pub(super) struct NetworkStart {
    pub(super) network: Arc<dyn CommandNetwork>,
    pub(super) socket: UnixStream,
    pub(super) scope: Scope,
}

impl NetworkStart {
    /// Waits for the listener and starts to serve it. `None` when the command got no network namespace, or ended first.
    async fn serve(self) -> Option<Box<dyn Send + Sync>> {
        loop {
            self.socket.readable().await.ok()?;
            match self.socket.try_io(Interest::READABLE, || fd_passing::receive_descriptor(&self.socket)) {
                Ok(listener) => {
                    let served = self.network.serve(listener.into(), &self.scope);
                    return served
                        .inspect_err(|error| tracing::warn!(%error, "a command gets no network: its listener fails"))
                        .ok();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }
}

/// The task that waits for the end of a command.
pub(super) struct WardenWatch {
    network_start: Option<NetworkStart>,
    /// Exists as long as the command, so that the next command of the session enters it.
    _session_network: Option<Arc<SessionNetwork>>,
    wardens: Arc<WardensInner>,
    control: Arc<WardenControl>,
    held: Held,
    facts: ProcessFacts,
    program: String,
    run_id: Option<Vec<u8>>,
    deadline: Option<Instant>,
    isolate: Isolate,
    /// The daemon itself ended processes of the command, which the warden's report cannot contain.
    daemon_helped: bool,
}

/// The action that is due when no report arrives.
#[derive(Debug, Clone, Copy)]
enum WatchTimeout {
    CommandTimeout,
    Escalate,
    Rescue,
}

impl WardenWatch {
    pub(super) fn new(
        wardens: Arc<WardensInner>,
        control: Arc<WardenControl>,
        held: Held,
        spec: &CommandSpec,
        network_start: Option<NetworkStart>,
    ) -> Self {
        let facts = ProcessFacts { command: spec.label.clone(), ..ProcessFacts::default() };
        let program = spec.argv.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
        let run_id = spec.run_id().map(|id| id.as_bytes().to_vec());
        let deadline = spec.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self {
            network_start,
            _session_network: spec.session_network.clone(),
            wardens,
            control,
            held,
            facts,
            program,
            run_id,
            deadline,
            isolate: spec.isolate,
            daemon_helped: false,
        }
    }

    /// Waits until all processes of the command have ended. The result has no output.
    pub(super) async fn wait_until_end(mut self) -> Result<ProcessEnd, SpawnError> {
        let last_report = self.read_until_end_with_network().await;
        let exited = self.reap_warden().await;
        let end = match last_report {
            // A report counts only if its warden then exited properly: the command could have forged one on the socket.
            Some(WardenReport::Ended(ended)) if exited => self.end_from_report(ended).await,
            Some(WardenReport::Refused(failure)) if exited => {
                // Usually nothing runs; a warden that failed after the start has left its command.
                self.end_orphans_if_any().await;
                if let Some(record) = &self.wardens.warden_record {
                    record.note_end(self.control.pid);
                }
                self.held.release(Release::Failed);
                return Err(start_error(failure, self.program));
            }
            Some(_) | None => self.end_from_take_over().await,
        };
        if let Some(record) = &self.wardens.warden_record {
            record.note_end(self.control.pid);
        }
        let (pid, held_by) = (self.facts.pid, end.held_by.map(Containment::description));
        tracing::debug!(pid, held_by, how = ?end.how, swept = end.swept, leftovers = ?end.leftovers, "command over");
        self.facts.swept = end.swept;
        self.facts.exit_code = end.code;
        self.facts.signal = end.signal;
        self.held.note_process(self.facts);
        for name in &end.leftovers {
            self.held.note_leftover(name.clone());
        }
        self.held.release(end.how.into());
        Ok(end)
    }

    /// As [`Self::read_until_end`]; serves the command's network until then.
    async fn read_until_end_with_network(&mut self) -> Option<WardenReport> {
        let network_start = self.network_start.take();
        let mut reading = pin!(self.read_until_end());
        let Some(network_start) = network_start else { return reading.await };
        tokio::select! {
            report = &mut reading => report,
            served = network_start.serve() => {
                let report = reading.await;
                // The command is over: nothing in its namespace needs the network any more.
                drop(served);
                report
            }
        }
    }

    /// Reads until the warden's socket ends, and enforces that it ends.
    async fn read_until_end(&mut self) -> Option<WardenReport> {
        let control = Arc::clone(&self.control);
        let mut stop_changes = control.sent_stop.subscribe();
        let mut buffer = Vec::new();
        let (mut rescues, mut idle) = (0, 0);
        loop {
            let due = self.next_timeout(rescues);
            let at = due.map_or_else(Instant::now, |(at, _)| at);
            // Each arm waits for a condition, or reads bytes in one step: dropping any of them loses nothing.
            tokio::select! {
                more = control.read_reports(&mut buffer) => {
                    self.note_command_start(&buffer);
                    if !more {
                        return warden_protocol::parse_reports(&buffer).last();
                    }
                }
                // The warden has exited. Do not wait for end of file: a process with a copy of the socket could keep
                // it open for ever.
                _ = control.pidfd.readable() => {
                    while matches!(control.socket.try_read_buf(&mut buffer), Ok(1..)) {}
                    self.note_command_start(&buffer);
                    return warden_protocol::parse_reports(&buffer).last();
                }
                _ = stop_changes.changed() => {}
                () = sleep_until(at), if due.is_some() => match due {
                    Some((_, WatchTimeout::CommandTimeout)) => control.send_stop(StopLevel::Gentle, StopCause::TimedOut),
                    Some((_, WatchTimeout::Escalate)) => control.send_stop(StopLevel::Forced, StopCause::Escalated),
                    Some((_, WatchTimeout::Rescue)) => {
                        rescues += 1;
                        let helped = orphans::kill_descendants(control.pid);
                        self.daemon_helped |= helped;
                        idle = if helped { 0 } else { idle + 1 };
                        self.kill_stuck_warden(idle);
                    }
                    None => {}
                },
            }
        }
    }

    /// Kills a warden that has nothing left to end and does not exit, or that took longer than the hard limit. The
    /// daemon then inherits what may still be alive.
    fn kill_stuck_warden(&self, idle: u32) {
        let since = self.control.sent_stop().map(|sent| sent.sent_at);
        if idle > 2 || since.is_some_and(|since| since.elapsed() > self.wardens.times.hard) {
            self.control.signal(Signal::KILL);
        }
    }

    fn next_timeout(&self, rescues: u32) -> Option<(Instant, WatchTimeout)> {
        match self.control.sent_stop() {
            None => self.deadline.map(|at| (at, WatchTimeout::CommandTimeout)),
            Some(sent) if sent.level == StopLevel::Gentle => {
                Some((sent.sent_at + self.wardens.times.grace, WatchTimeout::Escalate))
            }
            Some(sent) => Some((sent.sent_at + RESCUE_INTERVAL * (rescues + 1), WatchTimeout::Rescue)),
        }
    }

    /// Records the leader's pid in the ledger as soon as it is known.
    fn note_command_start(&mut self, buffer: &[u8]) {
        if self.facts.pid != 0 {
            return;
        }
        if let Some(WardenReport::Started { pid, held_by, sandbox }) = warden_protocol::parse_reports(buffer).next() {
            self.facts.pid = u32::try_from(pid).unwrap_or_default();
            self.facts.held_by = Some(held_by);
            let _ = self.control.held_by.set(held_by);
            self.warn_of_weak_containment(held_by);
            self.warn_of_missing_layers(sandbox.as_ref());
            self.facts.sandbox = sandbox;
            self.held.note_process(self.facts.clone());
        }
    }

    /// Warns once per daemon: without a namespace, a hostile command has more ways to survive a stop.
    fn warn_of_weak_containment(&self, held_by: Containment) {
        let weak = self.isolate == Isolate::Auto && held_by != Containment::Namespace;
        if weak && !self.wardens.warned_of_weak_isolation.swap(true, Ordering::Relaxed) {
            let held_by = held_by.description();
            tracing::warn!(held_by, "the system permits no PID namespace for commands; `quell doctor` says why");
        }
    }

    /// Warns once per daemon of what the system does not permit.
    fn warn_of_missing_layers(&self, sandbox: Option<&SandboxFacts>) {
        let Some(facts) = sandbox.filter(|facts| !facts.missing.is_empty()) else { return };
        if !self.wardens.warned_of_missing_layers.swap(true, Ordering::Relaxed) {
            let missing: Vec<&str> = facts.missing.iter().map(|missing| missing.layer.description()).collect();
            let missing = missing.join(", ");
            tracing::warn!(missing, "the sandbox of commands is weaker than it should be; `quell doctor` says why");
        }
    }

    /// Waits for the warden's exit and reaps it. True when it exited properly by itself.
    async fn reap_warden(&self) -> bool {
        // Fails only when the runtime shuts down.
        let _ = self.control.pidfd.readable().await;
        live_wardens::reap_warden(self.control.pid).is_some_and(|status| status.exit_status() == Some(0))
    }

    async fn end_from_report(&self, ended: CommandEndReport) -> ProcessEnd {
        let was_stopped = ended.leader_alive_at_stop || self.daemon_helped;
        // A warden needs no stop from this daemon when the limit passes.
        let cause_without_stop = ended.ended_by_lifetime_limit.then_some(StopCause::LifetimeOver);
        let cause = self.control.sent_stop().map(|sent| sent.cause).or(cause_without_stop).filter(|_| was_stopped);
        let why = match cause {
            None => ProcessEndReason::ByItself,
            Some(StopCause::TimedOut) => ProcessEndReason::TimedOut,
            Some(StopCause::Stopped | StopCause::Escalated | StopCause::LifetimeOver) => ProcessEndReason::Stopped,
        };
        let helped_after_limit = self.daemon_helped && cause == Some(StopCause::LifetimeOver);
        // The daemon may have inherited processes that the report counts as ended, and it may be able to end
        // leftovers of the report.
        let taken_over = self.end_orphans_if_any().await;
        let seen = |pid: i32| taken_over.leftovers.iter().any(|(left, _)| left.as_raw_nonzero().get() == pid);
        // The warden's own pid stands for children that /proc did not show to it. Unless they have come up here, nothing
        // says that they are gone.
        let is_hidden = |pid: i32| pid == self.control.pid.as_raw_nonzero().get() && taken_over.swept == 0;
        let is_alive = |pid: i32| is_hidden(pid) || Pid::from_raw(pid).is_some_and(process_tree::may_be_alive);
        let still_alive = ended.leftovers.into_iter().filter(|leftover| !seen(leftover.pid) && is_alive(leftover.pid));
        let mut leftovers: Vec<String> = still_alive.map(|leftover| leftover.name).collect();
        leftovers.extend(taken_over.leftovers.iter().map(|(_, name)| name.clone()));
        let swept = ended.swept.saturating_add(taken_over.swept);
        ProcessEnd {
            code: ended.code,
            signal: ended.signal,
            swept,
            left_behind: if was_stopped { 0 } else { swept },
            how: if self.daemon_helped || taken_over.swept > 0 { ProcessEndMethod::Kill } else { ended.how },
            reason: why,
            ended_by_lifetime_limit: ended.ended_by_lifetime_limit || helped_after_limit,
            leftovers,
            output: CapturedOutput::default(),
            held_by: self.facts.held_by,
            sandbox: self.facts.sandbox.clone(),
        }
    }

    async fn end_from_take_over(&self) -> ProcessEnd {
        let taken_over = orphans::end_orphans(&self.as_lost_warden()).await;
        let cause = self.control.sent_stop().map(|sent| sent.cause);
        let why = match cause {
            None => ProcessEndReason::WardenLost,
            Some(StopCause::TimedOut) => ProcessEndReason::TimedOut,
            Some(StopCause::Stopped | StopCause::Escalated | StopCause::LifetimeOver) => ProcessEndReason::Stopped,
        };
        ProcessEnd {
            code: taken_over.code,
            signal: taken_over.signal,
            swept: taken_over.swept,
            left_behind: 0,
            how: ProcessEndMethod::Kill,
            reason: why,
            ended_by_lifetime_limit: cause == Some(StopCause::LifetimeOver),
            leftovers: taken_over.leftovers.into_iter().map(|(_, name)| name).collect(),
            output: CapturedOutput::default(),
            held_by: self.facts.held_by,
            sandbox: self.facts.sandbox.clone(),
        }
    }

    /// Ends what the daemon has inherited. After a warden that finished its work there is nothing, and this is one
    /// short check.
    async fn end_orphans_if_any(&self) -> TakeOverOutcome {
        let lost = self.as_lost_warden();
        if orphans::has_orphans(&lost) { orphans::end_orphans(&lost).await } else { TakeOverOutcome::default() }
    }

    fn as_lost_warden(&self) -> LostWarden<'_> {
        let leader = i32::try_from(self.facts.pid).ok().and_then(Pid::from_raw);
        LostWarden { warden: self.control.pid, leader, run_id: self.run_id.as_deref() }
    }
}

fn start_error(failure: StartFailure, program: String) -> SpawnError {
    let source = io::Error::from_raw_os_error(failure.errno);
    match failure.step {
        StartStep::Warden => SpawnError::Warden(source),
        StartStep::Lifetime => SpawnError::LifetimeOver,
        StartStep::Isolate => SpawnError::Isolation(source),
        StartStep::Sandbox => SpawnError::Sandbox { problem: failure.detail.unwrap_or_else(|| source.to_string()) },
        StartStep::Program => SpawnError::Program { program, source },
    }
}
