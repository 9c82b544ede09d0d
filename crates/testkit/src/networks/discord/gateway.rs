//! One connection of the gateway: it says Hello, wants Identify or Resume, heartbeats in time, and tells its session's events.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::sessions::{MESSAGE_CONTENT, Session};
use super::stage::State;
use super::{Shared, TOKEN};

/// Discord: a payload of a client may have 4096 bytes.
const LONGEST: usize = 4096;
/// Discord: a client may send 120 payloads in 60 s.
const MOST: usize = 120;
const PER: Duration = Duration::from_secs(60);
/// Discord: intents go up to `DIRECT_MESSAGE_POLLS` (1 << 25).
const INTENTS: u64 = (1 << 26) - 1;
/// Discord: `GUILD_MEMBERS` and `GUILD_PRESENCES` are privileged, and this account has neither.
const NOT_OURS: u64 = (1 << 1) | (1 << 8);

/// What a test orders of every open connection.
#[derive(Debug, Clone)]
pub(super) enum Order {
    /// To be gone, without a word.
    Drop,
    /// To close with this code.
    Close(u16),
    /// To say this.
    Say(String),
}

/// Why a connection ends.
enum End {
    /// The server closes it.
    Close(u16),
    /// The server is gone.
    Drop,
    /// The client has closed it, or is gone.
    Left(Option<u16>),
}

struct Connection {
    socket: WebSocketStream<TcpStream>,
    shared: Arc<Shared>,
    number: u64,
    /// The number of the last event of its session that it told.
    told: u64,
    /// The session for which it speaks.
    session: Option<String>,
    /// When the next heartbeat is overdue.
    overdue: Instant,
    /// When the client has sent something within the last while.
    sent: Vec<Instant>,
}

/// Counts itself among the open connections.
struct Open<'a>(&'a watch::Sender<State>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.connections -= 1);
    }
}

/// Serves a connection until either side ends it.
#[expect(clippy::result_large_err, reason = "the form in which the handshake wants its answer")]
pub(super) async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let mut query = String::new();
    let look = |request: &Request, response: Response| {
        query = request.uri().query().unwrap_or_default().to_owned();
        Ok(response)
    };
    let Ok(socket) = accept_hdr_async(stream, look).await else { return };
    let (orders, inbox) = mpsc::unbounded_channel();
    shared.orders().push(orders);
    let mut number = 0;
    shared.state.send_modify(|state| {
        state.connections += 1;
        state.next_connection += 1;
        number = state.next_connection;
    });
    let open = Arc::clone(&shared);
    let _open = Open(&open.state);
    let overdue = Instant::now() + 2 * shared.state.borrow().heartbeat;
    let mut connection = Connection { socket, shared, number, told: 0, session: None, overdue, sent: Vec::new() };
    let end = match query.as_str() {
        "v=10&encoding=json" => connection.run(inbox).await.unwrap_or(End::Left(None)),
        _ => End::Close(4012),
    };
    connection.end(end).await;
}

impl Connection {
    async fn run(&mut self, mut inbox: mpsc::UnboundedReceiver<Order>) -> Result<End, Error> {
        let mut changes = self.shared.state.subscribe();
        let interval = u64::try_from(self.shared.state.borrow().heartbeat.as_millis()).unwrap_or(u64::MAX);
        self.say(&json!({"op": 10, "d": {"heartbeat_interval": interval}})).await?;
        loop {
            if self.tell().await?.is_none() {
                return Ok(End::Drop);
            }
            // Each of these only takes what has come; what is not taken comes again. What the client has sent is looked at
            // first, so that a heartbeat that has arrived is not overdue because this machine was busy.
            tokio::select! {
                biased;
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => {
                        if let Err(end) = self.take(&text).await {
                            return Ok(end);
                        }
                    }
                    Some(Ok(Message::Close(frame))) => return Ok(End::Left(frame.map(|frame| frame.code.into()))),
                    Some(Ok(Message::Binary(_))) => return Ok(End::Close(4002)),
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Ok(End::Left(None)),
                },
                () = sleep_until(self.overdue) => return Ok(End::Close(4009)),
                order = inbox.recv() => match order {
                    Some(Order::Say(text)) => self.socket.send(Message::text(text)).await?,
                    Some(Order::Close(code)) => return Ok(End::Close(code)),
                    Some(Order::Drop) | None => return Ok(End::Drop),
                },
                _ = changes.changed() => {}
            }
        }
    }

    async fn end(mut self, end: End) {
        match end {
            End::Close(code) => {
                self.shared.state.send_modify(|state| state.closed.push(code));
                let frame = CloseFrame { code: code.into(), reason: "".into() };
                if self.socket.close(Some(frame)).await.is_ok() {
                    // The close has arrived when the client answers it or is gone.
                    while let Some(Ok(_)) = self.socket.next().await {}
                }
            }
            End::Drop => {}
            End::Left(code) => self.shared.state.send_modify(|state| {
                state.left.push(code);
                // Discord: a client that closes with 1000 or 1001 has no session any more.
                if matches!(code, Some(1000 | 1001)) {
                    state.sessions.retain(|session| session.connection != self.number);
                }
            }),
        }
    }

    async fn say(&mut self, payload: &Value) -> Result<(), Error> {
        self.socket.send(Message::text(payload.to_string())).await
    }

    /// Tells what its session has not been told; nothing when the session is another connection's by now.
    async fn tell(&mut self) -> Result<Option<()>, Error> {
        let Some(id) = &self.session else { return Ok(Some(())) };
        let events = {
            let state = self.shared.state.borrow();
            match state.sessions.iter().find(|session| session.id == *id) {
                Some(session) if session.connection == self.number => session.after(self.told),
                Some(_) => return Ok(None),
                // It has ended: there is nothing to tell any more, and the client may begin another one.
                None => {
                    drop(state);
                    self.session = None;
                    return Ok(Some(()));
                }
            }
        };
        for (number, text) in events {
            self.socket.send(Message::text(text)).await?;
            self.told = number;
        }
        Ok(Some(()))
    }

    async fn take(&mut self, text: &str) -> Result<(), End> {
        let now = Instant::now();
        self.sent.retain(|at| now.duration_since(*at) < PER);
        self.sent.push(now);
        if self.sent.len() > MOST {
            return Err(End::Close(4008));
        }
        if text.len() > LONGEST {
            return Err(End::Close(4002));
        }
        let payload: Value = serde_json::from_str(text).map_err(|_| End::Close(4002))?;
        let answer = match payload["op"].as_u64() {
            Some(1) => self.heartbeat(&payload["d"])?,
            Some(2) => self.identify(&payload["d"])?,
            Some(6) => self.resume(&payload["d"])?,
            _ => return Err(End::Close(4001)),
        };
        match answer {
            Some(answer) => self.say(&answer).await.map_err(|_| End::Left(None)),
            None => Ok(()),
        }
    }

    fn heartbeat(&mut self, seq: &Value) -> Result<Option<Value>, End> {
        let seq = match seq {
            Value::Null => None,
            seq => Some(seq.as_u64().ok_or(End::Close(4002))?),
        };
        let mut acknowledges = false;
        let mut interval = Duration::ZERO;
        self.shared.state.send_modify(|state| {
            state.heartbeats += 1;
            acknowledges = state.acknowledges;
            interval = state.heartbeat;
            let own = state.sessions.iter_mut().find(|session| session.connection == self.number);
            if let (Some(session), Some(seq)) = (own, seq) {
                session.confirm(seq);
            }
        });
        self.overdue = Instant::now() + 2 * interval;
        Ok(acknowledges.then(|| json!({"op": 11})))
    }

    fn identify(&mut self, data: &Value) -> Result<Option<Value>, End> {
        if self.session.is_some() {
            return Err(End::Close(4005));
        }
        check_token(data)?;
        let properties = ["os", "browser", "device"].iter().all(|key| data["properties"][key].is_string());
        let Some(intents) = data["intents"].as_u64().filter(|_| properties) else { return Err(End::Close(4002)) };
        if intents & !INTENTS != 0 {
            return Err(End::Close(4013));
        }
        let mut answer = Ok(None);
        self.shared.state.send_modify(|state| {
            let privileged = NOT_OURS | if state.message_content { 0 } else { MESSAGE_CONTENT };
            if intents & privileged != 0 {
                answer = Err(End::Close(4014));
            } else if state.identifies_left == 0 {
                answer = Ok(Some(json!({"op": 9, "d": false})));
            } else {
                let id = format!("session-{}", state.world.new_id());
                let mut session = Session::new(id.clone(), intents, self.number);
                let user = state.world.user_json(super::world::BOT);
                session.dispatch(
                    "READY",
                    &json!({
                        "v": 10, "user": user, "guilds": [], "session_id": id,
                        "resume_gateway_url": self.shared.addresses.gateway,
                        "application": {"id": super::world::BOT, "flags": 0},
                    }),
                );
                state.identifies_left -= 1;
                state.identified += 1;
                state.sessions.push(session);
                (self.session, self.told) = (Some(id), 0);
            }
        });
        answer
    }

    fn resume(&mut self, data: &Value) -> Result<Option<Value>, End> {
        if self.session.is_some() {
            return Err(End::Close(4005));
        }
        check_token(data)?;
        let (Some(id), Some(seq)) = (data["session_id"].as_str(), data["seq"].as_u64()) else {
            return Err(End::Close(4002));
        };
        let mut answer = Ok(None);
        self.shared.state.send_modify(|state| match state.sessions.iter_mut().find(|session| session.id == id) {
            Some(session) if seq > session.last => answer = Err(End::Close(4007)),
            Some(session) if session.can_resume(seq) => {
                session.connection = self.number;
                session.dispatch("RESUMED", &json!({}));
                state.resumed += 1;
                self.session = Some(id.to_owned());
                self.told = seq;
            }
            Some(_) | None => {
                state.not_resumed += 1;
                answer = Ok(Some(json!({"op": 9, "d": false})));
            }
        });
        answer
    }
}

fn check_token(data: &Value) -> Result<(), End> {
    if data["token"] == TOKEN { Ok(()) } else { Err(End::Close(4004)) }
}
