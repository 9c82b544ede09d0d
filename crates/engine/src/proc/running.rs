//! A command at work: what it reads, what it prints, how it is told to end, how it ended.

use std::sync::Arc;

use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::JoinHandle;

use super::output::{self, Streams};
use super::watch::{Cause, Reins, WatchEnd};
use super::{OutputSink, ProcessEnd, SpawnError};
use crate::scope::StopLevel;

/// A command that was started. Its warden is watched by a task of the scope that it was started in, which also holds it in
/// the ledger until its last process is dead; dropping this ends neither.
#[derive(Debug)]
pub struct Running {
    pub(super) reins: Arc<Reins>,
    pub(super) input: Option<Sender>,
    pub(super) streams: Streams,
    pub(super) watch: JoinHandle<Result<WatchEnd, SpawnError>>,
    pub(super) output_limit: usize,
}

/// Tells a command to end. Clones tell the same command.
#[derive(Debug, Clone)]
pub struct Leash(Arc<Reins>);

impl Leash {
    /// Tells the command to end, at once and without waiting. Each level counts once.
    pub fn end(&self, level: StopLevel) {
        self.0.tell(level, Cause::Stopped);
    }
}

impl Running {
    /// The end of the pipe that the command reads from; closing it is the end of its input. None when it has been taken.
    pub fn take_input(&mut self) -> Option<Sender> {
        self.input.take()
    }

    /// The command's standard output as it comes. None when it has been taken; [`Running::collect`] then collects standard
    /// error only.
    pub fn take_stdout(&mut self) -> Option<Receiver> {
        self.streams.take_stdout()
    }

    /// By which it is told to end, now or later.
    #[must_use]
    pub fn leash(&self) -> Leash {
        Leash(Arc::clone(&self.reins))
    }

    /// Collects what the command prints until nothing of it is alive. An input that was not taken stays open until then.
    ///
    /// # Errors
    /// [`SpawnError`] when the command did not start after all.
    ///
    /// # Cancel safety
    /// Dropping it closes the output pipes and loses what was read; the command goes on until it is told.
    pub async fn collect(self, sink: &mut dyn OutputSink) -> Result<ProcessEnd, SpawnError> {
        let Self { reins: _, input: _input, streams, watch, output_limit } = self;
        let (outcome, output) = output::collect(streams, output_limit, sink, watch).await;
        let end = outcome?;
        Ok(ProcessEnd {
            code: end.code,
            signal: end.signal,
            swept: end.swept,
            how: end.how,
            why: end.why,
            left_behind: end.left_behind,
            output,
            leftovers: end.leftovers,
            held_by: end.held_by,
        })
    }
}
