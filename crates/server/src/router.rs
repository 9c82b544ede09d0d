//! All routes of the daemon: the HTTP API, the files of the page, the WebSocket endpoint, MCP.

use axum::Router;
use axum::routing::get;

use crate::state::ServerState;
use crate::{anthropic, http, mcp_server, openai, web_assets, ws};

pub fn router(server: ServerState) -> Router {
    let routes = http::api_routes()
        .merge(openai::routes())
        .merge(anthropic::routes())
        .route("/assets/{*path}", get(web_assets::asset))
        .route("/", get(ws::upgrade))
        .route("/ws", get(ws::upgrade))
        .merge(mcp_server::mcp_routes());
    http::add_layers(routes, server)
}
