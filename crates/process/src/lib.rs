//! Processes: the only module that uses `Command` and `unsafe`. A stop ends every process of a command.
//!
//! This includes processes that left its process group or session, forked twice, ignore signals, or fork without end.
//!
//! Each command runs under a *warden*: this binary, started as a child sub-reaper, with the one task to end what the
//! command started and to report that. A byte on its socket asks for a stop. End of file on the socket means that the
//! daemon is gone; the warden then kills everything.
//!
//! The daemon is a sub-reaper too, so the processes of a killed warden become its children. The only things that this
//! module knows of a run are its [`Scope`] and its id in the environment.

#[cfg(not(target_os = "linux"))]
compile_error!("the wardens need Linux: pidfds, child sub-reapers and /proc");

mod async_fd;
mod cgroup;
mod command_start;
mod command_user;
mod containment;
mod fd_passing;
mod launch;
mod lifetime_limit;
mod live_wardens;
mod namespace;
mod orphans;
mod output;
mod process_tree;
mod program_pages;
mod running;
mod sandbox;
mod session_network;
mod signals;
mod survivors;
mod warden;
mod warden_protocol;
mod warden_record;
mod warden_watch;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quell_kernel::StopTimeouts;
use quell_protocol::receipt::Containment;
use quell_protocol::sandbox::SandboxFacts;
use quell_protocol::{ResourceKind, ToolOutputStream};
use quell_scope::{Cancelled, Point, Release, Scope, StopLevel};
use rustix::process::{DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior};
use serde::{Deserialize, Serialize};

use fd_passing::CommandInput;
use launch::{LaunchedCommand, WardenExecutable};
use warden_record::{UnfinishedWarden, WardenRecord};
use warden_watch::{NetworkStart, StopCause, WardenWatch};

pub use async_fd::into_async_fd;
pub use command_user::CommandUser;
pub use lifetime_limit::{LifetimeLimit, boot_time_now};
pub use output::CapturedOutput;
pub use program_pages::unmap_unused_code;
pub use running::{CommandProcesses, LiveProcess, RunningCommand, StopHandle, StopOnDrop};
pub use sandbox::{CommandNetwork, PROXY_PORT, SandboxNetwork, SandboxSpec};
pub use session_network::SessionNetwork;
pub use survivors::Survivors;

/// The environment variable with the run id, by which all processes of a run can be found.
pub const RUN_ID_VARIABLE: &str = "QUELL_RUN_ID";

/// Must be the first statement of `main`: returns the exit code when this process was started as a warden.
#[must_use]
pub fn warden_main() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    match args.next()?.to_str()? {
        warden_protocol::WARDEN_ARGUMENT => Some(warden::run_warden()),
        _ => None,
    }
}

/// Makes this process non-dumpable, so that other processes of the same user cannot read its memory or descriptors.
/// Create [`Wardens`] first.
pub fn harden_daemon() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Filters the environment for commands: passes the few variables that programs need, and no secrets.
pub fn base_environment(from: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    const ALLOWED: &[&str] =
        &["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ", "TMPDIR"];
    let allowed = |name: &OsStr| name.to_str().is_some_and(|name| ALLOWED.contains(&name) || name.starts_with("LC_"));
    from.filter(|(name, _)| allowed(name)).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WardenExe {
    /// This binary, through a descriptor that is opened now: a later upgrade of the file changes nothing.
    ThisProcess,
    /// Another binary, whose `main` begins with [`warden_main`].
    Path(PathBuf),
}

/// Whether a command runs in a PID namespace of its own, with its own `/proc`. This needs privileges or a user
/// namespace. In a user namespace, files of other users belong to nobody, and `sudo` has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Isolate {
    /// Isolate where the kernel allows it.
    #[default]
    Auto,
    /// Isolate, or refuse the command.
    Pid,
    /// Do not isolate: use a cgroup of its own where the daemon's cgroup is delegated; else the warden searches for
    /// descendants.
    None,
}

impl Isolate {
    /// The word used in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Pid => "pid",
            Self::None => "none",
        }
    }

    /// Parses the word used in the configuration.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Auto, Self::Pid, Self::None].into_iter().find(|isolate| isolate.word() == word)
    }
}

#[derive(Debug, Clone)]
pub struct CommandSpec {
    /// Program and arguments. The program is looked up in the `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// The command as given, for people and for the ledger.
    pub label: String,
    pub cwd: PathBuf,
    /// The whole environment: the command inherits no other variable.
    pub env: Vec<(OsString, OsString)>,
    /// After this time the command is ended as by a gentle stop.
    pub timeout: Option<Duration>,
    /// Bytes of output to keep.
    pub output_limit: usize,
    pub isolate: Isolate,
    /// What the command may reach; everything that the daemon can reach if `None`, as for the operator's own programs.
    pub sandbox: Option<Arc<SandboxSpec>>,
    /// The way out of the command's network namespace, for a sandbox with a proxied network.
    pub network: Option<Arc<dyn CommandNetwork>>,
    /// The network namespace that the command shares with others; one of its own if `None`. Only for a sandbox with a
    /// closed or proxied network.
    pub session_network: Option<Arc<SessionNetwork>>,
}

impl CommandSpec {
    /// The network namespace that the command shares with others, if it gets one.
    fn network_to_share(&self) -> Option<&Arc<SessionNetwork>> {
        match self.sandbox.as_ref()?.network {
            SandboxNetwork::Daemon => None,
            SandboxNetwork::Closed | SandboxNetwork::Proxied => self.session_network.as_ref(),
        }
    }

    fn run_id(&self) -> Option<&str> {
        self.env.iter().find(|(name, _)| name == RUN_ID_VARIABLE)?.1.to_str()
    }
}

pub trait OutputSink: Send {
    /// Receives a piece of text. Must not block.
    fn output(&mut self, stream: ToolOutputStream, text: &str);
}

/// The rung that ended the processes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessEndMethod {
    /// All exited by themselves.
    Exited,
    Term,
    Kill,
}

impl From<ProcessEndMethod> for Release {
    fn from(how: ProcessEndMethod) -> Self {
        match how {
            ProcessEndMethod::Exited => Self::Exited,
            ProcessEndMethod::Term => Self::Term,
            ProcessEndMethod::Kill => Self::Kill,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessEndReason {
    ByItself,
    /// Its scope was cancelled, its caller dropped the call, or the lifetime limit passed.
    Stopped,
    TimedOut,
    /// Its warden was killed; the daemon ended the rest.
    WardenLost,
}

/// How a command ended. All its processes are dead except those named in `leftovers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEnd {
    /// Exit code of the leader, if it exited.
    pub code: Option<i32>,
    /// The signal that ended the leader, if one did.
    pub signal: Option<i32>,
    /// Descendants other than the leader that had to be ended.
    pub swept: u32,
    /// The strongest rung that was needed.
    pub how: ProcessEndMethod,
    pub reason: ProcessEndReason,
    /// Processes were killed because the [`LifetimeLimit`] had passed.
    pub ended_by_lifetime_limit: bool,
    /// Of `swept`, those that were alive when the leader had exited by itself.
    pub left_behind: u32,
    /// The output of both streams, in the order in which it was read.
    pub output: CapturedOutput,
    /// Processes that could not be ended, by name.
    pub leftovers: Vec<String>,
    /// Containment of the descendants; `None` when the command never ran.
    pub held_by: Option<Containment>,
    /// What held the command back; `None` without a sandbox, or when the command never ran.
    pub sandbox: Option<SandboxFacts>,
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The scope was cancelled before the start.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The working directory does not exist or cannot be entered.
    #[error("cannot run in {}", directory.display())]
    Directory { directory: PathBuf, source: io::Error },
    #[error("cannot execute {program}")]
    Program { program: String, source: io::Error },
    /// `isolate = "pid"` was asked for, and the system does not permit a PID namespace.
    #[error("the system permits no PID namespace, which isolate = \"pid\" asks for; `quell doctor` says why")]
    Isolation(#[source] io::Error),
    /// A step of the sandbox failed, or a layer is missing that `sandbox_require = true` asks for. Nothing was started.
    #[error("the sandbox could not be set up: {problem}; `quell doctor` says what this system permits")]
    Sandbox {
        /// The step and its error.
        problem: String,
    },
    #[error("commands may not run any more: their lifetime limit has passed")]
    LifetimeOver,
    #[error("cannot start a warden")]
    Warden(#[source] io::Error),
}

/// Starts commands under wardens. Clones share one state.
#[derive(Debug, Clone)]
pub struct Wardens(Arc<WardensInner>);

#[derive(Debug)]
struct WardensInner {
    executable: WardenExecutable,
    times: StopTimeouts,
    lifetime_limit: LifetimeLimit,
    warden_record: Option<Arc<WardenRecord>>,
    /// Soft limit of open files for commands; `None` keeps the limit of this process.
    open_files: Option<u64>,
    /// Wardens of the previous daemon that were killed with it.
    unfinished_wardens: Vec<UnfinishedWarden>,
    /// True once the log has a warning that commands get no namespace.
    warned_of_weak_isolation: AtomicBool,
    /// True once the log has a warning that layers of the sandbox are missing.
    warned_of_missing_layers: AtomicBool,
}

impl Wardens {
    /// Makes this process a child sub-reaper, so that it inherits the processes of a killed warden.
    ///
    /// # Errors
    /// When the executable cannot be opened, the kernel has no sub-reapers, or no file in memory can be made.
    pub fn new(executable: WardenExe, times: StopTimeouts) -> io::Result<Self> {
        Self::with_parts(executable, times, None, Vec::new(), None)
    }

    /// As [`Wardens::new`], with a file that records starts and ends of wardens, so that the next daemon finds what a
    /// killed daemon left. A file that cannot be used gives a warning in the log and is not used. Commands get the
    /// soft limit `open_files`, if given.
    pub fn with_warden_record(
        executable: WardenExe,
        times: StopTimeouts,
        record_path: &Path,
        open_files: Option<u64>,
    ) -> io::Result<Self> {
        let (warden_record, unfinished) = match WardenRecord::open(record_path) {
            Ok((record, unfinished)) => (Some(record), unfinished),
            Err(error) => {
                tracing::warn!(%error, file = %record_path.display(), "cannot use the record of wardens; after a crash only processes with the id of their run are found");
                (None, Vec::new())
            }
        };
        Self::with_parts(executable, times, warden_record, unfinished, open_files)
    }

    fn with_parts(
        executable: WardenExe,
        times: StopTimeouts,
        warden_record: Option<Arc<WardenRecord>>,
        unfinished_wardens: Vec<UnfinishedWarden>,
        open_files: Option<u64>,
    ) -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        let executable = WardenExecutable::open(executable)?;
        Ok(Self(Arc::new(WardensInner {
            executable,
            times,
            lifetime_limit: LifetimeLimit::new()?,
            warden_record,
            open_files,
            unfinished_wardens,
            warned_of_weak_isolation: AtomicBool::new(false),
            warned_of_missing_layers: AtomicBool::new(false),
        })))
    }

    /// Ends the living processes of these runs and of the previous daemon's wardens. Call it once, before anything is
    /// started. If this daemon dies before [`Wardens::forget_earlier_wardens`], the next one finds the same wardens.
    ///
    /// # Cancel safety
    /// Safe: what it has ended stays ended, and a second call finds the rest.
    pub async fn end_survivors(&self, runs: &HashSet<&str>) -> Survivors {
        survivors::end_survivors(runs, &self.0.unfinished_wardens).await
    }

    /// Clears the record of the previous daemon's wardens, once what they left is in the receipts of their runs.
    pub fn forget_earlier_wardens(&self) {
        if let Some(warden_record) = &self.0.warden_record {
            warden_record.clear_if_unused();
        }
    }

    #[must_use]
    pub fn lifetime_limit(&self) -> &LifetimeLimit {
        &self.0.lifetime_limit
    }

    /// Runs a command to its end and collects its output. A cancelled scope does not end this call: it ends the
    /// command, and this call reports how. When it returns, every process of the command is dead or named as a
    /// leftover.
    ///
    /// # Errors
    /// As [`Self::start`].
    ///
    /// # Cancel safety
    /// When dropped, it stops the command gently and loses the output. A task of the scope waits for the end, so the
    /// ledger holds the command until its last process is dead.
    pub async fn run(
        &self,
        spec: &CommandSpec,
        scope: &Scope,
        sink: &mut dyn OutputSink,
    ) -> Result<ProcessEnd, SpawnError> {
        scope.check(Point::Process)?;
        let running = self.launch_command(spec, scope, CommandInput::Null)?;
        let stop_guard = running.stop_handle().stop_on_drop(StopLevel::Gentle);
        let end = running.collect(sink).await;
        stop_guard.disarm();
        end
    }

    /// Starts a command in the background, with a pipe as its standard input. The caller reads or collects its
    /// output. A cancelled scope ends the command.
    ///
    /// # Errors
    /// [`SpawnError`] when no warden could be started. A program that cannot be executed is reported at the command's
    /// end.
    pub fn start(&self, spec: &CommandSpec, scope: &Scope) -> Result<RunningCommand, SpawnError> {
        scope.check(Point::Process)?;
        self.launch_command(spec, scope, CommandInput::Pipe)
    }

    fn launch_command(
        &self,
        spec: &CommandSpec,
        scope: &Scope,
        input: CommandInput,
    ) -> Result<RunningCommand, SpawnError> {
        live_wardens::reap_unkillable();
        // Held before it exists, so that no process lives that is not in the ledger.
        let held = scope.hold(ResourceKind::Process, spec.label.clone());
        let LaunchedCommand { control, streams, input, listener_socket } = match launch::launch(&self.0, spec, input) {
            Ok(launched) => launched,
            Err(error) => {
                held.release(Release::Failed);
                return Err(error);
            }
        };
        let control = Arc::new(control);
        self.0.lifetime_limit.register(&control);
        let stop_control = Arc::clone(&control);
        let held = held.on_stop(move |level| stop_control.send_stop(level, StopCause::Stopped));
        let network = spec.network.clone().zip(listener_socket);
        let network = network.map(|(network, socket)| NetworkStart { network, socket, scope: scope.clone() });
        let task = WardenWatch::new(Arc::clone(&self.0), Arc::clone(&control), held, spec, network);
        let watch = scope.spawn(task.wait_until_end());
        Ok(RunningCommand { control, input, streams, end_task: watch, output_limit: spec.output_limit })
    }
}
