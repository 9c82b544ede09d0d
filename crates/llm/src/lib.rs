//! Call language models: resolve `provider/model`, send a request, stream the answer, retry, and track the calls in
//! progress.
//!
//! A call always streams, keeps every byte until a stop, and knows whether the answer was complete. No task stands
//! between the socket and the run, so cancelling the run's scope closes the socket at once. This module does not know
//! tools: calls are returned as the model wrote them. Everything that depends on the wire format of a provider is in
//! `dialect`.

mod active_requests;
mod attempt_failure;
mod audio;
mod config;
pub mod demo;
mod dialect;
mod error;
mod error_report;
mod model_call;
mod model_list;
mod partial_answer;
mod provider;
mod provider_kind;
mod provider_override;
mod response;
mod retry_after;
mod tool_calls;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use quell_kernel::ToolSpec;
use quell_kernel::client_request::AnswerOptions;
use quell_kernel::prompt::{self, Prompt, Vision};
use quell_kernel::retry::RetryPolicy;
use quell_kernel::turn::ModelMessage;
use quell_net::HttpClients;
use quell_protocol::agents::Price;
use quell_protocol::{AgentId, RunId, Usage};
use quell_scope::Scope;

pub use active_requests::ActiveRequests;
pub use audio::{MAX_SPEECH_CHARS, Recording, SPEECH_MEDIA_TYPE};
pub use config::{ProviderConfig, ProviderConfigError};
pub use dialect::{Conversation, ProviderEnvironment};
pub use error::{ModelError, ModelTimeout};
pub use model_list::{ModelListError, fetch_model_list};
pub use provider_kind::ProviderKind;
pub use provider_override::ProviderOverride;
pub use quell_kernel::client_request::ThinkingMode;

use dialect::{EncodeError, EncodedRequest};
use model_call::ModelCall;
use partial_answer::estimate_body_tokens;
use provider::Provider;

/// All models of the configuration. Clones share one state, also after the providers are replaced.
#[derive(Debug, Clone)]
pub struct Models {
    current_providers: Arc<RwLock<CurrentProviders>>,
    /// The base URL of each provider when it was first configured. A session's own key was given for that URL.
    initial_base_urls: Arc<RwLock<BTreeMap<String, Option<String>>>>,
    http_clients: HttpClients,
    active_requests: ActiveRequests,
}

/// The providers in use now.
#[derive(Debug, Clone)]
struct CurrentProviders {
    provider_set: Arc<ProviderSet>,
    /// Increases with each replacement.
    generation: u64,
}

#[derive(Debug)]
struct ProviderSet {
    providers: BTreeMap<String, Arc<Provider>>,
    configs: BTreeMap<String, ProviderConfig>,
}

#[derive(Debug, Clone)]
pub struct ModelHandle {
    name: String,
    provider: Arc<Provider>,
    retry_policy: RetryPolicy,
    active_requests: ActiveRequests,
}

#[derive(Debug, Clone, Copy)]
pub struct ModelCallRequest<'a> {
    pub run: &'a RunId,
    pub agent: &'a AgentId,
    /// The conversation, as [`ModelHandle::encode_conversation`] returned it.
    pub conversation: &'a Conversation,
    /// All tools that the model may call; those of `answer` count only if they are here, too.
    pub tools: &'a [ToolSpec],
    /// How the answer is wanted. What is absent in it has the default of the model, or of the dialect.
    pub answer: &'a AnswerOptions,
    /// How thinking is requested, in a dialect that supports it; when absent, no thinking is requested.
    pub thinking: Option<ThinkingMode>,
    /// Whether the provider may search the web by itself, in a dialect that supports it.
    pub web_search: bool,
}

/// Receives the events of a model call as they arrive.
pub trait ModelSink: Send {
    /// A piece of the answer.
    fn on_text_delta(&mut self, delta: &str);
    /// A piece of the model's reasoning.
    fn on_thinking_delta(&mut self, delta: &str);
    /// The provider has searched the web for this.
    fn on_web_search(&mut self, _query: &str) {}
    /// The first part of the answer has come; from now on no attempt repeats it.
    fn on_answer_begun(&mut self) {}
    /// Attempt number `attempt` (from 1) failed because of `why`; the next one starts after `delay`.
    fn on_retry(&mut self, attempt: u32, delay: Duration, why: &str);
    /// An attempt is sent now, with about this many tokens of input.
    fn on_request_sent(&mut self, _estimated_tokens: u64) {}
    /// The last attempt is not billed: it did not arrive, or the provider refused it.
    fn on_request_not_billed(&mut self) {}
    /// The tokens of one attempt, to be added up: the provider's count, or an estimate when there is none or the answer
    /// was cut. Called at most once per attempt, whatever its end; attempts that the provider refused cost nothing.
    fn on_usage(&mut self, usage: Usage);
}

#[derive(Debug, Clone, PartialEq)]
pub struct ModelAnswer {
    /// Text, reasoning and calls in the model's order, with signatures where the provider signs reasoning.
    pub message: ModelMessage<RawCall>,
    /// The provider's count, if there is one. The sink has received it already.
    pub usage: Option<Usage>,
    pub finish_reason: FinishReason,
}

/// A call as the model wrote it, unchecked: ids may be missing or repeated, arguments may be invalid JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawCall {
    /// The model's id for the call.
    pub id: Option<String>,
    pub name: String,
    pub arguments: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model was done.
    Stop,
    /// One of the stop sequences of the request came. Most providers say [`FinishReason::Stop`] then.
    StopSequence(String),
    /// A length limit was reached.
    Length,
    /// The model waits for the results of its calls.
    ToolCalls,
    /// A content filter cut the answer.
    ContentFilter,
    /// The model paused and wants to continue.
    Paused,
    /// A reason that is not known here, in the provider's word.
    Other(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no provider serves the model `{name}`; models are named provider/model, and the providers are: {}", join_provider_names(.providers))]
pub struct UnknownModel {
    pub name: String,
    pub providers: Vec<String>,
}

impl Models {
    /// Checks the providers and builds their HTTP clients. Nothing is sent.
    ///
    /// # Errors
    /// [`ProviderConfigError`] says which section is wrong and how to correct it.
    pub fn new(providers: BTreeMap<String, ProviderConfig>) -> Result<Self, ProviderConfigError> {
        let clients = HttpClients::default();
        let base_urls = providers.iter().map(|(name, config)| (name.clone(), config.base_url.clone())).collect();
        let current = CurrentProviders::new(providers, &clients)?;
        let (current_providers, initial_base_urls) = (Arc::new(RwLock::new(current)), Arc::new(RwLock::new(base_urls)));
        Ok(Self {
            current_providers,
            initial_base_urls,
            http_clients: clients,
            active_requests: ActiveRequests::default(),
        })
    }

    /// The models of other providers, with the same HTTP clients and the same table of active requests. They are not in
    /// use until [`Models::replace_providers`].
    pub fn with_providers(&self, providers: BTreeMap<String, ProviderConfig>) -> Result<Self, ProviderConfigError> {
        let current = CurrentProviders::new(providers, &self.http_clients)?;
        Ok(Self { current_providers: Arc::new(RwLock::new(current)), ..self.clone() })
    }

    /// Makes these providers the current ones, for all clones. A [`ModelHandle`] that exists keeps its provider.
    pub fn replace_providers(&self, replacement: &Self) {
        let provider_set = replacement.provider_set();
        let mut first = self.initial_base_urls.write().unwrap_or_else(PoisonError::into_inner);
        for (name, config) in &provider_set.configs {
            first.entry(name.clone()).or_insert_with(|| config.base_url.clone());
        }
        drop(first);
        let mut current = self.current_providers.write().unwrap_or_else(PoisonError::into_inner);
        *current = CurrentProviders { provider_set, generation: current.generation.saturating_add(1) };
    }

    #[must_use]
    pub fn provider_names(&self) -> Vec<String> {
        self.provider_set().providers.keys().cloned().collect()
    }

    /// Changes with each replacement of the providers; a model that was resolved at an earlier generation must be
    /// resolved again.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.current_providers().generation
    }

    /// Resolves `provider/model`. The provider ends at the first `/`; the model's own name may contain more of them.
    pub fn resolve(&self, name: &str) -> Result<ModelHandle, UnknownModel> {
        let provider_set = self.provider_set();
        let found = name.split_once('/').filter(|(_, model)| !model.is_empty());
        let provider = found.and_then(|(provider, _)| provider_set.providers.get(provider));
        match provider {
            Some(provider) => Ok(self.handle(name, Arc::clone(provider))),
            None => {
                Err(UnknownModel { name: name.to_owned(), providers: provider_set.providers.keys().cloned().collect() })
            }
        }
    }

    /// As [`Models::resolve`], for a session with its own key or base URL. The HTTP clients are the shared ones.
    ///
    /// # Errors
    /// [`ProviderConfigError`] says what is wrong with the override, or that there is no such provider.
    pub fn resolve_with_override(
        &self,
        name: &str,
        provider_override: &ProviderOverride,
    ) -> Result<ModelHandle, ProviderConfigError> {
        let (provider, _) = name.split_once('/').unwrap_or((name, ""));
        let provider_set = self.provider_set();
        let configured = provider_set.configs.get(provider);
        if provider_override.api_key.is_some()
            && provider_override.base_url.is_none()
            && self.base_url_changed(provider, configured)
        {
            return Err(ProviderConfigError {
                provider: provider.to_owned(),
                problem: "has a new base_url since the daemon was started, and a session's own key is not sent to it; restart \
                          the daemon, or give the session its baseUrl"
                    .to_owned(),
            });
        }
        let config = provider_override.apply_to(provider, configured)?;
        let provider = Provider::new(provider, config, &self.http_clients)?;
        Ok(self.handle(name, Arc::new(provider)))
    }

    fn handle(&self, name: &str, provider: Arc<Provider>) -> ModelHandle {
        let (retry_policy, active_requests) = (provider.retry_policy, self.active_requests.clone());
        ModelHandle { name: name.to_owned(), provider, retry_policy, active_requests }
    }

    fn base_url_changed(&self, provider: &str, configured: Option<&ProviderConfig>) -> bool {
        let first = self.initial_base_urls.read().unwrap_or_else(PoisonError::into_inner);
        let (first, now) = (first.get(provider), configured.map(|config| &config.base_url));
        first.zip(now).is_some_and(|(first, now)| first != now)
    }

    fn provider_set(&self) -> Arc<ProviderSet> {
        self.current_providers().provider_set
    }

    fn current_providers(&self) -> CurrentProviders {
        self.current_providers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[must_use]
    pub fn active_requests(&self) -> &ActiveRequests {
        &self.active_requests
    }
}

impl CurrentProviders {
    fn new(configs: BTreeMap<String, ProviderConfig>, clients: &HttpClients) -> Result<Self, ProviderConfigError> {
        let mut providers = BTreeMap::new();
        for (name, config) in &configs {
            providers.insert(name.clone(), Arc::new(Provider::new(name, config.clone(), clients)?));
        }
        Ok(Self { provider_set: Arc::new(ProviderSet { providers, configs }), generation: 0 })
    }
}

impl ModelHandle {
    #[must_use]
    pub fn provider_name(&self) -> &str {
        self.name.split_once('/').map_or("", |(provider, _)| provider)
    }

    /// The name that it was resolved by, `provider/model`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The price of a million of its tokens, if the configuration has it.
    #[must_use]
    pub fn price(&self) -> Option<Price> {
        self.provider.price_of(self.model_id())
    }

    /// The maximum number of attempts of one call.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.retry_policy.max_retries.saturating_add(1)
    }

    /// The same model with at most this many retries, if the provider allows more.
    #[must_use]
    pub fn with_fewer_retries(self, most: u32) -> Self {
        let max_retries = self.retry_policy.max_retries.min(most);
        Self { retry_policy: RetryPolicy { max_retries, ..self.retry_policy }, ..self }
    }

    /// True when the dialect of the provider can request thinking.
    #[must_use]
    pub fn supports_thinking(&self) -> bool {
        self.provider.dialect.has_thinking()
    }

    /// True when the provider can search the web by itself.
    #[must_use]
    pub fn supports_web_search(&self) -> bool {
        self.provider.dialect.has_web_search()
    }

    /// Encodes a conversation in the dialect of the model's provider.
    #[must_use]
    pub fn encode_conversation(&self, prompt: &Prompt<'_>) -> Conversation {
        let dialect = self.provider.dialect;
        let vision = if dialect.has_pictures() { prompt.vision } else { Vision::TextOnly };
        let pictures = prompt::image_usage(prompt.turns, prompt.draft, vision);
        Conversation { pictures, ..dialect.encode_conversation(&Prompt { vision, ..*prompt }) }
    }

    /// Estimates the tokens of the input of a request, without sending it.
    ///
    /// # Errors
    /// [`ModelError`] if the request cannot be written in the dialect.
    pub fn estimate_input_tokens(&self, request: &ModelCallRequest<'_>) -> Result<u64, ModelError> {
        let encoded = self.encode_request(request)?;
        Ok(estimate_body_tokens(&encoded.body, request.conversation.pictures))
    }

    /// Calls the model and waits for its complete answer. Pieces go to `sink` as they arrive. Transient failures are
    /// retried, but never after the answer began and never after a stop.
    ///
    /// # Errors
    /// [`ModelError`]; once the scope is cancelled, the error is always [`ModelError::Cancelled`].
    ///
    /// # Cancel safety
    /// Safe to drop: the socket is closed, and the ledger and the table of active requests are updated. Only the last
    /// [`ModelSink::on_usage`] is missing then; cancel the scope instead to get it.
    pub async fn call(
        &self,
        request: &ModelCallRequest<'_>,
        scope: &Scope,
        sink: &mut dyn ModelSink,
    ) -> Result<ModelAnswer, ModelError> {
        let _entry = self.active_requests.register();
        let outcome = ModelCall::new(self, scope).run(request, sink).await;
        if matches!(outcome, Err(ModelError::Cancelled)) {
            tracing::info!(run = %request.run, agent = %request.agent, model = %self.name, "model call aborted");
        }
        outcome
    }

    fn encode_request(&self, request: &ModelCallRequest<'_>) -> Result<EncodedRequest, ModelError> {
        let Provider { dialect, base_url, name, .. } = &*self.provider;
        let encoded = dialect.encode_request(base_url, self.model_id(), request);
        encoded.map_err(|error| match error {
            EncodeError::Json(error) => ModelError::Rejected {
                provider: name.clone(),
                status: None,
                message: format!("nothing was sent, because the request cannot be written as JSON: {error}"),
                retryable: false,
            },
            EncodeError::UnsupportedOption { option, problem } => {
                ModelError::UnsupportedOption { provider: name.clone(), option, problem }
            }
        })
    }

    /// The model's name without its provider.
    fn model_id(&self) -> &str {
        self.name.split_once('/').map_or("", |(_, model)| model)
    }
}

fn join_provider_names(providers: &[String]) -> String {
    if providers.is_empty() { "none".to_owned() } else { providers.join(", ") }
}

#[cfg(test)]
mod fake_server;
#[cfg(test)]
mod tests;
