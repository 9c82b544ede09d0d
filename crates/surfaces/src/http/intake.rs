//! Bodies of requests, read into memory within limits: each has one of its own, and all together have a budget.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use quell_protocol::ErrorCode;

use super::{Refused, refuse};
use crate::budget::{ByteBudget, Reservation};
use crate::door::UNCOUNTED;

/// What the body of one request has taken from a budget, until its answer is made.
#[derive(Debug, Clone, Default)]
pub(super) struct Held(Arc<Mutex<Option<Reservation>>>);

/// How much of a body is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance<'a> {
    /// The most bytes.
    pub(super) limit: usize,
    /// Where the limit can be changed, in words; empty when nowhere.
    pub(super) set_by: &'static str,
    /// From which it takes what goes beyond [`UNCOUNTED`]; none where a stop must not wait for the bodies of others.
    pub(super) budget: Option<&'a ByteBudget>,
}

/// What a body holds of a budget is held until the request is answered, however it is handled.
pub(super) async fn hold(mut request: Request, next: Next) -> Response {
    let held = Held::default();
    request.extensions_mut().insert(held.clone());
    let response = next.run(request).await;
    drop(held);
    response
}

impl Allowance<'_> {
    /// Reads a body to its end.
    pub(super) async fn read(&self, held: Option<&Held>, headers: &HeaderMap, body: Body) -> Result<Bytes, Refused> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > self.limit) {
            return Err(self.too_large());
        }
        let mut reserved = self.budget.map(ByteBudget::reserve);
        let mut read = BytesMut::new();
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| {
                refuse(ErrorCode::InvalidRequest, format!("the body was not read to its end: {error}"))
            })?;
            let bytes = read.len() + piece.len();
            if bytes > self.limit {
                return Err(self.too_large());
            }
            if let Some(reserved) = &mut reserved
                && bytes > UNCOUNTED
                && reserved.resize(bytes).is_err()
            {
                return Err(too_much_at_once());
            }
            read.extend_from_slice(&piece);
        }
        if let Some(held) = held {
            *held.0.lock().unwrap_or_else(PoisonError::into_inner) = reserved;
        }
        Ok(read.freeze())
    }

    fn too_large(&self) -> Refused {
        let Self { limit, set_by, .. } = self;
        refuse(ErrorCode::BodyTooLarge, format!("the limit is {limit} bytes{set_by}"))
    }
}

fn too_much_at_once() -> Refused {
    let detail =
        "other requests that are being received take all the memory that there is for bodies; send this one again";
    refuse(ErrorCode::TooMuchAtOnce, detail).retry_after(1)
}
