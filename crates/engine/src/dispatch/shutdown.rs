//! The end of the engine, in order and with deadlines: no new runs, no more sweeps, runs and background processes, sessions and
//! MCP servers, hooks, the database. What could not be ended in time is named.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::Push;
use quell_kernel::registry::Gate;
use quell_protocol::{HookEvent, Leftover, ResourceKind, RunId, StopReason};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Engine, Notice, Stop};
use crate::hooks::Happening;
use crate::scope::StopLevel;
use crate::tools::background::{BackgroundProcess, BackgroundTask};

/// When a shutdown forces (decisions.md, "Times").
const SHUTDOWN_FORCES: Duration = Duration::from_secs(2);
/// When a shutdown gives up, counted from the force.
const SHUTDOWN_GIVES_UP: Duration = Duration::from_millis(2500);
/// Until when MCP servers have to be gone, counted from the shutdown's beginning.
const LATEST: Duration = Duration::from_secs(4);
/// What they get at least, when runs took all of that.
const SERVERS_GIVE_UP: Duration = Duration::from_millis(100);
/// How long the engine's own tasks may take to end once nothing runs any more.
const TASKS_GIVE_UP: Duration = Duration::from_millis(500);
/// Until when all books have to be closed, counted from the shutdown's beginning, whatever the disk or another program does.
const BOOKS_CLOSED: Duration = Duration::from_millis(4700);
/// When hooks that are at work are told to end, counted from the shutdown's beginning.
const HOOKS_END: Duration = Duration::from_millis(1500);
/// What a hook gets at least before that, and before the force.
const HOOKS_MOMENT: Duration = Duration::from_millis(200);
/// Until when hooks have to be gone, counted from the shutdown's beginning.
const HOOKS_GIVE_UP: Duration = Duration::from_millis(4600);

impl Engine {
    /// Closes: takes no new runs, stops all, forces after 2 s, gives up after 4.5 s and names what is left.
    ///
    /// # Cancel safety
    /// Safe to call again; what was stopped stays stopped.
    pub async fn shut_down(&self) -> Vec<(RunId, Leftover)> {
        let begun = Instant::now();
        tokio::select! {
            left = self.close_down(begun) => left,
            never = self.hooks().hurry(begun + HOOKS_END) => match never {},
        }
    }

    async fn close_down(&self, begun: Instant) -> Vec<(RunId, Leftover)> {
        if self.is_open() {
            self.hooks().tell(Happening::of_daemon(HookEvent::Shutdown));
        }
        self.inner().runs.set_gate(Gate::Closing);
        self.inner().hub.publish(&Notice::Shutdown { reason: "shutdown".to_owned() });
        let active = self.inner().runs.active();
        let ids: Vec<RunId> = active.iter().map(|cell| cell.run.id.clone()).collect();
        let background = &self.inner().workshop.background;
        let mcp = &self.inner().workshop.mcp;
        self.inner().sessions.stop_sweeping();
        background.close();
        mcp.close();
        tracing::info!(
            runs = ids.len(),
            "shutdown begins: no new runs, the sweeper is stopped, runs are being stopped"
        );
        let stop = self.inner().runs.abort(ids.clone(), Push::Gentle, &StopReason::Shutdown);
        let (processes, _) = background.end(StopLevel::Gentle, |_| true);
        let tasks = background.end_tasks(StopLevel::Gentle, |_| true);
        if timeout(SHUTDOWN_FORCES, all_over(&stop, &processes, &tasks)).await.is_err() {
            let forced = self.inner().runs.abort(ids, Push::Forced, &StopReason::Shutdown);
            let (processes, _) = background.end(StopLevel::Forced, |_| true);
            let tasks = background.end_tasks(StopLevel::Forced, |_| true);
            mcp.kill();
            // What is left after this is named below.
            let _ = timeout(SHUTDOWN_GIVES_UP, all_over(&forced, &processes, &tasks)).await;
        }
        let now = Instant::now();
        tracing::info!("shutdown: runs and background processes are over");
        let latest = (now + SERVERS_GIVE_UP).max(begun + LATEST);
        let servers = mcp.closed(now.max(begun + SHUTDOWN_FORCES), latest);
        let (unclean, servers) = tokio::join!(self.inner().sessions.close(latest), servers);
        tracing::info!(unclean, servers_left = servers.len(), "shutdown: sessions and MCP servers are closed");
        self.inner().closing.cancel();
        self.inner().runs.tasks().close();
        let books = begun + BOOKS_CLOSED;
        // Who waits for a database that does not answer is left behind.
        let _ = timeout_at(books.min(Instant::now() + TASKS_GIVE_UP), self.inner().runs.tasks().wait()).await;
        let mut left: Vec<(RunId, Leftover)> = active.iter().flat_map(|cell| left_of(cell)).collect();
        left.extend(processes.iter().flat_map(|process| left_behind(process)));
        let tasks = tasks.iter().filter(|task| task.is_at_work());
        left.extend(
            tasks.map(|task| (task.owner.run.clone(), Leftover { kind: ResourceKind::Task, name: task.label.clone() })),
        );
        left.extend(servers);
        left.extend(self.close_hooks(begun).await);
        tracing::info!(left = left.len(), "shutdown: hooks are closed, the database comes last");
        if timeout_at(books, self.inner().store.clone().close()).await.is_err() {
            tracing::error!("the database is busy and was not closed in time; what it had answered is safe");
        }
        left
    }

    /// Ends the hooks. Those of runs that have ended just now get a moment, too, as far as there is one.
    async fn close_hooks(&self, begun: Instant) -> Vec<(RunId, Leftover)> {
        let (now, give_up) = (Instant::now(), begun + HOOKS_GIVE_UP);
        let gentle = (begun + HOOKS_END).max(now + HOOKS_MOMENT).min(give_up - 2 * HOOKS_MOMENT);
        let force = (begun + SHUTDOWN_FORCES).max(gentle + HOOKS_MOMENT).min(give_up - HOOKS_MOMENT);
        self.hooks().close();
        self.hooks().closed(gentle, force, give_up).await
    }

    /// Forces what a shutdown is still waiting for: the second signal.
    pub fn force_shut_down(&self) {
        let ids = self.inner().runs.active().iter().map(|cell| cell.run.id.clone()).collect();
        self.inner().runs.abort(ids, Push::Forced, &StopReason::Shutdown);
        self.inner().workshop.background.end(StopLevel::Forced, |_| true);
        self.inner().workshop.background.end_tasks(StopLevel::Forced, |_| true);
        self.inner().workshop.mcp.kill();
        self.hooks().kill();
    }
}

fn left_of(cell: &crate::cell::Cell) -> Vec<(RunId, Leftover)> {
    let id = cell.run.id.clone();
    match cell.receipt() {
        Some(receipt) => receipt.leftovers.into_iter().map(|leftover| (id.clone(), leftover)).collect(),
        None => {
            let name = "the run did not end in time".to_owned();
            vec![(id, Leftover { kind: ResourceKind::Run, name })]
        }
    }
}

/// What a background command leaves behind after a shutdown, with the run that had started it.
fn left_behind(process: &BackgroundProcess) -> Vec<(RunId, Leftover)> {
    let (row, kind) = (process.row(), ResourceKind::Process);
    let names = if process.is_alive() {
        vec![format!("pid {} ({})", row.pid.unwrap_or_default(), row.command)]
    } else {
        row.leftovers
    };
    names.into_iter().map(|name| (row.started_by_run.clone(), Leftover { kind, name })).collect()
}

async fn all_over(stop: &Stop, processes: &[Arc<BackgroundProcess>], tasks: &[Arc<BackgroundTask>]) {
    stop.settled().await;
    for process in processes {
        process.ended().await;
    }
    for task in tasks {
        task.ended().await;
    }
}
