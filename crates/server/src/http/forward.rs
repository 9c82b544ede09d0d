//! Requests about what another node of the cluster has: they are answered there, as if they had come there.
//!
//! The node that receives a request authenticates its caller; the other one believes it. Stops do not take this way:
//! `Engine::stop` asks the other nodes itself.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quell_channels::flow::{CHANNEL_DUTY_PREFIX, channel_duty};
use quell_engine::Engine;
use quell_engine::access::{Caller, Credential};
use quell_engine::cluster::Cluster;
use quell_engine::engine::{PeerCall, PeerMessages, PeerService, Placement, PlacementError};
use quell_kernel::stop_text;
use quell_protocol::api::{SendAnswer, SendRequest};
use quell_protocol::channel::ChannelSend;
use quell_protocol::session::SessionRequest;
use quell_protocol::{ErrorCode, NodeName, Problem, RunId, SessionKey};
use quell_store::Membership;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;

use super::{ApiCall, ProblemResponse, problem_response};
use crate::client_run::SESSION_HEADER;
use crate::cluster_routes::{ClusterRoute, merge_answers, replace_channel_row, session_of_path};
use crate::sent_message::new_run_id;
use crate::state::ServerState;
use crate::ws::{ForwardedMethod, answer_forwarded_method};

/// Bodies that are read to find out what they are about, at most. A stop text and the key of a session are short.
const MAX_INSPECTED_BYTES: usize = 64 * 1024;
/// For the answers of all nodes to a request about what they have.
const GATHER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a request is sent again whose answer was lost, if it may be carried out twice.
pub(crate) const REPEATS: usize = 3;
/// For the beginning of the answer to a forwarded request: the request itself may have been lost.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// For the beginning of an answer of a model API: a day, as long as no run may take.
const MODEL_API_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Names the nodes whose part of a list is missing.
const UNREACHED_HEADER: HeaderName = HeaderName::from_static("x-quell-unreached");

/// The caller of a request that another node has forwarded, in the extensions of the request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ForwardedCaller {
    pub(crate) caller: Caller,
    pub(crate) credential: Option<Credential>,
}

/// The head of a forwarded request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ForwardedRequest {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    /// `None` for a request that carries its own proof, such as a signature.
    pub(crate) from: Option<ForwardedCaller>,
}

/// What a node asks another one in the name of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ForwardedHead {
    Request(Box<ForwardedRequest>),
    /// A method of the WebSocket.
    Method(Box<ForwardedMethod>),
}
/// In the extensions of each request that another node has forwarded: it is answered here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forwarded;

/// The head of the answer to a forwarded request. The body follows in messages.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ForwardedResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

/// Headers of a request that mean something to a handler.
const FORWARDED_HEADERS: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::ACCEPT,
    HeaderName::from_static("last-event-id"),
    HeaderName::from_static("anthropic-version"),
    SESSION_HEADER,
];

/// The session that a client of a model API binds its request to by a header.
fn bound_session(path: &str, headers: &HeaderMap) -> Option<SessionKey> {
    let key = headers.get(&SESSION_HEADER).filter(|_| path.starts_with("/v1/"))?;
    // The handler says what is wrong with a bad one.
    SessionKey::parse(std::str::from_utf8(key.as_bytes()).ok()?).ok()
}

pub(super) async fn forward_to_owner(State(server): State<ServerState>, request: Request, next: Next) -> Response {
    let is_alone = server.engine().cluster().is_none() || request.extensions().get::<Forwarded>().is_some();
    let route = match bound_session(request.uri().path(), request.headers()) {
        _ if is_alone => ClusterRoute::Here,
        Some(key) => ClusterRoute::ChangeSession(key),
        None => ClusterRoute::of(request.method(), request.uri().path()),
    };
    // Who may read a session that another node has created or shared is in the database. A message may be a stop, which
    // does not wait for the database.
    if server.engine().cluster().is_some()
        && !matches!(route, ClusterRoute::Message(_))
        && let Some(key) = session_of_path(request.uri().path())
        && let Err(error) = server.engine().refresh_owner(&key).await
    {
        return ProblemResponse::from(error).into_response();
    }
    let answered = match route {
        ClusterRoute::Here => return next.run(request).await,
        ClusterRoute::Session(key) => at_owner_of(&server, request, next, key, Placement::WhereItIs).await,
        ClusterRoute::ChangeSession(key) => at_owner_of(&server, request, next, key, Placement::Place).await,
        ClusterRoute::ChangeRun(id) => at_owner_of_run(&server, request, next, &id).await,
        ClusterRoute::Message(key) => message(&server, request, next, key).await,
        ClusterRoute::OpenSession => open_session(&server, request, next).await,
        ClusterRoute::EveryNode => every_node(&server, request, next).await,
        ClusterRoute::AnyNode => any_node(&server, request, next).await,
        ClusterRoute::Duty(name) => at_holder_of(&server, request, next, &name).await,
        ClusterRoute::SendToChannel => send_to_channel(&server, request, next).await,
        ClusterRoute::Channels => list_channels(&server, request, next).await,
    };
    answered.unwrap_or_else(IntoResponse::into_response)
}

impl From<PlacementError> for ProblemResponse {
    fn from(error: PlacementError) -> Self {
        match error {
            PlacementError::Store(error) => error.into(),
            silent @ PlacementError::Silent { .. } => {
                problem_response(ErrorCode::NodeUnreachable, silent.to_string()).retry_after(1)
            }
        }
    }
}

async fn message(
    server: &ServerState,
    request: Request,
    next: Next,
    key: SessionKey,
) -> Result<Response, ProblemResponse> {
    let (request, body) = inspect_body(request).await;
    let is_stop = |body: &Bytes| {
        serde_json::from_slice::<SendRequest>(body)
            .is_ok_and(|message| !message.literal && stop_text::is_stop_phrase(&message.text))
    };
    if body.as_ref().is_some_and(is_stop) {
        return Ok(next.run(request).await);
    }
    server.engine().refresh_owner(&key).await?;
    at_owner_of(server, request, next, key, Placement::Place).await
}

async fn open_session(server: &ServerState, request: Request, next: Next) -> Result<Response, ProblemResponse> {
    let (request, body) = inspect_body(request).await;
    let key = body.and_then(|body| serde_json::from_slice::<SessionRequest>(&body).ok()?.key().ok());
    match key {
        Some(key) => at_owner_of(server, request, next, key, Placement::Place).await,
        // The handler says what is wrong with it.
        None => Ok(next.run(request).await),
    }
}

/// Reads a short body, and gives it back with the request. `None` if it is longer.
async fn inspect_body(request: Request) -> (Request, Option<Bytes>) {
    let (parts, body) = request.into_parts();
    let (mut read, mut pieces) = (BytesMut::new(), body.into_data_stream());
    while read.len() <= MAX_INSPECTED_BYTES {
        match pieces.next().await {
            Some(Ok(piece)) => read.extend_from_slice(&piece),
            None => {
                let bytes = read.freeze();
                return (Request::from_parts(parts, Body::from(bytes.clone())), Some(bytes));
            }
            // The client has gone away: the handler finds that out, too.
            Some(Err(error)) => {
                let rest = stream::iter([Ok(read.freeze()), Err(error)]);
                return (Request::from_parts(parts, Body::from_stream(rest)), None);
            }
        }
    }
    let rest = stream::iter([Ok(read.freeze())]).chain(pieces);
    (Request::from_parts(parts, Body::from_stream(rest)), None)
}

/// Answers a request about a session on the node that has it.
async fn at_owner_of(
    server: &ServerState,
    request: Request,
    next: Next,
    key: SessionKey,
    placement: Placement,
) -> Result<Response, ProblemResponse> {
    let engine = server.engine();
    if engine.cluster().is_some_and(|cluster| cluster.owns_session(&key)) {
        return Ok(next.run(request).await);
    }
    let (mut parts, body) = request.into_parts();
    let call = ApiCall::from_request_parts(&mut parts, server).await?;
    let Some(mut owner) = engine.find_node_for(&key, placement).await? else {
        return Ok(next.run(authenticated(parts, &call, body)).await);
    };
    let (body, run) = with_idempotency_key(&parts, read_body(server, body).await?);
    let mut forwarded = forward(engine, &owner, &parts, &call, &body).await;
    for _ in 0..REPEATS {
        // A deletion that is repeated could tell that there is nothing to delete, or delete what was created since.
        let is_repeatable = parts.method != Method::DELETE && (parts.method != Method::POST || run.is_some());
        if forwarded.is_ok() || !is_repeatable {
            break;
        }
        // The request or its answer was lost. The session may have moved meanwhile.
        match engine.find_node_for(&key, placement).await? {
            Some(next_owner) => owner = next_owner,
            None => return Ok(next.run(authenticated(parts, &call, Body::from(body))).await),
        }
        forwarded = forward(engine, &owner, &parts, &call, &body).await;
    }
    forwarded.map_err(|problem| {
        let unknown = match &run {
            Some(run) => format!("whether the message was accepted; send it again with the idempotency key {run}"),
            None => "whether the request was carried out".to_owned(),
        };
        let detail = format!("the session {key:?} is on the node {}: {problem}. It is not known {unknown}", owner.node);
        problem_response(ErrorCode::NodeUnreachable, detail).retry_after(1)
    })
}

/// Sends a message to the node that has its session, or gets it now. `None` if that is this one. The message needs an
/// idempotency key: it is sent again when the answer was lost.
pub(crate) async fn send_message_to_owner(
    call: &ApiCall,
    key: &SessionKey,
    message: &SendRequest,
) -> Result<Option<SendAnswer>, ProblemResponse> {
    let engine = call.engine();
    if engine.cluster().is_none_or(|cluster| cluster.owns_session(key)) {
        return Ok(None);
    }
    let body = serde_json::to_vec(message).unwrap_or_default();
    let target = format!("/api/sessions/{}/runs", utf8_percent_encode(key.as_str(), NON_ALPHANUMERIC));
    let mut parts = Request::new(()).into_parts().0;
    parts.method = Method::POST;
    parts.uri = target.parse().unwrap_or_default();
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut problem = String::new();
    for _ in 0..=REPEATS {
        let Some(owner) = engine.find_node_for(key, Placement::Place).await? else { return Ok(None) };
        match forward(engine, &owner, &parts, call, &body).await {
            Ok(response) => return parse_send_answer(response).await.map(Some),
            Err(failed) => problem = format!("the node {} does not answer: {failed}", owner.node),
        }
    }
    Err(problem_response(ErrorCode::NodeUnreachable, problem).retry_after(1))
}

/// Asks the node that makes a response, which has its events. `None` if that is this one, or the node is gone.
pub(crate) async fn ask_response_node(
    call: &ApiCall,
    id: &str,
    method: Method,
    target: &Uri,
) -> Result<Option<Response>, ProblemResponse> {
    let engine = call.engine();
    let Some(node) = engine.find_response_node(id).await? else { return Ok(None) };
    let mut parts = Request::new(()).into_parts().0;
    parts.method = method;
    parts.uri = target.clone();
    forward(engine, &node, &parts, call, &[]).await.map(Some).map_err(|problem| {
        let detail = format!("the node {} makes this response, and does not answer: {problem}", node.node);
        problem_response(ErrorCode::NodeUnreachable, detail).retry_after(1)
    })
}

async fn parse_send_answer(response: Response) -> Result<SendAnswer, ProblemResponse> {
    let is_success = response.status().is_success();
    let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = to_bytes(response.into_body(), MAX_INSPECTED_BYTES).await.unwrap_or_default();
    let unreadable = || problem_response(ErrorCode::NodeUnreachable, "the answer of the other node cannot be read");
    if is_success {
        return serde_json::from_slice(&body).map_err(|_| unreadable());
    }
    let problem = serde_json::from_slice::<Problem>(&body).map_or_else(|_| unreadable(), ProblemResponse::from);
    Err(match retry_after {
        Some(seconds) => problem.retry_after(seconds),
        None => problem,
    })
}

/// Gives a message an idempotency key if it has none, so that it can be sent again when it or its answer was lost.
/// Returns the key; `None` for any other request.
fn with_idempotency_key(parts: &Parts, body: Bytes) -> (Bytes, Option<RunId>) {
    let is_message = parts.method == Method::POST && parts.uri.path().ends_with("/runs");
    let message = is_message.then(|| serde_json::from_slice::<SendRequest>(&body).ok()).flatten();
    // The owner says what is wrong with a body that is no message.
    let Some(mut message) = message else { return (body, None) };
    if message.idempotency_key.is_some() {
        return (body, message.idempotency_key);
    }
    let run = new_run_id();
    message.idempotency_key = Some(run.clone());
    (serde_json::to_vec(&message).map_or(body, Bytes::from), Some(run))
}

/// Answers an undo on the node that has the files of the run, else on the node that has its session. Authenticated
/// before the changes of the run are looked up.
async fn at_owner_of_run(
    server: &ServerState,
    request: Request,
    next: Next,
    id: &RunId,
) -> Result<Response, ProblemResponse> {
    let (mut parts, body) = request.into_parts();
    let call = ApiCall::from_request_parts(&mut parts, server).await?;
    let request = authenticated(parts, &call, body);
    match server.engine().find_stored_run(id).await? {
        Some(run) => {
            server.engine().refresh_owner(&run.session_key).await?;
            match server.engine().find_node_of_changes(&run).await? {
                Some(node) => at_node(server, request, next, &node).await,
                None => at_owner_of(server, request, next, run.session_key, Placement::Place).await,
            }
        }
        // The handler says that there is none.
        None => Ok(next.run(request).await),
    }
}

/// Answers a request on this node of the cluster. Here, if the node is this one or is gone: the handler then says so.
async fn at_node(
    server: &ServerState,
    request: Request,
    next: Next,
    node: &NodeName,
) -> Result<Response, ProblemResponse> {
    let engine = server.engine();
    let peers = engine.cluster().map(Cluster::live_peers).unwrap_or_default();
    let Some(peer) = peers.into_iter().find(|row| row.membership.node == *node) else {
        return Ok(next.run(request).await);
    };
    let (mut parts, body) = request.into_parts();
    let call = ApiCall::from_request_parts(&mut parts, server).await?;
    let body = read_body(server, body).await?;
    forward(engine, &peer.membership, &parts, &call, &body).await.map_err(|problem| {
        let detail = format!(
            "the files are on the node {node}: {problem}. It is not known whether they were put back; repeat the undo, which \
             tells"
        );
        problem_response(ErrorCode::NodeUnreachable, detail).retry_after(1)
    })
}

/// A request whose caller is known, so that it is not counted again.
fn authenticated(mut parts: Parts, call: &ApiCall, body: Body) -> Request {
    parts.extensions.insert(ForwardedCaller { caller: call.caller.clone(), credential: call.credential });
    Request::from_parts(parts, body)
}

async fn read_body(server: &ServerState, body: Body) -> Result<Bytes, ProblemResponse> {
    let limit = server.engine().config().limits.request_body_bytes;
    to_bytes(body, limit).await.map_err(|_| {
        let detail = format!("the limit is {limit} bytes (request_body_bytes in [limits])");
        problem_response(ErrorCode::BodyTooLarge, detail)
    })
}

async fn send_to_channel(server: &ServerState, request: Request, next: Next) -> Result<Response, ProblemResponse> {
    let (mut parts, body) = request.into_parts();
    // Authenticated before the body is read.
    let call = ApiCall::from_request_parts(&mut parts, server).await?;
    let body = read_body(server, body).await?;
    let target = serde_json::from_slice::<ChannelSend>(&body).ok();
    let channel = target.as_ref().and_then(|send| send.to.split_once(':')).map(|(channel, _)| channel);
    let holder = match channel {
        Some(channel) => server.engine().other_duty_holder(&channel_duty(channel)).await?,
        // The handler says what is wrong with it.
        None => None,
    };
    match holder {
        Some(holder) => forward_to_holder(server, &holder, &parts, &call, &body).await,
        None => Ok(next.run(authenticated(parts, &call, Body::from(body))).await),
    }
}

/// Answers a request on the node that has a duty; on this one if nobody has it.
async fn at_holder_of(
    server: &ServerState,
    request: Request,
    next: Next,
    duty: &str,
) -> Result<Response, ProblemResponse> {
    let Some(holder) = server.engine().other_duty_holder(duty).await? else { return Ok(next.run(request).await) };
    let (mut parts, body) = request.into_parts();
    let call = ApiCall::from_request_parts(&mut parts, server).await?;
    let body = read_body(server, body).await?;
    forward_to_holder(server, &holder, &parts, &call, &body).await
}

async fn forward_to_holder(
    server: &ServerState,
    holder: &Membership,
    parts: &Parts,
    call: &ApiCall,
    body: &[u8],
) -> Result<Response, ProblemResponse> {
    forward(server.engine(), holder, parts, call, body).await.map_err(|problem| {
        let detail = format!(
            "the node {} listens to the channel, and does not answer: {problem}. It is not known whether the request was \
             carried out",
            holder.node
        );
        problem_response(ErrorCode::NodeUnreachable, detail).retry_after(1)
    })
}

/// Forwards a message that was posted to a channel, which this node has verified, to the node that listens. `None` if
/// this node does, or nobody.
pub(super) async fn forward_post(
    server: &ServerState,
    channel: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Option<Response>, ProblemResponse> {
    let engine = server.engine();
    let Some(holder) = engine.other_duty_holder(&channel_duty(channel)).await? else { return Ok(None) };
    let is_text =
        |(name, value): (&HeaderName, &HeaderValue)| Some((name.to_string(), value.to_str().ok()?.to_owned()));
    let left_out = [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION];
    let headers = headers.iter().filter(|(name, _)| !left_out.contains(name)).filter_map(is_text).collect();
    let name = utf8_percent_encode(channel, NON_ALPHANUMERIC);
    let target = format!("/api/channels/{name}/messages");
    let request = ForwardedRequest { method: Method::POST.to_string(), target, headers, from: None };
    let head = ForwardedHead::Request(Box::new(request));
    let head = serde_json::to_string(&head).unwrap_or_default();
    let answered = match engine.forward(&holder, &head, body) {
        Some(call) => receive_response(call, ANSWER_TIMEOUT).await,
        None => Err("there is no cluster".to_owned()),
    };
    answered.map(Some).map_err(|problem| {
        let detail = format!("the node {} listens to the channel, and does not answer: {problem}", holder.node);
        problem_response(ErrorCode::NodeUnreachable, detail).retry_after(1)
    })
}

/// Adds the state of each channel from the node that listens to it.
async fn list_channels(server: &ServerState, request: Request, next: Next) -> Result<Response, ProblemResponse> {
    let (mut parts, body) = request.into_parts();
    let call = ApiCall::from_request_parts(&mut parts, server).await?;
    let asked = copy_parts(&parts);
    let (head, body) = next.run(authenticated(parts, &call, body)).await.into_parts();
    let Ok(body) = to_bytes(body, usize::MAX).await else { return Ok(head.status.into_response()) };
    let engine = server.engine();
    let duties = match engine.cluster() {
        Some(cluster) if head.status.is_success() => cluster.store().list_duties().await?,
        _ => return Ok(Response::from_parts(head, Body::from(body))),
    };
    let mut merged: Value = serde_json::from_slice(&body).unwrap_or_default();
    let holders: HashSet<Membership> = duties.iter().map(|duty| duty.holder.clone()).collect();
    let others = ask_nodes(server, holders.into_iter().collect(), &asked, &call, &[]).await;
    let mut unreached = Vec::new();
    for duty in &duties {
        let Some(channel) = duty.name.strip_prefix(CHANNEL_DUTY_PREFIX) else { continue };
        match others.iter().find(|(node, _)| *node == duty.holder) {
            Some((_, Some((_, answer)))) => {
                replace_channel_row(&mut merged, &serde_json::from_slice(answer).unwrap_or_default(), channel);
            }
            Some((node, None)) => unreached.push(node.node.to_string()),
            // This one.
            None => {}
        }
    }
    unreached.dedup();
    Ok(merged_response(head, &merged, &unreached))
}

fn merged_response(head: axum::http::response::Parts, merged: &Value, unreached: &[String]) -> Response {
    let mut response = Response::from_parts(head, Body::from(merged.to_string()));
    response.headers_mut().remove(header::CONTENT_LENGTH);
    if let (false, Ok(names)) = (unreached.is_empty(), HeaderValue::try_from(unreached.join(", "))) {
        response.headers_mut().insert(UNREACHED_HEADER, names);
    }
    response
}

fn forwarded_head(parts: &Parts, call: &ApiCall) -> String {
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let header = |name: &HeaderName| Some((name.to_string(), parts.headers.get(name)?.to_str().ok()?.to_owned()));
    let headers = FORWARDED_HEADERS.iter().filter_map(header).collect();
    let from = ForwardedCaller { caller: call.caller.clone(), credential: call.credential };
    let request = ForwardedRequest { method: parts.method.to_string(), target, headers, from: Some(from) };
    let head = ForwardedHead::Request(Box::new(request));
    serde_json::to_string(&head).unwrap_or_default()
}

/// The answer of another node, or why there is none.
async fn forward(
    engine: &Engine,
    node: &Membership,
    parts: &Parts,
    call: &ApiCall,
    body: &[u8],
) -> Result<Response, String> {
    let peer_call = engine.forward(node, &forwarded_head(parts, call), body).ok_or("there is no cluster")?;
    // The head of a whole answer of a model API comes at its end. The call ends with the other node.
    let is_model_api = parts.uri.path().starts_with("/v1/");
    receive_response(peer_call, if is_model_api { MODEL_API_TIMEOUT } else { ANSWER_TIMEOUT }).await
}

async fn receive_response(mut peer_call: PeerCall, head_timeout: Duration) -> Result<Response, String> {
    let head = match timeout(head_timeout, peer_call.next()).await {
        Ok(Some(Ok(head))) => head,
        Ok(Some(Err(error))) => return Err(error.to_string()),
        Ok(None) => return Err("its answer is empty".to_owned()),
        Err(_) => return Err(format!("it has not answered for {} s", head_timeout.as_secs())),
    };
    let head: ForwardedResponse = serde_json::from_slice(&head).map_err(|error| error.to_string())?;
    let body = stream::unfold(peer_call, |mut peer_call| async move {
        let message = peer_call.next().await?;
        Some((message.map_err(std::io::Error::other), peer_call))
    });
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    for (name, value) in head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

/// Adds to the answer of this node those of all others.
async fn every_node(server: &ServerState, request: Request, next: Next) -> Result<Response, ProblemResponse> {
    let (mut parts, body) = request.into_parts();
    let call = ApiCall::from_request_parts(&mut parts, server).await?;
    let asked = copy_parts(&parts);
    let others = ask_others(server, &asked, &call, &[]);
    let here = next.run(authenticated(parts, &call, body));
    let (here, others) = tokio::join!(here, others);
    if !here.status().is_success() {
        return Ok(here);
    }
    let (head, body) = here.into_parts();
    let mut merged: Value = match to_bytes(body, usize::MAX).await {
        Ok(body) => serde_json::from_slice(&body).unwrap_or_default(),
        Err(_) => Value::Null,
    };
    let mut unreached = Vec::new();
    for (node, answer) in others {
        match answer {
            Some((StatusCode::OK, body)) => {
                merge_answers(&mut merged, serde_json::from_slice(&body).unwrap_or_default())
            }
            // The node does not know it, which is no reason to hide what others know.
            Some(_) => {}
            None => unreached.push(node.node.to_string()),
        }
    }
    Ok(merged_response(head, &merged, &unreached))
}

/// Answers a request about something that one node has, whichever it is: this one first.
async fn any_node(server: &ServerState, request: Request, next: Next) -> Result<Response, ProblemResponse> {
    let (request, body) = inspect_body(request).await;
    let (mut parts, whole) = request.into_parts();
    let Ok(call) = ApiCall::from_request_parts(&mut parts, server).await else {
        return Ok(next.run(Request::from_parts(parts, whole)).await);
    };
    let again = copy_parts(&parts);
    let here = next.run(authenticated(parts, &call, whole)).await;
    if here.status() != StatusCode::NOT_FOUND {
        return Ok(here);
    }
    let others = ask_others(server, &again, &call, &body.unwrap_or_default()).await;
    let found =
        others.into_iter().filter_map(|(_, answer)| answer).find(|(status, _)| *status != StatusCode::NOT_FOUND);
    Ok(match found {
        Some((status, body)) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        None => here,
    })
}

fn copy_parts(parts: &Parts) -> Parts {
    let mut copy = Request::new(()).into_parts().0;
    copy.method = parts.method.clone();
    copy.uri = parts.uri.clone();
    copy.headers = parts.headers.clone();
    copy
}

type NodeAnswer = (Membership, Option<(StatusCode, Bytes)>);

/// The answers of all other nodes that are at work; `None` for those that do not answer in time.
async fn ask_others(server: &ServerState, parts: &Parts, call: &ApiCall, body: &[u8]) -> Vec<NodeAnswer> {
    let peers = server.engine().cluster().map(quell_engine::cluster::Cluster::live_peers).unwrap_or_default();
    ask_nodes(server, peers.into_iter().map(|row| row.membership).collect(), parts, call, body).await
}

/// As [`ask_others`], of these nodes. This one is left out.
async fn ask_nodes(
    server: &ServerState,
    nodes: Vec<Membership>,
    parts: &Parts,
    call: &ApiCall,
    body: &[u8],
) -> Vec<NodeAnswer> {
    let engine = server.engine();
    let is_other = |node: &Membership| engine.cluster().is_some_and(|cluster| cluster.membership() != node);
    let ask = |node: Membership| async move {
        let answer = async {
            let response = forward(engine, &node, parts, call, body).await.ok()?;
            let (head, body) = response.into_parts();
            Some((head.status, to_bytes(body, usize::MAX).await.ok()?))
        };
        let answer = tokio::time::timeout(GATHER_TIMEOUT, answer).await.ok().flatten();
        (node, answer)
    };
    futures_util::future::join_all(nodes.into_iter().filter(is_other).map(ask)).await
}

/// Headers of an answer for the node that has forwarded the request.
pub(crate) fn answer_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |(name, value): (&HeaderName, &HeaderValue)| Some((name.to_string(), value.to_str().ok()?.to_owned()));
    headers.iter().filter(|(name, _)| *name != header::CONTENT_LENGTH).filter_map(text).collect()
}

/// A forwarded request as the routes of this node take it.
pub(crate) fn build_request(head: ForwardedRequest, body: Vec<u8>) -> Option<Request> {
    let mut builder = Request::builder()
        .method(Method::from_bytes(head.method.as_bytes()).ok()?)
        .uri(&head.target)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_LENGTH, body.len());
    for (name, value) in &head.headers {
        builder = builder.header(name, value);
    }
    if let Some(from) = head.from {
        builder = builder.extension(from);
    }
    builder.extension(Forwarded).body(Body::from(body)).ok()
}

/// Answers what other nodes forward.
pub(crate) struct ForwardedService {
    server: ServerState,
    routes: axum::Router,
}

impl ForwardedService {
    pub(crate) fn new(server: ServerState, routes: axum::Router) -> Arc<Self> {
        Arc::new(Self { server, routes })
    }
}

impl PeerService for ForwardedService {
    fn serve(&self, head: &str, body: Vec<u8>) -> PeerMessages {
        match serde_json::from_str::<ForwardedHead>(head) {
            Ok(ForwardedHead::Method(method)) => {
                Box::pin(stream::once(answer_forwarded_method(self.server.clone(), *method)))
            }
            Ok(ForwardedHead::Request(request)) => {
                Box::pin(stream::once(answer_as_messages(self.routes.clone(), build_request(*request, body))).flatten())
            }
            Err(_) => Box::pin(stream::once(answer_as_messages(self.routes.clone(), None)).flatten()),
        }
    }
}

/// The head of the answer, and then its body.
async fn answer_as_messages(routes: axum::Router, request: Option<Request>) -> impl Stream<Item = Vec<u8>> + Send {
    let response = match request {
        Some(request) => answer_request(routes, request).await,
        None => problem_response(ErrorCode::InvalidRequest, "the forwarded request cannot be read").into_response(),
    };
    let (head, body) = response.into_parts();
    let head = ForwardedResponse { status: head.status.as_u16(), headers: answer_headers(&head.headers) };
    let head = serde_json::to_vec(&head).unwrap_or_default();
    let body = body.into_data_stream().map(|piece| piece.map(Vec::from).unwrap_or_default());
    stream::once(std::future::ready(head)).chain(body)
}

async fn answer_request(routes: axum::Router, request: Request) -> Response {
    let service = hyper_util::service::TowerToHyperService::new(routes);
    match hyper::service::Service::call(&service, request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
