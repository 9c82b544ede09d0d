//! `sessions.create` and `sessions.patch`: the model and the thinking of a session.

use std::sync::Arc;

use quell_engine::engine::OpenSessionError;
use quell_protocol::session::{SessionConfig, ThinkingLevel};
use quell_protocol::web_ui::SessionPatch;
use quell_protocol::{AgentId, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::frame::RpcError;
use super::super::payloads;
use super::queries::agent_not_found;
use super::sessions::{check_session_agent, latest_run};
use super::{RpcResult, WsClient, check_session_id, parse_params};
use crate::sent_message::new_run_id;

impl From<OpenSessionError> for RpcError {
    fn from(error: OpenSessionError) -> Self {
        match error {
            OpenSessionError::Configuration(problem) => Self::invalid(problem),
            OpenSessionError::Forbidden(_) => Self::not_owner(error.to_string()),
            OpenSessionError::Refused(_) => Self::invalid(error.to_string()),
            OpenSessionError::Closing => {
                Self::unavailable(error.to_string()).with_details(json!({"reason": "gateway-restarting"}))
            }
            OpenSessionError::Store(error) => error.into(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CreateParams {
    key: Option<SessionKey>,
    agent_id: Option<AgentId>,
    model: Option<String>,
    thinking_level: Option<String>,
    /// The first message; its run begins at once.
    message: Option<String>,
    idempotency_key: Option<String>,
    /// Sent by clients that go on from another session. A session takes nothing over from another one.
    #[serde(rename = "parentSessionKey")]
    _parent_session_key: Option<SessionKey>,
    #[serde(rename = "succeedsParent")]
    _succeeds_parent: Option<bool>,
    #[serde(rename = "emitCommandHooks")]
    _emit_command_hooks: Option<bool>,
}

/// `sessions.create`: a key without an agent gets that of the request, or the default agent.
pub(super) async fn create(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: CreateParams = parse_params(value)?;
    let key = full_key(&client, &params)?;
    let mut settings = json!({"key": key, "create": true});
    settings["model"] = json!(params.model);
    settings["thinkingLevel"] = json!(params.thinking_level);
    let mut answer = client.dispatch("sessions.patch", settings).await?;
    answer["sessionId"] = json!(key);
    let Some(message) = params.message.filter(|message| !message.is_empty()) else { return Ok(answer) };
    let run = params.idempotency_key.unwrap_or_else(|| new_run_id().to_string());
    let message = json!({"sessionKey": key, "message": message, "idempotencyKey": run});
    match client.dispatch("chat.send", message).await {
        Ok(sent) => {
            answer["runStarted"] = json!(sent["status"] == "started");
            answer["runId"] = sent["runId"].clone();
        }
        // The session was created all the same.
        Err(refusal) => answer["runError"] = refusal.to_json(),
    }
    Ok(answer)
}

/// `agent:ID:REST`, the form in which gateway clients know their sessions.
fn full_key(client: &WsClient, params: &CreateParams) -> Result<SessionKey, RpcError> {
    let given = params.key.as_ref().map(SessionKey::as_str);
    if let Some(key) = given.filter(|key| key.starts_with("agent:")) {
        let named = params.agent_id.as_ref().map(|id| format!("agent:{id}:"));
        return match named.filter(|prefix| !key.starts_with(prefix.as_str())) {
            Some(prefix) => Err(RpcError::invalid(format!("the key {key:?} does not begin with {prefix:?}"))),
            None => parse_key(key.to_owned()),
        };
    }
    let agent = client.resolve_agent(params.agent_id.as_ref())?;
    let rest = given.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    parse_key(format!("agent:{agent}:{rest}"))
}

fn parse_key(key: String) -> Result<SessionKey, RpcError> {
    SessionKey::parse(key).map_err(|error| RpcError::invalid(format!("the {error}")))
}

impl WsClient {
    /// The provider of the agent that a session with this key would get.
    fn provider_of_new_session(&self, key: &SessionKey) -> Result<String, RpcError> {
        let agent = self.resolve_agent(agent_of_key(key).as_ref())?;
        let row = self.engine().find_agent(&agent).ok_or_else(|| agent_not_found(&agent))?;
        Ok(row.model.split_once('/').map_or(row.model.as_str(), |(provider, _)| provider).to_owned())
    }

    /// The named agent, or the default one.
    pub(super) fn resolve_agent(&self, named: Option<&AgentId>) -> Result<AgentId, RpcError> {
        let agents = self.engine().list_agents();
        let found = agents.into_iter().find(|agent| named.map_or(agent.default, |id| agent.id == *id));
        let missing = || named.map_or_else(|| RpcError::invalid("there is no agent"), agent_not_found);
        found.map(|agent| agent.id).ok_or_else(missing)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PatchParams {
    key: SessionKey,
    agent_id: Option<AgentId>,
    expected_session_id: Option<String>,
    model: Option<String>,
    thinking_level: Option<String>,
    verbose_level: Option<String>,
    /// Given by `sessions.create` alone.
    #[serde(default)]
    create: bool,
}

/// `sessions.patch`: a null takes a setting back. `verboseLevel` says what the client itself shows; it is returned, not
/// kept.
pub(super) async fn patch(client: Arc<WsClient>, value: Value) -> RpcResult {
    let is_reset = |name: &str| value.get(name).is_some_and(Value::is_null);
    let (takes_model_back, takes_thinking_back) = (is_reset("model"), is_reset("thinkingLevel"));
    let params: PatchParams = parse_params(value)?;
    let key = &params.key;
    check_session_id("sessions.patch", params.expected_session_id.as_deref(), key)?;
    let found = client.find_readable_session(key).await?;
    check_session_agent("sessions.patch", params.agent_id.as_ref(), found.as_ref())?;
    let thinking = match params.thinking_level.as_deref() {
        Some(word) => Some(parse_thinking_level(word)?),
        None => (takes_thinking_back && !params.create).then_some(ThinkingLevel::Default),
    };
    if let Some(level) = params.verbose_level.as_deref().filter(|level| !matches!(*level, "off" | "on" | "full")) {
        return Err(RpcError::invalid(format!("verboseLevel is {level:?}; it may be off, on or full")));
    }
    // A session that gets its agent anew gets the agent's model.
    let agent = if found.is_none() || params.create || (takes_model_back && params.model.is_none()) {
        let own = found.as_ref().and_then(|row| row.agent.clone()).or_else(|| agent_of_key(key));
        Some(client.resolve_agent(own.as_ref())?)
    } else {
        None
    };
    let change =
        SessionPatch { model: full_model_name(&client, key, params.model).await?, agent, thinking, workdir: None };
    if change != SessionPatch::default() {
        client.engine().patch_session(&client.peer.caller, key, change).await?;
    }
    let mut answer = patch_answer(&client, key).await?;
    if let Some(level) = params.verbose_level {
        answer["entry"]["verboseLevel"] = json!(level);
    }
    Ok(answer)
}

fn agent_of_key(key: &SessionKey) -> Option<AgentId> {
    let (id, _) = key.as_str().strip_prefix("agent:")?.split_once(':')?;
    AgentId::parse(id).ok()
}

fn parse_thinking_level(word: &str) -> Result<ThinkingLevel, RpcError> {
    let found = ThinkingLevel::ALL.into_iter().find(|level| level.as_str() == word);
    found.ok_or_else(|| {
        let known = ThinkingLevel::ALL.map(ThinkingLevel::as_str).join(", ");
        RpcError::invalid(format!("thinkingLevel is {word:?}; it may be one of {known}"))
    })
}

/// A model that is named without its provider is one of the provider that the session has.
async fn full_model_name(
    client: &WsClient,
    key: &SessionKey,
    model: Option<String>,
) -> Result<Option<String>, RpcError> {
    let Some(model) = model else { return Ok(None) };
    if model.contains('/') {
        return Ok(Some(model));
    }
    let config = client.engine().session_view(key).await?.and_then(|view| view.config);
    let provider = match config {
        Some(config) => config.provider,
        None => client.provider_of_new_session(key)?,
    };
    Ok(Some(format!("{provider}/{model}")))
}

/// The row of the session with its settings, and the settings in force.
async fn patch_answer(client: &WsClient, key: &SessionKey) -> RpcResult {
    let Some(view) = client.engine().session_view(key).await? else {
        return Err(RpcError::invalid(format!("there is no session {key:?}")));
    };
    let mut row = payloads::session_row(&view.row, latest_run(client, key).await?.as_ref());
    let settings = view.config.as_ref().map(settings_payload).unwrap_or_default();
    payloads::add_fields(&mut row, &settings);
    Ok(json!({"ok": true, "path": "", "key": key, "entry": row, "resolved": settings}))
}

/// The settings of a session that gateway clients show.
pub(super) fn settings_payload(config: &SessionConfig) -> Value {
    let mut settings = payloads::model_defaults(&config.model.value);
    settings["thinkingLevel"] = json!(config.thinking.value);
    settings["thinkingLevels"] =
        ThinkingLevel::ALL.map(|level| json!({"id": level.as_str(), "label": level.as_str()})).into();
    settings
}
