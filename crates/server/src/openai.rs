//! OpenAI's API, as its official clients speak it: chat completions and models. It translates only.
//!
//! `model` is `agent/ID` or `PROVIDER/MODEL`. A client that closes its connection stops its run.

mod chat;
mod chat_answer;
mod error;
mod models;
mod responses;

use axum::Router;
use axum::http::HeaderName;
use axum::routing::{get, post};

pub(crate) use responses::LiveResponses;

use crate::state::ServerState;

/// OpenAI's clients show it as the id of the request.
const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");

pub(crate) use error::translate_response;

pub(crate) fn routes() -> Router<ServerState> {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::show))
        .merge(responses::routes())
}
