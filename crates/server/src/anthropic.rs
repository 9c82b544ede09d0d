//! Anthropic's API, as its official clients speak it: messages and the count of their tokens. It translates only.
//!
//! `model` is `agent/ID` or `PROVIDER/MODEL`, whatever the wire format of the provider. A client that closes its
//! connection stops its run.

mod count;
mod error;
mod message_answer;
mod messages;
mod models;

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::post;

use crate::state::ServerState;

pub(crate) use error::translate_response;
pub(crate) use models::{ModelPage, list_models, model_object};

pub(crate) fn routes() -> Router<ServerState> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        // One route in a line: a test reads them.
        .route("/v1/messages/count_tokens", post(count::count))
}

/// True for a client of Anthropic's API on a route that OpenAI's API has, too.
pub(crate) fn is_anthropic_client(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}
