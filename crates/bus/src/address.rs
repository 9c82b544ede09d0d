//! The address of a node.

use std::fmt;

use quell_protocol::NodeName;

/// One membership of a node. A letter to an earlier membership of the same node is not for this one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    pub node: NodeName,
    /// Rises with each membership in the cluster.
    pub epoch: u64,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (epoch {})", self.node, self.epoch)
    }
}
