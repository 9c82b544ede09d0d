//! The use of a program by a run: a row in the run's ledger, and the end of what a stopped run leaves in the program.
//!
//! A program belongs to its session, or to all sessions. So it goes on when a run ends by itself, and after a gentle
//! stop if it is clean: nothing that it has started since the run began to use it is alive. Otherwise the stop of the
//! run ends it with all its processes. While others are calling a shared one, nobody can tell whose a process is: then
//! the next run that leaves it to nobody ends it. A forced stop ends it in any case, unless a run uses it that is not
//! stopped.

use std::sync::Arc;
use std::time::Duration;

use quell_process::LiveProcess;
use quell_protocol::{ResourceKind, RunId};
use quell_scope::{Held, Release, Scope, StopLevel};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::call::{release_with_leftovers, wait_ended_or_kill};
use super::client::McpClientOptions;
use super::instance::{InstanceEnd, InstanceProgram, InstanceShutdown, ServerInstance, ServerUser};

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
        let is_stopped = tokio::select! {
            biased;
            over = self.instance.wait_ended() => {
                self.instance.note_user_gone();
                return self.release_ended(&over);
            }
            stopped = stops.wait_for(Option::is_some) => stopped.is_ok(),
        };
        self.instance.note_user_gone();
        if !is_stopped {
            // The row was handed over to the session.
            return self.clean_up_for_earlier_run();
        }
        // waits: for the calls of the run, which the stop cancels, and then at most `CLEANUP_TIME`.
        let request = tokio::select! {
            biased;
            over = self.instance.wait_ended() => return self.release_ended(&over),
            () = self.wait_forced_alone(&mut stops) => Some(InstanceShutdown::Kill),
            request = self.wait_left() => request,
        };
        match request {
            Some(request) => drop(self.instance.request_shutdown(request)),
            None if self.instance.is_stopped() => {}
            None => return self.held.release(Release::Kept),
        }
        let over = wait_ended_or_kill(&self.instance, &self.scope).await;
        self.release_ended(&over);
    }

    fn release_ended(self, over: &InstanceEnd) {
        if let Some(facts) = self.instance.program.get().and_then(InstanceProgram::facts) {
            self.held.note_process(facts);
        }
        release_with_leftovers(self.held, over, over.how);
    }

    /// Waits until the run is stopped by force and no run uses the program that is not stopped.
    async fn wait_forced_alone(&self, stops: &mut watch::Receiver<Option<StopLevel>>) {
        // The row is held, so the sender lives.
        // waits: as one arm of several, in `end_with_run`.
        let _ = stops.wait_for(|level| *level == Some(StopLevel::Forced)).await;
        // waits: for other runs, beside the end of this run's own calls.
        self.instance.wait_unused_by_active_runs().await;
    }

    /// Waits until the run has left the program clean. Returns how to end it otherwise.
    async fn wait_left(&self) -> Option<InstanceShutdown> {
        // waits: for the calls of the run; the caller races the end of the program and a forced stop.
        self.instance.wait_left_by(&self.run).await;
        if self.instance.shutdown_level().is_immediate() {
            return Some(InstanceShutdown::Drain);
        }
        if self.instance.leases() > 0 {
            self.instance.defer_cleanup(self.before.clone());
            return None;
        }
        let older = self.instance.take_deferred_cleanup().unwrap_or_else(|| self.before.clone());
        let deadline = Instant::now() + CLEANUP_TIME;
        loop {
            let born = self.first_born_since(&older)?;
            if Instant::now() >= deadline {
                let cause = format!("its process {} ({}), begun in a run, outlived its stop", born.pid, born.name);
                tracing::warn!(server = %self.instance.server.name, run = %self.run, why = cause, "MCP server is ended");
                self.held.add_to_label(" (a process that it had started outlived the stop)");
                return Some(InstanceShutdown::EndNow(cause.into()));
            }
            // waits: at most `CLEANUP_TIME` in all; the kernel does not tell of the ends of another process's children.
            sleep(CLEANUP_INTERVAL).await;
        }
    }

    /// The row was handed over. Ends what an earlier run has left that was stopped while others were calling.
    fn clean_up_for_earlier_run(self) {
        if self.instance.leases() > 0 {
            return;
        }
        let Some(older) = self.instance.take_deferred_cleanup() else { return };
        if self.first_born_since(&older).is_some() {
            let cause = "a process of a stopped run was left in it";
            self.instance.request_shutdown(InstanceShutdown::EndNow(cause.into()));
        }
    }

    fn first_born_since(&self, older: &[LiveProcess]) -> Option<LiveProcess> {
        let is_known = |process: &LiveProcess| older.iter().any(|known| known.is_same(process));
        let look = || living_processes(&self.instance).into_iter().find(|process| !is_known(process));
        // A process that changes its parent meanwhile can be missed by one look.
        look().or_else(look)
    }
}

fn living_processes(instance: &ServerInstance) -> Vec<LiveProcess> {
    instance.program.get().map(|program| program.processes.list()).unwrap_or_default()
}
