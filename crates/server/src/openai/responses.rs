//! OpenAI's Responses API: create, stream, read again, cancel, delete; and conversations.
//!
//! A response in the foreground belongs to its connection: a client that closes it stops the run. One in the background
//! goes on, and its events can be read again while it is made and after its end.

mod begun;
mod conversations;
mod create;
mod encoder;
mod history;
mod ids;
mod items;
mod live;
mod object;
mod run;
mod stored;

use axum::Router;
use axum::routing::{get, post};

pub(crate) use live::LiveResponses;

use crate::state::ServerState;

pub(super) fn routes() -> Router<ServerState> {
    Router::new()
        .route("/v1/responses", post(create::create))
        .route("/v1/responses/input_tokens", post(create::count_input_tokens))
        .route("/v1/responses/{id}", get(stored::show).delete(stored::delete))
        .route("/v1/responses/{id}/cancel", post(stored::cancel))
        .route("/v1/responses/{id}/input_items", get(stored::list_input_items))
        .route("/v1/conversations", post(conversations::create))
        .route(
            "/v1/conversations/{id}",
            get(conversations::show).post(conversations::update).delete(conversations::delete),
        )
        .route("/v1/conversations/{id}/items", get(conversations::list_items).post(conversations::add_items))
        .route("/v1/conversations/{id}/items/{item}", get(conversations::show_item).delete(conversations::delete_item))
}
