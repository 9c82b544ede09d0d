//! Read request bodies within a size limit and a shared memory budget.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use quell_protocol::ErrorCode;

use super::{ProblemResponse, problem_response};
use crate::budget::{Budget, Reservation, UNBUDGETED_BYTES};

/// The budget reservation of one request's body, held until its response is ready.
#[derive(Debug, Clone, Default)]
pub(crate) struct BodyReservation(Arc<Mutex<Option<Reservation>>>);

impl BodyReservation {
    /// Gives the room back before the response is ready.
    pub(crate) fn release(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimit<'a> {
    pub(super) max_bytes: usize,
    /// Text that names the setting of the limit, for the error; may be empty.
    pub(super) configured_by: &'static str,
    /// Budget for bodies larger than [`UNBUDGETED_BYTES`]; `None` where a stop must not wait for the bodies of others.
    pub(super) budget: Option<&'a Budget>,
}

/// Keeps the reservation of the body until the response is ready, whichever function handles the request.
pub(super) async fn hold_body_reservation(mut request: Request, next: Next) -> Response {
    let held = BodyReservation::default();
    request.extensions_mut().insert(held.clone());
    let response = next.run(request).await;
    drop(held);
    response
}

impl BodyLimit<'_> {
    pub(super) async fn read_body(
        &self,
        held: Option<&BodyReservation>,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Bytes, ProblemResponse> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > self.max_bytes) {
            return Err(self.too_large());
        }
        let mut reserved = self.budget.map(Budget::empty_reservation);
        let mut read = BytesMut::new();
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| {
                problem_response(ErrorCode::InvalidRequest, format!("the body was not read to its end: {error}"))
            })?;
            let bytes = read.len() + piece.len();
            if bytes > self.max_bytes {
                return Err(self.too_large());
            }
            if let Some(reserved) = &mut reserved
                && bytes > UNBUDGETED_BYTES
                && reserved.resize(bytes).is_err()
            {
                return Err(receive_budget_exhausted());
            }
            read.extend_from_slice(&piece);
        }
        if let Some(held) = held {
            *held.0.lock().unwrap_or_else(PoisonError::into_inner) = reserved;
        }
        Ok(read.freeze())
    }

    fn too_large(&self) -> ProblemResponse {
        let Self { max_bytes: limit, configured_by: set_by, .. } = self;
        problem_response(ErrorCode::BodyTooLarge, format!("the limit is {limit} bytes{set_by}"))
    }
}

fn receive_budget_exhausted() -> ProblemResponse {
    let detail =
        "other requests that are being received take all the memory that there is for bodies; send this one again";
    problem_response(ErrorCode::TooMuchAtOnce, detail).retry_after(1)
}
