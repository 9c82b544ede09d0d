//! Read-only methods other than those of sessions.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_protocol::{AgentId, RunId, SessionKey};
use quell_store::{RunListFilter, SessionListFilter};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;
use super::super::payloads;
use super::{RpcResult, WsClient, parse_params};

/// Rows of a list if the client gives no limit.
const DEFAULT_PAGE_SIZE: usize = 100;

pub(super) fn health(client: &WsClient) -> Value {
    let engine = client.engine();
    json!({"ok": engine.is_open(), "ts": payloads::now_ms(engine.clock())})
}

/// Sessions that `status` counts.
const MAX_COUNTED_SESSIONS: usize = 1000;

pub(super) async fn status(client: Arc<WsClient>) -> RpcResult {
    let engine = client.engine();
    let runs = engine.active_runs();
    let visible_to = client.visible_to();
    let filter = SessionListFilter { search: None, limit: MAX_COUNTED_SESSIONS, cursor: None, visible_to };
    let sessions = engine.list_sessions(filter).await?.items.len();
    let default_model = engine.list_agents().into_iter().find(|agent| agent.default).map(|agent| agent.model);
    Ok(json!({
        "runtimeVersion": env!("CARGO_PKG_VERSION"),
        "sessions": {"count": sessions, "defaults": {"model": default_model}},
        "version": env!("CARGO_PKG_VERSION"),
        "open": engine.is_open(),
        "activeRuns": runs.len(),
        "processes": runs.iter().map(|run| run.processes).sum::<u32>(),
        "backgroundProcesses": engine.count_live_processes(),
        "connections": client.server.stream_count(),
    }))
}

pub(super) fn agents_payload(client: &WsClient) -> Value {
    let mut agents = client.engine().list_agents();
    for agent in &mut agents {
        client.engine().retain_visible_runs(&client.peer.caller, &mut agent.active_runs);
    }
    let default = agents.iter().find(|agent| agent.default).map(|agent| agent.id.clone());
    let rows: Vec<Value> = agents
        .iter()
        .map(|agent| {
            json!({
                "id": agent.id, "name": agent.id, "model": payloads::primary_model(&agent.model), "parent": agent.parent, "children": agent.children,
                "role": agent.role, "computeStatus": agent.compute_status, "activeRuns": agent.active_runs,
            })
        })
        .collect();
    json!({"defaultId": default, "mainKey": "main", "scope": "per-sender", "agents": rows})
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ModelsListParams {
    agent_id: Option<AgentId>,
    view: Option<String>,
}

/// The models that all agents use, or one agent uses, each once. Only configured models are known, whichever `view` is
/// requested.
pub(super) fn models_payload(client: &WsClient, value: Value) -> RpcResult {
    let params: ModelsListParams = parse_params(value)?;
    if let Some(view) = params.view.as_deref().filter(|view| !matches!(*view, "default" | "configured")) {
        return Err(RpcError::invalid(format!("view is {view:?}; it may be default or configured")));
    }
    check_named_agent(client, params.agent_id.as_ref())?;
    let agents = client.engine().list_agents();
    let wanted = agents.iter().filter(|agent| params.agent_id.as_ref().is_none_or(|id| *id == agent.id));
    let models: BTreeSet<&str> = wanted.map(|agent| agent.model.as_str()).collect();
    Ok(json!({"models": models.into_iter().map(payloads::model_row).collect::<Vec<_>>()}))
}

/// Checks that an agent that a client names exists, and that its token is for it.
pub(super) fn check_named_agent(client: &WsClient, named: Option<&AgentId>) -> Result<(), RpcError> {
    let Some(id) = named else { return Ok(()) };
    if client.engine().find_agent(id).is_none() {
        return Err(agent_not_found(id));
    }
    client.peer.caller.key.check_agent(id).map_err(|refusal| RpcError::not_owner(refusal.to_string()))
}

pub(super) fn agent_not_found(id: &AgentId) -> RpcError {
    RpcError::invalid(format!("there is no agent {id:?}")).with_details(json!({"code": "UNKNOWN_AGENT_ID"}))
}

pub(super) fn subscribe_sessions(client: &WsClient) -> Value {
    client.subscriptions.subscribe_sessions();
    json!({"subscribed": true})
}

#[derive(Debug, Deserialize)]
struct MessagesParams {
    key: SessionKey,
}

/// `sessions.messages.subscribe` and `.unsubscribe`.
pub(super) fn subscribe_messages(client: &WsClient, value: Value, wanted: bool) -> RpcResult {
    let MessagesParams { key } = parse_params(value)?;
    if !client.subscriptions.set_message_subscription(key.clone(), wanted) {
        return Err(RpcError::unavailable("this connection has subscribed to too many sessions; unsubscribe from one"));
    }
    Ok(json!({"subscribed": wanted, "key": key}))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RunsListParams {
    state: Option<String>,
    session_key: Option<SessionKey>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn list_runs(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: RunsListParams = parse_params(value)?;
    if let Some(other) = params.state.as_deref().filter(|state| !matches!(*state, "active" | "all")) {
        return Err(RpcError::invalid(format!("state is {other:?}; it may be active or all")));
    }
    if params.state.as_deref() == Some("active") {
        let mut runs = client.engine().active_runs();
        runs.retain(|run| params.session_key.as_ref().is_none_or(|key| *key == run.session_key));
        runs.retain(|run| client.engine().may_read_run_view(&client.peer.caller, run));
        return Ok(json!({"items": runs}));
    }
    let limit = params.limit.unwrap_or(DEFAULT_PAGE_SIZE).clamp(1, 1000);
    let filter = RunListFilter {
        session: params.session_key,
        principal: None,
        visible_to: client.visible_to(),
        limit,
        cursor: params.cursor,
    };
    Ok(json!(client.engine().list_runs(filter).await?))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunsGetParams {
    run_id: RunId,
}

pub(super) async fn get_run(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: RunsGetParams = parse_params(value)?;
    let run = client.find_readable_run(&params.run_id).await?;
    run.map(|run| json!(run)).ok_or_else(|| RpcError::invalid(format!("there is no run {:?}", params.run_id)))
}
