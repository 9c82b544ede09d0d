//! The built-in demo model as a provider: it is there without any section when something names it, and where it listens is
//! known only when it runs.

use quell_engine::llm::{ProviderConfig, ProviderKind};

use super::Config;

/// The provider that agents and routes may name without a section.
const NAME: &str = "demo";

impl Config {
    /// True when a provider, an agent or a route asks for the demo model.
    pub(crate) fn asks_for_demo_model(&self) -> bool {
        self.names_demo() || self.providers.values().any(|provider| provider.kind == ProviderKind::Demo)
    }

    /// From now on what asks for the demo model finds it there.
    pub(crate) fn point_to_demo_model(&mut self, base_url: &str) {
        if self.names_demo() && !self.providers.contains_key(NAME) {
            self.providers.insert(NAME.to_owned(), ProviderConfig::new(ProviderKind::Demo));
        }
        for provider in self.providers.values_mut().filter(|provider| provider.kind == ProviderKind::Demo) {
            provider.base_url = Some(base_url.to_owned());
        }
    }

    /// Only a name without a section is the demo model's.
    fn names_demo(&self) -> bool {
        let of_agents =
            self.agents.values().any(|agent| agent.model.split_once('/').is_some_and(|(name, _)| name == NAME));
        let of_routes = || self.routing.names_provider(NAME);
        !self.providers.contains_key(NAME) && (of_agents || of_routes())
    }
}
