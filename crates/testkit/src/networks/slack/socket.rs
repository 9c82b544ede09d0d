//! One connection of Socket Mode: a ticket, hello, envelopes until they are acknowledged.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::Shared;
use super::state::State;

/// Slack: Socket Mode. An app has ten connections at the most.
const MOST_CONNECTIONS: usize = 10;
/// Nothing is told again for so long.
const LONG: Duration = Duration::from_secs(3600);

/// What a test orders of every open connection.
#[derive(Debug, Clone)]
pub(super) enum Order {
    /// To be gone, without a word.
    Drop,
    /// To close.
    Close,
    /// To do nothing any more.
    Freeze,
    /// To ask the client to leave, and why.
    Disconnect(&'static str),
    /// To say this.
    Say(String),
}

/// Counts itself among the open connections.
struct Open {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.change(|state| state.forget(self.number));
    }
}

/// Serves a connection until either side ends it.
#[expect(clippy::result_large_err, reason = "the form in which the handshake wants its answer")]
pub(super) async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let look = |request: &Request, response: Response| {
        let ticket = request.uri().query().and_then(|query| query.strip_prefix("ticket=")).unwrap_or_default();
        if shared.change(|state| state.take_ticket(ticket)) {
            return Ok(response);
        }
        let mut refusal = ErrorResponse::new(None);
        *refusal.status_mut() = StatusCode::UNAUTHORIZED;
        Err(refusal)
    };
    let Ok(mut socket) = accept_hdr_async(stream, look).await else { return };
    let (orders, inbox) = mpsc::unbounded_channel();
    shared.orders().push(orders);
    let number = shared.change(State::open);
    let open = Open { shared: Arc::clone(&shared), number };
    // A client that leaves in the middle is what many tests are about.
    let _ = run(&mut socket, &shared, number, inbox).await;
    drop(open);
}

async fn run(
    socket: &mut WebSocketStream<TcpStream>,
    shared: &Shared,
    number: u64,
    mut inbox: mpsc::UnboundedReceiver<Order>,
) -> Result<(), Error> {
    let mut changes = shared.state.subscribe();
    let connections = shared.state.borrow().connections;
    let info = json!({"app_id": "A1111"});
    say(socket, &json!({"type": "hello", "num_connections": connections, "connection_info": info})).await?;
    loop {
        while let Some(told) = shared.change_if_any(number) {
            say(socket, &told).await?;
        }
        if shared.state.borrow().is_relieved(number) {
            return close(socket).await;
        }
        let retry = shared.state.borrow().next_retry().unwrap_or_else(|| Instant::now() + LONG);
        // Each of these only takes what has come; what is not taken comes again.
        tokio::select! {
            order = inbox.recv() => match order {
                Some(Order::Say(text)) => socket.send(Message::text(text)).await?,
                Some(Order::Disconnect(reason)) => {
                    shared.change(|state| state.leaving.push(number));
                    say(socket, &json!({"type": "disconnect", "reason": reason, "debug_info": {"host": "fake"}})).await?;
                }
                Some(Order::Close) => return close(socket).await,
                Some(Order::Freeze) => {
                    shared.change(|state| state.frozen += 1);
                    pending::<()>().await;
                }
                Some(Order::Drop) | None => return Ok(()),
            },
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => take(shared, &text),
                Some(Ok(Message::Binary(_))) => shared.change(|state| state.complain("a binary frame".to_owned())),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Err(error)) => return Err(error),
            },
            _ = changes.changed() => {}
            () = sleep_until(retry) => {}
        }
    }
}

fn take(shared: &Shared, text: &str) {
    let told: Value = serde_json::from_str(text).unwrap_or_default();
    shared.change(|state| match told["envelope_id"].as_str() {
        Some(id) => state.acknowledge(id),
        None => state.complain(format!("a frame that acknowledges nothing: {text}")),
    });
}

async fn say(socket: &mut WebSocketStream<TcpStream>, told: &Value) -> Result<(), Error> {
    socket.send(Message::text(told.to_string())).await
}

async fn close(socket: &mut WebSocketStream<TcpStream>) -> Result<(), Error> {
    socket.close(None).await?;
    // The close has arrived when the client answers it or is gone.
    while let Some(Ok(_)) = socket.next().await {}
    Ok(())
}

impl Shared {
    /// What a connection has to tell next. Nobody is woken when that is nothing.
    fn change_if_any(&self, number: u64) -> Option<Value> {
        let mut told = None;
        self.state.send_if_modified(|state| {
            told = state.next_for(number, Instant::now());
            told.is_some()
        });
        told
    }
}

impl State {
    /// A ticket is good for one connection.
    fn take_ticket(&mut self, ticket: &str) -> bool {
        let known = self.tickets.iter().position(|known| known == ticket);
        match known {
            Some(at) if self.connections < MOST_CONNECTIONS => {
                self.tickets.remove(at);
                true
            }
            Some(_) | None => {
                self.complain(format!("a connection without a good ticket: {ticket}"));
                false
            }
        }
    }

    fn open(&mut self) -> u64 {
        self.connections += 1;
        self.opened += 1;
        u64::try_from(self.opened).unwrap_or(u64::MAX)
    }

    /// True when a connection was asked to leave, there is another one, and all that it told is acknowledged.
    fn is_relieved(&self, number: u64) -> bool {
        self.leaving.contains(&number) && self.connections > self.leaving.len() && !self.waits(number)
    }
}
