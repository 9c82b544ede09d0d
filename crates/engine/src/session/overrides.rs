//! Settings that a session sets itself, over those of its agent (row C2 in `docs/design/requirements.md`); stored with
//! sealed keys.

use std::fmt;
use std::mem::take;
use std::path::{Path, PathBuf};

use quell_llm::{ProviderOverride, ThinkingMode};
use quell_net::AddressPolicy;
use quell_protocol::session::{Secret, SessionConfig, SessionRequest, Setting, SettingSource, ThinkingLevel};
use quell_protocol::{AgentId, Principal, SessionKey};
use quell_store::{PrivateEndpoints, SessionSetup, SessionSetupAccess, StoredSession};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use url::Url;

use super::key_store::SessionKeyStore;
use crate::access::Caller;
use crate::agent::{Agent, AgentConfig, ModelChain, ThinkingSetting};

/// Defaults of sessions that are opened by user, chat and provider (row C2). A session that a message creates has the
/// settings of its agent, or else those of the provider, because not every model accepts a temperature.
const DEFAULT_TEMPERATURE: f64 = 0.7;
const DEFAULT_MAX_TOKENS: u32 = 60_000;
const DEFAULT_LANGUAGE: &str = "en-US";

/// The settings of one session. Its `Debug` output masks keys.
#[derive(Clone, PartialEq)]
pub(super) struct SessionOverrides {
    request: SessionRequest,
    /// Set when the endpoints are set, because it depends on the caller.
    private_endpoints: PrivateEndpoints,
}

/// The keys of a session, as they are encrypted.
#[derive(Default, PartialEq, Serialize, Deserialize)]
struct SessionSecrets {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mcp_api_key: Option<Secret>,
    /// URLs with a query, which may contain a key, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base_url: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mcp_url: Option<Secret>,
}

impl SessionOverrides {
    /// Merges a request over the earlier settings; absent settings stay as they were. A key belongs to its endpoint: if
    /// a request names another endpoint, the key is dropped, so that a caller cannot send it elsewhere.
    ///
    /// `address_policy` says which addresses the endpoints in this request may have. An endpoint that is repeated keeps
    /// its earlier permission.
    pub(super) fn from_request(request: &SessionRequest, address_policy: AddressPolicy, before: Option<&Self>) -> Self {
        let mut request = request.clone();
        let may_be_private = address_policy == AddressPolicy::Any;
        let Some(Self { request: mut before, private_endpoints: was }) = before.cloned() else {
            let private_endpoints = private_endpoints_of(&request, may_be_private);
            return Self { request, private_endpoints };
        };
        let is_private = |now: &Option<String>, then: &Option<String>, was: bool| match now {
            None => was,
            Some(_) => may_be_private || (was && now == then),
        };
        let private_endpoints = PrivateEndpoints {
            base_url: is_private(&request.base_url, &before.base_url, was.base_url),
            mcp_url: is_private(&request.mcp_url, &before.mcp_url, was.mcp_url),
        };
        if request.user_id.is_empty() {
            if before.user_id.is_empty() && request.agent.is_some() && request.model.is_none() {
                // Another agent brings its own model.
                before.model = None;
            }
            if request.provider.is_empty() && (before.model.is_some() || !before.user_id.is_empty()) {
                request.provider = take(&mut before.provider);
            }
            // The request names no user and chat: keep the earlier ones.
            (request.user_id, request.chat_id) = (take(&mut before.user_id), take(&mut before.chat_id));
        }
        let is_moved = |to: &Option<String>, from: &Option<String>| to.is_some() && to != from;
        if is_moved(&request.base_url, &before.base_url) {
            before.api_key = None;
        }
        if is_moved(&request.mcp_url, &before.mcp_url) {
            before.mcp_api_key = None;
        }
        let merged = SessionRequest {
            agent: request.agent.or(before.agent),
            api_key: request.api_key.or(before.api_key),
            base_url: request.base_url.or(before.base_url),
            model: request.model.or(before.model),
            temperature: request.temperature.or(before.temperature),
            max_tokens: request.max_tokens.or(before.max_tokens),
            thinking: request.thinking.or(before.thinking),
            language: request.language.or(before.language),
            instruction: request.instruction.or(before.instruction),
            workdir: request.workdir.or(before.workdir),
            mcp_servers: request.mcp_servers.or(before.mcp_servers),
            mcp_api_key: request.mcp_api_key.or(before.mcp_api_key),
            mcp_url: request.mcp_url.or(before.mcp_url),
            ..request
        };
        Self { request: merged, private_endpoints }
    }

    /// The workdir of the session, in place of its agent's.
    pub(super) fn own_workdir(&self) -> Option<&str> {
        self.request.workdir.as_deref()
    }

    /// Checks that this agent may work in the workdir of the session: it was set for the agent, or lies below the agent's
    /// own. And that it is still the directory that was allowed: a program could have put a link in its place, which would
    /// lead the sandbox elsewhere.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn check_workdir(&self, agent: &Agent) -> Result<(), String> {
        let Some(workdir) = self.own_workdir() else { return Ok(()) };
        if self.request.agent.as_ref() != Some(&agent.id) && !Path::new(workdir).starts_with(&agent.workdir) {
            return Err(format!(
                "the session's workdir {workdir} was not set for the agent {:?} and does not lie below its own; send the message to the session's agent, or to another session",
                agent.id.as_str()
            ));
        }
        match Path::new(workdir).canonicalize() {
            Ok(real) if real == Path::new(workdir) && real.is_dir() => Ok(()),
            Ok(real) => Err(format!("the session's workdir {workdir} leads to {} now; set it again", real.display())),
            Err(error) => Err(format!("the session's workdir {workdir} cannot be used: {error}; set another one")),
        }
    }

    /// True if its model or its MCP endpoint is not from the configuration.
    pub(super) fn has_own_endpoints(&self) -> bool {
        self.request.base_url.is_some() || self.request.mcp_url.is_some()
    }

    /// Which addresses its MCP endpoint may have; `configured` is the policy of `fetch_url`.
    pub(super) fn mcp_address_policy(&self, configured: AddressPolicy) -> AddressPolicy {
        if self.private_endpoints.mcp_url { AddressPolicy::Any } else { configured }
    }

    /// True if it sets the model or the provider.
    pub(super) fn has_own_model(&self) -> bool {
        self.request.model.is_some() || !self.request.provider.is_empty()
    }

    pub(super) fn load(session: &StoredSession, key_store: &SessionKeyStore) -> Result<Option<Self>, String> {
        let unreadable = |problem: String| format!("the configuration of session {}: {problem}", session.key);
        let Some(Self { request: stored_request, private_endpoints }) = Self::load_without_keys(session)? else {
            return Ok(None);
        };
        let secrets = match &session.secrets {
            None => SessionSecrets::default(),
            Some(sealed) => {
                let opened = key_store.open(session.key.as_str(), sealed).map_err(unreadable)?;
                serde_json::from_slice(&opened).map_err(|error| unreadable(error.to_string()))?
            }
        };
        let expose = |sealed: Option<Secret>| sealed.map(|url| url.expose().to_owned());
        let request = SessionRequest {
            api_key: secrets.api_key,
            mcp_api_key: secrets.mcp_api_key,
            base_url: expose(secrets.base_url).or(stored_request.base_url),
            mcp_url: expose(secrets.mcp_url).or(stored_request.mcp_url),
            ..stored_request
        };
        Ok(Some(Self { request, private_endpoints }))
    }

    /// Loads the stored settings without the keys.
    pub(super) fn load_without_keys(session: &StoredSession) -> Result<Option<Self>, String> {
        let unreadable = |error| format!("the configuration of session {} cannot be read: {error}", session.key);
        let request = session.config.as_deref().map(serde_json::from_str).transpose().map_err(unreadable)?;
        Ok(request.map(|request| Self { request, private_endpoints: session.private_endpoints }))
    }

    /// Loads the stored settings for a change: if the stored keys cannot be decrypted, they are dropped when the
    /// request has new ones.
    pub(super) fn load_for_request(
        request: &SessionRequest,
        session: &StoredSession,
        key_store: &SessionKeyStore,
    ) -> Result<Option<Self>, String> {
        match Self::load(session, key_store) {
            Err(_) if Self::has_new_keys(request) => Self::load_without_keys(session),
            read => read,
        }
    }

    /// True if the request has a key, or a URL that may contain one.
    fn has_new_keys(request: &SessionRequest) -> bool {
        let is_url_with_query = |url: &Option<String>| url.as_ref().is_some_and(|url| url.contains('?'));
        let has_url_with_query = is_url_with_query(&request.base_url) || is_url_with_query(&request.mcp_url);
        request.api_key.is_some() || request.mcp_api_key.is_some() || has_url_with_query
    }

    /// Converts the settings for the database.
    ///
    /// # Errors
    /// Why the keys cannot be encrypted.
    pub(super) fn to_stored_setup(
        &self,
        key: &SessionKey,
        agent: AgentId,
        at: String,
        requested_by: Principal,
        access: SessionSetupAccess,
        key_store: &SessionKeyStore,
    ) -> Result<SessionSetup, String> {
        let mut public_settings = self.request.clone();
        let with_query = |url: &mut Option<String>| url.take_if(|url| url.contains('?')).map(Secret::new);
        let session_secrets = SessionSecrets {
            api_key: public_settings.api_key.take(),
            mcp_api_key: public_settings.mcp_api_key.take(),
            base_url: with_query(&mut public_settings.base_url),
            mcp_url: with_query(&mut public_settings.mcp_url),
        };
        let secrets = if session_secrets == SessionSecrets::default() {
            None
        } else {
            let plain = serde_json::to_vec(&session_secrets).map_err(|error| error.to_string())?;
            Some(key_store.seal(key.as_str(), &plain)?)
        };
        let config = serde_json::to_string(&public_settings).map_err(|error| error.to_string())?;
        Ok(SessionSetup {
            key: key.clone(),
            agent,
            at,
            config,
            secrets,
            private_endpoints: self.private_endpoints,
            requested_by,
            access,
        })
    }

    pub(super) fn agent(&self) -> Option<&AgentId> {
        self.request.agent.as_ref()
    }

    /// User, chat and provider; `None` for a session that a message created.
    pub(super) fn identity(&self) -> Option<(&str, &str, &str)> {
        let SessionRequest { user_id, chat_id, provider, .. } = &self.request;
        (!user_id.is_empty()).then_some((user_id, chat_id, provider))
    }

    pub(super) fn provider_override(&self, configured: AddressPolicy) -> ProviderOverride {
        let api_key = self.request.api_key.as_ref().map(to_secret_string);
        let address_policy = if self.private_endpoints.base_url { AddressPolicy::Any } else { configured };
        ProviderOverride { api_key, base_url: self.request.base_url.clone(), address_policy }
    }

    pub(super) fn mcp_endpoint(&self) -> Option<(&str, Option<SecretString>)> {
        Some((self.request.mcp_url.as_deref()?, self.request.mcp_api_key.as_ref().map(to_secret_string)))
    }

    /// True if both call the same provider with the same key.
    pub(super) fn has_same_provider(&self, other: &Self) -> bool {
        let (own_request, other_request) = (&self.request, &other.request);
        (&own_request.provider, &own_request.base_url, &own_request.api_key, self.private_endpoints.base_url)
            == (
                &other_request.provider,
                &other_request.base_url,
                &other_request.api_key,
                other.private_endpoints.base_url,
            )
    }

    /// True if both have the same MCP endpoint with the same key.
    pub(super) fn has_same_mcp_endpoint(&self, other: &Self) -> bool {
        (&self.request.mcp_url, &self.request.mcp_api_key, self.private_endpoints.mcp_url)
            == (&other.request.mcp_url, &other.request.mcp_api_key, other.private_endpoints.mcp_url)
    }

    /// True if both reach the same MCP servers with the same keys.
    pub(super) fn has_same_mcp_servers(&self, other: &Self) -> bool {
        self.has_same_mcp_endpoint(other) && self.request.mcp_servers == other.request.mcp_servers
    }

    /// The agent's configuration with this session's settings over it.
    ///
    /// # Errors
    /// Which setting is invalid.
    pub(super) fn apply_to(&self, agent: &AgentConfig) -> Result<AgentConfig, String> {
        let request = &self.request;
        if request.mcp_api_key.is_some() && request.mcp_url.is_none() {
            return Err("mcpApiKey is given without mcpUrl; name the endpoint that it is for".to_owned());
        }
        for (key, url) in [("baseUrl", &request.base_url), ("mcpUrl", &request.mcp_url)] {
            if url.as_deref().is_some_and(holds_password) {
                return Err(format!(
                    "{key} holds a user or a password, which would be shown; give a key in their place"
                ));
            }
        }
        let has_identity = self.identity().is_some();
        // A thinking model accepts only its own temperature.
        let (thinking, thinking_tokens) = thinking_settings(request.thinking, agent);
        let uses_default_temperature = has_identity && thinking.is_none() && thinking_tokens.is_none();
        let temperature =
            request.temperature.or(agent.temperature).or(uses_default_temperature.then_some(DEFAULT_TEMPERATURE));
        if temperature.is_some_and(|temperature| !(0.0..=2.0).contains(&temperature)) {
            return Err("temperature must be from 0 to 2".to_owned());
        }
        if request.max_tokens == Some(0) {
            return Err("maxTokens must be at least 1".to_owned());
        }
        Ok(AgentConfig {
            model: self.resolve_model_name(agent)?,
            temperature,
            thinking,
            thinking_tokens,
            max_tokens: request.max_tokens.or(agent.max_tokens).or(has_identity.then_some(DEFAULT_MAX_TOKENS)),
            language: self.resolve_language(agent),
            prompt: request.instruction.clone().unwrap_or_else(|| agent.prompt.clone()),
            workdir: request.workdir.as_ref().map(PathBuf::from).or_else(|| agent.workdir.clone()),
            mcp: request.mcp_servers.clone().or_else(|| agent.mcp.clone()),
            ..agent.clone()
        })
    }

    /// The language of answers and notices: the session's own, else the agent's.
    pub(super) fn resolve_language(&self, agent: &AgentConfig) -> Option<String> {
        let default = || self.identity().is_some().then(|| DEFAULT_LANGUAGE.to_owned());
        self.request.language.clone().or_else(|| agent.language.clone()).or_else(default)
    }

    /// The session's own model, else the models of the agent if the first belongs to the session's provider.
    fn resolve_model_name(&self, agent: &AgentConfig) -> Result<ModelChain, String> {
        let SessionRequest { provider, model, .. } = &self.request;
        let of_provider = |name: &str| name.strip_prefix(provider).is_some_and(|rest| rest.starts_with('/'));
        match model {
            Some(name) if name.trim().is_empty() => Err("model is blank; name one".to_owned()),
            Some(name) if of_provider(name) => Ok(name.as_str().into()),
            Some(name) => Ok(format!("{provider}/{name}").into()),
            // A session with its own key or base URL is billed itself, and only by that provider.
            None if provider.is_empty() && self.request.api_key.is_none() && self.request.base_url.is_none() => {
                Ok(agent.model.clone())
            }
            None if provider.is_empty() || of_provider(agent.model.first()) => Ok(agent.model.without_fallbacks()),
            None => Err(format!(
                "no model is named, and the agent's model {} is not one of the provider {provider}; give `model`",
                agent.model.first()
            )),
        }
    }
}

/// The thinking settings of an agent under the level of a session.
fn thinking_settings(level: Option<ThinkingLevel>, agent: &AgentConfig) -> (Option<ThinkingSetting>, Option<u32>) {
    match level {
        None | Some(ThinkingLevel::Default) => (agent.thinking, agent.thinking_tokens),
        Some(ThinkingLevel::Adaptive) => (Some(ThinkingSetting::Adaptive), None),
        Some(level) => (None, level.tokens()),
    }
}

impl fmt::Debug for SessionOverrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its secrets print as `***`.
        self.request.fmt(f)
    }
}

/// The effective configuration with the source of each setting. `config` is the configuration in effect, `agent` the
/// agent without the session.
pub(super) fn build_session_config(
    overrides: Option<&SessionOverrides>,
    config: &AgentConfig,
    agent: &Agent,
    idle_s: u64,
) -> SessionConfig {
    let base = &agent.config;
    let request = overrides.map(|own| &own.request);
    let identity = overrides.and_then(SessionOverrides::identity);
    let mask = |secret: Option<&Secret>| secret.map(|_| "***".to_owned());
    let source = |by_session: bool, by_agent: bool| match (by_session, by_agent) {
        (true, _) => SettingSource::Session,
        (false, true) => SettingSource::Agent,
        (false, false) => SettingSource::Default,
    };
    let provider = config.model.first().split_once('/').map_or("", |(provider, _)| provider);
    SessionConfig {
        user_id: identity.map(|(user, _, _)| user.to_owned()),
        chat_id: identity.map(|(_, chat, _)| chat.to_owned()),
        provider: provider.to_owned(),
        agent: agent.id.clone(),
        model: setting(config.model.first().to_owned(), source(request.is_some_and(|own| own.model.is_some()), true)),
        api_key: mask(request.and_then(|own| own.api_key.as_ref())),
        base_url: request.and_then(|own| own.base_url.as_deref()).map(mask_query),
        temperature: config.temperature.map(|value| {
            let by_session = request.is_some_and(|own| own.temperature.is_some());
            setting(value, source(by_session, base.temperature.is_some()))
        }),
        max_tokens: config.max_tokens.map(|value| {
            let by_session = request.is_some_and(|own| own.max_tokens.is_some());
            setting(value, source(by_session, base.max_tokens.is_some()))
        }),
        thinking: {
            let own = request.and_then(|own| own.thinking).filter(|level| *level != ThinkingLevel::Default);
            let level = match config.thinking_mode() {
                None => ThinkingLevel::Off,
                Some(ThinkingMode::Adaptive) => ThinkingLevel::Adaptive,
                Some(ThinkingMode::Tokens(tokens)) => ThinkingLevel::nearest(tokens),
            };
            setting(level, source(own.is_some(), base.thinking_mode().is_some()))
        },
        language: config.language.clone().map(|value| {
            let by_session = request.is_some_and(|own| own.language.is_some());
            setting(value, source(by_session, base.language.is_some()))
        }),
        instruction: setting(
            config.prompt.clone(),
            source(request.is_some_and(|own| own.instruction.is_some()), base.prompt != AgentConfig::default().prompt),
        ),
        mcp_servers: config.mcp.clone().map(|value| {
            let by_session = request.is_some_and(|own| own.mcp_servers.is_some());
            setting(value, source(by_session, base.mcp.is_some()))
        }),
        mcp_url: request.and_then(|own| own.mcp_url.as_deref()).map(mask_query),
        mcp_api_key: mask(request.and_then(|own| own.mcp_api_key.as_ref())),
        idle_s,
    }
}

/// The workdir that a stored session has in place of its agent's.
pub fn stored_workdir(session: &StoredSession) -> Option<String> {
    SessionOverrides::load_without_keys(session).ok()??.request.workdir
}

/// An imported configuration without its workdir: it named a place on another machine, which nobody allowed here.
pub fn config_without_workdir(config: &str) -> Option<String> {
    let request = serde_json::from_str::<SessionRequest>(config).ok()?;
    serde_json::to_string(&SessionRequest { workdir: None, ..request }).ok()
}

/// The endpoints of an imported configuration, with the addresses that the caller may use. `None` if the caller may not
/// set endpoints.
pub fn importable_endpoints(config: &str, caller: &Caller) -> Option<PrivateEndpoints> {
    let Ok(request) = serde_json::from_str::<SessionRequest>(config) else { return Some(PrivateEndpoints::default()) };
    let has_own_endpoints = request.base_url.is_some() || request.mcp_url.is_some();
    if has_own_endpoints && !caller.may_set_endpoints() {
        return None;
    }
    Some(private_endpoints_of(&request, caller.is_admin()))
}

/// Marks the named endpoints as private, if that is allowed.
fn private_endpoints_of(request: &SessionRequest, may_be_private: bool) -> PrivateEndpoints {
    PrivateEndpoints {
        base_url: may_be_private && request.base_url.is_some(),
        mcp_url: may_be_private && request.mcp_url.is_some(),
    }
}

fn holds_password(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| !url.username().is_empty() || url.password().is_some())
}

/// Hides the query, because some servers take their key there.
fn mask_query(url: &str) -> String {
    url.split_once('?').map_or_else(|| url.to_owned(), |(base, _)| format!("{base}?***"))
}

fn setting<T>(value: T, from: SettingSource) -> Setting<T> {
    Setting { value, from }
}

fn to_secret_string(secret: &Secret) -> SecretString {
    secret.expose().into()
}
