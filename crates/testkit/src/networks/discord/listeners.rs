//! Accept connections on the two ports, and serve HTTP on one of them.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{FakeDiscordShared, gateway, rest_api};
use crate::model::http1::{read_request, response_head};
use crate::networks::listener::accept_loop;

/// Serves both ports until the set is dropped.
pub(super) fn serve_ports(rest: TcpListener, gateway: TcpListener, shared: &Arc<FakeDiscordShared>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(accept_loop(rest, Arc::clone(shared), |stream, shared| async move {
        // Many tests let the client disconnect in the middle.
        let _ = serve_http(stream, &shared).await;
    }));
    tasks.spawn(accept_loop(gateway, Arc::clone(shared), gateway::serve_connection));
    tasks
}

async fn serve_http(mut stream: TcpStream, shared: &FakeDiscordShared) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(&mut stream, &mut buffer).await? {
        let reply = shared.update_state(|state| rest_api::answer_request(state, &incoming, &shared.addresses));
        let Some(reply) = reply else { return Ok(()) };
        stream.write_all(response_head(reply.status, &reply.headers, reply.body.len()).as_bytes()).await?;
        stream.write_all(&reply.body).await?;
    }
    Ok(())
}
