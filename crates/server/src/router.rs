//! All routes of the daemon: the HTTP API, the files of the page, the WebSocket endpoint, MCP, A2A.

use axum::Router;
use axum::routing::get;

use crate::state::ServerState;
use crate::{a2a, anthropic, http, mcp_server, openai, web_assets, ws};

pub fn router(server: ServerState) -> Router {
    let routes = http::api_routes()
        .merge(openai::routes())
        .merge(anthropic::routes())
        .route("/assets/{*path}", get(web_assets::asset))
        .route("/", get(ws::upgrade))
        .route("/ws", get(ws::upgrade))
        .merge(mcp_server::mcp_routes())
        .merge(a2a::a2a_routes());
    http::add_layers(routes, server)
}
