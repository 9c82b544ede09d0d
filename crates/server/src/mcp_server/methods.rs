//! The methods of MCP that the server knows, and the envelope of their results.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use quell_protocol::{ErrorCode, Problem};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::session_table::{McpSession, NewSession, SessionLifetime, is_active};
use super::versions::{ClientCapabilities, ProtocolEra, STATELESS_VERSION, TASKS_EXTENSION, negotiate};
use super::{McpAnswer, resources, tasks, tools};
use crate::http::ApiCall;
use crate::json_rpc::{JsonRpcFailure, JsonRpcId, JsonRpcRequest, METHOD_NOT_FOUND, result_message};

const INSTRUCTIONS: &str = "Runs agents of a Quell gateway, and stops them. `run_agent` answers when the agent is done; cancel the call \
    to stop it. Every stop ends everything that the run holds, and the receipt proves it.";
/// How long clients may keep what changes only with the version of the daemon, in milliseconds.
const STATIC_TTL_MS: u64 = 3_600_000;

/// A request with its caller.
pub(super) struct McpRequest {
    pub(super) call: ApiCall,
    pub(super) era: ProtocolEra,
    pub(super) capabilities: ClientCapabilities,
    /// For the session that `initialize` begins.
    pub(super) lifetime: SessionLifetime,
    /// `None` for `initialize`, and without sessions.
    pub(super) session: Option<Arc<McpSession>>,
    pub(super) request: JsonRpcRequest,
}

/// True for requests that only stop something: no limiter counts them.
pub(super) fn is_stop(request: &JsonRpcRequest) -> bool {
    match request.method.as_str() {
        "tasks/cancel" => true,
        "tools/call" => request.params.get("name").and_then(Value::as_str).is_some_and(tools::is_stop_tool),
        _ => false,
    }
}

pub(super) async fn answer(request: McpRequest) -> Result<McpAnswer, JsonRpcFailure> {
    let method = request.request.method.clone();
    let cacheable = |result: Value, ttl_ms, scope| match request.era {
        ProtocolEra::Stateless => with_cache_hint(result, ttl_ms, scope),
        ProtocolEra::Session => result,
    };
    let result = match (request.era, method.as_str()) {
        (ProtocolEra::Session, "initialize") => return initialize(&request),
        (ProtocolEra::Session, "ping") => json!({}),
        (ProtocolEra::Stateless, "server/discover") => cacheable(discover(), STATIC_TTL_MS, "public"),
        (_, "tools/list") => cacheable(json!({"tools": tools::list(request.era)}), STATIC_TTL_MS, "public"),
        (_, "tools/call") => return tools::call(request).await,
        (_, "resources/list") => cacheable(resources::list(&request).await?, 0, "private"),
        (_, "resources/templates/list") => cacheable(resources::templates(), STATIC_TTL_MS, "public"),
        (_, "resources/read") => cacheable(resources::read(&request).await?, 0, "private"),
        (_, method) if method.starts_with("tasks/") => return tasks::answer(request).await,
        (_, method) => return Err(unknown_method(method)),
    };
    Ok(McpAnswer::Result(result))
}

pub(super) fn unknown_method(method: &str) -> JsonRpcFailure {
    JsonRpcFailure::new(METHOD_NOT_FOUND, format!("there is no method {method:?}")).with_status(StatusCode::NOT_FOUND)
}

pub(super) fn result_response(id: &JsonRpcId, era: ProtocolEra, result: Value) -> Response {
    Json(result_message(id, &complete_result(era, result))).into_response()
}

/// Adds what each result without a session says about itself.
pub(super) fn complete_result(era: ProtocolEra, mut result: Value) -> Value {
    if era == ProtocolEra::Stateless
        && let Some(fields) = result.as_object_mut()
    {
        fields.entry("resultType").or_insert_with(|| json!("complete"));
        let meta = fields.entry("_meta").or_insert_with(|| json!({}));
        meta["io.modelcontextprotocol/serverInfo"] = server_info();
    }
    result
}

fn with_cache_hint(mut result: Value, ttl_ms: u64, scope: &str) -> Value {
    result["ttlMs"] = json!(ttl_ms);
    result["cacheScope"] = json!(scope);
    result
}

fn server_info() -> Value {
    json!({"name": "quell", "title": "Quell", "version": env!("CARGO_PKG_VERSION")})
}

fn discover() -> Value {
    json!({
        "supportedVersions": [STATELESS_VERSION],
        "capabilities": {"tools": {}, "resources": {}, "extensions": {TASKS_EXTENSION: {}}},
        "instructions": INSTRUCTIONS,
    })
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams {
    protocol_version: String,
    #[serde(rename = "capabilities")]
    _capabilities: Map<String, Value>,
}

fn initialize(request: &McpRequest) -> Result<McpAnswer, JsonRpcFailure> {
    let params: InitializeParams = request.request.parse_params()?;
    let version = negotiate(&params.protocol_version);
    let call = &request.call;
    let (principal, now) = (call.caller.principal.clone(), call.engine().clock().now());
    let new = NewSession { principal, version, lifetime: request.lifetime, now };
    let begun = call.server.mcp_sessions().begin(new, &|run| is_active(call.engine(), run));
    let session = begun.ok_or_else(|| {
        let detail = "there are too many sessions with open calls; end some of them by DELETE";
        JsonRpcFailure::of_problem(&Problem::new(ErrorCode::TooManyConnections, detail))
            .with_status(StatusCode::SERVICE_UNAVAILABLE)
    })?;
    let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    let result = json!({
        "protocolVersion": session.version(),
        "capabilities": {"tools": {}, "resources": {}, "tasks": tasks},
        "serverInfo": server_info(),
        "instructions": INSTRUCTIONS,
    });
    Ok(McpAnswer::NewSession(session, result))
}
