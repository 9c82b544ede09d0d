//! What a session says itself of how it works (row C2): over its agent, over the defaults.

use std::fmt;
use std::mem::take;

use quell_protocol::session::{Secret, SessionConfig, SessionRequest, Setting, SettingSource};
use quell_protocol::{AgentId, Principal, SessionKey};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use url::Url;

use super::vault::Vault;
use crate::access::Caller;
use crate::address::AddressPolicy;
use crate::agent::AgentConfig;
use crate::llm::OwnAccess;
use crate::store::{PrivateEndpoints, SessionSetup, SetUpAccess, StoredSession};

/// Defaults of sessions that are asked for by user, chat and provider (row C2). One that a message makes has its agent's
/// settings and else the provider's: not every model takes a temperature.
const TEMPERATURE: f64 = 0.7;
const MAX_TOKENS: u32 = 60_000;
const LANGUAGE: &str = "en-US";

/// What a session says itself. Never printed whole: it holds keys.
#[derive(Clone, PartialEq)]
pub(super) struct Own {
    said: SessionRequest,
    /// Who may bring private endpoints is asked when they are brought.
    private: PrivateEndpoints,
}

/// The keys of a session, as they are sealed.
#[derive(Default, PartialEq, Serialize, Deserialize)]
struct Keys {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mcp_api_key: Option<Secret>,
    /// Places with a query, which may be a key, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base_url: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mcp_url: Option<Secret>,
}

impl Own {
    /// What is asked for now, over what was said before: what is absent stays as it was. A key stays with the place that it
    /// was given for: who may name another place may not collect keys with it.
    ///
    /// `reach` is where those may be that this one names. A place that is named again keeps what it had besides.
    pub(super) fn given(asked: &SessionRequest, reach: AddressPolicy, before: Option<&Self>) -> Self {
        let mut asked = asked.clone();
        let may = reach == AddressPolicy::Any;
        let Some(Self { said: mut before, private: was }) = before.cloned() else {
            let private = named_endpoints(&asked, may);
            return Self { said: asked, private };
        };
        let is_private = |now: &Option<String>, then: &Option<String>, was: bool| match now {
            None => was,
            Some(_) => may || (was && now == then),
        };
        let private = PrivateEndpoints {
            base_url: is_private(&asked.base_url, &before.base_url, was.base_url),
            mcp_url: is_private(&asked.mcp_url, &before.mcp_url, was.mcp_url),
        };
        if asked.user_id.is_empty() {
            if before.user_id.is_empty() && asked.agent.is_some() && asked.model.is_none() {
                // Another agent brings its own model.
                before.model = None;
            }
            if asked.provider.is_empty() && (before.model.is_some() || !before.user_id.is_empty()) {
                asked.provider = take(&mut before.provider);
            }
            // Only some of it is asked for anew: it stays whose it is.
            (asked.user_id, asked.chat_id) = (take(&mut before.user_id), take(&mut before.chat_id));
        }
        let moves = |to: &Option<String>, from: &Option<String>| to.is_some() && to != from;
        if moves(&asked.base_url, &before.base_url) {
            before.api_key = None;
        }
        if moves(&asked.mcp_url, &before.mcp_url) {
            before.mcp_api_key = None;
        }
        let said = SessionRequest {
            agent: asked.agent.or(before.agent),
            api_key: asked.api_key.or(before.api_key),
            base_url: asked.base_url.or(before.base_url),
            model: asked.model.or(before.model),
            temperature: asked.temperature.or(before.temperature),
            max_tokens: asked.max_tokens.or(before.max_tokens),
            language: asked.language.or(before.language),
            instruction: asked.instruction.or(before.instruction),
            mcp_servers: asked.mcp_servers.or(before.mcp_servers),
            mcp_api_key: asked.mcp_api_key.or(before.mcp_api_key),
            mcp_url: asked.mcp_url.or(before.mcp_url),
            ..asked
        };
        Self { said, private }
    }

    /// True when its model or its MCP endpoint is not one of the configuration.
    pub(super) fn brings_endpoints(&self) -> bool {
        self.said.base_url.is_some() || self.said.mcp_url.is_some()
    }

    /// Where its MCP endpoint may be, where the configuration lets `fetch_url` go everywhere or not.
    pub(super) fn mcp_reach(&self, configured: AddressPolicy) -> AddressPolicy {
        if self.private.mcp_url { AddressPolicy::Any } else { configured }
    }

    /// True when it says which model answers.
    pub(super) fn chose_a_model(&self) -> bool {
        self.said.model.is_some() || !self.said.provider.is_empty()
    }

    /// As it was stored.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(super) fn stored(session: &StoredSession, vault: &Vault) -> Result<Option<Self>, String> {
        let unreadable = |problem: String| format!("the configuration of session {}: {problem}", session.key);
        let Some(Self { said: open, private }) = Self::stored_without_keys(session)? else { return Ok(None) };
        let keys = match &session.secrets {
            None => Keys::default(),
            Some(sealed) => {
                let opened = vault.open(session.key.as_str(), sealed).map_err(unreadable)?;
                serde_json::from_slice(&opened).map_err(|error| unreadable(error.to_string()))?
            }
        };
        let place = |sealed: Option<Secret>| sealed.map(|place| place.expose().to_owned());
        let said = SessionRequest {
            api_key: keys.api_key,
            mcp_api_key: keys.mcp_api_key,
            base_url: place(keys.base_url).or(open.base_url),
            mcp_url: place(keys.mcp_url).or(open.mcp_url),
            ..open
        };
        Ok(Some(Self { said, private }))
    }

    /// As it was stored, but for its keys.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(super) fn stored_without_keys(session: &StoredSession) -> Result<Option<Self>, String> {
        let unreadable = |error| format!("the configuration of session {} cannot be read: {error}", session.key);
        let said = session.config.as_deref().map(serde_json::from_str).transpose().map_err(unreadable)?;
        Ok(said.map(|said| Self { said, private: session.private }))
    }

    /// As it was stored, to be configured anew: keys that do not open any more make way for those that are given now.
    ///
    /// # Errors
    /// As [`Own::stored`].
    pub(super) fn stored_for(
        asked: &SessionRequest,
        session: &StoredSession,
        vault: &Vault,
    ) -> Result<Option<Self>, String> {
        match Self::stored(session, vault) {
            Err(_) if Self::gives_keys(asked) => Self::stored_without_keys(session),
            read => read,
        }
    }

    /// True when somebody who asks gives a key, or a place that may hold one.
    fn gives_keys(asked: &SessionRequest) -> bool {
        let has_query = |place: &Option<String>| place.as_ref().is_some_and(|place| place.contains('?'));
        let gives_place = has_query(&asked.base_url) || has_query(&asked.mcp_url);
        asked.api_key.is_some() || asked.mcp_api_key.is_some() || gives_place
    }

    /// As it is to be stored.
    ///
    /// # Errors
    /// Why its keys cannot be sealed.
    pub(super) fn setup(
        &self,
        key: &SessionKey,
        agent: AgentId,
        (at, by, access): (String, Principal, SetUpAccess),
        vault: &Vault,
    ) -> Result<SessionSetup, String> {
        let mut open = self.said.clone();
        let with_query = |place: &mut Option<String>| place.take_if(|place| place.contains('?')).map(Secret::new);
        let keys = Keys {
            api_key: open.api_key.take(),
            mcp_api_key: open.mcp_api_key.take(),
            base_url: with_query(&mut open.base_url),
            mcp_url: with_query(&mut open.mcp_url),
        };
        let secrets = if keys == Keys::default() {
            None
        } else {
            let plain = serde_json::to_vec(&keys).map_err(|error| error.to_string())?;
            Some(vault.seal(key.as_str(), &plain)?)
        };
        let config = serde_json::to_string(&open).map_err(|error| error.to_string())?;
        Ok(SessionSetup { key: key.clone(), agent, at, config, secrets, private: self.private, by, access })
    }

    pub(super) fn agent(&self) -> Option<&AgentId> {
        self.said.agent.as_ref()
    }

    /// The user, the chat and the provider that it was asked for by; none of one that a message made.
    pub(super) fn parts(&self) -> Option<(&str, &str, &str)> {
        let SessionRequest { user_id, chat_id, provider, .. } = &self.said;
        (!user_id.is_empty()).then_some((user_id, chat_id, provider))
    }

    pub(super) fn access(&self, configured: AddressPolicy) -> OwnAccess {
        let api_key = self.said.api_key.as_ref().map(secret);
        let reach = if self.private.base_url { AddressPolicy::Any } else { configured };
        OwnAccess { api_key, base_url: self.said.base_url.clone(), reach }
    }

    /// Its own MCP endpoint with the key for it.
    pub(super) fn endpoint(&self) -> Option<(&str, Option<SecretString>)> {
        Some((self.said.mcp_url.as_deref()?, self.said.mcp_api_key.as_ref().map(secret)))
    }

    /// True when both call the same provider with the same key.
    pub(super) fn calls_as(&self, other: &Self) -> bool {
        let (said, others) = (&self.said, &other.said);
        (&said.provider, &said.base_url, &said.api_key, self.private.base_url)
            == (&others.provider, &others.base_url, &others.api_key, other.private.base_url)
    }

    /// True when both have the same MCP endpoint with the same key.
    pub(super) fn has_endpoint_of(&self, other: &Self) -> bool {
        (&self.said.mcp_url, &self.said.mcp_api_key, self.private.mcp_url)
            == (&other.said.mcp_url, &other.said.mcp_api_key, other.private.mcp_url)
    }

    /// True when both reach the same MCP servers with the same keys.
    pub(super) fn reaches_as(&self, other: &Self) -> bool {
        self.has_endpoint_of(other) && self.said.mcp_servers == other.said.mcp_servers
    }

    /// An agent's configuration with this session's settings over it.
    ///
    /// # Errors
    /// What has to be said more clearly.
    pub(super) fn over(&self, agent: &AgentConfig) -> Result<AgentConfig, String> {
        let own = &self.said;
        if own.mcp_api_key.is_some() && own.mcp_url.is_none() {
            return Err("mcpApiKey is given without mcpUrl; name the endpoint that it is for".to_owned());
        }
        for (key, place) in [("baseUrl", &own.base_url), ("mcpUrl", &own.mcp_url)] {
            if place.as_deref().is_some_and(holds_password) {
                return Err(format!(
                    "{key} holds a user or a password, which would be shown; give a key in their place"
                ));
            }
        }
        let asked_for = self.parts().is_some();
        // A model that thinks takes no temperature but its own.
        let by_default = asked_for && agent.thinking_mode().is_none();
        let temperature = own.temperature.or(agent.temperature).or(by_default.then_some(TEMPERATURE));
        if temperature.is_some_and(|temperature| !(0.0..=2.0).contains(&temperature)) {
            return Err("temperature must be from 0 to 2".to_owned());
        }
        if own.max_tokens == Some(0) {
            return Err("maxTokens must be at least 1".to_owned());
        }
        Ok(AgentConfig {
            model: self.model(agent)?,
            temperature,
            max_tokens: own.max_tokens.or(agent.max_tokens).or(asked_for.then_some(MAX_TOKENS)),
            language: own
                .language
                .clone()
                .or_else(|| agent.language.clone())
                .or_else(|| asked_for.then(|| LANGUAGE.to_owned())),
            prompt: own.instruction.clone().unwrap_or_else(|| agent.prompt.clone()),
            mcp: own.mcp_servers.clone().or_else(|| agent.mcp.clone()),
            ..agent.clone()
        })
    }

    /// `provider/model`: the session's own, else its agent's if that is of the session's provider.
    fn model(&self, agent: &AgentConfig) -> Result<String, String> {
        let SessionRequest { provider, model, .. } = &self.said;
        let of_provider = |name: &str| name.strip_prefix(provider).is_some_and(|rest| rest.starts_with('/'));
        match model {
            Some(name) if name.trim().is_empty() => Err("model is blank; name one".to_owned()),
            Some(name) if of_provider(name) => Ok(name.clone()),
            Some(name) => Ok(format!("{provider}/{name}")),
            None if provider.is_empty() || of_provider(&agent.model) => Ok(agent.model.clone()),
            None => Err(format!(
                "no model is named, and the agent's model {} is not one of the provider {provider}; give `model`",
                agent.model
            )),
        }
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its secrets print as `***`.
        self.said.fmt(f)
    }
}

/// What a session works with, and who says it. `agent` is what it works with, `base` the agent's configuration without it.
pub(super) fn shown(
    own: Option<&Own>,
    (agent, config): (&AgentId, &AgentConfig),
    base: &AgentConfig,
    idle_s: u64,
) -> SessionConfig {
    let said = own.map(|own| &own.said);
    let parts = own.and_then(Own::parts);
    let hidden = |secret: Option<&Secret>| secret.map(|_| "***".to_owned());
    let source = |by_session: bool, by_agent: bool| match (by_session, by_agent) {
        (true, _) => SettingSource::Session,
        (false, true) => SettingSource::Agent,
        (false, false) => SettingSource::Default,
    };
    let provider = config.model.split_once('/').map_or("", |(provider, _)| provider);
    SessionConfig {
        user_id: parts.map(|(user, _, _)| user.to_owned()),
        chat_id: parts.map(|(_, chat, _)| chat.to_owned()),
        provider: provider.to_owned(),
        agent: agent.clone(),
        model: setting(config.model.clone(), source(said.is_some_and(|own| own.model.is_some()), true)),
        api_key: hidden(said.and_then(|own| own.api_key.as_ref())),
        base_url: said.and_then(|own| own.base_url.as_deref()).map(without_query),
        temperature: config.temperature.map(|value| {
            let by_session = said.is_some_and(|own| own.temperature.is_some());
            setting(value, source(by_session, base.temperature.is_some()))
        }),
        max_tokens: config.max_tokens.map(|value| {
            let by_session = said.is_some_and(|own| own.max_tokens.is_some());
            setting(value, source(by_session, base.max_tokens.is_some()))
        }),
        language: config.language.clone().map(|value| {
            let by_session = said.is_some_and(|own| own.language.is_some());
            setting(value, source(by_session, base.language.is_some()))
        }),
        instruction: setting(
            config.prompt.clone(),
            source(said.is_some_and(|own| own.instruction.is_some()), base.prompt != AgentConfig::default().prompt),
        ),
        mcp_servers: config.mcp.clone().map(|value| {
            let by_session = said.is_some_and(|own| own.mcp_servers.is_some());
            setting(value, source(by_session, base.mcp.is_some()))
        }),
        mcp_url: said.and_then(|own| own.mcp_url.as_deref()).map(without_query),
        mcp_api_key: hidden(said.and_then(|own| own.mcp_api_key.as_ref())),
        idle_s,
    }
}

/// Whether somebody may import what a session says of itself, with the endpoints that it brings along. Where those may be is this
/// one's to say; none when it may not bring any.
#[must_use]
pub fn importable(config: &str, caller: &Caller) -> Option<PrivateEndpoints> {
    let Ok(said) = serde_json::from_str::<SessionRequest>(config) else { return Some(PrivateEndpoints::default()) };
    let brings = said.base_url.is_some() || said.mcp_url.is_some();
    if brings && !caller.may_bring_endpoints() {
        return None;
    }
    Some(named_endpoints(&said, caller.is_admin()))
}

/// The endpoints that are named, if they may be private.
fn named_endpoints(said: &SessionRequest, may: bool) -> PrivateEndpoints {
    PrivateEndpoints { base_url: may && said.base_url.is_some(), mcp_url: may && said.mcp_url.is_some() }
}

fn holds_password(place: &str) -> bool {
    Url::parse(place).is_ok_and(|url| !url.username().is_empty() || url.password().is_some())
}

/// Some servers take their key there.
fn without_query(place: &str) -> String {
    place.split_once('?').map_or_else(|| place.to_owned(), |(place, _)| format!("{place}?***"))
}

fn setting<T>(value: T, from: SettingSource) -> Setting<T> {
    Setting { value, from }
}

fn secret(secret: &Secret) -> SecretString {
    secret.expose().into()
}
