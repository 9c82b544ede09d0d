//! The base of the fakes of networks that have an HTTP API and WebSockets on two ports, as Discord and Slack have them.

use std::fmt::Debug;
use std::ops::Deref;

use tokio::net::TcpStream;
use tokio::sync::broadcast;

use crate::fake_server::http1::RawHttpRequest;
use crate::fake_server::{FakeHttpReply, FakePort, SharedState, start_http_server};

/// Commands that a connection may have to take yet; more than any test sends.
const MAX_COMMANDS: usize = 1024;

/// The two ports of a network with the state `S`, whose tests send the commands `C` to every open WebSocket.
#[derive(Debug)]
pub struct FakeSocketNetwork<S, C> {
    shared: SocketNetworkState<S, C>,
    pub(super) api: FakePort,
    pub(super) sockets: FakePort,
}

#[derive(Debug, Clone)]
pub(super) struct SocketNetworkState<S, C> {
    pub(super) state: SharedState<S>,
    pub(super) commands: broadcast::Sender<C>,
}

impl<S, C> FakeSocketNetwork<S, C>
where
    S: Clone + Debug + Send + Sync + 'static,
    C: Clone + Send + 'static,
{
    pub(super) fn start<F: Future<Output = ()> + Send + 'static>(
        state: S,
        answer: fn(&mut S, &RawHttpRequest) -> Option<FakeHttpReply>,
        serve_socket: fn(TcpStream, SocketNetworkState<S, C>) -> F,
    ) -> Self {
        let shared =
            SocketNetworkState { state: SharedState::new(state), commands: broadcast::Sender::new(MAX_COMMANDS) };
        let api = start_http_server(&shared.state, answer);
        let sockets = FakePort::start(&shared, serve_socket);
        Self { shared, api, sockets }
    }

    /// Closes its ports and all connections; sessions stay.
    pub async fn stop_listening(&self) {
        self.api.stop().await;
        self.sockets.stop().await;
    }

    pub fn resume_listening(&self) {
        self.api.listen_again();
        self.sockets.listen_again();
    }

    pub(super) fn send_command(&self, command: C) {
        // Without a connection nobody receives it.
        let _ = self.shared.commands.send(command);
    }
}

impl<S, C> Deref for FakeSocketNetwork<S, C> {
    type Target = SharedState<S>;

    fn deref(&self) -> &SharedState<S> {
        &self.shared.state
    }
}
