//! The daemon's side of a warden: the reins by which it is told, and the task that waits for its last word.
//!
//! The task owns the ledger's hold. It ends when the warden has said that nothing is left and is itself reaped, or when the
//! daemon has ended what a killed warden left.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quell_protocol::receipt::{Containment, ProcessFacts};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::orphans::{self, Lost, Taken};
use super::tree;
use super::words::{self, Ended, Step, Word};
use super::{CommandSpec, Isolate, ProcessHow, ProcessStop, Shared, SpawnError, births};
use crate::scope::{Held, StopLevel};

/// After force, how often the daemon looks whether a warden that does not answer needs help.
const RESCUE: Duration = Duration::from_millis(20);

/// Who asked for the end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Stopped,
    TimedOut,
    /// The daemon itself, because a gentle end takes too long.
    Escalated,
}

/// What a warden was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    level: StopLevel,
    since: Instant,
    /// The first cause.
    cause: Cause,
}

/// Telling a warden what to do, from any thread and without waiting.
#[derive(Debug)]
pub(super) struct Reins {
    socket: UnixStream,
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
    told: watch::Sender<Option<Told>>,
}

impl Reins {
    pub(super) fn new(socket: UnixStream, pid: Pid, pidfd: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket, pid, pidfd: pollable(pidfd)?, told: watch::Sender::new(None) })
    }

    /// Tells the warden, once per level.
    pub(super) fn tell(&self, level: StopLevel, cause: Cause) {
        let rises = self.told.send_if_modified(|told| {
            if told.is_some_and(|told| told.level >= level) {
                return false;
            }
            let cause = told.map_or(cause, |told| told.cause);
            *told = Some(Told { level, since: Instant::now(), cause });
            true
        });
        if !rises {
            return;
        }
        let byte = match level {
            StopLevel::Gentle => words::GENTLE,
            StopLevel::Forced => words::FORCED,
        };
        // Both fail only when the warden is gone, which the task sees by itself.
        let _ = rustix::io::write(&self.socket, &[byte]);
        // A command may have stopped its warden.
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(self.pidfd.get_ref().as_fd(), signal);
    }

    fn told(&self) -> Option<Told> {
        *self.told.borrow()
    }

    /// Adds what the warden says; false when it says no more.
    async fn hear(&self, heard: &mut Vec<u8>) -> bool {
        loop {
            if self.socket.readable().await.is_err() {
                return false;
            }
            match self.socket.try_read_buf(heard) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
    }
}

#[expect(unsafe_code, reason = "tokio wants a promise that the descriptor stays open and the same")]
fn pollable(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` answers with one and the same descriptor, which is open as long as it lives, and it lives in the
    // `AsyncFd`.
    Ok(unsafe { AsyncFd::register(pidfd) }?)
}

/// How a command ended, but for its output.
#[derive(Debug)]
pub(super) struct WatchEnd {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) swept: u32,
    pub(super) left_behind: u32,
    pub(super) how: ProcessHow,
    pub(super) why: ProcessStop,
    pub(super) leftovers: Vec<String>,
    pub(super) held_by: Option<Containment>,
}

/// The task that waits for the end of a command.
pub(super) struct Watch {
    shared: Arc<Shared>,
    reins: Arc<Reins>,
    held: Held,
    facts: ProcessFacts,
    program: String,
    run_id: Option<Vec<u8>>,
    deadline: Option<Instant>,
    isolate: Isolate,
    /// The daemon itself ended processes of the command: the warden was too late, and its report cannot know.
    helped: bool,
}

/// What is due when nothing is heard.
#[derive(Debug, Clone, Copy)]
enum Due {
    TimeOut,
    Escalate,
    Rescue,
}

impl Watch {
    pub(super) fn new(shared: Arc<Shared>, reins: Arc<Reins>, held: Held, spec: &CommandSpec) -> Self {
        let facts = ProcessFacts { command: spec.label.clone(), ..ProcessFacts::default() };
        let program = spec.argv.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
        let run_id = spec.run_id().map(|id| id.as_bytes().to_vec());
        let deadline = spec.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { shared, reins, held, facts, program, run_id, deadline, isolate: spec.isolate, helped: false }
    }

    /// Waits until nothing of the command is alive.
    pub(super) async fn until_end(mut self) -> Result<WatchEnd, SpawnError> {
        let last = self.listen().await;
        let exited = self.reap_warden().await;
        let end = match last {
            // A report counts when its warden has gone on to its own end: whoever can write to the socket can forge one.
            Some(Word::Ended(ended)) if exited => self.by_report(ended).await,
            Some(Word::Refused { step, errno }) if exited => {
                // Nothing runs as a rule; a warden that failed after the start has left its command.
                self.take_over().await;
                if let Some(record) = &self.shared.record {
                    record.ended(self.reins.pid);
                }
                self.held.release("failed");
                return Err(refused(step, errno, self.program));
            }
            Some(_) | None => self.by_take_over().await,
        };
        if let Some(record) = &self.shared.record {
            record.ended(self.reins.pid);
        }
        let (pid, held_by) = (self.facts.pid, end.held_by.map(Containment::words));
        tracing::debug!(pid, held_by, how = end.how.word(), swept = end.swept, leftovers = ?end.leftovers, "command over");
        self.facts.swept = end.swept;
        self.facts.exit_code = end.code;
        self.facts.signal = end.signal;
        self.held.note_process(self.facts);
        for name in &end.leftovers {
            self.held.note_leftover(name.clone());
        }
        self.held.release(end.how.word());
        Ok(end)
    }

    /// Listens until the warden's socket ends, and sees to it that it does.
    async fn listen(&mut self) -> Option<Word> {
        let reins = Arc::clone(&self.reins);
        let mut told = reins.told.subscribe();
        let mut heard = Vec::new();
        let (mut rescues, mut idle) = (0, 0);
        loop {
            let due = self.due(rescues);
            let at = due.map_or_else(Instant::now, |(at, _)| at);
            // Every arm waits for a condition or takes bytes in one piece: whichever is dropped loses nothing.
            tokio::select! {
                more = reins.hear(&mut heard) => {
                    self.note_start(&heard);
                    if !more {
                        return words::words(&heard).last();
                    }
                }
                // Whoever has a copy of the warden's end could keep the socket open for ever.
                _ = reins.pidfd.readable() => {
                    while matches!(reins.socket.try_read_buf(&mut heard), Ok(1..)) {}
                    self.note_start(&heard);
                    return words::words(&heard).last();
                }
                _ = told.changed() => {}
                () = sleep_until(at), if due.is_some() => match due {
                    Some((_, Due::TimeOut)) => reins.tell(StopLevel::Gentle, Cause::TimedOut),
                    Some((_, Due::Escalate)) => reins.tell(StopLevel::Forced, Cause::Escalated),
                    Some((_, Due::Rescue)) => {
                        rescues += 1;
                        let helped = orphans::help(reins.pid);
                        self.helped |= helped;
                        idle = if helped { 0 } else { idle + 1 };
                        self.replace_stuck(idle);
                    }
                    None => {}
                },
            }
        }
    }

    /// Kills a warden that has nothing left to end and does not say so, or that took all the time there is: what may still
    /// be alive then lands here.
    fn replace_stuck(&self, idle: u32) {
        let since = self.reins.told().map(|told| told.since);
        if idle > 2 || since.is_some_and(|since| since.elapsed() > self.shared.times.hard) {
            self.reins.signal(Signal::KILL);
        }
    }

    fn due(&self, rescues: u32) -> Option<(Instant, Due)> {
        match self.reins.told() {
            None => self.deadline.map(|at| (at, Due::TimeOut)),
            Some(told) if told.level == StopLevel::Gentle => {
                Some((told.since + self.shared.times.grace, Due::Escalate))
            }
            Some(told) => Some((told.since + RESCUE * (rescues + 1), Due::Rescue)),
        }
    }

    /// Puts the leader's number into the ledger as soon as it is known.
    fn note_start(&mut self, heard: &[u8]) {
        if self.facts.pid != 0 {
            return;
        }
        if let Some(Word::Started { pid, held_by }) = words::words(heard).next() {
            self.facts.pid = u32::try_from(pid).unwrap_or_default();
            self.facts.held_by = Some(held_by);
            self.warn_of_weak_hold(held_by);
            self.held.note_process(self.facts.clone());
        }
    }

    /// Once for each daemon: where the kernel gives no namespace, a hostile command has more ways to outlive a stop.
    fn warn_of_weak_hold(&self, held_by: Containment) {
        let weak = self.isolate == Isolate::Auto && held_by != Containment::Namespace;
        if weak && !self.shared.warned.swap(true, Ordering::Relaxed) {
            let held_by = held_by.words();
            tracing::warn!(held_by, "the system permits no PID namespace for commands; `quell doctor` says why");
        }
    }

    /// True when it went by itself to its end.
    async fn reap_warden(&self) -> bool {
        // Fails only when the runtime shuts down.
        let _ = self.reins.pidfd.readable().await;
        births::forget(self.reins.pid).is_some_and(|status| status.exit_status() == Some(0))
    }

    async fn by_report(&self, ended: Ended) -> WatchEnd {
        let told = ended.told || self.helped;
        let why = match self.reins.told().filter(|_| told).map(|told| told.cause) {
            None => ProcessStop::Own,
            Some(Cause::TimedOut) => ProcessStop::TimedOut,
            Some(Cause::Stopped | Cause::Escalated) => ProcessStop::Stopped,
        };
        // What the report says is over may have come up here all the same, and what it names may be ended from here.
        let taken = self.take_over().await;
        let seen = |pid: i32| taken.leftovers.iter().any(|(left, _)| left.as_raw_nonzero().get() == pid);
        let is_alive = |pid: i32| Pid::from_raw(pid).and_then(tree::stat).is_some_and(|stat| !stat.is_dead());
        let named = ended.leftovers.into_iter().filter(|leftover| !seen(leftover.pid) && is_alive(leftover.pid));
        let mut leftovers: Vec<String> = named.map(|leftover| leftover.name).collect();
        leftovers.extend(taken.leftovers.iter().map(|(_, name)| name.clone()));
        let swept = ended.swept.saturating_add(taken.swept);
        WatchEnd {
            code: ended.code,
            signal: ended.signal,
            swept,
            left_behind: if told { 0 } else { swept },
            how: if self.helped || taken.swept > 0 { ProcessHow::Kill } else { ended.how },
            why,
            leftovers,
            held_by: self.facts.held_by,
        }
    }

    async fn by_take_over(&self) -> WatchEnd {
        let taken = orphans::take_over(&self.lost()).await;
        let why = match self.reins.told().map(|told| told.cause) {
            None => ProcessStop::WardenLost,
            Some(Cause::TimedOut) => ProcessStop::TimedOut,
            Some(Cause::Stopped | Cause::Escalated) => ProcessStop::Stopped,
        };
        WatchEnd {
            code: taken.code,
            signal: taken.signal,
            swept: taken.swept,
            left_behind: 0,
            how: ProcessHow::Kill,
            why,
            leftovers: taken.leftovers.into_iter().map(|(_, name)| name).collect(),
            held_by: self.facts.held_by,
        }
    }

    /// Ends what has come up to the daemon. A warden that did its work has left nothing, and then this is one short look.
    async fn take_over(&self) -> Taken {
        let lost = self.lost();
        if orphans::any(&lost) { orphans::take_over(&lost).await } else { Taken::default() }
    }

    fn lost(&self) -> Lost<'_> {
        let leader = i32::try_from(self.facts.pid).ok().and_then(Pid::from_raw);
        Lost { warden: self.reins.pid, leader, run_id: self.run_id.as_deref() }
    }
}

fn refused(step: Step, errno: i32, program: String) -> SpawnError {
    let source = io::Error::from_raw_os_error(errno);
    match step {
        Step::Warden => SpawnError::Warden(source),
        Step::Isolate => SpawnError::Isolation(source),
        Step::Program => SpawnError::Program { program, source },
    }
}
