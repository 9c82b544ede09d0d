//! Ports of imitated networks: a free one, and its connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::model::server::listen;

/// A listener on a free port.
pub(super) fn free() -> TcpListener {
    match listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) {
        Ok(listener) => listener,
        Err(error) => panic!("no free port: {error}"),
    }
}

/// Hands each connection out, until it is dropped; their tasks end with it.
pub(super) async fn accept<S, F>(listener: TcpListener, shared: Arc<S>, each: impl Fn(TcpStream, Arc<S>) -> F)
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
