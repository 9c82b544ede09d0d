//! Sessions out and in, lines of JSON that are checked as they come; and copies of the whole database.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use quell_engine::Engine;
use quell_engine::dispatch::{ArchiveReader, BadArchive, ImportError};
use quell_engine::store::{Archive, Spool, StoreError};
use quell_protocol::api::SessionRow;
use quell_protocol::{ErrorCode, SessionKey};
use tokio::time::timeout;

use super::sessions::no_session;
use super::{Refused, Visitor, refuse};
use crate::door::Door;

const LINES: &str = "application/x-ndjson";
const DATABASE: &str = "application/vnd.sqlite3";
/// Other names of the same.
const ALSO_LINES: [&str; 3] = [LINES, "application/jsonl", "application/octet-stream"];

/// A body that is refused is read on so far and thrown away: a client that still sends would lose the answer otherwise.
const READ_ON: usize = 1 << 30;

/// How long a body may be silent, and how long a refused one is read on: there is one place for imports.
const SILENCE: Duration = Duration::from_secs(30);

impl From<ImportError> for Refused {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::SessionExists(_) | ImportError::RunExists(_) => refuse(ErrorCode::Conflict, error.to_string()),
            ImportError::Endpoints => refuse(ErrorCode::Forbidden, error.to_string()),
            ImportError::Store(error) => error.into(),
        }
    }
}

impl From<BadArchive> for Refused {
    fn from(error: BadArchive) -> Self {
        refuse(ErrorCode::InvalidRequest, format!("{error}; nothing was imported"))
    }
}

pub(super) async fn export(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(key): Path<String>,
) -> Result<Response, Refused> {
    let key = SessionKey::parse(key)?;
    let spool = door.engine().export_session(&key).await?.ok_or_else(|| no_session(&key))?;
    Ok(handed_out(door.engine(), spool, LINES))
}

pub(super) async fn backup(State(door): State<Door>, visitor: Visitor) -> Result<Response, Refused> {
    let spool = door.engine().backup(visitor.admin()?).await?;
    Ok(handed_out(door.engine(), spool, DATABASE))
}

/// A spool as an answer. Its length is told, so that a client sees when it was cut.
fn handed_out(engine: &Engine, spool: Spool, kind: &'static str) -> Response {
    let length = spool.length();
    let pieces = stream::try_unfold((engine.clone(), spool, 0), |(engine, spool, at)| async move {
        let piece = engine.piece(&spool, at).await?;
        let next = at + piece.len() as u64;
        Ok::<_, StoreError>((!piece.is_empty()).then(|| (Bytes::from(piece), (engine, spool, next))))
    });
    let headers = [(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    (headers, Body::from_stream(pieces)).into_response()
}

/// The archive in a body.
pub(super) struct Lines(Archive);

pub(super) async fn import(
    State(door): State<Door>,
    visitor: Visitor,
    request: Request,
) -> Result<(StatusCode, Json<SessionRow>), Refused> {
    let caller = visitor.writer()?.clone();
    let Some(_place) = door.take_import() else {
        return Err(refuse(
            ErrorCode::Conflict,
            "another session is being imported; send this one again when that is done",
        ));
    };
    let Lines(archive) = Lines::from_request(request, &door).await?;
    Ok((StatusCode::CREATED, Json(door.engine().import_session(&caller, archive).await?)))
}

impl FromRequest<Door> for Lines {
    type Rejection = Refused;

    async fn from_request(request: Request, door: &Door) -> Result<Self, Refused> {
        check_kind(request.headers())?;
        let limit = door.engine().config().limits.import_bytes;
        take_in(request.into_body().into_data_stream(), limit).await.map(Self)
    }
}

async fn take_in<E>(mut body: impl Stream<Item = Result<Bytes, E>> + Unpin, limit: usize) -> Result<Archive, Refused>
where
    E: std::fmt::Display,
{
    let mut intake = Intake { reader: ArchiveReader::default(), begun: Vec::new(), left: limit, limit };
    let broken = |how: String| refuse(ErrorCode::InvalidRequest, format!("the body {how}; nothing was imported"));
    let silent = |_elapsed| broken(format!("was silent for {} s", SILENCE.as_secs()));
    while let Some(piece) = timeout(SILENCE, body.next()).await.map_err(silent)? {
        let piece = piece.map_err(|error| broken(format!("broke off: {error}")))?;
        if let Err(refused) = intake.take(&piece) {
            // Whoever still sends then does not get the answer.
            let _ = timeout(SILENCE, read_on(body)).await;
            return Err(refused);
        }
    }
    intake.finish()
}

/// Lines, from pieces that end anywhere.
struct Intake {
    reader: ArchiveReader,
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
    left: usize,
    limit: usize,
}

impl Intake {
    fn take(&mut self, piece: &[u8]) -> Result<(), Refused> {
        self.left = self.left.checked_sub(piece.len()).ok_or_else(|| {
            let limit = self.limit;
            let detail = format!(
                "the limit is {limit} bytes (import_bytes in [limits] of the configuration); nothing was imported"
            );
            refuse(ErrorCode::BodyTooLarge, detail)
        })?;
        let mut lines = piece.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            self.begun.extend_from_slice(line);
            self.reader.line(&self.begun)?;
            self.begun.clear();
        }
        self.begun.extend_from_slice(last);
        Ok(())
    }

    fn finish(mut self) -> Result<Archive, Refused> {
        if !self.begun.is_empty() {
            self.reader.line(&self.begun)?;
        }
        Ok(self.reader.finish()?)
    }
}

async fn read_on<E>(mut body: impl Stream<Item = Result<Bytes, E>> + Unpin) {
    let mut read = 0;
    while let Some(Ok(piece)) = body.next().await {
        read += piece.len();
        if read > READ_ON {
            return;
        }
    }
}

/// A form of a web page could send other kinds without asking.
fn check_kind(headers: &HeaderMap) -> Result<(), Refused> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if ALSO_LINES.contains(&essence.as_str()) {
        return Ok(());
    }
    Err(refuse(ErrorCode::UnsupportedMediaType, format!("the body must be lines of JSON with content-type {LINES}")))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_begins_an_import_and_falls_silent_does_not_keep_its_place_for_ever() {
        let body = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"\n"))]).chain(stream::pending());
        let taken = timeout(SILENCE * 3, take_in(body, 1000)).await.expect("the place is kept");
        assert_eq!(taken.unwrap_err().into_response().status(), StatusCode::BAD_REQUEST);
        // Refused for its length, and still open.
        let body = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"\n\n"))]).chain(stream::pending());
        let taken = timeout(SILENCE * 3, take_in(body, 1)).await.expect("the place is kept");
        assert_eq!(taken.unwrap_err().into_response().status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
