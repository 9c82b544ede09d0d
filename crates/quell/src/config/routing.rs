//! `[routing]`: which model a message of a chat network is for, by its words. What the entries mean the kernel says.

use std::collections::BTreeMap;

use quell_engine::llm::ProviderConfig;
use quell_kernel::routing::{Keywords, ModelRoute, Routing};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::Problem;

/// `[routing]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RoutingSection {
    /// Words that give a hint, in the order in which they are looked for.
    keywords: Vec<KeywordsEntry>,
    /// Which model is for which hint.
    model_routes: Vec<ModelRouteEntry>,
}

/// `[[routing.keywords]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KeywordsEntry {
    /// One of them is enough: in upper or lower case, as a whole word, or anywhere in Chinese, Japanese and Korean.
    words: Vec<String>,
    /// What they say of a message.
    hint: String,
}

/// `[[routing.model_routes]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ModelRouteEntry {
    /// The hint of keywords.
    hint: String,
    /// The name of a configured provider.
    provider: String,
    /// The model, as that provider names it.
    model: String,
}

impl RoutingSection {
    /// The rules of these entries.
    pub(super) fn rules(&self) -> Routing {
        let keywords = self.keywords.iter().cloned();
        let routes = self.model_routes.iter().cloned();
        Routing::new(
            keywords.map(|KeywordsEntry { words, hint }| Keywords { words, hint }).collect(),
            routes.map(|ModelRouteEntry { hint, provider, model }| ModelRoute { hint, provider, model }).collect(),
        )
    }

    /// True when a route leads to this provider.
    pub(super) fn names_provider(&self, name: &str) -> bool {
        self.model_routes.iter().any(|route| route.provider == name)
    }

    /// What can never work.
    pub(super) fn problems(&self, providers: &BTreeMap<String, ProviderConfig>) -> Vec<Problem> {
        let rules = self.rules().problems().into_iter();
        let rules = rules.map(|bad| Problem { key: format!("routing.{}", bad.place), text: bad.problem });
        let unknown = self.model_routes.iter().enumerate().filter(|(_, route)| {
            let name = &route.provider;
            !name.trim().is_empty() && name != "demo" && !providers.contains_key(name)
        });
        let unknown = unknown.map(|(n, route)| Problem {
            key: format!("routing.model_routes.{n}.provider"),
            text: format!("there is no [providers.{}]", route.provider),
        });
        rules.chain(unknown).collect()
    }
}
