//! What a token may use: APIs, agents, models, and money in a day.

use std::sync::Arc;

use quell_protocol::AgentId;
use quell_protocol::agents::Price;
use quell_protocol::api::{StandardApi, TokenRestrictions};
use serde::{Deserialize, Serialize};

use crate::daily_spend::{CostNanos, UNITS_IN_NANOS};

/// The most entries in a list of agents or models.
const MAX_ENTRIES: usize = 256;
/// The longest entry, in bytes.
const MAX_ENTRY_BYTES: usize = 256;

/// The restrictions of a token, with its rules. The default restricts nothing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ApiKey(Arc<TokenRestrictions>);

/// Why a token may not use something. It says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// The request is one of an API that the token is not for; absent for the API of Quell itself.
    #[error(
        "this token is only for {allowed}{}; `quell token create NAME --api` makes another", asked_api(*.asked)
    )]
    Api { asked: Option<StandardApi>, allowed: String },
    #[error("this token may not run the agent {0:?}; `quell token create NAME --agents` makes one that may")]
    Agent(AgentId),
    #[error("this token may not use the model {0:?}; `quell token create NAME --models` makes one that may")]
    Model(String),
    #[error(
        "this token has a daily cost limit, and the model {0:?} has no price; set one in `prices` of its provider or in `price` \
         of its agent, or use a token without `--daily-cost`"
    )]
    NoPrice(String),
}

/// Why a token cannot have these restrictions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct RestrictionProblem {
    /// The field of the restrictions.
    pub field: &'static str,
    pub problem: String,
}

impl ApiKey {
    #[must_use]
    pub fn new(restrictions: TokenRestrictions) -> Self {
        Self(Arc::new(restrictions))
    }

    #[must_use]
    pub fn restrictions(&self) -> &TokenRestrictions {
        &self.0
    }

    #[must_use]
    pub fn may_use_api(&self, api: StandardApi) -> bool {
        self.0.apis.as_ref().is_none_or(|apis| apis.contains(&api))
    }

    /// True for the HTTP API and the WebSocket of Quell itself. `quell acp` uses them, so a token for ACP may, too.
    #[must_use]
    pub fn may_use_own_api(&self) -> bool {
        self.may_use_api(StandardApi::Acp)
    }

    #[must_use]
    pub fn may_use_agent(&self, agent: &AgentId) -> bool {
        match &self.0.agents {
            Some(agents) => agents.iter().any(|allowed| allowed == "*" || allowed == agent.as_str()),
            None => self.0.models.is_none(),
        }
    }

    /// Whether its holder may name this model, as `provider/model`. The models of an agent are the agent's.
    #[must_use]
    pub fn may_use_model(&self, name: &str) -> bool {
        match &self.0.models {
            Some(models) => models.iter().any(|pattern| matches_model(pattern, name)),
            None => self.0.agents.is_none(),
        }
    }

    /// True if it restricts what runs may do or cost.
    #[must_use]
    pub fn restricts_runs(&self) -> bool {
        self.0.agents.is_some() || self.0.models.is_some() || self.0.daily_cost.is_some()
    }

    /// The most that its runs may cost in a day.
    #[must_use]
    pub fn daily_cost(&self) -> Option<f64> {
        self.0.daily_cost
    }

    /// True if runs that have cost this much today may spend nothing more.
    #[must_use]
    pub fn is_daily_cost_reached(&self, spent: CostNanos) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 billionths a cost may be rounded")]
        self.0.daily_cost.is_some_and(|limit| spent as f64 >= limit * UNITS_IN_NANOS)
    }

    /// # Errors
    /// [`KeyRefusal::Api`].
    pub fn check_api(&self, api: StandardApi) -> Result<(), KeyRefusal> {
        if self.may_use_api(api) { Ok(()) } else { Err(self.refuse_api(Some(api))) }
    }

    /// Checks the use of the HTTP API and the WebSocket of Quell itself.
    ///
    /// # Errors
    /// [`KeyRefusal::Api`].
    pub fn check_own_api(&self) -> Result<(), KeyRefusal> {
        if self.may_use_own_api() { Ok(()) } else { Err(self.refuse_api(None)) }
    }

    /// # Errors
    /// [`KeyRefusal::Agent`].
    pub fn check_agent(&self, agent: &AgentId) -> Result<(), KeyRefusal> {
        if self.may_use_agent(agent) { Ok(()) } else { Err(KeyRefusal::Agent(agent.clone())) }
    }

    /// # Errors
    /// [`KeyRefusal::Model`].
    pub fn check_model(&self, name: &str) -> Result<(), KeyRefusal> {
        if self.may_use_model(name) { Ok(()) } else { Err(KeyRefusal::Model(name.to_owned())) }
    }

    /// Checks that the cost of a model can be counted, if it is limited.
    ///
    /// # Errors
    /// [`KeyRefusal::NoPrice`].
    pub fn check_price(&self, model: &str, price: Option<Price>) -> Result<(), KeyRefusal> {
        if self.0.daily_cost.is_none() || price.is_some() {
            return Ok(());
        }
        Err(KeyRefusal::NoPrice(model.to_owned()))
    }

    fn refuse_api(&self, asked: Option<StandardApi>) -> KeyRefusal {
        let apis = self.0.apis.as_deref().unwrap_or_default();
        let allowed = apis.iter().map(|api| api.as_str()).collect::<Vec<_>>().join(", ");
        KeyRefusal::Api { asked, allowed }
    }
}

/// The first problem of the restrictions of a new token.
#[must_use]
pub fn restriction_problem(restrictions: &TokenRestrictions) -> Option<RestrictionProblem> {
    let TokenRestrictions { apis, agents, models, daily_cost } = restrictions;
    let problem = |field, problem: String| Some(RestrictionProblem { field, problem });
    if apis.as_ref().is_some_and(Vec::is_empty) {
        return problem("apis", "an empty list would allow nothing; leave it out for no restriction".to_owned());
    }
    for (field, list) in [("agents", agents), ("models", models)] {
        let Some(list) = list else { continue };
        if list.is_empty() {
            return problem(field, "an empty list would allow nothing; leave it out for no restriction".to_owned());
        }
        if list.len() > MAX_ENTRIES || list.iter().any(|entry| entry.len() > MAX_ENTRY_BYTES) {
            return problem(field, format!("at most {MAX_ENTRIES} entries of {MAX_ENTRY_BYTES} bytes each"));
        }
    }
    let is_agent = |name: &&String| *name == "*" || AgentId::parse(name.as_str()).is_ok();
    if let Some(bad) = agents.iter().flatten().find(|name| !is_agent(name)) {
        return problem("agents", format!("{bad:?} is not the id of an agent; write an id or *"));
    }
    if let Some(bad) = models.iter().flatten().find(|pattern| !is_model_pattern(pattern)) {
        return problem("models", format!("{bad:?} is no model; write provider/model, provider/* or *"));
    }
    if let Some(cost) = daily_cost.filter(|cost| !cost.is_finite() || *cost <= 0.0) {
        return problem("dailyCost", format!("{cost} is no limit; write a number above 0, or leave it out"));
    }
    None
}

fn is_model_pattern(pattern: &str) -> bool {
    let is_plain = |text: &str| !text.is_empty() && !text.contains(|sign: char| sign == '*' || sign.is_whitespace());
    pattern == "*"
        || pattern
            .split_once('/')
            .is_some_and(|(provider, model)| is_plain(provider) && (model == "*" || is_plain(model)))
}

fn matches_model(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

fn asked_api(asked: Option<StandardApi>) -> String {
    asked.map_or_else(String::new, |api| format!(", not for {}", api.as_str()))
}

#[cfg(test)]
mod tests;
