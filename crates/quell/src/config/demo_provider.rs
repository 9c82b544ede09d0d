//! Configure the built-in demo model as a provider when something refers to it. Its address is known only once it runs.

use quell_llm::{ProviderConfig, ProviderKind};

use super::Config;

/// The provider name that agents and routes may use without a section.
const DEMO_PROVIDER: &str = "demo";

impl Config {
    /// True when a provider, an agent or a route refers to the demo model.
    pub(crate) fn needs_demo_model(&self) -> bool {
        self.refers_to_builtin_demo() || self.providers.values().any(|provider| provider.kind == ProviderKind::DEMO)
    }

    /// Sets the address of the demo model for everything that refers to it.
    pub(crate) fn set_demo_model_url(&mut self, base_url: &str) {
        if self.refers_to_builtin_demo() && !self.providers.contains_key(DEMO_PROVIDER) {
            self.providers.insert(DEMO_PROVIDER.to_owned(), ProviderConfig::new(ProviderKind::DEMO));
        }
        for provider in self.providers.values_mut().filter(|provider| provider.kind == ProviderKind::DEMO) {
            provider.base_url = Some(base_url.to_owned());
        }
    }

    /// A section with the name replaces the built-in provider.
    fn refers_to_builtin_demo(&self) -> bool {
        let is_builtin = |model: &str| model.split_once('/').is_some_and(|(name, _)| name == DEMO_PROVIDER);
        let of_agents = self.agents.values().any(|agent| agent.model.names().any(is_builtin));
        let of_routes = || self.routing.names_provider(DEMO_PROVIDER);
        !self.providers.contains_key(DEMO_PROVIDER) && (of_agents || of_routes())
    }
}
