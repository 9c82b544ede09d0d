//! The nodes of the cluster, for people and programs.

use std::time::Duration;

use quell_kernel::lease::LeaseTiming;
use quell_protocol::cluster::{ClusterView, NodeState, NodeView};
use quell_store::NodeRow;

use super::{Engine, NodeReport};

/// A node that has not renewed its lease for so many intervals counts as silent. One renewal may fail.
const SILENT_AFTER_INTERVALS: u32 = 3;

impl Engine {
    /// All nodes as the database has them; as of the last renewal, if it does not answer. `None` without a cluster.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn cluster_view(&self) -> Option<ClusterView> {
        let cluster = self.cluster()?;
        let rows = cluster.read_nodes().await;
        let nodes = rows.iter().map(|row| {
            let is_self = row.membership == *cluster.membership();
            let report = if is_self { self.node_report() } else { NodeReport::of(row) };
            build_node_view(row, &report, cluster.timing(), is_self)
        });
        let facts = cluster.last_renewal();
        Some(ClusterView {
            node: cluster.node().clone(),
            lease_ms: millis(cluster.timing().lease()),
            nodes: nodes.collect(),
            database_clock_skew_ms: facts.map(|facts| facts.clock_skew_ms),
            lag_ms: facts.map(|facts| millis(facts.round_trip)),
        })
    }

    /// How many of the nodes that were known at the last renewal are in each state.
    pub fn count_nodes(&self) -> Vec<(NodeState, usize)> {
        let Some(cluster) = self.cluster() else { return Vec::new() };
        let states: Vec<NodeState> = cluster.known_nodes().iter().map(|row| state_of(row, cluster.timing())).collect();
        NodeState::ALL.map(|state| (state, states.iter().filter(|of| **of == state).count())).into()
    }
}

fn state_of(row: &NodeRow, timing: LeaseTiming) -> NodeState {
    node_state(row, NodeReport::of(row).draining, timing)
}

fn node_state(row: &NodeRow, is_draining: bool, timing: LeaseTiming) -> NodeState {
    if row.fenced || row.expires_in.is_zero() {
        NodeState::Dead
    } else if row.silent_for > timing.renewal_interval() * SILENT_AFTER_INTERVALS {
        NodeState::Silent
    } else if is_draining {
        NodeState::Draining
    } else {
        NodeState::Active
    }
}

fn build_node_view(row: &NodeRow, report: &NodeReport, timing: LeaseTiming, is_self: bool) -> NodeView {
    let count = |count| u64::try_from(count).unwrap_or(u64::MAX);
    NodeView {
        node: row.membership.node.clone(),
        epoch: row.membership.epoch,
        version: row.version.clone(),
        joined_at: row.joined_at.clone(),
        state: node_state(row, report.draining, timing),
        silent_for_ms: millis(row.silent_for),
        lease_ends_in_ms: millis(row.expires_in),
        sessions: row.sessions,
        active_runs: count(report.active_runs),
        max_in_flight: count(report.max_in_flight),
        processes: count(report.processes),
        is_self,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use quell_protocol::NodeName;
    use quell_store::Membership;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::works(0, 9_000, false, false, NodeState::Active)]
    #[case::missed_one_renewal(3_000, 7_000, false, false, NodeState::Active)]
    #[case::drains(0, 9_000, false, true, NodeState::Draining)]
    #[case::silent(6_000, 4_000, false, true, NodeState::Silent)]
    #[case::ended(11_000, 0, false, false, NodeState::Dead)]
    #[case::fenced(0, 9_000, true, false, NodeState::Dead)]
    fn the_state_of_a_node_follows_from_its_lease(
        #[case] silent_ms: u64,
        #[case] ends_in_ms: u64,
        #[case] fenced: bool,
        #[case] is_draining: bool,
        #[case] state: NodeState,
    ) {
        let row = NodeRow {
            membership: Membership { node: NodeName::parse("a").unwrap(), epoch: 1 },
            version: String::new(),
            joined_at: String::new(),
            silent_for: Duration::from_millis(silent_ms),
            expires_in: Duration::from_millis(ends_in_ms),
            fenced,
            sessions: 0,
            report: String::new(),
        };
        assert_eq!(node_state(&row, is_draining, LeaseTiming::new(Duration::from_secs(10))), state);
    }
}
