//! The use of a program by a run: a row in the run's ledger, and the end of what a stopped run leaves in the program.
//!
//! A program belongs to its session, or to all sessions. So it goes on when a run ends by itself, and after a gentle
//! stop if it is clean: nothing that it has started since the run began to use it is alive. Otherwise the stop of the
//! run ends it with all its processes. A forced stop ends it in any case, unless another run uses it.

use std::sync::Arc;
use std::time::Duration;

use quell_process::LiveProcess;
use quell_protocol::{ResourceKind, RunId};
use quell_scope::{Held, Release, Scope, StopLevel};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::call::{release_with_leftovers, wait_ended_or_kill};
use super::client::McpClientOptions;
use super::instance::{InstanceProgram, InstanceShutdown, ServerInstance, ServerUser};

/// How long after the end of its last call a program may take to end what the call had started.
const CLEANUP_TIME: Duration = Duration::from_millis(100);
const CLEANUP_INTERVAL: Duration = Duration::from_millis(10);

/// Holds a program in the ledger of a run that begins to use it. Call it before the first call of the run is sent.
pub(super) fn hold_for_run(instance: &Arc<ServerInstance>, scope: &Scope, options: &McpClientOptions) {
    let user = ServerUser { run: options.run.clone(), principal: options.principal.clone() };
    instance.note_user(options.session.clone(), user);
    let (stop_sender, stops) = watch::channel(None);
    let held = scope.hold(ResourceKind::Process, program_label(instance)).as_background();
    if let Some(facts) = instance.program.get().and_then(InstanceProgram::facts) {
        held.note_process(facts);
    }
    let held = held.on_stop(move |level| {
        stop_sender.send_replace(Some(level));
    });
    let server_use = ServerUse {
        instance: Arc::clone(instance),
        run: options.run.clone(),
        scope: scope.clone(),
        before: living_processes(instance),
        held,
    };
    scope.spawn(server_use.end_with_run(stops));
}

/// The name of a program in ledgers and lists.
pub(super) fn program_label(instance: &ServerInstance) -> String {
    format!("MCP server {}", instance.server.name)
}

struct ServerUse {
    instance: Arc<ServerInstance>,
    run: RunId,
    scope: Scope,
    /// The processes of the program when the run began to use it.
    before: Vec<LiveProcess>,
    held: Held,
}

impl ServerUse {
    async fn end_with_run(self, mut stops: watch::Receiver<Option<StopLevel>>) {
        // waits: until the program has ended, or the run is stopped or over: the sender lives in the row of the ledger.
        tokio::select! {
            biased;
            over = self.instance.wait_ended() => {
                self.instance.note_user_gone();
                return release_with_leftovers(self.held, &over, over.how);
            }
            stopped = stops.wait_for(Option::is_some) => if stopped.is_err() {
                // The row was handed over to the session.
                return self.instance.note_user_gone();
            },
        }
        // waits: for the calls of the run, which the stop cancels, and then at most `CLEANUP_TIME`.
        let request = tokio::select! {
            biased;
            _ = self.instance.wait_ended() => InstanceShutdown::Kill,
            () = self.scope.forced(), if self.instance.has_one_user() => InstanceShutdown::Kill,
            born = self.wait_clean() => match born {
                // One that is being ended, and that others still use, goes on without the run, too.
                None if self.instance.accepts_leases() || self.instance.leases() > 0 => {
                    self.instance.note_user_gone();
                    return self.held.release(Release::Kept);
                }
                // It is being ended already.
                None => InstanceShutdown::Drain,
                Some(born) => {
                    let cause = format!("its process {} ({}), begun in the run, outlived the stop", born.pid, born.name);
                    tracing::warn!(server = %self.instance.server.name, run = %self.run, why = cause, "MCP server is ended");
                    self.held.add_to_label(" (a process that it had started outlived the stop)");
                    InstanceShutdown::EndNow(cause.into())
                }
            },
        };
        self.instance.request_shutdown(request);
        let over = wait_ended_or_kill(&self.instance, &self.scope).await;
        self.instance.note_user_gone();
        release_with_leftovers(self.held, &over, over.how);
    }

    /// Waits until nothing is alive that the program has started since the run began to use it. Returns a process that
    /// is left after [`CLEANUP_TIME`].
    async fn wait_clean(&self) -> Option<LiveProcess> {
        // waits: for the calls of the run; the caller races the end of the program and a forced stop.
        self.instance.wait_left_by(&self.run).await;
        let deadline = Instant::now() + CLEANUP_TIME;
        loop {
            let born = self.first_born_since();
            if born.is_none() || Instant::now() >= deadline {
                return born;
            }
            // waits: at most `CLEANUP_TIME` in all; the kernel does not tell of the ends of another process's children.
            sleep(CLEANUP_INTERVAL).await;
        }
    }

    fn first_born_since(&self) -> Option<LiveProcess> {
        let is_known = |process: &LiveProcess| self.before.iter().any(|known| known.is_same(process));
        living_processes(&self.instance).into_iter().find(|process| !is_known(process))
    }
}

fn living_processes(instance: &ServerInstance) -> Vec<LiveProcess> {
    instance.program.get().map(|program| program.processes.list()).unwrap_or_default()
}
