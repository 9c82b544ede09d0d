//! Find the node of a cluster that has a session, or place the session on one.

use std::time::Duration;

use quell_kernel::placement::{NodeLoad, choose_node};
use quell_protocol::{NodeName, SessionKey};
use quell_store::{ClaimOutcome, Membership, NodeRow, StoreError};
use tokio::time::{Instant, timeout_at};

use super::{Engine, NodeReport};
use crate::cluster::Cluster;

/// After the lease of a dead node: the time until others have settled it.
const SETTLE_MARGIN: Duration = Duration::from_secs(2);

/// What happens to a session that belongs to no node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Nothing: this node answers from the database.
    WhereItIs,
    /// A node takes it.
    Place,
}

#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The node of the session is silent, and nobody has settled it in time.
    #[error(
        "the session {session:?} is on the node {node}, which does not answer; it is free when its lease has ended"
    )]
    Silent { session: SessionKey, node: NodeName },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// The other node that answers a request about a session; `None` if this one does. A session of a dead node is
    /// waited for until it is free.
    ///
    /// # Errors
    /// [`PlacementError`]; nothing has changed then.
    ///
    /// # Cancel safety
    /// Safe: at most the session is one of this node.
    pub async fn find_node_for(
        &self,
        key: &SessionKey,
        placement: Placement,
    ) -> Result<Option<Membership>, PlacementError> {
        let Some(cluster) = self.cluster() else { return Ok(None) };
        self.refresh_owner(key).await?;
        let deadline = Instant::now() + cluster.timing().lease() + SETTLE_MARGIN;
        loop {
            let location = cluster.store().locate_session(key.clone()).await?;
            let owner = match (location.owner, placement) {
                (Some(owner), _) => owner,
                (None, Placement::WhereItIs) => return Ok(None),
                (None, Placement::Place) => {
                    let chosen = self.choose_node(cluster, location.last_node.as_ref());
                    if chosen != *cluster.membership() {
                        return Ok(Some(chosen));
                    }
                    match cluster.claim_session(key).await? {
                        ClaimOutcome::Claimed => return Ok(None),
                        ClaimOutcome::OwnedBy(owner) => owner,
                    }
                }
            };
            if owner == *cluster.membership() {
                return Ok(None);
            }
            if cluster.is_live_peer(&owner) {
                return Ok(Some(owner));
            }
            if timeout_at(deadline, cluster.wait_for_renewal()).await.is_err() {
                return Err(PlacementError::Silent { session: key.clone(), node: owner.node });
            }
        }
    }

    fn choose_node(&self, cluster: &Cluster, last_node: Option<&NodeName>) -> Membership {
        let own = NodeLoad {
            node: cluster.node().clone(),
            active_runs: self.inner().runs.active_runs().len(),
            max_in_flight: self.inner().config.limits.in_flight_runs,
            is_draining: self.is_draining(),
        };
        let peers = cluster.live_peers();
        let others: Vec<NodeLoad<NodeName>> = peers.iter().map(load_of).collect();
        let chosen = choose_node(&own, &others, last_node);
        let row = peers.iter().find(|row| row.membership.node == chosen.node);
        row.map_or_else(|| cluster.membership().clone(), |row| row.membership.clone())
    }
}

fn load_of(row: &NodeRow) -> NodeLoad<NodeName> {
    let report = NodeReport::of(row);
    NodeLoad {
        node: row.membership.node.clone(),
        active_runs: report.active_runs,
        max_in_flight: report.max_in_flight,
        is_draining: report.draining,
    }
}
