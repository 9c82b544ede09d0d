//! The transport to a server: one type for pipes and HTTP, so that the library's client is compiled once.

use std::io;
use std::sync::Arc;

use futures_util::TryFutureExt;
use futures_util::future::Either;
use rmcp::RoleClient;
use rmcp::model::ServerJsonRpcMessage;
use rmcp::service::TxJsonRpcMessage;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::{StreamableHttpClientTransport, Transport};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::http_connection::{HttpError, ScopedHttpClient};
use super::line_limit::LineLimitReader;
use super::message_monitor::MessageMonitor;
use super::ordered_transport::OrderedTransport;

/// A transport whose messages a [`MessageMonitor`] observes.
pub(super) struct ServerTransport {
    pub(super) connection: ServerConnection,
    pub(super) monitor: Arc<MessageMonitor>,
}

pub(super) enum ServerConnection {
    Pipes(OrderedTransport<AsyncRwTransport<RoleClient, LineLimitReader<Receiver>, Sender>>),
    Http(StreamableHttpClientTransport<ScopedHttpClient>),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ServerTransportError {
    #[error(transparent)]
    Pipes(#[from] io::Error),
    #[error(transparent)]
    Http(#[from] HttpError),
}

impl Transport<RoleClient> for ServerTransport {
    type Error = ServerTransportError;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.monitor.note_outgoing(&item);
        match &mut self.connection {
            ServerConnection::Pipes(pipes) => Either::Left(pipes.send(item).err_into()),
            ServerConnection::Http(http) => Either::Right(http.send(item).err_into()),
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let received = match &mut self.connection {
                ServerConnection::Pipes(pipes) => Either::Left(pipes.receive()),
                ServerConnection::Http(http) => Either::Right(http.receive()),
            };
            // waits: in the task of the connection; no run waits here.
            let message = received.await?;
            if !self.monitor.consume_incoming(&message) {
                return Some(message);
            }
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        match &mut self.connection {
            ServerConnection::Pipes(pipes) => Either::Left(pipes.close().err_into()),
            ServerConnection::Http(http) => Either::Right(http.close().err_into()),
        }
    }
}
