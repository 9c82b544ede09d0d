//! Calling models: who serves them, what goes out, what comes back, and who has a call under way.
//!
//! A call always streams, keeps every byte until a stop, knows whether the answer was complete, and closes its socket at
//! once when the run's scope is cancelled: there is no task between the socket and the run. It knows no tools: calls go out
//! as the model wrote them. What depends on a provider's dialect is asked of `dialect` alone.

mod active;
mod answer;
mod anthropic;
mod calls;
mod catalogue;
mod config;
pub mod demo;
mod dialect;
mod error;
mod exchange;
mod failure;
mod openai;
mod own_access;
mod provider;
mod receive;
mod report;
mod retry_after;
mod sse;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use quell_kernel::turn::Message;
use quell_kernel::view::Prompt;
use quell_protocol::{AgentId, RunId, Usage};

pub use active::ActiveRequests;
pub use catalogue::{CatalogueError, served_models};
pub use config::{BadProvider, ProviderConfig, ProviderKind};
pub use dialect::Conversation;
pub use error::{ModelError, Wait};
pub use own_access::OwnAccess;
pub(crate) use provider::http_client;

use crate::scope::Scope;
use exchange::Exchange;
use provider::{Clients, Provider};

/// All models of the configuration. Clones are the same, also when other providers take their place.
#[derive(Debug, Clone)]
pub struct Models {
    current: Arc<RwLock<Current>>,
    /// Where each provider was when it was configured first: a session's own key was given for that place.
    first_places: Arc<RwLock<BTreeMap<String, Option<String>>>>,
    clients: Clients,
    active: ActiveRequests,
}

/// Who serves models now.
#[derive(Debug, Clone)]
struct Current {
    served: Arc<Served>,
    /// Rises with each replacement.
    generation: u64,
}

/// Who serves models at one moment.
#[derive(Debug)]
struct Served {
    providers: BTreeMap<String, Arc<Provider>>,
    configs: BTreeMap<String, ProviderConfig>,
}

/// One model of one provider. Clones are the same.
#[derive(Debug, Clone)]
pub struct Model {
    name: String,
    provider: Arc<Provider>,
    active: ActiveRequests,
}

/// What a model is asked.
#[derive(Debug, Clone, Copy)]
pub struct ModelRequest<'a> {
    /// The run that asks.
    pub run: &'a RunId,
    /// Its agent.
    pub agent: &'a AgentId,
    /// The conversation, as [`Model::conversation`] spelled it.
    pub conversation: &'a Conversation,
    /// The tools that the model may call.
    pub tools: &'a [ToolSpec],
    /// How much chance; the model's own default when absent.
    pub temperature: Option<f64>,
    /// The most tokens of the answer; the model's own bound when absent, or the dialect's default.
    pub max_tokens: Option<u32>,
    /// How thinking is asked for, in a dialect that asks for it; no thinking is asked for when absent.
    pub thinking: Option<ThinkingMode>,
}

/// How a model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingMode {
    /// As much as the model finds right. Newer models know no other way.
    Adaptive,
    /// With so many tokens of the answer. Older models know no other way.
    Tokens(u32),
}

/// A tool as it is described to a model. A clone shares the schema: each request that is out holds one.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// Its parameters as a JSON schema.
    pub parameters: Arc<serde_json::Value>,
}

/// Takes what comes while a call is under way, at the moment it comes.
pub trait ModelSink: Send {
    /// A piece of the answer.
    fn text(&mut self, delta: &str);
    /// A piece of the model's reasoning.
    fn thinking(&mut self, delta: &str);
    /// Attempt number `attempt` (from 1) failed because of `why`; the next one starts after `delay`.
    fn retrying(&mut self, attempt: u32, delay: Duration, why: &str);
    /// An attempt leaves now, with about so many tokens.
    fn input_sent(&mut self, _estimated_tokens: u64) {}
    /// The attempt that left last cost nothing after all: it did not arrive, or the provider refused it.
    fn cost_nothing(&mut self) {}
    /// Tokens of one attempt, to be added up: what the provider counted, or an estimate when it counted nothing or was cut.
    /// Called at most once per attempt, whatever its end; attempts that the provider refused cost nothing.
    fn usage(&mut self, usage: Usage);
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAnswer {
    /// What it says, thinks and asks for, in the model's order, with its signatures where the provider signs reasoning.
    pub message: Message<RawCall>,
    /// What the provider counted, if it did. The sink has been told already.
    pub usage: Option<Usage>,
    /// Why the model stopped.
    pub finish: Finish,
}

/// A call as the model wrote it: nothing is checked, ids may be missing or double, arguments may be no JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawCall {
    /// The model's id for it.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The arguments.
    pub arguments: String,
}

/// Why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// It was done.
    Stop,
    /// It ran into a bound of length.
    Length,
    /// It waits for the results of its calls.
    ToolCalls,
    /// A filter cut it.
    ContentFilter,
    /// It paused and wants to go on.
    Paused,
    /// A word of the provider's own.
    Other(String),
}

/// No configured provider serves that model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no provider serves the model `{name}`; models are named provider/model, and the providers are: {}", list(.providers))]
pub struct UnknownModel {
    /// The name that was asked for.
    pub name: String,
    /// The providers that exist.
    pub providers: Vec<String>,
}

impl Models {
    /// Checks the providers and builds their HTTP clients, once. Nothing is sent.
    ///
    /// # Errors
    /// [`BadProvider`] says which section is wrong and what would be right.
    pub fn new(providers: BTreeMap<String, ProviderConfig>) -> Result<Self, BadProvider> {
        let clients = Clients::default();
        let places = providers.iter().map(|(name, config)| (name.clone(), config.base_url.clone())).collect();
        let current = Current::new(providers, &clients)?;
        let (current, first_places) = (Arc::new(RwLock::new(current)), Arc::new(RwLock::new(places)));
        Ok(Self { current, first_places, clients, active: ActiveRequests::default() })
    }

    /// The models of other providers, with the same HTTP clients and the same table of calls. Nobody has them until
    /// [`Models::follow`].
    ///
    /// # Errors
    /// As [`Models::new`].
    pub fn of_others(&self, providers: BTreeMap<String, ProviderConfig>) -> Result<Self, BadProvider> {
        let current = Current::new(providers, &self.clients)?;
        Ok(Self { current: Arc::new(RwLock::new(current)), ..self.clone() })
    }

    /// From now on these are the models, for all clones. A [`Model`] that somebody has stays as it is.
    pub fn follow(&self, others: &Self) {
        let served = others.served();
        let mut first = self.first_places.write().unwrap_or_else(PoisonError::into_inner);
        for (name, config) in &served.configs {
            first.entry(name.clone()).or_insert_with(|| config.base_url.clone());
        }
        drop(first);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = Current { served, generation: current.generation.saturating_add(1) };
    }

    /// Names of the providers that there are now.
    #[must_use]
    pub fn provider_names(&self) -> Vec<String> {
        self.served().providers.keys().cloned().collect()
    }

    /// Another number when other providers have taken the place of those that were there: what was resolved before is to be
    /// resolved anew.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.current().generation
    }

    /// Finds `provider/model`. The provider ends at the first `/`; the model's own name may hold more of them.
    ///
    /// # Errors
    /// [`UnknownModel`] lists the providers that exist.
    pub fn resolve(&self, name: &str) -> Result<Model, UnknownModel> {
        let served = self.served();
        let found = name.split_once('/').filter(|(_, model)| !model.is_empty());
        let provider = found.and_then(|(provider, _)| served.providers.get(provider));
        match provider {
            Some(provider) => {
                Ok(Model { name: name.to_owned(), provider: Arc::clone(provider), active: self.active.clone() })
            }
            None => Err(UnknownModel { name: name.to_owned(), providers: served.providers.keys().cloned().collect() }),
        }
    }

    /// As [`Models::resolve`], for a caller with access of its own. The HTTP clients are the shared ones.
    ///
    /// # Errors
    /// [`BadProvider`] says what is wrong with that access, or that there is no such provider.
    pub fn resolve_with(&self, name: &str, access: &OwnAccess) -> Result<Model, BadProvider> {
        let (provider, _) = name.split_once('/').unwrap_or((name, ""));
        let served = self.served();
        let configured = served.configs.get(provider);
        if access.api_key.is_some() && access.base_url.is_none() && self.has_moved(provider, configured) {
            return Err(BadProvider {
                provider: provider.to_owned(),
                problem: "has another base_url since the daemon was started, and a session's own key does not follow it there by \
                          itself; start the daemon again, or give the session its baseUrl"
                    .to_owned(),
            });
        }
        let config = access.over(provider, configured)?;
        let provider = Provider::new(provider, config, &self.clients)?;
        Ok(Model { name: name.to_owned(), provider: Arc::new(provider), active: self.active.clone() })
    }

    /// True when a provider of that name is configured.
    #[must_use]
    pub fn is_configured(&self, provider: &str) -> bool {
        self.served().configs.contains_key(provider)
    }

    fn has_moved(&self, provider: &str, configured: Option<&ProviderConfig>) -> bool {
        let first = self.first_places.read().unwrap_or_else(PoisonError::into_inner);
        let (first, now) = (first.get(provider), configured.map(|config| &config.base_url));
        first.zip(now).is_some_and(|(first, now)| first != now)
    }

    fn served(&self) -> Arc<Served> {
        self.current().served
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The table of calls under way.
    #[must_use]
    pub fn active(&self) -> &ActiveRequests {
        &self.active
    }
}

impl Current {
    fn new(configs: BTreeMap<String, ProviderConfig>, clients: &Clients) -> Result<Self, BadProvider> {
        let mut providers = BTreeMap::new();
        for (name, config) in &configs {
            providers.insert(name.clone(), Arc::new(Provider::new(name, config.clone(), clients)?));
        }
        Ok(Self { served: Arc::new(Served { providers, configs }), generation: 0 })
    }
}

impl Model {
    /// The name of its provider.
    #[must_use]
    pub fn provider_name(&self) -> &str {
        self.name.split_once('/').map_or("", |(provider, _)| provider)
    }

    /// The name it was found by, `provider/model`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Attempts of one call that there are at most.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.provider.retries.max_retries.saturating_add(1)
    }

    /// True when it can be asked to think.
    #[must_use]
    pub fn may_think(&self) -> bool {
        self.provider.dialect.has_thinking()
    }

    /// Spells a conversation in the dialect of the model's provider.
    #[must_use]
    pub fn conversation(&self, prompt: &Prompt<'_>) -> Conversation {
        self.provider.dialect.conversation(prompt)
    }

    /// Calls the model and waits for its complete answer. What arrives on the way goes to `sink` at once. Failures that may
    /// pass are tried again, but never after the answer began and never after a stop.
    ///
    /// # Errors
    /// [`ModelError`]; once the scope is cancelled, an error is never anything but [`ModelError::Cancelled`].
    ///
    /// # Cancel safety
    /// Safe to drop: the socket is closed, the ledger and the table of active requests say so. Only the last
    /// [`ModelSink::usage`] is then missing; cancel the scope instead to get it.
    pub async fn call(
        &self,
        request: &ModelRequest<'_>,
        scope: &Scope,
        sink: &mut dyn ModelSink,
    ) -> Result<ModelAnswer, ModelError> {
        let _entry = self.active.enter(request.agent, request.run);
        let outcome = Exchange::new(self, scope).run(request, sink).await;
        if matches!(outcome, Err(ModelError::Cancelled)) {
            tracing::info!(run = %request.run, agent = %request.agent, model = %self.name, "model call aborted");
        }
        outcome
    }

    /// The model's name as its provider knows it.
    fn id(&self) -> &str {
        self.name.split_once('/').map_or("", |(_, model)| model)
    }
}

fn list(providers: &[String]) -> String {
    if providers.is_empty() { "none".to_owned() } else { providers.join(", ") }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
