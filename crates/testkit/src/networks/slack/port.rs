//! The two ports: accepts connections, and speaks HTTP on the one.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::{Shared, api, socket};
use crate::model::wire_http::{plain_head, read_request};

/// A listener on a free port.
pub(super) fn free() -> TcpListener {
    match listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) {
        Ok(listener) => listener,
        Err(error) => panic!("no port for Slack: {error}"),
    }
}

/// A listener at an address.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(64)
}

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

async fn accept<F>(listener: TcpListener, shared: Arc<Shared>, each: impl Fn(TcpStream, Arc<Shared>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        // An accept that is dropped leaves the connection in the backlog.
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                // Small frames are what is sent here; without it they would wait for each other.
                let _ = stream.set_nodelay(true);
                connections.spawn(each(stream, Arc::clone(&shared)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
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
