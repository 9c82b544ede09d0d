//! The HTTP door: routes of interfaces.md, JSON in and out, problems with stable codes.

mod agents;
mod approvals;
mod archive;
mod audit;
mod auth;
mod body;
mod channels;
mod host;
mod intake;
mod memory;
mod openapi;
mod ops;
mod problem;
mod processes;
mod runs;
mod sessions;
mod sign_in;
mod sse;
mod stop;
mod tokens;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{delete, get, post};

use crate::door::Door;
pub(crate) use auth::{Visitor, check_origin, cookie, origin_of, peer_of};
pub(crate) use host::name_of;
pub use ops::{STOP_BUCKETS, STOP_SECONDS, describe_metrics};
pub(crate) use problem::{Refused, refuse};
pub(crate) use stop::is_stop_route;

/// All routes.
pub fn router(door: Door) -> Router {
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
        .route("/api/sessions", get(sessions::list).post(sessions::open))
        .route("/api/sessions/{key}", get(sessions::show).patch(sessions::patch).delete(sessions::delete))
        .route("/api/sessions/{key}/history", get(sessions::history))
        .route("/api/sessions/{key}/export", get(archive::export))
        .route("/api/import", post(archive::import))
        .route("/api/sessions/{key}/reset", post(sessions::reset))
        .route("/api/sessions/{key}/memory", get(memory::of_session))
        .route("/api/sessions/{key}/memory/{note}", delete(memory::forget_of_session))
        .route("/api/agents/{id}/memory", get(memory::of_agent))
        .route("/api/agents/{id}/memory/{note}", delete(memory::forget_of_agent))
        .route("/api/senders", get(memory::senders))
        .route("/api/senders/{sender}/memory", get(memory::of_sender).delete(memory::forget_sender))
        .route("/api/senders/{sender}/memory/{note}", delete(memory::forget_of_sender))
        .route("/api/sessions/{key}/runs", post(runs::send))
        .route("/api/sessions/{key}/stop", post(stop::session))
        .route("/api/processes", get(processes::all))
        .route("/api/sessions/{key}/processes", get(processes::list))
        .route("/api/sessions/{key}/processes/{id}", get(processes::show).delete(processes::end))
        .route("/api/runs", get(runs::list))
        .route("/api/runs/{id}", get(runs::show))
        .route("/api/runs/{id}/events", get(sse::events))
        .route("/api/runs/{id}/stop", post(stop::run))
        .route("/api/approvals", get(approvals::list))
        .route("/api/approvals/{id}", post(approvals::answer))
        .route("/api/stop", post(stop::everything))
        .route("/api/hold", get(stop::show_hold).put(stop::set_hold).delete(stop::lift_hold))
        .route("/api/channels", get(channels::list))
        .route("/api/channels/send", post(channels::send))
        .route("/api/channels/{name}/test", post(channels::test))
        .route("/api/channels/{name}/messages", post(channels::receive))
        .route("/api/backup", get(archive::backup))
        .route("/api/audit", get(audit::list))
        .route("/api/tokens", get(tokens::list).post(tokens::create))
        .route("/api/tokens/{name}", delete(tokens::revoke))
        .route("/api/me", get(sign_in::me))
        .route("/api/sign-in", post(sign_in::by_token))
        .route("/api/sign-in-link", post(sign_in::link))
        .route("/api/sign-out", post(sign_in::out))
        .route("/sign-in/{code}", get(sign_in::by_link))
        .route("/assets/{*path}", get(crate::page::asset))
        .route("/", get(crate::ws::upgrade))
        .route("/ws", get(crate::ws::upgrade))
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::no_method)
        // The body extractor has its own limit, with a problem body.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(intake::hold))
        .layer(middleware::from_fn(problem::refuse_malformed_escapes))
        .layer(middleware::from_fn_with_state(door.clone(), host::check))
        .layer(middleware::from_fn(harden))
        .with_state(door)
}

/// A browser that shows an answer loads and runs nothing because of it.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

/// Answers are for programs: no sniffing, no framing, no caching.
async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(NOTHING));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
