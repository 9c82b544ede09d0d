//! A running command: its input, its output, its stop handle and its end.

use std::sync::{Arc, Weak};

use quell_protocol::background::AliveProcess;
use quell_scope::StopLevel;
use rustix::process::Pid;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::JoinHandle;

use super::output::{self, OutputPipes};
use super::warden_watch::{StopCause, WardenControl};
use super::{OutputSink, ProcessEnd, SpawnError, process_tree};

/// A started command. A task of the scope watches its warden and holds it in the ledger until its last process is
/// dead. Dropping this value ends neither the command nor the task.
#[derive(Debug)]
pub struct RunningCommand {
    pub(super) control: Arc<WardenControl>,
    pub(super) input: Option<Sender>,
    pub(super) streams: OutputPipes,
    pub(super) end_task: JoinHandle<Result<ProcessEnd, SpawnError>>,
    pub(super) output_limit: usize,
}

/// A living process of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveProcess {
    pub pid: u32,
    /// Its name in `/proc`, which it may choose itself.
    pub name: String,
    /// Start time in ticks since the boot of the machine. Together with the pid it identifies a process.
    start_ticks: u64,
}

impl LiveProcess {
    /// None if it is dead.
    pub(super) fn read(pid: Pid) -> Option<Self> {
        let stat = process_tree::read_stat(pid).filter(|stat| !stat.is_dead())?;
        let pid = u32::try_from(pid.as_raw_nonzero().get()).ok()?;
        Some(Self { pid, name: stat.name, start_ticks: stat.start_ticks })
    }

    /// The row of the API.
    #[must_use]
    pub fn to_row(&self) -> AliveProcess {
        AliveProcess { pid: self.pid, name: self.name.clone() }
    }

    /// True if both are the same process. It may have changed its name meanwhile.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.pid == other.pid && self.start_ticks == other.start_ticks
    }
}

/// Shows the living processes of a command. Clones show the same command. Holds no descriptor once the command has ended.
#[derive(Debug, Clone)]
pub struct CommandProcesses(Weak<WardenControl>);

impl CommandProcesses {
    /// All living processes, parents first: the command and what it has started, also what has left it. Reads `/proc`,
    /// which takes about 0.1 ms for a few processes. Empty after the end.
    #[must_use]
    pub fn list(&self) -> Vec<LiveProcess> {
        self.0.upgrade().map(|control| control.processes()).unwrap_or_default()
    }
}

/// Stops a command. Clones stop the same command.
#[derive(Debug, Clone)]
pub struct StopHandle(Arc<WardenControl>);

/// Sends a stop when it is dropped, for example with the future that waits for the result of the command.
#[derive(Debug)]
pub struct StopOnDrop(Option<(StopHandle, StopLevel)>);

impl StopOnDrop {
    /// Sends no stop any more: the command has ended.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some((stop_handle, level)) = &self.0 {
            stop_handle.send_stop(*level);
        }
    }
}

impl StopHandle {
    #[must_use]
    pub fn stop_on_drop(self, level: StopLevel) -> StopOnDrop {
        StopOnDrop(Some((self, level)))
    }

    /// Sends a stop without waiting. Each level is sent once.
    pub fn send_stop(&self, level: StopLevel) {
        self.0.send_stop(level, StopCause::Stopped);
    }
}

impl RunningCommand {
    /// Takes the writing end of the command's standard input; dropping it is end of file for the command. `None` when
    /// it was taken before.
    pub fn take_input(&mut self) -> Option<Sender> {
        self.input.take()
    }

    /// Takes the command's standard output as a stream. `None` when it was taken before. [`RunningCommand::collect`]
    /// then collects standard error only.
    pub fn take_stdout(&mut self) -> Option<Receiver> {
        self.streams.take_stdout()
    }

    /// Returns a handle to stop the command, now or later.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.control))
    }

    /// Returns a view of the command's living processes.
    #[must_use]
    pub fn processes(&self) -> CommandProcesses {
        CommandProcesses(Arc::downgrade(&self.control))
    }

    /// Collects the output until all processes of the command have ended. An input that was not taken stays open
    /// until then.
    ///
    /// # Errors
    /// [`SpawnError`] when the command could not be started after all.
    ///
    /// # Cancel safety
    /// When dropped, it closes the output pipes and loses what was read; the command runs on until it is stopped.
    pub async fn collect(self, sink: &mut dyn OutputSink) -> Result<ProcessEnd, SpawnError> {
        let Self { control: _, input: _input, streams, end_task: watch, output_limit } = self;
        output::collect_output(streams, output_limit, sink, watch).await
    }
}
