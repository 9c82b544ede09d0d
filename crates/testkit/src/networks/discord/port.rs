//! The two ports: accepts connections, and speaks HTTP on the one.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{Shared, gateway, rest};
use crate::model::wire_http::{plain_head, read_request};
use crate::networks::port::accept;

/// Serves both ports until the set is dropped.
pub(super) fn serve(rest: TcpListener, gateway: TcpListener, shared: &Arc<Shared>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(accept(rest, Arc::clone(shared), |stream, shared| async move {
        // A client that leaves in the middle is what many tests are about.
        let _ = talk(stream, &shared).await;
    }));
    tasks.spawn(accept(gateway, Arc::clone(shared), gateway::serve));
    tasks
}

async fn talk(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(&mut stream, &mut buffer).await? {
        let reply = shared.change(|state| rest::answer(state, &incoming, &shared.addresses));
        let Some(reply) = reply else { return Ok(()) };
        stream.write_all(plain_head(reply.status, &reply.headers, reply.body.len()).as_bytes()).await?;
        stream.write_all(&reply.body).await?;
    }
    Ok(())
}
