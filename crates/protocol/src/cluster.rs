//! The nodes of a cluster as one of them shows them, and the drain of a node.

use serde::{Deserialize, Serialize};

use crate::NodeName;
use crate::word_enum::word_enum;

word_enum! {
    NodeState {
        Active "active",
        /// It takes no new sessions.
        Draining "draining",
        /// It has missed several renewals. Its work ends before its lease does, unless it renews.
        Silent "silent",
        /// Its lease has ended. Another node seals its runs, and the node leaves the list.
        Dead "dead",
    }
}

/// Answer of `GET /api/cluster`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterView {
    /// The node that answers.
    pub node: NodeName,
    /// Milliseconds after which a silent node counts as dead.
    pub lease_ms: u64,
    /// Ordered by name, then by epoch. A node that was started again may be in it twice for a moment.
    pub nodes: Vec<NodeView>,
    /// By how many milliseconds the clock of the database is ahead of this node's, negative if it is behind; 0 as far as
    /// the time of the last renewal explains it. Leases do not depend on it.
    pub database_clock_skew_ms: Option<i64>,
    /// Milliseconds that the last renewal of this node took.
    pub lag_ms: Option<u64>,
}

/// One stay of a node in the cluster, from its start to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    pub node: NodeName,
    /// Rises with each start of a node.
    pub epoch: u64,
    pub version: String,
    /// RFC 3339, by the clock of the database.
    pub joined_at: String,
    pub state: NodeState,
    /// Milliseconds since its last renewal.
    pub silent_for_ms: u64,
    /// 0 once its lease has ended.
    pub lease_ends_in_ms: u64,
    /// Sessions that belong to it.
    pub sessions: u64,
    /// Runs that have not ended, as of its last renewal.
    pub active_runs: u64,
    /// Runs that it works on at the same time, at most.
    pub max_in_flight: u64,
    /// Background commands that are alive.
    pub processes: u64,
    /// True for the node that answers.
    #[serde(rename = "self")]
    pub is_self: bool,
}

/// Body of `POST /api/drain`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainRequest {
    /// Stop all runs and background commands of this node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop: bool,
    /// Answer after this many milliseconds, or when nothing is left; 500 if absent, at most 60,000.
    pub wait_ms: Option<u64>,
}

/// Answer of the drain routes: what this node has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainView {
    /// True while this node takes no new sessions. A restart ends it.
    pub draining: bool,
    /// Sessions that belong to it.
    pub sessions: u64,
    /// Runs that have not ended.
    pub active_runs: u64,
    /// Background commands that are alive.
    pub processes: u64,
}

impl DrainView {
    /// True if nothing is left on the node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions == 0 && self.active_runs == 0 && self.processes == 0
    }
}
