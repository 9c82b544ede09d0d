//! Give sessions back to the cluster: those that nothing uses any more, and while this node drains, all that are idle.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use quell_kernel::StopLevel;
use quell_kernel::registry::{StopRequest, StopScope};
use quell_protocol::StopReason;
use quell_protocol::audit::Action;
use quell_protocol::cluster::{DrainRequest, DrainView};
use tokio::time::{Instant, timeout_at};

use super::membership::Node;
use super::{AuditAction, Caller, Engine};

/// How often sessions of which nothing is alive are given back.
const RELEASE_INTERVAL: Duration = Duration::from_secs(10);
/// The same while the node drains: people wait for it.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);
/// Sessions that are given back at the same time.
const CONCURRENT_RELEASES: usize = 32;
/// Without another wish a request waits for this long: idle sessions are given back by then, as a rule.
const DEFAULT_WAIT: Duration = Duration::from_millis(500);
/// The longest time for which a request waits for the end of a drain.
const MAX_WAIT: Duration = Duration::from_secs(60);

impl Engine {
    /// True if this node takes no new sessions.
    pub fn is_draining(&self) -> bool {
        self.inner().node.as_ref().is_some_and(|node| *node.draining.borrow())
    }

    /// Lets this node take no new sessions, and gives back those that are idle. Stops its runs first if the request says
    /// so. Waits for at most the time in the request. `None` without a cluster.
    ///
    /// # Cancel safety
    /// Safe: the drain goes on.
    pub async fn drain(&self, caller: &Caller, request: DrainRequest) -> Option<DrainView> {
        let node = self.inner().node.as_ref()?;
        self.set_draining(node, caller, true);
        if request.stop {
            self.stop_this_node(caller);
        }
        let mut passes = node.release_passes.subscribe();
        let wait = request.wait_ms.map_or(DEFAULT_WAIT, Duration::from_millis).min(MAX_WAIT);
        let deadline = Instant::now() + wait;
        let emptied = passes.wait_for(|_| self.drain_view(node).is_empty());
        tokio::select! {
            // At the deadline the answer says what is left.
            _ = timeout_at(deadline, emptied) => {}
            () = self.inner().closing.cancelled() => {}
        }
        Some(self.drain_view(node))
    }

    /// Lets this node take sessions again. `None` without a cluster.
    pub fn end_drain(&self, caller: &Caller) -> Option<DrainView> {
        let node = self.inner().node.as_ref()?;
        self.set_draining(node, caller, false);
        Some(self.drain_view(node))
    }

    fn set_draining(&self, node: &Node, caller: &Caller, draining: bool) {
        let has_changed = node.draining.send_if_modified(|before| std::mem::replace(before, draining) != draining);
        if has_changed {
            let action = if draining { Action::Drain } else { Action::EndDrain };
            self.audit(caller, AuditAction::on_target(action, "node", node.cluster.node().as_str()));
            tracing::info!(principal = %caller.principal, draining, "drain of this node changed");
        }
    }

    /// Stops everything that this node holds, and nothing of other nodes.
    fn stop_this_node(&self, caller: &Caller) {
        let reason = StopReason::from_text("the node drains");
        let request = StopRequest { level: StopLevel::Gentle, reason, surface: caller.surface };
        let stop_result = self.inner().runs.stop(&StopScope::Everything, &caller.who(), &request);
        self.log_stop(caller, &StopScope::Everything, &request, &stop_result);
    }

    fn drain_view(&self, node: &Node) -> DrainView {
        let count = |count| u64::try_from(count).unwrap_or(u64::MAX);
        DrainView {
            draining: *node.draining.borrow(),
            sessions: count(node.cluster.owned_sessions().len()),
            active_runs: count(self.inner().runs.active_runs().len()),
            processes: count(self.count_live_processes()),
        }
    }

    async fn give_back_sessions(&self, node: &Node) {
        if *node.draining.borrow() {
            self.inner().sessions.give_back_unused();
        }
        let mut owned = node.cluster.owned_sessions();
        // A claim whose caller has left, and a release that has failed, are known to the database only.
        match node.cluster.store().own_sessions().await {
            Ok(stored) => owned.extend(stored),
            Err(error) => tracing::debug!(%error, "the sessions of this node could not be read"),
        }
        owned.sort_unstable();
        owned.dedup();
        let unused = owned.into_iter().filter(|key| !self.is_session_in_use(key));
        let release = |key| async move { node.cluster.release_session(&key).await };
        stream::iter(unused).for_each_concurrent(CONCURRENT_RELEASES, release).await;
    }
}

/// Gives back sessions of which nothing is alive any more, until the engine closes.
pub(super) async fn release_unused_sessions(engine: Engine) {
    let Some(node) = &engine.inner().node else { return };
    let mut draining = node.draining.subscribe();
    loop {
        let is_draining = *draining.borrow_and_update();
        engine.give_back_sessions(node).await;
        node.release_passes.send_modify(|passes| *passes += 1);
        let interval = if is_draining { DRAIN_INTERVAL } else { RELEASE_INTERVAL.min(node.cluster.timing().lease()) };
        tokio::select! {
            () = engine.inner().closing.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
            // The sender lives as long as the engine.
            _ = draining.changed() => {}
        }
    }
}
