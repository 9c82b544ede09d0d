//! A2A 1.0: other agents send messages to Quell's agents, follow their tasks and cancel them.
//!
//! A context is a session, and a task is a run with the same id. An approval is a task that needs input. The operations
//! are the same over JSON-RPC (`POST /a2a/{agent}`) and REST (below it); see `docs/a2a.md`.

mod cards;
mod errors;
mod messages;
mod operations;
mod push_configs;
mod sending;
mod task_list;
mod task_stream;
mod tasks;

use axum::Router;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use quell_kernel::json_size::exceeds_value_count;
use quell_protocol::{AgentId, Surface};
use serde_json::{Map, Value};

use crate::http::{ApiCall, ProblemResponse, read_request_body};
use crate::json_rpc::{JsonRpcId, JsonRpcMessage, parse_message, result_message};
use crate::state::{MAX_JSON_VALUES, ServerState};
use errors::{A2aError, A2aErrorKind};
use operations::{A2aOperation, A2aRequest};
pub(crate) use push_configs::A2aPushTranslator;
use task_stream::TaskStream;

const VERSION_HEADER: &str = "a2a-version";
/// A client may send the version in the query, too.
const VERSION_PARAMETER: &str = "A2A-Version";
const VERSION: &str = "1.0";
const REST_CONTENT_TYPE: &str = "application/a2a+json";

pub(crate) fn a2a_routes() -> Router<ServerState> {
    Router::new()
        .route("/.well-known/agent-card.json", get(cards::show_default))
        .route("/.well-known/jwks.json", get(push_configs::show_keys))
        .route("/a2a/{agent}", post(receive_json_rpc))
        .route("/a2a/{agent}/.well-known/agent-card.json", get(cards::show))
        .route("/a2a/{agent}/{*operation}", get(receive_rest).post(receive_rest).delete(receive_rest))
}

/// The problem of a request below `/a2a/` in the form of A2A, whatever has refused the request.
pub(crate) fn translate_response(path: &str, response: Response) -> Response {
    errors::translate_response(path, response)
}

/// The answer of an operation.
enum A2aAnswer {
    Result(Value),
    Stream(Box<TaskStream>),
}

/// How the parts of an answer are wrapped.
#[derive(Debug, Clone)]
enum A2aBinding {
    JsonRpc(JsonRpcId),
    Rest,
}

impl A2aBinding {
    fn wrap(&self, result: Value) -> Value {
        match self {
            Self::JsonRpc(id) => result_message(id, &result),
            Self::Rest => result,
        }
    }

    fn content_type(&self) -> &'static str {
        match self {
            Self::JsonRpc(_) => "application/json",
            Self::Rest => REST_CONTENT_TYPE,
        }
    }
}

/// The caller of a request, and the agent that its path names.
async fn authenticate(
    parts: &mut Parts,
    server: &ServerState,
    agent: &str,
) -> Result<(ApiCall, AgentId), ProblemResponse> {
    let call = ApiCall::from_request_parts(parts, server).await?.on_surface(Surface::A2a);
    let agent = AgentId::parse(agent).map_err(|_| cards::agent_not_found(agent))?;
    Ok((call, agent))
}

async fn receive_json_rpc(
    State(server): State<ServerState>,
    Path(agent): Path<String>,
    request: Request,
) -> Result<Response, ProblemResponse> {
    let (mut parts, body) = request.into_parts();
    let (call, agent) = authenticate(&mut parts, &server, &agent).await?;
    let (headers, uri) = (parts.headers.clone(), parts.uri.clone());
    let body = read_request_body(Request::from_parts(parts, body), &server).await?;
    let message = match parse_message(&body) {
        Ok(JsonRpcMessage::Request(message)) => message,
        Ok(JsonRpcMessage::Notification { .. } | JsonRpcMessage::Response) => {
            let error = A2aError::new(A2aErrorKind::InvalidRequest, "`id` is missing; A2A knows no notifications");
            return Ok(errors::refuse_message(None, &error));
        }
        Err((id, failure)) => return Ok(errors::refuse_message(id, &failure.into())),
    };
    let binding = A2aBinding::JsonRpc(message.id);
    let operation = A2aOperation::of_method(&message.method);
    Ok(match check_version(&headers, &uri).and(operation) {
        Ok(operation) => answer(A2aRequest { call, agent, operation, params: message.params }, binding).await,
        Err(error) => error.into_http(&binding),
    })
}

async fn receive_rest(
    State(server): State<ServerState>,
    Path((agent, _)): Path<(String, String)>,
    request: Request,
) -> Result<Response, ProblemResponse> {
    let (mut parts, body) = request.into_parts();
    let (call, agent) = authenticate(&mut parts, &server, &agent).await?;
    let (method, uri) = (parts.method.clone(), parts.uri.clone());
    let found = check_version(&parts.headers, &uri).and_then(|()| rest_operation(&method, &uri));
    let (operation, named) = match found {
        Ok(found) => found,
        Err(error) => return Ok(error.into_http(&A2aBinding::Rest)),
    };
    let body = match method {
        Method::POST => read_request_body(Request::from_parts(parts, body), &server).await?,
        _ => bytes::Bytes::new(),
    };
    let params = query_params(&uri).and_then(|mut params| {
        params.extend(parse_rest_body(&body)?);
        params.extend(named);
        Ok(params)
    });
    Ok(match params {
        Ok(params) => answer(A2aRequest { call, agent, operation, params }, A2aBinding::Rest).await,
        Err(error) => error.into_http(&A2aBinding::Rest),
    })
}

async fn answer(request: A2aRequest, binding: A2aBinding) -> Response {
    match operations::carry_out(request, &binding).await {
        Ok(A2aAnswer::Result(result)) => {
            let content_type = binding.content_type();
            ([(header::CONTENT_TYPE, content_type)], binding.wrap(result).to_string()).into_response()
        }
        Ok(A2aAnswer::Stream(stream)) => stream.into_response(),
        Err(error) => error.into_http(&binding),
    }
}

/// A request without a version is one of version 0.3, as the protocol wants it.
fn check_version(headers: &HeaderMap, uri: &Uri) -> Result<(), A2aError> {
    let of_header = headers.get(VERSION_HEADER).map(|version| version.to_str().unwrap_or_default().to_owned());
    let of_query = || query_params(uri).ok()?.get(VERSION_PARAMETER)?.as_str().map(str::to_owned);
    let version = of_header.filter(|version| !version.is_empty()).or_else(of_query);
    match version.as_deref() {
        Some(VERSION) => Ok(()),
        Some(other) => {
            let text =
                format!("the version {other:?} of A2A is not supported; send the header `A2A-Version: {VERSION}`");
            Err(A2aError::new(A2aErrorKind::VersionNotSupported, text))
        }
        None => {
            let text = format!(
                "without the header `A2A-Version` this is a request of version 0.3, which is not supported; send \
                 `A2A-Version: {VERSION}`"
            );
            Err(A2aError::new(A2aErrorKind::VersionNotSupported, text))
        }
    }
}

fn rest_operation(method: &Method, uri: &Uri) -> Result<(A2aOperation, Map<String, Value>), A2aError> {
    // Not decoded: an agent and an id may hold an encoded slash.
    let below = uri.path().trim_start_matches("/a2a/").split_once('/').map_or("", |(_, below)| below);
    A2aOperation::of_path(method, below).ok_or_else(|| {
        let text = format!("{method} {} is no operation of A2A 1.0", uri.path());
        A2aError::new(A2aErrorKind::MethodNotFound, text)
    })
}

/// Parameters in the query are texts; those of other types are parsed.
fn query_params(uri: &Uri) -> Result<Map<String, Value>, A2aError> {
    let Query(query): Query<Map<String, Value>> = Query::try_from_uri(uri).map_err(|error| {
        A2aError::new(A2aErrorKind::InvalidParams, format!("the query is not valid: {}", error.body_text()))
    })?;
    let parse = |name: &str, value: Value| match (name, value.as_str().map(serde_json::from_str)) {
        ("pageSize" | "historyLength" | "includeArtifacts", Some(Ok(parsed))) => parsed,
        _ => value,
    };
    Ok(query.into_iter().map(|(name, value)| (name.clone(), parse(&name, value))).collect())
}

fn parse_rest_body(body: &[u8]) -> Result<Map<String, Value>, A2aError> {
    if body.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    if exceeds_value_count(body, MAX_JSON_VALUES) {
        let text = format!("the body holds more than {MAX_JSON_VALUES} values");
        return Err(A2aError::new(A2aErrorKind::InvalidRequest, text));
    }
    serde_json::from_slice(body).map_err(|error| {
        let kind = if error.is_data() { A2aErrorKind::InvalidRequest } else { A2aErrorKind::MalformedJson };
        A2aError::new(kind, format!("the body is no object of JSON: {error}"))
    })
}
