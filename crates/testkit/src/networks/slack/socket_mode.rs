//! One Socket Mode connection: checks the ticket, sends hello, then sends envelopes until they are acknowledged.

use std::future::pending;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::FakeSlackShared;
use super::state::FakeSlackState;

/// Slack: Socket Mode. An app has at most ten connections.
const MAX_CONNECTIONS: usize = 10;
/// Wait while no envelope is due to be sent again.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// Command of a test for every open connection.
#[derive(Debug, Clone)]
pub enum SocketModeCommand {
    /// Break the connection without a close frame.
    Drop,
    Close,
    /// Stop reading and writing.
    Freeze,
    /// Ask the client to reconnect, with this reason.
    Disconnect(&'static str),
    Send(String),
}

/// Serves a connection until either side ends it.
#[expect(clippy::result_large_err, reason = "the signature that the handshake callback requires")]
pub(super) async fn serve_connection(stream: TcpStream, shared: FakeSlackShared) {
    let look = |request: &Request, response: Response| {
        let ticket = request.uri().query().and_then(|query| query.strip_prefix("ticket=")).unwrap_or_default();
        if shared.state.update(|state| state.redeem_ticket(ticket)) {
            return Ok(response);
        }
        let mut refusal = ErrorResponse::new(None);
        *refusal.status_mut() = StatusCode::UNAUTHORIZED;
        Err(refusal)
    };
    let Ok(mut socket) = accept_hdr_async(stream, look).await else { return };
    let inbox = shared.commands.subscribe();
    let number = shared.state.update(FakeSlackState::register_connection);
    let _open = shared.state.on_drop(move |state| state.remove_connection(number));
    // Many tests let the client disconnect in the middle.
    let _ = run_connection(&mut socket, &shared, number, inbox).await;
}

async fn run_connection(
    socket: &mut WebSocketStream<TcpStream>,
    shared: &FakeSlackShared,
    number: u64,
    mut inbox: broadcast::Receiver<SocketModeCommand>,
) -> Result<(), Error> {
    let mut changes = shared.state.subscribe();
    let connections = shared.state.with_state(|state| state.connections);
    let info = json!({"app_id": "A1111"});
    send_json(socket, &json!({"type": "hello", "num_connections": connections, "connection_info": info})).await?;
    loop {
        while let Some(told) = shared.state.update_if(|state| state.next_envelope_for(number, Instant::now())) {
            send_json(socket, &told).await?;
        }
        let (may_close, retry) = shared.state.with_state(|state| (state.may_close(number), state.next_retry_at()));
        if may_close {
            return close_socket(socket).await;
        }
        let retry = retry.unwrap_or_else(|| Instant::now() + IDLE_WAIT);
        // Cancel safe: each branch only takes what has arrived.
        tokio::select! {
            order = inbox.recv() => match order {
                Ok(SocketModeCommand::Send(text)) => socket.send(Message::text(text)).await?,
                Ok(SocketModeCommand::Disconnect(reason)) => {
                    shared.state.update(|state| state.leaving.push(number));
                    send_json(socket, &json!({"type": "disconnect", "reason": reason, "debug_info": {"host": "fake"}})).await?;
                }
                Ok(SocketModeCommand::Close) => return close_socket(socket).await,
                Ok(SocketModeCommand::Freeze) => {
                    shared.state.update(|state| state.frozen += 1);
                    pending::<()>().await;
                }
                Ok(SocketModeCommand::Drop) | Err(_) => return Ok(()),
            },
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => receive_frame(shared, &text),
                Some(Ok(Message::Binary(_))) => shared.state.update(|state| state.client_errors.push("a binary frame".to_owned())),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Err(error)) => return Err(error),
            },
            _ = changes.changed() => {}
            () = sleep_until(retry) => {}
        }
    }
}

fn receive_frame(shared: &FakeSlackShared, text: &str) {
    let told: Value = serde_json::from_str(text).unwrap_or_default();
    shared.state.update(|state| match told["envelope_id"].as_str() {
        Some(id) => state.acknowledge(id),
        None => state.client_errors.push(format!("a frame that acknowledges nothing: {text}")),
    });
}

async fn send_json(socket: &mut WebSocketStream<TcpStream>, told: &Value) -> Result<(), Error> {
    socket.send(Message::text(told.to_string())).await
}

async fn close_socket(socket: &mut WebSocketStream<TcpStream>) -> Result<(), Error> {
    socket.close(None).await?;
    // The close frame has arrived when the client answers it or is gone.
    while let Some(Ok(_)) = socket.next().await {}
    Ok(())
}

impl FakeSlackState {
    /// A ticket is valid for one connection.
    fn redeem_ticket(&mut self, ticket: &str) -> bool {
        let known = self.tickets.iter().position(|known| known == ticket);
        match known {
            Some(at) if self.connections < MAX_CONNECTIONS => {
                self.tickets.remove(at);
                true
            }
            Some(_) | None => {
                self.client_errors.push(format!("a connection without a good ticket: {ticket}"));
                false
            }
        }
    }

    fn register_connection(&mut self) -> u64 {
        self.connections += 1;
        self.opened += 1;
        u64::try_from(self.opened).unwrap_or(u64::MAX)
    }

    /// True when the connection was asked to reconnect, another one exists, and everything sent on it is acknowledged.
    fn may_close(&self, number: u64) -> bool {
        self.leaving.contains(&number) && self.connections > self.leaving.len() && !self.has_unacknowledged(number)
    }
}
