//! Accept connections on the two ports, and serve HTTP on one of them.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{FakeSlackShared, socket_mode, web_api};
use crate::model::http1::{read_request, response_head};
use crate::networks::listener::accept_loop;

/// Serves both ports until the set is dropped.
pub(super) fn serve_ports(api: TcpListener, sockets: TcpListener, shared: &Arc<FakeSlackShared>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(accept_loop(api, Arc::clone(shared), |stream, shared| async move {
        // Many tests let the client disconnect in the middle.
        let _ = serve_http(stream, &shared).await;
    }));
    tasks.spawn(accept_loop(sockets, Arc::clone(shared), socket_mode::serve_connection));
    tasks
}

async fn serve_http(mut stream: TcpStream, shared: &FakeSlackShared) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(&mut stream, &mut buffer).await? {
        let Some(reply) = shared.update_state(|state| web_api::answer_request(state, &incoming)) else { return Ok(()) };
        stream.write_all(response_head(reply.status, &reply.headers, reply.body.len()).as_bytes()).await?;
        stream.write_all(&reply.body).await?;
    }
    Ok(())
}
