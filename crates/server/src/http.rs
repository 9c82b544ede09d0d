//! Routes of the HTTP API and the security headers of every response. Error responses are problem+json with stable
//! codes.

mod agents;
mod approvals;
mod archive;
mod audit;
mod auth;
mod body_limits;
mod channels;
mod cluster;
mod extractors;
mod forward;
mod host_check;
mod mcp;
mod memory;
mod openapi;
mod ops;
mod problem;
mod processes;
mod refusal_audit;
mod runs;
mod schedules;
mod sessions;
mod sign_in;
mod sse;
mod stop;
mod tokens;
mod undo;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};

use crate::model_api_errors::translate_problems;
use crate::state::ServerState;
pub(crate) use auth::{ApiCall, check_origin, is_over_tls, is_unix_peer, login_cookie, peer_ip, request_origin};
pub(crate) use body_limits::BodyReservation;
pub(crate) use extractors::{JsonBody, QueryParams, read_request_body};
pub(crate) use forward::{
    ANSWER_TIMEOUT, ForwardedHead, ForwardedService, REPEATS, ask_response_node, send_message_to_owner,
};
pub use ops::describe_metrics;
pub(crate) use problem::{ProblemFacts, ProblemResponse, problem_response};
pub(crate) use runs::{RunListQuery, build_submission, list_runs, parse_run_id, retry_seconds};
pub(crate) use sse::RunEventReader;
pub(crate) use stop::{
    StopWaitMode, change_hold, is_stop_route, stop_all, stop_one_run, stop_one_session, stop_request, stop_run_of_agent,
};

/// The answer of a route that always has the same status.
type ApiResult<T> = Result<Json<T>, ProblemResponse>;

pub(crate) fn api_routes() -> Router<ServerState> {
    Router::new()
        .route("/healthz", get(ops::healthz))
        .route("/readyz", get(ops::readyz))
        .route("/metrics", get(ops::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/api/agents", get(agents::list).post(agents::create))
        .route("/api/agents/tree", get(agents::tree))
        .route("/api/models", get(agents::models))
        .route("/api/agents/{id}", get(agents::show).delete(agents::delete))
        .route("/api/agent/{id}/abort", post(agents::abort))
        .route("/api/agent//abort", post(agents::abort_without_id))
        .route("/api/sessions", get(sessions::list).post(sessions::get_or_create))
        .route("/api/sessions/{key}", get(sessions::show).patch(sessions::patch).delete(sessions::delete))
        .route("/api/sessions/{key}/history", get(sessions::history))
        .route("/api/sessions/{key}/export", get(archive::export))
        .route("/api/import", post(archive::import))
        .route("/api/sessions/{key}/sharing", put(sessions::share))
        .route("/api/sessions/{key}/compact", post(sessions::compact))
        .route("/api/sessions/{key}/reset", post(sessions::reset))
        .route("/api/sessions/{key}/memory", get(memory::list_of_session))
        .route("/api/sessions/{key}/memory/{note}", delete(memory::forget_session_note))
        .route("/api/agents/{id}/memory", get(memory::list_of_agent))
        .route("/api/agents/{id}/memory/{note}", delete(memory::forget_agent_note))
        .route("/api/senders", get(memory::list_senders))
        .route("/api/senders/{sender}/memory", get(memory::list_of_sender).delete(memory::forget_sender))
        .route("/api/senders/{sender}/memory/{note}", delete(memory::forget_sender_note))
        .route("/api/sessions/{key}/runs", post(runs::send_message))
        .route("/api/sessions/{key}/stop", post(stop::stop_session))
        .route("/api/processes", get(processes::list_all))
        .route("/api/sessions/{key}/processes", get(processes::list))
        .route("/api/sessions/{key}/processes/{id}", get(processes::show).delete(processes::end))
        .route("/api/runs", get(runs::list))
        .route("/api/runs/{id}", get(runs::show))
        .route("/api/runs/{id}/events", get(sse::events))
        .route("/api/runs/{id}/stop", post(stop::stop_run))
        .route("/api/runs/{id}/undo", post(undo::undo_run))
        .route("/api/approvals", get(approvals::list))
        .route("/api/approvals/{id}", post(approvals::answer))
        .route("/api/approval-rules", get(approvals::list_rules))
        .route("/api/approval-rules/{id}", delete(approvals::forget_rule))
        .route("/api/schedules", get(schedules::list).post(schedules::create))
        .route("/api/schedules/{id}", get(schedules::show).patch(schedules::patch).delete(schedules::delete))
        .route("/api/mcp/prompts", get(mcp::list_prompts))
        .route("/api/mcp/resources", get(mcp::list_resources))
        .route("/api/mcp/{server}/prompt", post(mcp::prompt))
        .route("/api/mcp/{server}/resource", post(mcp::resource))
        .route("/api/stop", post(stop::stop_everything))
        .route("/api/hold", get(stop::show_hold).put(stop::set_hold).delete(stop::lift_hold))
        .route("/api/cluster", get(cluster::show))
        .route("/api/drain", post(cluster::drain).delete(cluster::end_drain))
        .route("/api/channels", get(channels::list))
        .route("/api/channels/send", post(channels::send))
        .route("/api/channels/{name}/test", post(channels::test))
        .route("/api/channels/{name}/messages", post(channels::receive))
        .route("/api/backup", get(archive::backup))
        .route("/api/audit", get(audit::list))
        .route("/api/tokens", get(tokens::list).post(tokens::create))
        .route("/api/tokens/{name}", delete(tokens::revoke))
        .route("/api/tokens/{name}/rotate", post(tokens::rotate))
        .route("/api/me", get(sign_in::me))
        .route("/api/sign-in", post(sign_in::sign_in))
        .route("/api/sign-in-link", post(sign_in::create_link))
        .route("/api/sign-out", post(sign_in::sign_out))
        .route("/sign-in/{code}", get(sign_in::open_link))
}

/// Adds what all routes share: answers for unknown routes and methods, body limits, the host check, and headers.
pub(crate) fn add_layers(routes: Router<ServerState>, server: ServerState) -> Router {
    routes
        .fallback(problem::route_not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        // The body extractors have limits of their own, and answer with a problem body.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(server.clone(), forward::forward_to_owner))
        .layer(middleware::from_fn(body_limits::hold_body_reservation))
        .layer(middleware::from_fn_with_state(server.clone(), refusal_audit::audit_refusals))
        .layer(middleware::from_fn(problem::reject_malformed_escapes))
        .layer(middleware::from_fn_with_state(server.clone(), host_check::check_host))
        .layer(middleware::from_fn(translate_problems))
        .layer(middleware::from_fn(set_security_headers))
        .with_state(server)
}

/// A browser that shows a response must not load or run anything because of it.
const DENY_ALL_CSP: &str = "default-src 'none'; frame-ancestors 'none'";

/// Sets headers for responses to programs: no sniffing, no framing, no caching.
async fn set_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(DENY_ALL_CSP));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
