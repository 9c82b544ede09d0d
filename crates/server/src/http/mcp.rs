//! List the resources and prompts of MCP servers, and read one as the text of a message.

use axum::Json;
use axum::extract::Path;
use quell_engine::engine::McpRequestError;
use quell_protocol::AgentId;
use quell_protocol::mcp::{McpContent, McpContentRequest, McpList, McpListKind, McpPromptRequest, McpResourceRequest};
use serde::Deserialize;

use super::extractors::{JsonBody, QueryParams};
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

impl From<McpRequestError> for ProblemResponse {
    fn from(error: McpRequestError) -> Self {
        problem_response(error.code(), error.to_string())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct McpListQuery {
    agent: Option<AgentId>,
}

pub(super) async fn list_prompts(call: ApiCall, QueryParams(query): QueryParams<McpListQuery>) -> ApiResult<McpList> {
    list(&call, &query, McpListKind::Prompts).await
}

pub(super) async fn list_resources(call: ApiCall, QueryParams(query): QueryParams<McpListQuery>) -> ApiResult<McpList> {
    list(&call, &query, McpListKind::Resources).await
}

/// A list may start programs, so it takes the right to send messages, which start them, too.
async fn list(call: &ApiCall, query: &McpListQuery, kind: McpListKind) -> ApiResult<McpList> {
    call.count_request()?;
    call.require_write()?;
    Ok(Json(call.engine().list_mcp(&call.caller, query.agent.as_ref(), kind).await?))
}

pub(super) async fn prompt(
    call: ApiCall,
    Path(server): Path<String>,
    JsonBody(request): JsonBody<McpPromptRequest>,
) -> ApiResult<McpContent> {
    let McpPromptRequest { name, arguments, agent } = request;
    read(&call, &server, agent.as_ref(), McpContentRequest::Prompt { name, arguments }).await
}

pub(super) async fn resource(
    call: ApiCall,
    Path(server): Path<String>,
    JsonBody(request): JsonBody<McpResourceRequest>,
) -> ApiResult<McpContent> {
    let McpResourceRequest { uri, agent } = request;
    read(&call, &server, agent.as_ref(), McpContentRequest::Resource(uri)).await
}

async fn read(
    call: &ApiCall,
    server: &str,
    agent: Option<&AgentId>,
    request: McpContentRequest,
) -> ApiResult<McpContent> {
    call.count_request()?;
    call.require_write()?;
    Ok(Json(McpContent { text: call.engine().read_mcp(&call.caller, agent, server, request).await? }))
}
