//! The section `[cluster]`: this daemon is one node of several on one PostgreSQL database.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use quell_kernel::lease::LeaseTiming;
use quell_protocol::NodeName;
use quell_store::ClusterSettings;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::validation::ConfigProblem;

/// Shorter leases would end because of an ordinary pause of the process or the database.
const MIN_LEASE_MS: u64 = 1000;
/// The longest time for which a dead node may keep its sessions.
const MAX_LEASE_MS: u64 = 600_000;

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ClusterSection {
    /// The name of this node: 1 to 63 letters, digits and hyphens, and another one for each node.
    #[schemars(with = "String")]
    pub(crate) node: Option<NodeName>,
    /// Milliseconds after which a silent node counts as dead; the same for all nodes.
    pub(crate) lease_ms: u64,
    /// The file with the secret of the cluster: a key of at least 32 characters in a line, the newest first. The same for
    /// all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_file: Option<PathBuf>,
    /// A program that prints this secret, with its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) secret_command: Vec<String>,
    /// The secret, as read from the file or the program.
    #[serde(skip)]
    pub(crate) secret: Option<SecretString>,
}

impl Default for ClusterSection {
    fn default() -> Self {
        Self { node: None, lease_ms: 10_000, secret_file: None, secret_command: Vec::new(), secret: None }
    }
}

impl fmt::Debug for ClusterSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterSection")
            .field("node", &self.node)
            .field("lease_ms", &self.lease_ms)
            .finish_non_exhaustive()
    }
}

impl ClusterSection {
    /// How the store joins; `None` if the section names no node, which [`ClusterSection::problem`] reports.
    pub(crate) fn settings(&self) -> Option<ClusterSettings> {
        let node = self.node.clone()?;
        let timing = LeaseTiming::new(Duration::from_millis(self.lease_ms));
        Some(ClusterSettings { node, timing, version: env!("CARGO_PKG_VERSION").to_owned() })
    }

    pub(super) fn problem(&self, store_is_postgres: bool) -> Option<ConfigProblem> {
        let problem = |key: &str, text: String| Some(ConfigProblem { key: format!("cluster.{key}"), text });
        if !store_is_postgres {
            let text = "needs a database that nodes share; write url = \"postgres://USER@HOST/DATABASE\" in [store]";
            return Some(ConfigProblem { key: "cluster".to_owned(), text: text.to_owned() });
        }
        if self.node.is_none() {
            return problem("node", "is missing; give each node a name of its own".to_owned());
        }
        if !(MIN_LEASE_MS..=MAX_LEASE_MS).contains(&self.lease_ms) {
            let text = format!("{} must be between {MIN_LEASE_MS} and {MAX_LEASE_MS}", self.lease_ms);
            return problem("lease_ms", text);
        }
        match (&self.secret_file, self.secret_command.is_empty()) {
            (None, true) => problem("secret_file", "is missing; name a file with the secret of the cluster".to_owned()),
            (Some(_), false) => problem("secret_command", "excludes `secret_file`: there is one secret".to_owned()),
            (Some(_), true) | (None, false) => None,
        }
    }
}
