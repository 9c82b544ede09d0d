//! List the audit log.

use axum::Json;
use quell_protocol::api::Page;
use quell_protocol::audit::AuditRow;
use serde::Deserialize;

use super::extractors::{QueryParams, page_size};
use super::{ApiCall, ApiResult};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AuditListQuery {
    after: u64,
    limit: Option<usize>,
}

pub(super) async fn list(call: ApiCall, QueryParams(query): QueryParams<AuditListQuery>) -> ApiResult<Page<AuditRow>> {
    call.require_admin()?;
    let limit = page_size(query.limit);
    Ok(Json(call.engine().list_audit(query.after, limit).await?))
}
