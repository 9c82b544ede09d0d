//! Sessions as they are asked for and shown: row C2 of the mission.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::api::SessionRow;
use crate::ids::{AgentId, BadId, SessionKey};

/// A secret on its way in. It is never printed and never shown again.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
#[schema(value_type = String)]
pub struct Secret(String);

impl Secret {
    /// Takes a secret.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The secret itself.
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

/// Body of `POST /api/sessions`: get or create the session of a user's chat with a provider. What is absent stays as it was;
/// for a new session the agent says it, else the default.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRequest {
    /// Whose chat it is.
    #[schema(min_length = 1)]
    pub user_id: String,
    /// Which chat.
    #[schema(min_length = 1)]
    pub chat_id: String,
    /// The provider that serves its models.
    #[schema(min_length = 1)]
    pub provider: String,
    /// The agent; else the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// The key for the provider. Write-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Where the provider's API begins. Another place than before never gets the key from before, be it the session's or the
    /// configured one: give `apiKey` with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The model, with or without `provider/` before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Sampling temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Most tokens of one model answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Language of answers and notices, such as `en-US`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// The system prompt, in place of the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// The configured MCP servers that it may use; the agent's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_servers: Option<Vec<String>>,
    /// The key for `mcpUrl`. Write-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_api_key: Option<Secret>,
    /// An MCP endpoint of its own; its tools are named `mcp__TOOL`. Another one than before does not get the key from before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_url: Option<String>,
}

impl SessionRequest {
    /// The session's key (rows A11 and C1).
    ///
    /// # Errors
    /// [`BadId`] when a part is empty or the key would be too long or hold a control character.
    pub fn key(&self) -> Result<SessionKey, BadId> {
        session_key(&self.user_id, &self.chat_id, &self.provider)
    }
}

/// `user:chat:provider`, with `%` and `:` inside a part percent-escaped, so that no two triples share a key. A user named
/// `agent` is escaped, too: keys that begin with `agent:` choose an agent.
///
/// # Errors
/// [`BadId`] when a part is empty or the key would be too long or hold a control character.
pub fn session_key(user: &str, chat: &str, provider: &str) -> Result<SessionKey, BadId> {
    if [user, chat, provider].iter().any(|part| part.trim().is_empty()) {
        return Err(BadId { what: "session key", problem: "needs a user, a chat and a provider, none of them blank" });
    }
    let escaped = |part: &str| part.replace('%', "%25").replace(':', "%3A");
    let user = if user == "agent" { "%61gent".to_owned() } else { escaped(user) };
    SessionKey::parse(format!("{user}:{}:{}", escaped(chat), escaped(provider)))
}

/// Answer of `POST /api/sessions`: 201 for a new session, 200 for one that was there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionAnswer {
    /// Its key, for all other routes.
    pub key: SessionKey,
    /// Where it stands: `ready` or `active`, or `terminated` when somebody has deleted it in this very moment.
    pub state: String,
    /// True when this call made it.
    pub created: bool,
}

/// A session with its configuration, as `GET /api/sessions/{key}` answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    /// The session.
    #[serde(flatten)]
    pub row: SessionRow,
    /// What its next run works with; absent when that cannot be found out, as `configProblem` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<SessionConfig>,
    /// Why its next run would fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_problem: Option<String>,
}

/// The configuration in force: the session's own, else its agent's, else the default. Keys are shown as `***`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionConfig {
    /// Whose chat it is; absent for a session that a message made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// Which chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<String>,
    /// The provider that serves its models.
    pub provider: String,
    /// Its agent.
    pub agent: AgentId,
    /// `provider/model`.
    pub model: Setting<String>,
    /// `***` when the session has a key of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// Where the provider's API begins, when the session says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Sampling temperature; absent: the provider's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Setting<f64>>,
    /// Most tokens of one model answer; absent: the provider's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<Setting<u32>>,
    /// Language of answers and notices; absent: the model's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Setting<String>>,
    /// The system prompt.
    pub instruction: Setting<String>,
    /// The MCP servers that it may use; absent: every configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_servers: Option<Setting<Vec<String>>>,
    /// Its own MCP endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_url: Option<String>,
    /// `***` when it has a key for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_api_key: Option<String>,
    /// Seconds without use after which it expires.
    pub idle_s: u64,
}

/// A value and who says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Who says it.
    pub from: SettingSource,
}

/// Where a setting comes from, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SettingSource {
    /// The session itself.
    Session,
    /// Its agent.
    Agent,
    /// Nobody said anything else.
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
