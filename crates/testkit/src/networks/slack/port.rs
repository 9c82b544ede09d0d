//! The two ports: accepts connections, and speaks HTTP on the one.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{Shared, api, socket};
use crate::model::wire_http::{plain_head, read_request};
use crate::networks::port::accept;

/// Serves both ports until the set is dropped.
pub(super) fn serve(api: TcpListener, sockets: TcpListener, shared: &Arc<Shared>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(accept(api, Arc::clone(shared), |stream, shared| async move {
        // A client that leaves in the middle is what many tests are about.
        let _ = talk(stream, &shared).await;
    }));
    tasks.spawn(accept(sockets, Arc::clone(shared), socket::serve));
    tasks
}

async fn talk(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(&mut stream, &mut buffer).await? {
        let Some(reply) = shared.change(|state| api::answer(state, &incoming)) else { return Ok(()) };
        stream.write_all(plain_head(reply.status, &reply.headers, reply.body.len()).as_bytes()).await?;
        stream.write_all(&reply.body).await?;
    }
    Ok(())
}
