//! Agent cards: what an agent is called, where it is, and what it can do.
//!
//! A card needs a token, because it names an agent and what the agent is for.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quell_protocol::api::AgentRow;
use quell_protocol::{AgentId, ErrorCode};
use serde_json::{Value, json};

use super::VERSION;
use super::messages::{ALLOWING_TEXTS, DENYING_TEXTS};
use crate::http::{ApiCall, ProblemResponse, is_over_tls, problem_response};
use crate::state::ServerState;

/// A card changes with the configuration, and clients ask again after this time.
const CACHE_CONTROL: &str = "private, max-age=60";

/// The card of the agent that answers when a message names none.
pub(super) async fn show_default(call: ApiCall, headers: HeaderMap) -> Result<Response, ProblemResponse> {
    let default = call.engine().list_agents().into_iter().find(|agent| agent.default);
    let Some(agent) = default else {
        return Err(problem_response(ErrorCode::AgentNotFound, "there is no default agent; `quell agents` lists them"));
    };
    card_response(&call, &agent, &headers)
}

pub(super) async fn show(
    call: ApiCall,
    Path(agent): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ProblemResponse> {
    // Requests below /a2a are counted by their own code.
    call.count_request()?;
    let row = AgentId::parse(&agent).ok().and_then(|agent| call.engine().find_agent(&agent));
    let row = row.ok_or_else(|| agent_not_found(&agent))?;
    card_response(&call, &row, &headers)
}

pub(super) fn agent_not_found(agent: &str) -> ProblemResponse {
    problem_response(ErrorCode::AgentNotFound, format!("there is no agent {agent:?}; `quell agents` lists them"))
}

fn card_response(call: &ApiCall, agent: &AgentRow, headers: &HeaderMap) -> Result<Response, ProblemResponse> {
    call.caller.key.check_agent(&agent.id)?;
    let card = describe_agent(agent, headers, &call.server).to_string();
    let mut hasher = DefaultHasher::new();
    card.hash(&mut hasher);
    let etag = format!("\"{:016x}\"", hasher.finish());
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes());
    let caching = [(header::CACHE_CONTROL, CACHE_CONTROL.to_owned()), (header::ETAG, etag)];
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, caching).into_response());
    }
    Ok((caching, [(header::CONTENT_TYPE, "application/json")], card).into_response())
}

fn describe_agent(agent: &AgentRow, headers: &HeaderMap, server: &ServerState) -> Value {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let host = host.unwrap_or_else(|| server.settings().listen.to_string());
    let scheme = if is_over_tls(headers) { "https" } else { "http" };
    let url = format!("{scheme}://{host}/a2a/{}", utf8_percent_encode(agent.id.as_str(), NON_ALPHANUMERIC));
    let purpose = agent.role.clone().unwrap_or_else(|| format!("The agent {} of a Quell gateway.", agent.id));
    let skill = format!(
        "{purpose} A task that needs input waits for an approval: answer {} to allow it, or {} to deny it.",
        ALLOWING_TEXTS.join(", "),
        DENYING_TEXTS.join(", ")
    );
    let has_push = server.engine().push_public_key().is_some();
    let interface = |binding: &str| json!({"url": url, "protocolBinding": binding, "protocolVersion": VERSION});
    json!({
        "name": agent.id,
        "description": purpose,
        "version": env!("CARGO_PKG_VERSION"),
        "supportedInterfaces": [interface("JSONRPC"), interface("HTTP+JSON")],
        "capabilities": {"streaming": true, "pushNotifications": has_push, "extendedAgentCard": false},
        "defaultInputModes": ["text/plain", "application/json", "image/png", "image/jpeg", "image/gif", "image/webp", "application/octet-stream"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": agent.id, "name": agent.id, "description": skill, "tags": ["agent"]}],
        "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
    })
}
