//! The list of who did what.

use axum::Json;
use axum::extract::State;
use quell_protocol::api::List;
use quell_protocol::audit::AuditRow;
use serde::Deserialize;

use super::body::Asked;
use super::runs::{PAGE, PAGE_MOST};
use super::{Refused, Visitor};
use crate::door::Door;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListQuery {
    after: u64,
    limit: Option<usize>,
}

pub(super) async fn list(
    State(door): State<Door>,
    visitor: Visitor,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<List<AuditRow>>, Refused> {
    visitor.admin()?;
    let limit = query.limit.unwrap_or(PAGE).clamp(1, PAGE_MOST);
    Ok(Json(door.engine().audit_list(query.after, limit).await?))
}
