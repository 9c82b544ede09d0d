//! List the audit log, or export it as lines of JSON.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{BoxError, Json};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;

use super::extractors::{QueryParams, page_size};
use super::{ApiCall, ProblemResponse};

/// Entries that an export reads at once.
const EXPORT_PAGE_ROWS: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AuditListQuery {
    after: u64,
    /// Of an export: the number of all lines.
    limit: Option<usize>,
    format: AuditFormat,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AuditFormat {
    /// A page.
    #[default]
    Json,
    /// All entries, one in each line.
    Jsonl,
}

pub(super) async fn list(
    call: ApiCall,
    QueryParams(query): QueryParams<AuditListQuery>,
) -> Result<Response, ProblemResponse> {
    call.require_admin()?;
    match query.format {
        AuditFormat::Json => {
            Ok(Json(call.engine().list_audit(query.after, page_size(query.limit)).await?).into_response())
        }
        AuditFormat::Jsonl => {
            let export = AuditExport { after: query.after, remaining: query.limit.unwrap_or(usize::MAX), call };
            let body = Body::from_stream(stream::try_unfold(export, AuditExport::next_lines));
            Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
        }
    }
}

/// An export that is being sent.
struct AuditExport {
    /// When its credential ends, the response breaks off, so that a client notices that lines are missing.
    call: ApiCall,
    after: u64,
    remaining: usize,
}

impl AuditExport {
    async fn next_lines(mut self) -> Result<Option<(Bytes, Self)>, BoxError> {
        if !self.call.has_valid_credential() {
            return Err("the credential of the caller has ended".into());
        }
        if self.remaining == 0 {
            return Ok(None);
        }
        let page = self.call.engine().list_audit(self.after, EXPORT_PAGE_ROWS.min(self.remaining)).await?;
        let Some(last) = page.items.last() else { return Ok(None) };
        self.after = last.seq;
        self.remaining = if page.next_cursor.is_some() { self.remaining - page.items.len() } else { 0 };
        let mut lines = Vec::new();
        for row in &page.items {
            // Cannot fail: plain data with string keys.
            lines.extend(serde_json::to_vec(row).unwrap_or_default());
            lines.push(b'\n');
        }
        Ok(Some((lines.into(), self)))
    }
}
