//! Processes: the only home of `Command` and of `unsafe`. After a stop every process of a command is dead, also those that
//! left its group or session, forked twice, ignore signals, or fork without end.
//!
//! Every command runs under a *warden*: this same binary, started as a child sub-reaper, whose one task is to end what the
//! command started and to say so. It is told by a byte on its socket; the socket's end means that the daemon is gone, and
//! then it kills everything. The daemon is a sub-reaper too, so the processes of a warden that is itself killed land there.
//! This module knows runs only as a [`Scope`] and a value in the environment.

#[cfg(not(target_os = "linux"))]
compile_error!("the wardens need Linux: pidfds, child sub-reapers and /proc");

mod births;
mod cgroup;
mod input;
mod launch;
mod namespace;
mod orphans;
mod output;
mod record;
mod running;
mod signals;
mod start;
mod survivors;
mod tree;
mod warden;
mod watch;
mod words;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quell_kernel::StopTimes;
use quell_protocol::receipt::Containment;
use quell_protocol::{ResourceKind, ToolOutputStream};
use rustix::process::{DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior};
use serde::{Deserialize, Serialize};

use crate::scope::{Cancelled, Point, Scope};
use input::Input;
use launch::{Executable, Launched};
use record::{Birth, Record};
use watch::{Cause, Watch};

pub use output::CapturedOutput;
pub use running::{Leash, Running};
pub use survivors::Survivors;

/// The name of the variable by which every process of a run can be found.
pub const RUN_ID_VARIABLE: &str = "QUELL_RUN_ID";

/// Must be the first statement of `main`: returns the exit code when this process was started as a warden.
#[must_use]
pub fn warden_main() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    match args.next()?.to_str()? {
        words::WARDEN => Some(warden::serve()),
        _ => None,
    }
}

/// Makes this process non-dumpable, so that processes of the same user can read neither its memory nor its descriptors.
/// Make [`Wardens`] first.
///
/// # Errors
/// What the kernel says.
pub fn harden_daemon() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// What commands get of an environment: the few variables that programs need, and no secrets.
#[must_use]
pub fn base_environment(from: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    const ALLOWED: &[&str] =
        &["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ", "TMPDIR"];
    let allowed = |name: &OsStr| name.to_str().is_some_and(|name| ALLOWED.contains(&name) || name.starts_with("LC_"));
    from.filter(|(name, _)| allowed(name)).collect()
}

/// Where wardens are started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WardenExe {
    /// This very binary, through a descriptor opened now: an upgrade of the file later changes nothing.
    ThisProcess,
    /// Another binary whose `main` begins with [`warden_main`].
    Path(PathBuf),
}

/// Whether a command gets a PID namespace of its own, with its own `/proc`. A namespace needs privileges or a user namespace;
/// inside of the latter, files of other users belong to nobody, and `sudo` gains nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Isolate {
    /// Where the kernel gives one.
    #[default]
    Auto,
    /// Yes, or the command is refused.
    Pid,
    /// No: a cgroup of its own where the daemon's is delegated, else the warden looks for what the command has started.
    None,
}

impl Isolate {
    /// As in the configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Pid => "pid",
            Self::None => "none",
        }
    }

    /// From the word of the configuration.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Auto, Self::Pid, Self::None].into_iter().find(|isolate| isolate.word() == word)
    }
}

/// A command to run.
#[derive(Debug, Clone)]
pub struct CommandSpec {
    /// Program and arguments. The program is looked up in the `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// For people and for the ledger: the command as given.
    pub label: String,
    /// Where it runs.
    pub cwd: PathBuf,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// After this it is ended like by a gentle stop.
    pub timeout: Option<Duration>,
    /// How many bytes of output are kept.
    pub output_limit: usize,
    /// Whether it gets a PID namespace of its own.
    pub isolate: Isolate,
}

impl CommandSpec {
    /// The run in whose name it is started.
    fn run_id(&self) -> Option<&str> {
        self.env.iter().find(|(name, _)| name == RUN_ID_VARIABLE)?.1.to_str()
    }
}

/// Gets a command's output as it comes.
pub trait OutputSink: Send {
    /// Takes some text. Must not block.
    fn output(&mut self, stream: ToolOutputStream, text: &str);
}

/// The rung that ended the processes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessHow {
    /// They exited by themselves.
    Exited,
    /// Some got SIGTERM.
    Term,
    /// Some got SIGKILL.
    Kill,
}

impl ProcessHow {
    /// The word of the receipt.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Term => "term",
            Self::Kill => "kill",
        }
    }
}

/// Why a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessStop {
    /// By itself.
    Own,
    /// Its scope was cancelled, or its caller went away.
    Stopped,
    /// It took too long.
    TimedOut,
    /// Its warden was killed; the daemon killed the rest.
    WardenLost,
}

/// How a command ended. Nothing of it is alive any more except what `leftovers` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEnd {
    /// Exit code of the leader, if it exited.
    pub code: Option<i32>,
    /// The signal that ended the leader, if one did.
    pub signal: Option<i32>,
    /// Descendants other than the leader that had to be ended.
    pub swept: u32,
    /// The rung that was needed.
    pub how: ProcessHow,
    /// Why it ended.
    pub why: ProcessStop,
    /// Of the swept ones, those that a leader left behind when it ended by itself.
    pub left_behind: u32,
    /// What it printed on both streams, in the order in which it was read.
    pub output: CapturedOutput,
    /// Processes that could not be ended, by name.
    pub leftovers: Vec<String>,
    /// What held its descendants; none when it never ran.
    pub held_by: Option<Containment>,
}

/// Why a command was not started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The scope was cancelled before; nothing happened.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The directory is no directory that can be entered.
    #[error("cannot run in {}", directory.display())]
    Directory {
        /// The directory asked for.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The program could not be executed.
    #[error("cannot execute {program}")]
    Program {
        /// The program asked for.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// A PID namespace was asked for and is not permitted here.
    #[error("the system permits no PID namespace, which isolate = \"pid\" asks for; `quell doctor` says why")]
    Isolation(#[source] io::Error),
    /// The warden could not be started.
    #[error("cannot start a warden")]
    Warden(#[source] io::Error),
}

/// Starts commands under wardens. Clones share everything.
#[derive(Debug, Clone)]
pub struct Wardens(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    executable: Executable,
    times: StopTimes,
    record: Option<Arc<Record>>,
    /// The soft limit of open files of commands; none where they have that of this process.
    open_files: Option<u64>,
    /// Wardens of the last daemon that were killed with it.
    unfinished: Vec<Birth>,
    /// Whether it has been told that commands get no namespace.
    warned: AtomicBool,
}

impl Wardens {
    /// Makes this process a child sub-reaper, so that what a killed warden leaves lands here.
    ///
    /// # Errors
    /// When the executable cannot be opened or the kernel knows no sub-reapers.
    pub fn new(executable: WardenExe, times: StopTimes) -> io::Result<Self> {
        Self::recording(executable, times, (None, Vec::new()), None)
    }

    /// As [`Wardens::new`], with a file in which births and ends of wardens are noted, so that the next daemon finds what a
    /// killed one left. A file that cannot be used is told in the log and done without. Commands get the soft limit `open_files`,
    /// if there is one.
    ///
    /// # Errors
    /// As [`Wardens::new`].
    pub fn with_record(
        executable: WardenExe,
        times: StopTimes,
        record: &Path,
        open_files: Option<u64>,
    ) -> io::Result<Self> {
        let (record, unfinished) = match Record::open(record) {
            Ok((record, unfinished)) => (Some(record), unfinished),
            Err(error) => {
                tracing::warn!(%error, file = %record.display(), "no record of wardens; after a crash only what carries the id of its run is found");
                (None, Vec::new())
            }
        };
        Self::recording(executable, times, (record, unfinished), open_files)
    }

    fn recording(
        executable: WardenExe,
        times: StopTimes,
        (record, unfinished): (Option<Arc<Record>>, Vec<Birth>),
        open_files: Option<u64>,
    ) -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        let executable = Executable::open(executable)?;
        let warned = AtomicBool::new(false);
        Ok(Self(Arc::new(Shared { executable, times, record, open_files, unfinished, warned })))
    }

    /// Ends what is alive of these runs and of the last daemon's wardens, once, before anything is started. A daemon that dies
    /// before [`Wardens::forget_earlier_wardens`] leaves the same to the next one.
    ///
    /// # Cancel safety
    /// Safe: what it has ended stays ended, and the rest is found again.
    pub async fn end_survivors(&self, runs: &HashSet<&str>) -> Survivors {
        survivors::end_survivors(runs, &self.0.unfinished).await
    }

    /// Forgets the wardens of the last daemon: what they left is in the receipts of their runs.
    pub fn forget_earlier_wardens(&self) {
        if let Some(record) = &self.0.record {
            record.forget();
        }
    }

    /// Runs a command to its end and collects what it printed. The end of the scope does not end this call; it ends the
    /// command, and this call tells how. When it returns, every process of the command is dead or named as a leftover.
    ///
    /// # Errors
    /// [`SpawnError`] when the command did not start.
    ///
    /// # Cancel safety
    /// Dropping it stops the command like a gentle stop and loses the output. The waiting belongs to a task of the scope, so
    /// the ledger holds the command until its last process is dead.
    pub async fn run(
        &self,
        spec: &CommandSpec,
        scope: &Scope,
        sink: &mut dyn OutputSink,
    ) -> Result<ProcessEnd, SpawnError> {
        scope.check(Point::Process)?;
        let running = self.launch(spec, scope, Input::Null)?;
        let mut dropped = StopOnDrop(Some(running.leash()));
        let end = running.collect(sink).await;
        dropped.0 = None;
        end
    }

    /// Starts a command that reads from a pipe and goes on by itself: what it prints is the caller's to read or to collect.
    /// The end of the scope ends it.
    ///
    /// # Errors
    /// [`SpawnError`] when no warden could be started; that the program could not be executed is known at the command's end.
    pub fn start(&self, spec: &CommandSpec, scope: &Scope) -> Result<Running, SpawnError> {
        scope.check(Point::Process)?;
        self.launch(spec, scope, Input::Pipe)
    }

    fn launch(&self, spec: &CommandSpec, scope: &Scope, input: Input) -> Result<Running, SpawnError> {
        births::reap_outliving();
        // Held before it exists: there is no moment at which a process lives that the ledger does not know.
        let held = scope.hold(ResourceKind::Process, spec.label.clone());
        let Launched { reins, streams, input } = match launch::launch(&self.0, spec, input) {
            Ok(launched) => launched,
            Err(error) => {
                held.release("failed");
                return Err(error);
            }
        };
        let reins = Arc::new(reins);
        let told = Arc::clone(&reins);
        let held = held.on_stop(move |level| told.tell(level, Cause::Stopped));
        let watch = Watch::new(Arc::clone(&self.0), Arc::clone(&reins), held, spec);
        let watch = scope.spawn(watch.until_end());
        Ok(Running { reins, input, streams, watch, output_limit: spec.output_limit })
    }
}

/// Ends the command when the future that wants its result is dropped.
struct StopOnDrop(Option<Leash>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(leash) = &self.0 {
            leash.end(crate::scope::StopLevel::Gentle);
        }
    }
}
