//! Record in the audit log which requests of known callers were refused for want of rights.

use std::sync::{Arc, OnceLock};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use quell_engine::access::Caller;

use crate::state::ServerState;

/// Where the authentication of a request leaves its caller, in the extensions of the request. Also of a caller whose
/// credential has ended.
#[derive(Debug, Clone, Default)]
pub(super) struct CallerSlot(Arc<OnceLock<Caller>>);

impl CallerSlot {
    /// Only the first call for a request has an effect.
    pub(super) fn set(&self, caller: Caller) {
        let _ = self.0.set(caller);
    }
}

/// The detail of a problem, in the extensions of its response.
#[derive(Debug, Clone)]
pub(super) struct ProblemDetail(pub(super) Arc<str>);

pub(super) async fn audit_refusals(State(server): State<ServerState>, mut request: Request, next: Next) -> Response {
    let slot = CallerSlot::default();
    request.extensions_mut().insert(slot.clone());
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let response = next.run(request).await;
    let is_refusal = matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    if let Some(caller) = slot.0.get().filter(|_| is_refusal) {
        let detail = response.extensions().get::<ProblemDetail>().map_or("", |ProblemDetail(detail)| detail);
        server.engine().audit_refusal(caller, &format!("{method} {}", uri.path()), detail);
    }
    response
}
