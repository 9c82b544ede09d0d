//! A port that never completes a connection: for stops while connecting.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::leaks::{self, TcpState};

/// A listener whose queue is full, so that the kernel leaves every further client waiting in its handshake.
#[derive(Debug)]
pub struct BlackHole {
    address: SocketAddr,
    _listener: TcpListener,
    _fills_the_queue: TcpStream,
}

impl BlackHole {
    /// Opens one on a free port.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    ///
    /// # Panics
    /// When the system refuses.
    pub async fn open() -> Self {
        let made = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            // A queue of length 0 holds one connection; this one, which nobody accepts.
            let listener = socket.listen(0)?;
            let address = listener.local_addr()?;
            let filler = TcpStream::connect(address).await?;
            std::io::Result::Ok(Self { address, _listener: listener, _fills_the_queue: filler })
        };
        match made.await {
            Ok(hole) => hole,
            Err(error) => panic!("no black hole: {error}"),
        }
    }

    /// The base address, with `/v1`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Waits until exactly `n` clients hang in their handshake.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub async fn connecting(&self, n: usize) {
        let port = self.address.port();
        leaks::settled(Duration::from_secs(20), move || {
            let table = leaks::tcp_sockets();
            let hanging = table.iter().filter(|s| s.remote.port() == port && s.state == TcpState::Connecting).count();
            if hanging == n { Ok(()) } else { Err(format!("{hanging} clients connecting to port {port}, not {n}")) }
        })
        .await;
    }
}
