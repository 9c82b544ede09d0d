//! A port that never completes a connection, for stops while connecting.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::leaks;
use crate::or_fail::OrFail as _;

/// A listener with a full queue, so that the kernel leaves every further client waiting in its handshake.
#[derive(Debug)]
pub struct BlackHole {
    address: SocketAddr,
    _listener: TcpListener,
    _fills_the_queue: TcpStream,
}

impl BlackHole {
    /// Opens one on a free port.
    pub async fn open() -> Self {
        let made = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            // A queue of length 0 holds one connection, which is never accepted.
            let listener = socket.listen(0)?;
            let address = listener.local_addr()?;
            let filler = TcpStream::connect(address).await?;
            std::io::Result::Ok(Self { address, _listener: listener, _fills_the_queue: filler })
        };
        made.await.or_fail("no black hole")
    }

    /// The base URL, with `/v1`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Waits until exactly `n` clients wait in their handshake.
    pub async fn wait_for_connecting(&self, n: usize) {
        let port = self.address.port();
        leaks::wait_until(Duration::from_secs(20), move || {
            let hanging = leaks::count_connecting(port);
            if hanging == n { Ok(()) } else { Err(format!("{hanging} clients connecting to port {port}, not {n}")) }
        })
        .await;
    }
}
