//! Bodies of sessions and their configuration, and the key of a session.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::api::SessionRow;
use crate::ids::{AgentId, BadId, SessionKey};
use crate::word_enum::word_enum;

/// A secret that a client sends. It is never printed and never shown again.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
#[schema(value_type = String)]
pub struct Secret(String);

impl Secret {
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

word_enum! {
    /// How much the model of a session thinks. The levels between `off` and `adaptive` are budgets of tokens.
    ThinkingLevel {
        /// As the agent is configured.
        Default "default",
        Off "off",
        Low "low",
        Medium "medium",
        High "high",
        /// The model decides how much it thinks.
        Adaptive "adaptive",
    }
}

impl ThinkingLevel {
    /// The level that is nearest to a budget of tokens.
    #[must_use]
    pub fn nearest(tokens: u32) -> Self {
        match tokens {
            ..=4096 => Self::Low,
            4097..=12_288 => Self::Medium,
            _ => Self::High,
        }
    }

    /// The budget of a level that has one.
    #[must_use]
    pub fn tokens(self) -> Option<u32> {
        match self {
            Self::Low => Some(2048),
            Self::Medium => Some(8192),
            Self::High => Some(16_384),
            Self::Default | Self::Off | Self::Adaptive => None,
        }
    }
}

/// Body of `POST /api/sessions`: get or create the session of a user's chat with a provider. A field that is absent
/// stays as it was; for a new session the agent decides, else the default.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRequest {
    /// The user whose chat it is.
    #[schema(min_length = 1)]
    pub user_id: String,
    /// The chat of this user.
    #[schema(min_length = 1)]
    pub chat_id: String,
    /// The provider that serves the models.
    #[schema(min_length = 1)]
    pub provider: String,
    /// The agent; by default the default agent.
    pub agent: Option<AgentId>,
    /// The API key for the provider. Write-only.
    pub api_key: Option<Secret>,
    /// The base URL of the provider's API. If it changes, no earlier key is sent to the new URL, neither the session's
    /// nor the configured one: give `apiKey` with it.
    pub base_url: Option<String>,
    /// The model, with or without `provider/` before it.
    pub model: Option<String>,
    pub temperature: Option<f64>,
    /// Maximum number of tokens in one model answer.
    pub max_tokens: Option<u32>,
    /// How much the model thinks. Default: as the agent is configured.
    pub thinking: Option<ThinkingLevel>,
    /// Language of answers and notices, such as `en-US`.
    pub language: Option<String>,
    /// The system prompt, in place of that of the agent.
    pub instruction: Option<String>,
    /// The workdir, in place of that of the agent: an existing directory, absolute. An admin who is verified as a person
    /// may name any that no rule protects; others only one below the workdir of the agent.
    pub workdir: Option<String>,
    /// The configured MCP servers that the session may use. Default: those of the agent.
    pub mcp_servers: Option<Vec<String>>,
    /// The API key for `mcpUrl`. Write-only.
    pub mcp_api_key: Option<Secret>,
    /// An MCP endpoint of the session. Its tools are named `mcp__TOOL`. If it changes, the earlier key is not sent to
    /// the new endpoint.
    pub mcp_url: Option<String>,
}

impl SessionRequest {
    /// The key of the session: `user:chat:provider`, see [`session_key`].
    pub fn key(&self) -> Result<SessionKey, BadId> {
        session_key(&self.user_id, &self.chat_id, &self.provider)
    }
}

/// Makes the key `user:chat:provider`. `%` and `:` inside a part are percent-escaped, so that different triples have
/// different keys. A user named `agent` is escaped, too, because keys that begin with `agent:` choose an agent
/// (docs/design/requirements.md, A11 and C1).
///
/// # Errors
/// [`BadId`] if a part is blank, or if the key would be too long or hold a control character.
pub fn session_key(user: &str, chat: &str, provider: &str) -> Result<SessionKey, BadId> {
    if [user, chat, provider].iter().any(|part| part.trim().is_empty()) {
        return Err(BadId { what: "session key", problem: "needs a user, a chat and a provider, none of them blank" });
    }
    let escaped = |part: &str| part.replace('%', "%25").replace(':', "%3A");
    let user = if user == "agent" { "%61gent".to_owned() } else { escaped(user) };
    SessionKey::parse(format!("{user}:{}:{}", escaped(chat), escaped(provider)))
}

/// Answer of `POST /api/sessions`: 201 for a new session, 200 for one that existed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionAnswer {
    /// The key of the session, for all other routes.
    pub key: SessionKey,
    /// `ready` or `active`; `terminated` if the session was deleted at the same moment.
    pub state: String,
    /// True if this call created the session.
    pub created: bool,
}

/// A session with its configuration, as `GET /api/sessions/{key}` returns it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    #[serde(flatten)]
    pub row: SessionRow,
    /// The configuration of the next run. Absent if it cannot be determined; `configProblem` then says why.
    pub config: Option<SessionConfig>,
    /// The reason why the next run would fail.
    pub config_problem: Option<String>,
    /// The files with project instructions (`AGENTS.md`) that are in its system prompt, each with its size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instructions: Vec<String>,
}

/// The configuration in force: from the session itself, else from its agent, else the default. API keys are shown as
/// `***`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionConfig {
    /// The user whose chat it is; absent for a session that a message created.
    pub user_id: Option<String>,
    /// The chat of this user.
    pub chat_id: Option<String>,
    /// The provider that serves the models.
    pub provider: String,
    pub agent: AgentId,
    /// `provider/model`.
    pub model: Setting<String>,
    /// `***` if the session has an API key of its own.
    pub api_key: Option<String>,
    /// The base URL of the provider's API, if the session has one of its own.
    pub base_url: Option<String>,
    /// Sampling temperature. If absent, the provider's default applies.
    pub temperature: Option<Setting<f64>>,
    /// Maximum number of tokens in one model answer. If absent, the provider's default applies.
    pub max_tokens: Option<Setting<u32>>,
    /// How much the model thinks. An agent's own number of tokens counts as the nearest level.
    pub thinking: Setting<ThinkingLevel>,
    /// Language of answers and notices. If absent, the model chooses it.
    pub language: Option<Setting<String>>,
    /// The system prompt.
    pub instruction: Setting<String>,
    /// The MCP servers that the session may use. If absent, every configured one.
    pub mcp_servers: Option<Setting<Vec<String>>>,
    /// The MCP endpoint of the session.
    pub mcp_url: Option<String>,
    /// `***` if the session has an API key for its MCP endpoint.
    pub mcp_api_key: Option<String>,
    /// Seconds without use after which the session expires.
    pub idle_s: u64,
}

/// A value and its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Setting<T> {
    pub value: T,
    pub from: SettingSource,
}

/// Source of a setting, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SettingSource {
    Session,
    Agent,
    /// The default: neither session nor agent set it.
    Default,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_triples_share_a_key() {
        let parts = ["a", "a:b", "b", ":", "::", "%", "%3A", "%25", "agent", "%61gent", "ü/x", "a%3Ab"];
        let mut seen = HashSet::new();
        for user in parts {
            for chat in parts {
                for provider in parts {
                    let key = session_key(user, chat, provider).unwrap();
                    assert_eq!(key.as_str().split(':').count(), 3, "{key}");
                    assert!(!key.as_str().starts_with("agent:"), "{key}");
                    assert!(seen.insert(key.clone()), "{key} stands for two triples");
                }
            }
        }
    }

    #[test]
    fn a_key_that_cannot_be_is_refused() {
        assert!(session_key("", "c", "p").is_err());
        assert!(session_key("u", " ", "p").is_err());
        assert!(session_key("u\n", "c", "p").is_err());
        assert!(session_key(&"u".repeat(600), "c", "p").is_err());
        assert_eq!(session_key("u:1", "c", "p").unwrap().as_str(), "u%3A1:c:p");
    }

    #[test]
    fn a_secret_is_never_printed() {
        let request: SessionRequest =
            serde_json::from_str(r#"{"userId":"u","chatId":"c","provider":"p","apiKey":"sk-1","mcpApiKey":"sk-2"}"#)
                .unwrap();
        let printed = format!("{request:?}");
        assert!(!printed.contains("sk-") && printed.contains("***"), "{printed}");
    }
}
