//! Export and import sessions as NDJSON; download a backup of the database. An import is checked line by line as it
//! arrives.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Path, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{BoxError, Json};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use quell_engine::engine::{ArchiveError, ArchiveReader, ImportError};
use quell_protocol::api::SessionRow;
use quell_protocol::{ErrorCode, SessionKey};
use quell_store::{SessionArchive, TempFile};
use tokio::time::timeout;

use super::sessions::session_not_found;
use super::{ApiCall, ProblemResponse, problem_response};
use crate::state::ServerState;

const NDJSON_TYPE: &str = "application/x-ndjson";
const SQLITE_TYPE: &str = "application/vnd.sqlite3";
/// Content types that are accepted for NDJSON.
const ACCEPTED_NDJSON_TYPES: [&str; 3] = [NDJSON_TYPE, "application/jsonl", "application/octet-stream"];

/// Up to this many bytes of a refused body are read and discarded. A client that is still sending would otherwise miss
/// the response.
const MAX_DISCARDED_BYTES: usize = 1 << 30;

/// Maximum pause in a body, and time limit for discarding a refused one. There is only one import permit.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

impl From<ImportError> for ProblemResponse {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::SessionExists(_) | ImportError::RunExists(_) => {
                problem_response(ErrorCode::Conflict, error.to_string())
            }
            ImportError::EndpointsForbidden | ImportError::Forbidden(_) | ImportError::Reserved(_) => {
                problem_response(ErrorCode::Forbidden, error.to_string())
            }
            ImportError::Store(error) => error.into(),
        }
    }
}

impl From<ArchiveError> for ProblemResponse {
    fn from(error: ArchiveError) -> Self {
        problem_response(ErrorCode::InvalidRequest, format!("{error}; nothing was imported"))
    }
}

pub(super) async fn export(call: ApiCall, Path(key): Path<String>) -> Result<Response, ProblemResponse> {
    let key = SessionKey::parse(key)?;
    call.require_readable(&key)?;
    let file = call.engine().export_session(&key).await?.ok_or_else(|| session_not_found(&key))?;
    Ok(file_response(call, file, NDJSON_TYPE))
}

pub(super) async fn backup(call: ApiCall) -> Result<Response, ProblemResponse> {
    let file = call.engine().backup(call.require_admin()?).await?;
    Ok(file_response(call, file, SQLITE_TYPE))
}

/// Streams a file as the response, as long as the credential of the caller is valid. Content-Length lets a client notice
/// a truncated download.
fn file_response(call: ApiCall, file: TempFile, kind: &'static str) -> Response {
    let length = file.length();
    let pieces = stream::try_unfold((call, file, 0), |(call, file, offset)| async move {
        if !call.has_valid_credential() {
            return Err(BoxError::from("the credential of the caller has ended"));
        }
        let piece = call.engine().read_chunk(&file, offset).await?;
        let next = offset + piece.len() as u64;
        Ok((!piece.is_empty()).then(|| (Bytes::from(piece), (call, file, next))))
    });
    let headers = [(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    (headers, Body::from_stream(pieces)).into_response()
}

pub(super) struct ArchiveBody(SessionArchive);

pub(super) async fn import(call: ApiCall, request: Request) -> Result<(StatusCode, Json<SessionRow>), ProblemResponse> {
    let caller = call.require_write()?.clone();
    let Some(_permit) = call.server.budgets().imports.reserve_one() else {
        return Err(problem_response(
            ErrorCode::Conflict,
            "another session is being imported; send this one again when that is done",
        ));
    };
    let ArchiveBody(archive) = ArchiveBody::from_request(request, &call.server).await?;
    Ok((StatusCode::CREATED, Json(call.engine().import_session(&caller, archive).await?)))
}

impl FromRequest<ServerState> for ArchiveBody {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, server: &ServerState) -> Result<Self, ProblemResponse> {
        check_content_type(request.headers())?;
        let limit = server.engine().config().limits.import_bytes;
        read_archive(request.into_body().into_data_stream(), limit).await.map(Self)
    }
}

async fn read_archive<E: std::fmt::Display>(
    mut body: impl Stream<Item = Result<Bytes, E>> + Unpin,
    limit: usize,
) -> Result<SessionArchive, ProblemResponse> {
    let mut line_reader =
        ArchiveLineReader { reader: ArchiveReader::default(), partial_line: Vec::new(), remaining: limit, limit };
    let broken =
        |how: String| problem_response(ErrorCode::InvalidRequest, format!("the body {how}; nothing was imported"));
    let silent = |_elapsed| broken(format!("was silent for {} s", READ_TIMEOUT.as_secs()));
    while let Some(piece) = timeout(READ_TIMEOUT, body.next()).await.map_err(silent)? {
        let piece = piece.map_err(|error| broken(format!("broke off: {error}")))?;
        if let Err(refused) = line_reader.push_chunk(&piece) {
            // Read on: a client that is still sending would miss the response.
            let _ = timeout(READ_TIMEOUT, discard_body(body)).await;
            return Err(refused);
        }
    }
    line_reader.finish()
}

/// Splits chunks of the body into lines.
struct ArchiveLineReader {
    reader: ArchiveReader,
    /// The beginning of a line without its end.
    partial_line: Vec<u8>,
    remaining: usize,
    limit: usize,
}

impl ArchiveLineReader {
    fn push_chunk(&mut self, piece: &[u8]) -> Result<(), ProblemResponse> {
        self.remaining = self.remaining.checked_sub(piece.len()).ok_or_else(|| {
            let limit = self.limit;
            let detail = format!(
                "the limit is {limit} bytes (import_bytes in [limits] of the configuration); nothing was imported"
            );
            problem_response(ErrorCode::BodyTooLarge, detail)
        })?;
        let mut lines = piece.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            self.partial_line.extend_from_slice(line);
            self.reader.read_line(&self.partial_line)?;
            self.partial_line.clear();
        }
        self.partial_line.extend_from_slice(last);
        Ok(())
    }

    fn finish(mut self) -> Result<SessionArchive, ProblemResponse> {
        if !self.partial_line.is_empty() {
            self.reader.read_line(&self.partial_line)?;
        }
        Ok(self.reader.finish()?)
    }
}

async fn discard_body<E>(mut body: impl Stream<Item = Result<Bytes, E>> + Unpin) {
    let mut read = 0;
    while let Some(Ok(piece)) = body.next().await {
        read += piece.len();
        if read > MAX_DISCARDED_BYTES {
            return;
        }
    }
}

/// A form on a foreign web page could send other content types without a preflight request.
fn check_content_type(headers: &HeaderMap) -> Result<(), ProblemResponse> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if ACCEPTED_NDJSON_TYPES.contains(&essence.as_str()) {
        return Ok(());
    }
    Err(problem_response(
        ErrorCode::UnsupportedMediaType,
        format!("the body must be lines of JSON with content-type {NDJSON_TYPE}"),
    ))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stalled_import_gives_its_permit_back() {
        let body = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"\n"))]).chain(stream::pending());
        let result =
            timeout(READ_TIMEOUT * 3, read_archive(body, 1000)).await.expect("the import permit is not returned");
        assert_eq!(result.unwrap_err().into_response().status(), StatusCode::BAD_REQUEST);
        // Refused for its length, while the body stays open.
        let body = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"\n\n"))]).chain(stream::pending());
        let result = timeout(READ_TIMEOUT * 3, read_archive(body, 1)).await.expect("the import permit is not returned");
        assert_eq!(result.unwrap_err().into_response().status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
