//! Shut down in order with deadlines: refuse new runs, stop the sweeper, end runs and background processes, close
//! sessions and MCP servers, hooks and the database. Report as leftovers what did not end in time.

use std::time::Duration;

use quell_kernel::StopLevel;
use quell_kernel::registry::AdmissionGate;
use quell_protocol::{HookEvent, Leftover, ResourceKind, RunId, StopReason};
use quell_tools::background::BackgroundStop;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Engine, EngineNotice, StopResult};
use crate::hooks::HookTrigger;

/// When a shutdown escalates to force, counted from its start (`docs/design/contract.md`).
const FORCE_AFTER: Duration = Duration::from_secs(2);
/// When a shutdown gives up, counted from the force.
const GIVE_UP_AFTER_FORCE: Duration = Duration::from_millis(2500);
/// When MCP servers have to be closed, counted from the start of the shutdown.
const SERVERS_DEADLINE: Duration = Duration::from_secs(4);
/// The least time that MCP servers get, even if the runs took all of it.
const SERVERS_MIN_TIME: Duration = Duration::from_millis(100);
/// How long the engine's own tasks may take to end once no run is active.
const TASKS_TIMEOUT: Duration = Duration::from_millis(500);
/// When the database has to be closed, counted from the start of the shutdown, even if the disk or another program
/// blocks it.
const DATABASE_DEADLINE: Duration = Duration::from_millis(4700);
/// When running hooks are told to end, counted from the start of the shutdown.
const HOOKS_STOP_AT: Duration = Duration::from_millis(1500);
/// The least time that a hook gets before that, and again before the force.
const HOOKS_MIN_TIME: Duration = Duration::from_millis(200);
/// When hooks have to be closed, counted from the start of the shutdown.
const HOOKS_DEADLINE: Duration = Duration::from_millis(4600);

impl Engine {
    /// Closes the engine: refuses new runs, stops all runs, forces after 2 s, gives up after 4.5 s. Returns what is
    /// left.
    ///
    /// # Cancel safety
    /// Safe to call again; the runs that were stopped stay stopped.
    pub async fn shut_down(&self) -> Vec<(RunId, Leftover)> {
        let started_at = Instant::now();
        tokio::select! {
            left = self.run_shutdown_steps(started_at) => left,
            never = self.hooks().enforce_shutdown_deadline(started_at + HOOKS_STOP_AT) => match never {},
        }
    }

    async fn run_shutdown_steps(&self, started_at: Instant) -> Vec<(RunId, Leftover)> {
        if self.is_open() {
            self.hooks().notify(HookTrigger::for_daemon(HookEvent::Shutdown));
        }
        self.inner().runs.set_gate(AdmissionGate::Closing);
        self.inner().hub.publish(&EngineNotice::Shutdown { reason: "shutdown".to_owned() });
        let active = self.inner().runs.active_runs();
        let ids: Vec<RunId> = active.iter().map(|live_run| live_run.run.id.clone()).collect();
        let background = &self.inner().services.background;
        let mcp = &self.inner().services.mcp;
        self.inner().sessions.begin_close();
        background.close();
        mcp.close();
        tracing::info!(
            runs = ids.len(),
            "shutdown begins: no new runs, the sweeper is stopped, runs are being stopped"
        );
        let stop_result = self.inner().runs.abort_runs(ids.clone(), StopLevel::Gentle, &StopReason::Shutdown);
        let background_stop = background.stop(StopLevel::Gentle, |_| true);
        if timeout(FORCE_AFTER, wait_all_ended(&stop_result, &background_stop)).await.is_err() {
            tracing::warn!("shutdown: not everything ended within {FORCE_AFTER:?}, so it is forced");
            let forced = self.inner().runs.abort_runs(ids, StopLevel::Forced, &StopReason::Shutdown);
            let background_stop = background.stop(StopLevel::Forced, |_| true);
            mcp.kill();
            // What is left after this is reported below.
            let _ = timeout(GIVE_UP_AFTER_FORCE, wait_all_ended(&forced, &background_stop)).await;
        }
        let now = Instant::now();
        tracing::info!("shutdown: runs and background processes are over");
        let servers_deadline = (now + SERVERS_MIN_TIME).max(started_at + SERVERS_DEADLINE);
        let servers = mcp.wait_closed(now.max(started_at + FORCE_AFTER), servers_deadline);
        let (unclean, servers) = tokio::join!(self.inner().sessions.close(servers_deadline), servers);
        tracing::info!(unclean, servers_left = servers.len(), "shutdown: sessions and MCP servers are closed");
        self.inner().closing.cancel();
        self.drop_peer_service();
        self.inner().runs.tasks().close();
        let database_deadline = started_at + DATABASE_DEADLINE;
        // A task that waits for a blocked database is left behind.
        let _ =
            timeout_at(database_deadline.min(Instant::now() + TASKS_TIMEOUT), self.inner().runs.tasks().wait()).await;
        let mut leftovers: Vec<(RunId, Leftover)> =
            active.iter().flat_map(|live_run| run_leftovers(live_run)).collect();
        leftovers.extend(background_stop.leftovers());
        leftovers.extend(servers);
        leftovers.extend(self.close_hooks(started_at).await);
        tracing::info!(left = leftovers.len(), "shutdown: hooks are closed, the database comes last");
        if leftovers.is_empty() {
            self.leave_cluster(database_deadline).await;
        }
        if timeout_at(database_deadline, self.inner().store.clone().close()).await.is_err() {
            tracing::error!("the database is busy and was not closed in time; what it had answered is safe");
        }
        leftovers
    }

    /// Gives all sessions back, so that nobody waits for the end of the lease. Not called if something is left: other
    /// nodes wait until the lease has ended then.
    async fn leave_cluster(&self, deadline: Instant) {
        let Some(cluster) = self.cluster().filter(|cluster| !cluster.lost().is_cancelled()) else { return };
        match timeout_at(deadline, cluster.store().leave()).await {
            Ok(Ok(())) => tracing::info!(node = %cluster.node(), "the node has left the cluster"),
            Ok(Err(error)) => tracing::warn!(%error, "the node could not leave the cluster; its lease ends by itself"),
            Err(_) => tracing::warn!("the node could not leave the cluster in time; its lease ends by itself"),
        }
    }

    /// Ends the hooks and the push notifications. Those of runs that have just ended get a moment, too, if there is time.
    async fn close_hooks(&self, started_at: Instant) -> Vec<(RunId, Leftover)> {
        let (now, give_up) = (Instant::now(), started_at + HOOKS_DEADLINE);
        let gentle = (started_at + HOOKS_STOP_AT).max(now + HOOKS_MIN_TIME).min(give_up - 2 * HOOKS_MIN_TIME);
        let force = (started_at + FORCE_AFTER).max(gentle + HOOKS_MIN_TIME).min(give_up - HOOKS_MIN_TIME);
        self.hooks().close();
        let push = &self.inner().push;
        let (left, ()) =
            tokio::join!(self.hooks().wait_closed(gentle, force, give_up), push.wait_closed(gentle, force));
        left
    }

    /// Forces everything that a shutdown still waits for: the second signal.
    pub fn force_shut_down(&self) {
        let ids = self.inner().runs.active_runs().iter().map(|live_run| live_run.run.id.clone()).collect();
        self.inner().runs.abort_runs(ids, StopLevel::Forced, &StopReason::Shutdown);
        self.inner().services.background.stop(StopLevel::Forced, |_| true);
        self.inner().services.mcp.kill();
        self.hooks().kill_all();
        self.inner().push.kill_all();
    }
}

fn run_leftovers(live_run: &crate::live_run::LiveRun) -> Vec<(RunId, Leftover)> {
    let id = live_run.run.id.clone();
    match live_run.receipt() {
        Some(receipt) => receipt.leftovers.into_iter().map(|leftover| (id.clone(), leftover)).collect(),
        None => {
            let name = "the run did not end in time".to_owned();
            vec![(id, Leftover { kind: ResourceKind::Run, name })]
        }
    }
}

async fn wait_all_ended(stop_result: &StopResult, background_stop: &BackgroundStop) {
    stop_result.wait_settled().await;
    background_stop.wait_ended().await;
}
