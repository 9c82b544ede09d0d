//! The section `[cluster]`: this daemon is one node of several on one PostgreSQL database.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use quell_bus::{ClusterSecret, NatsCredentials, NatsSettings};
use quell_engine::engine::NodeSettings;
use quell_kernel::lease::LeaseTiming;
use quell_protocol::NodeName;
use quell_store::ClusterSettings;
use schemars::JsonSchema;
use secrecy::{ExposeSecret as _, SecretString};
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
    /// A program that prints this secret, with its arguments; run whenever the configuration is read, for 10 s at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) secret_command: Vec<String>,
    /// The secret, as read from the file or the program.
    #[serde(skip)]
    pub(crate) secret: Option<SecretString>,
    /// Addresses of NATS servers, such as `nats://10.0.0.5:4222`, or `tls://`. Without them everything goes through the
    /// database, more slowly.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) nats_urls: Vec<String>,
    /// The NATS user. It must be permitted to publish and subscribe below `nats_prefix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nats_user: Option<String>,
    /// The environment variable that holds the password of the NATS user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nats_password_env: Option<String>,
    /// The file that holds that password in its only line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nats_password_file: Option<PathBuf>,
    /// The password, as read from the variable or the file.
    #[serde(skip)]
    pub(crate) nats_password: Option<SecretString>,
    /// A credentials file of NATS, in place of user and password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nats_credentials_file: Option<PathBuf>,
    /// The content of that file.
    #[serde(skip)]
    pub(crate) nats_credentials: Option<SecretString>,
    /// PEM file with the certificates of the authorities that may have signed that of the NATS server; those of the
    /// system if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nats_tls_ca_file: Option<PathBuf>,
    /// The first part of all NATS subjects; another one for each cluster on the same server.
    pub(crate) nats_prefix: String,
}

impl Default for ClusterSection {
    fn default() -> Self {
        Self {
            node: None,
            lease_ms: 10_000,
            secret_file: None,
            secret_command: Vec::new(),
            secret: None,
            nats_urls: Vec::new(),
            nats_user: None,
            nats_password_env: None,
            nats_password_file: None,
            nats_password: None,
            nats_credentials_file: None,
            nats_credentials: None,
            nats_tls_ca_file: None,
            nats_prefix: "quell".to_owned(),
        }
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

    /// How the engine takes part.
    ///
    /// # Errors
    /// The key of this section that is wrong, and why.
    pub(crate) fn node_settings(&self) -> Result<NodeSettings, (&'static str, String)> {
        let secret = self.secret.as_ref().map_or("", |secret| secret.expose_secret());
        let key = if self.secret_file.is_some() { "secret_file" } else { "secret_command" };
        let secret = ClusterSecret::parse(secret).map_err(|error| (key, error.to_string()))?;
        let nats = (!self.nats_urls.is_empty()).then(|| self.nats_settings());
        Ok(NodeSettings { lease: Duration::from_millis(self.lease_ms), secret: Some(secret), nats })
    }

    fn nats_settings(&self) -> NatsSettings {
        let credentials = match (&self.nats_credentials, &self.nats_user, &self.nats_password) {
            (Some(file), _, _) => NatsCredentials::CredsFile(file.clone()),
            (None, Some(user), Some(password)) => {
                NatsCredentials::Password { user: user.clone(), password: password.clone() }
            }
            (None, _, _) => NatsCredentials::None,
        };
        NatsSettings {
            urls: self.nats_urls.clone(),
            credentials,
            tls_ca_file: self.nats_tls_ca_file.clone(),
            prefix: self.nats_prefix.clone(),
        }
    }

    fn nats_problem(&self) -> Option<(&'static str, &'static str)> {
        let has_password = self.nats_password_env.is_some() || self.nats_password_file.is_some();
        let has_login = self.nats_credentials_file.is_some() || (self.nats_user.is_some() && has_password);
        let is_set = has_login || self.nats_user.is_some() || has_password || self.nats_tls_ca_file.is_some();
        if self.nats_urls.is_empty() {
            return is_set.then_some(("nats_urls", "is missing; the other keys of NATS are of no use without it"));
        }
        (!has_login).then_some((
            "nats_user",
            "is missing, or has no password: NATS is used only with credentials. Write nats_user and nats_password_file, or \
             nats_credentials_file",
        ))
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
        if let Some((key, text)) = self.nats_problem() {
            return problem(key, text.to_owned());
        }
        match (&self.secret_file, self.secret_command.is_empty()) {
            (None, true) => problem("secret_file", "is missing; name a file with the secret of the cluster".to_owned()),
            (Some(_), false) => problem("secret_command", "excludes `secret_file`: there is one secret".to_owned()),
            (Some(_), true) | (None, false) => None,
        }
    }
}
