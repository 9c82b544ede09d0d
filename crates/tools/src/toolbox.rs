//! What the tools of one engine share: their settings, and the client of `fetch_url`.

use std::sync::Arc;

use quell_kernel::network_access::NetworkAccess;
use quell_net::AddressPolicy;
use quell_net::filtering_proxy::SystemResolver;

use crate::fetch::{FetchSettings, Fetcher};
use crate::listed_network::ListedNetwork;
use crate::protected_paths::ProtectedPaths;
use crate::workdir_locks::WorkdirLocks;

/// The tool settings of the configuration.
#[derive(Debug, Clone, Default)]
pub struct ToolSettings {
    /// Allows the file tools to leave the workdir.
    pub unconfined: bool,
    pub fetch: FetchSettings,
    /// Files of Quell itself, which no tool opens.
    pub protected: ProtectedPaths,
}

/// What the tools of one engine share.
#[derive(Debug)]
pub struct Toolbox {
    pub(crate) settings: ToolSettings,
    pub(crate) fetcher: Fetcher,
    workdir_locks: WorkdirLocks,
    resolver: SystemResolver,
}

impl Toolbox {
    pub fn new(settings: ToolSettings) -> Self {
        let fetcher = Fetcher::new(settings.fetch.clone());
        Self { settings, fetcher, workdir_locks: WorkdirLocks::default(), resolver: SystemResolver::default() }
    }

    /// The way out for one command of an agent with a list of servers; `None` for others.
    pub fn command_network(&self, access: &NetworkAccess) -> Option<Arc<ListedNetwork>> {
        match access {
            NetworkAccess::On | NetworkAccess::Off => None,
            NetworkAccess::List(rules) => Some(Arc::new(ListedNetwork::new(rules.clone(), self.resolver.clone()))),
        }
    }

    /// The addresses that `fetch_url` may reach. The same policy applies to the endpoints that sessions bring along.
    pub fn address_policy(&self) -> AddressPolicy {
        if self.settings.fetch.allow_private { AddressPolicy::Any } else { AddressPolicy::PublicOnly }
    }

    /// Whether the file tools of all agents may leave the workdir.
    pub fn is_unconfined(&self) -> bool {
        self.settings.unconfined
    }

    /// Held by whatever changes files of a workdir.
    pub fn workdir_locks(&self) -> &WorkdirLocks {
        &self.workdir_locks
    }

    pub fn protected_paths(&self) -> &ProtectedPaths {
        &self.settings.protected
    }
}
