//! The `[routing]` section and its conversion to routing rules: the words of a message choose the model.

use std::collections::BTreeMap;

use quell_kernel::routing::{KeywordRule, ModelRoute, ModelRouter};
use quell_llm::ProviderConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::validation::ConfigProblem;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RoutingSection {
    /// Rules that give a message a hint, tried in this order.
    keywords: Vec<KeywordRuleEntry>,
    /// The model for each hint.
    model_routes: Vec<ModelRouteEntry>,
}

/// `[[routing.keywords]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KeywordRuleEntry {
    /// One matching word is enough. Case is ignored; a word matches as a whole, in Chinese, Japanese and Korean
    /// anywhere.
    words: Vec<String>,
    /// The hint for a message with one of these words.
    hint: String,
}

/// `[[routing.model_routes]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ModelRouteEntry {
    /// A hint of the keywords.
    hint: String,
    /// The name of a configured provider.
    provider: String,
    /// The model, by the provider's name for it.
    model: String,
}

impl RoutingSection {
    pub(super) fn rules(&self) -> ModelRouter {
        let keywords = self.keywords.iter().cloned();
        let routes = self.model_routes.iter().cloned();
        ModelRouter::new(
            keywords.map(|KeywordRuleEntry { words, hint }| KeywordRule { words, hint }).collect(),
            routes.map(|ModelRouteEntry { hint, provider, model }| ModelRoute { hint, provider, model }).collect(),
        )
    }

    pub(super) fn names_provider(&self, name: &str) -> bool {
        self.model_routes.iter().any(|route| route.provider == name)
    }

    /// Finds entries that can never work.
    pub(super) fn problems(&self, providers: &BTreeMap<String, ProviderConfig>) -> Vec<ConfigProblem> {
        let rules = self.rules().problems().into_iter();
        let rules = rules.map(|bad| ConfigProblem { key: format!("routing.{}", bad.place), text: bad.problem });
        let unknown = self.model_routes.iter().enumerate().filter(|(_, route)| {
            let name = &route.provider;
            !name.trim().is_empty() && name != "demo" && !providers.contains_key(name)
        });
        let unknown = unknown.map(|(n, route)| ConfigProblem {
            key: format!("routing.model_routes.{n}.provider"),
            text: format!("there is no [providers.{}]", route.provider),
        });
        rules.chain(unknown).collect()
    }
}
