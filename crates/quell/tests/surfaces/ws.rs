//! The gateway's WebSocket, tested with a client that shares no code with it.

mod attachments;
mod chat;
mod connection_limits;
mod contract;
mod follow;
mod gateway;
mod gateway_approvals;
mod handshake;
mod session_work;
mod stop;

use quell_test_support::ws_client::{WsTestClient, chat_send_params};

use crate::prelude::*;

/// A server, and a client that is connected to it as its admin.
async fn start_connected() -> (TestServer, WsTestClient) {
    let server = TestServer::start().await;
    let client = WsTestClient::connect_operator(&server, &server.token).await;
    (server, client)
}

/// As [`TestServer::start_streaming`], with a client that connects afterwards.
async fn start_streaming_and_connect() -> (TestServer, String, WsTestClient) {
    let (server, run) = TestServer::start_streaming().await;
    let client = WsTestClient::connect_operator(&server, &server.token).await;
    (server, run, client)
}

/// A server and a socket before its handshake.
async fn start_with_socket() -> (TestServer, WsTestClient) {
    let server = TestServer::start().await;
    let client = WsTestClient::open_socket(&server).await;
    (server, client)
}
