//! MCP server at `/mcp`: other programs run, watch and stop agents as tools, and read receipts and histories.
//!
//! It speaks streamable HTTP in the versions with sessions (up to 2025-11-25) and in the one without (2026-07-28). They
//! differ in what a lost connection means: with a session the call goes on and can be resumed by `Last-Event-ID`;
//! without, the end of the response stream is the cancel. See `docs/mcp-server.md`.

mod call_stream;
mod methods;
mod resources;
mod run_result;
mod session_table;
mod tasks;
mod tools;
mod versions;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use quell_protocol::{ErrorCode, StopReason, Surface};
use serde_json::{Map, Value};

use crate::http::{ApiCall, ProblemResponse, problem_response, read_request_body};
use crate::json_rpc::{
    INVALID_PARAMS, INVALID_REQUEST, JsonRpcFailure, JsonRpcId, JsonRpcMessage, JsonRpcRequest, parse_message,
};
use crate::state::ServerState;
use call_stream::CallStream;
use methods::McpRequest;
use session_table::{McpSession, SessionLifetime};
use versions::{ProtocolEra, VERSION_HEADER};

pub(crate) use run_result::verdict_text;
pub(crate) use session_table::McpSessionTable;

/// Sent by `quell mcp`: its connections end with the program that has started it.
const STDIO_HEADER: &str = "x-quell-stdio";
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

pub(crate) fn mcp_routes() -> Router<ServerState> {
    Router::new().route("/mcp", post(receive_message).get(resume_stream).delete(end_session))
}

/// The answer to a request.
enum McpAnswer {
    Result(Value),
    /// A session begins with this answer.
    NewSession(Arc<McpSession>, Value),
    Stream(Box<CallStream>),
    /// A stream that ends at once: the request was cancelled.
    NoAnswer,
}

async fn receive_message(State(server): State<ServerState>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let call = match authenticate(&mut parts, &server).await {
        Ok(call) => call,
        Err(refused) => return refused.into_response(),
    };
    let headers = parts.headers.clone();
    let body = match read_request_body(Request::from_parts(parts, body), &server).await {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    match parse_message(&body) {
        Ok(JsonRpcMessage::Request(request)) => {
            let id = request.id.clone();
            answer_request(call, &headers, request).await.unwrap_or_else(|failure| failure.into_http(Some(&id)))
        }
        Ok(JsonRpcMessage::Notification { method, params }) => {
            match receive_notification(&call, &headers, &method, &params) {
                Ok(()) => StatusCode::ACCEPTED.into_response(),
                Err(failure) => failure.into_http(None),
            }
        }
        // The server has asked for nothing.
        Ok(JsonRpcMessage::Response) => StatusCode::ACCEPTED.into_response(),
        Err((id, failure)) => failure.into_http(id.as_ref()),
    }
}

async fn authenticate(
    parts: &mut axum::http::request::Parts,
    server: &ServerState,
) -> Result<ApiCall, ProblemResponse> {
    Ok(ApiCall::from_request_parts(parts, server).await?.on_surface(Surface::Mcp))
}

async fn answer_request(
    call: ApiCall,
    headers: &HeaderMap,
    request: JsonRpcRequest,
) -> Result<Response, JsonRpcFailure> {
    if !methods::is_stop(&request) {
        call.count_request()?;
    }
    let (era, capabilities) = versions::check_request(headers, &request)?;
    let session = match era {
        ProtocolEra::Session if request.method != "initialize" => Some(find_session(&call, headers)?),
        ProtocolEra::Session | ProtocolEra::Stateless => None,
    };
    let is_stdio = headers.contains_key(STDIO_HEADER);
    let lifetime = if is_stdio { SessionLifetime::Connection } else { SessionLifetime::Independent };
    let id = request.id.clone();
    let answered = methods::answer(McpRequest { call, era, capabilities, lifetime, session, request }).await;
    let answer = answered.map_err(|failure| match era {
        // There a 404 says that the session has ended.
        ProtocolEra::Session => failure.with_status(StatusCode::OK),
        ProtocolEra::Stateless => failure,
    })?;
    Ok(match answer {
        McpAnswer::Result(result) => methods::result_response(&id, era, result),
        McpAnswer::NewSession(session, result) => {
            let mut response = methods::result_response(&id, era, result);
            if let Ok(value) = HeaderValue::try_from(session.id()) {
                response.headers_mut().insert(SESSION_HEADER, value);
            }
            response
        }
        McpAnswer::Stream(stream) => stream.into_response(),
        McpAnswer::NoAnswer => call_stream::event_stream(Body::empty()),
    })
}

/// The session that the header names, if it is one of this caller.
fn find_session(call: &ApiCall, headers: &HeaderMap) -> Result<Arc<McpSession>, JsonRpcFailure> {
    let id = headers.get(SESSION_HEADER).and_then(|id| id.to_str().ok()).ok_or_else(|| {
        let text = "the header Mcp-Session-Id is missing; begin with `initialize`, which answers it";
        JsonRpcFailure::new(INVALID_REQUEST, text).with_status(StatusCode::BAD_REQUEST)
    })?;
    call.server.mcp_sessions().find(id, &call.caller.principal, call.engine().clock().now()).ok_or_else(|| {
        let text = "there is no such session, or it has ended; begin a new one by `initialize`";
        JsonRpcFailure::new(INVALID_REQUEST, text).with_status(StatusCode::NOT_FOUND)
    })
}

fn receive_notification(
    call: &ApiCall,
    headers: &HeaderMap,
    method: &str,
    params: &Map<String, Value>,
) -> Result<(), JsonRpcFailure> {
    versions::check_version_header(headers)?;
    let version = headers.get(VERSION_HEADER).and_then(|version| version.to_str().ok());
    if version == Some(versions::STATELESS_VERSION) {
        // Over HTTP this version knows no notification of a client: the end of the stream is the cancel.
        return Ok(());
    }
    let session = find_session(call, headers)?;
    if method != "notifications/cancelled" {
        return Ok(());
    }
    let Some(id) = params.get("requestId").and_then(JsonRpcId::parse) else {
        return Err(JsonRpcFailure::new(INVALID_PARAMS, "`requestId` is missing").with_status(StatusCode::BAD_REQUEST));
    };
    let reason = params.get("reason").and_then(Value::as_str).map_or(StopReason::User, StopReason::from_text);
    session.cancel_call(call, &id, &reason);
    Ok(())
}

/// Continues the stream of a call whose connection was lost. There is no other stream to get: the server sends nothing
/// but answers and the progress of calls.
async fn resume_stream(State(server): State<ServerState>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    let call = match authenticate(&mut parts, &server).await {
        Ok(call) => call,
        Err(refused) => return refused.into_response(),
    };
    let Some(last_event) = parts.headers.get("last-event-id").and_then(|id| id.to_str().ok()) else {
        let detail = "GET only resumes the stream of a call: send Mcp-Session-Id and Last-Event-ID";
        return problem_response(ErrorCode::MethodNotAllowed, detail).into_response();
    };
    match reopen_stream(&call, &parts.headers, last_event).await {
        Ok(stream) => stream.into_response(),
        Err(failure) => failure.into_http(None),
    }
}

async fn reopen_stream(call: &ApiCall, headers: &HeaderMap, last_event: &str) -> Result<CallStream, JsonRpcFailure> {
    call.count_request()?;
    versions::check_version_header(headers)?;
    let session = find_session(call, headers)?;
    let (session_call, after) = session.find_stream(last_event).ok_or_else(|| {
        JsonRpcFailure::new(INVALID_REQUEST, "no stream of this session has that event")
            .with_status(StatusCode::NOT_FOUND)
    })?;
    CallStream::open_in_session(call.clone(), session_call, after).await
}

/// Ends a session. Calls that nobody can get the answer of any more are stopped; tasks go on.
async fn end_session(State(server): State<ServerState>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    let call = match authenticate(&mut parts, &server).await {
        Ok(call) => call,
        Err(refused) => return refused.into_response(),
    };
    let checked = versions::check_version_header(&parts.headers);
    match checked.and_then(|()| find_session(&call, &parts.headers)) {
        Ok(session) => {
            server.mcp_sessions().end(&session, &call);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(failure) => failure.into_http(None),
    }
}
