//! List the audit log.

use axum::Json;
use axum::extract::State;
use quell_protocol::api::Page;
use quell_protocol::audit::AuditRow;
use serde::Deserialize;

use super::extractors::QueryParams;
use super::runs::{DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE};
use super::{AuthenticatedCaller, ProblemResponse};
use crate::state::ServerState;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AuditListQuery {
    after: u64,
    limit: Option<usize>,
}

pub(super) async fn list(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    QueryParams(query): QueryParams<AuditListQuery>,
) -> Result<Json<Page<AuditRow>>, ProblemResponse> {
    auth.require_admin()?;
    let limit = query.limit.unwrap_or(DEFAULT_PAGE_SIZE).clamp(1, MAX_PAGE_SIZE);
    Ok(Json(server.engine().list_audit(query.after, limit).await?))
}
