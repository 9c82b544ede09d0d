//! One gateway connection: sends Hello, expects Identify or Resume and heartbeats in time, and sends the events of its
//! session.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::chat_data::BOT;
use super::gateway_sessions::{FakeGatewaySession, MESSAGE_CONTENT};
use super::{FakeDiscordShared, TOKEN};

/// Discord: a client's payload may have 4096 bytes.
const MAX_PAYLOAD_BYTES: usize = 4096;
/// Discord: a client may send 120 payloads in 60 s.
const MAX_PAYLOADS: usize = 120;
const PAYLOAD_WINDOW: Duration = Duration::from_secs(60);
/// Discord: intents go up to `DIRECT_MESSAGE_POLLS` (1 << 25).
const KNOWN_INTENTS: u64 = (1 << 26) - 1;
/// Discord: `GUILD_MEMBERS` and `GUILD_PRESENCES` are privileged; this account has neither.
const PRIVILEGED_INTENTS: u64 = (1 << 1) | (1 << 8);

/// Command of a test for every open connection.
#[derive(Debug, Clone)]
pub enum FakeGatewayCommand {
    /// Break the connection without a close frame.
    Drop,
    Close(u16),
    Send(String),
}

enum FakeGatewayEnd {
    Close(u16),
    /// The server breaks it.
    Drop,
    /// The client has closed it, or is gone.
    ClientLeft(Option<u16>),
}

struct FakeGatewayConnection {
    socket: WebSocketStream<TcpStream>,
    shared: FakeDiscordShared,
    number: u64,
    /// The number of the last event that was sent on this connection.
    last_sent: u64,
    /// Id of the session of this connection.
    session: Option<String>,
    /// When the next heartbeat is overdue.
    heartbeat_deadline: Instant,
    /// Times of the client's recent payloads.
    payload_times: Vec<Instant>,
}

/// Serves a connection until either side ends it.
#[expect(clippy::result_large_err, reason = "the signature that the handshake callback requires")]
pub(super) async fn serve_connection(stream: TcpStream, shared: FakeDiscordShared) {
    let mut query = String::new();
    let look = |request: &Request, response: Response| {
        query = request.uri().query().unwrap_or_default().to_owned();
        Ok(response)
    };
    let Ok(socket) = accept_hdr_async(stream, look).await else { return };
    let inbox = shared.commands.subscribe();
    let _open = shared.state.count(|state| &mut state.connections);
    let (number, interval) = shared.state.update(|state| {
        state.next_connection += 1;
        (state.next_connection, state.heartbeat)
    });
    let mut connection = FakeGatewayConnection {
        socket,
        shared,
        number,
        last_sent: 0,
        session: None,
        heartbeat_deadline: Instant::now() + 2 * interval,
        payload_times: Vec::new(),
    };
    let end = match query.as_str() {
        "v=10&encoding=json" => connection.run(inbox).await.unwrap_or(FakeGatewayEnd::ClientLeft(None)),
        _ => FakeGatewayEnd::Close(4012),
    };
    connection.finish(end).await;
}

impl FakeGatewayConnection {
    async fn run(&mut self, mut inbox: broadcast::Receiver<FakeGatewayCommand>) -> Result<FakeGatewayEnd, Error> {
        let mut changes = self.shared.state.subscribe();
        let interval =
            self.shared.state.with_state(|state| u64::try_from(state.heartbeat.as_millis()).unwrap_or(u64::MAX));
        self.send_payload(&json!({"op": 10, "d": {"heartbeat_interval": interval}})).await?;
        loop {
            if !self.send_pending_events().await? {
                return Ok(FakeGatewayEnd::Drop);
            }
            // Cancel safe: each branch only takes what has arrived. The client's frames come first, so that a heartbeat
            // that has arrived is not overdue because this machine was busy.
            tokio::select! {
                biased;
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => {
                        if let Err(end) = self.receive_payload(&text).await {
                            return Ok(end);
                        }
                    }
                    Some(Ok(Message::Close(frame))) => return Ok(FakeGatewayEnd::ClientLeft(frame.map(|frame| frame.code.into()))),
                    Some(Ok(Message::Binary(_))) => return Ok(FakeGatewayEnd::Close(4002)),
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Ok(FakeGatewayEnd::ClientLeft(None)),
                },
                () = sleep_until(self.heartbeat_deadline) => return Ok(FakeGatewayEnd::Close(4009)),
                order = inbox.recv() => match order {
                    Ok(FakeGatewayCommand::Send(text)) => self.socket.send(Message::text(text)).await?,
                    Ok(FakeGatewayCommand::Close(code)) => return Ok(FakeGatewayEnd::Close(code)),
                    Ok(FakeGatewayCommand::Drop) | Err(_) => return Ok(FakeGatewayEnd::Drop),
                },
                _ = changes.changed() => {}
            }
        }
    }

    async fn finish(mut self, end: FakeGatewayEnd) {
        match end {
            FakeGatewayEnd::Close(code) => {
                self.shared.state.update(|state| state.close_codes_sent.push(code));
                let frame = CloseFrame { code: code.into(), reason: "".into() };
                if self.socket.close(Some(frame)).await.is_ok() {
                    // The close frame has arrived when the client answers it or is gone.
                    while let Some(Ok(_)) = self.socket.next().await {}
                }
            }
            FakeGatewayEnd::Drop => {}
            FakeGatewayEnd::ClientLeft(code) => self.shared.state.update(|state| {
                state.close_codes_received.push(code);
                // Discord: a close with 1000 or 1001 ends the client's session.
                if matches!(code, Some(1000 | 1001)) {
                    state.sessions.retain(|session| session.connection != self.number);
                }
            }),
        }
    }

    async fn send_payload(&mut self, payload: &Value) -> Result<(), Error> {
        self.socket.send(Message::text(payload.to_string())).await
    }

    /// Sends pending events of the session; false when another connection has taken over the session.
    async fn send_pending_events(&mut self) -> Result<bool, Error> {
        let Some(id) = &self.session else { return Ok(true) };
        let events = self.shared.state.with_state(|state| {
            let session = state.sessions.iter().find(|session| session.id == *id)?;
            Some((session.connection == self.number).then(|| session.events_after(self.last_sent)))
        });
        let events = match events {
            Some(Some(events)) => events,
            Some(None) => return Ok(false),
            // The session has ended: there are no more events, and the client may start another session.
            None => {
                self.session = None;
                return Ok(true);
            }
        };
        for (number, text) in events {
            self.socket.send(Message::text(text)).await?;
            self.last_sent = number;
        }
        Ok(true)
    }

    async fn receive_payload(&mut self, text: &str) -> Result<(), FakeGatewayEnd> {
        let now = Instant::now();
        self.payload_times.retain(|at| now.duration_since(*at) < PAYLOAD_WINDOW);
        self.payload_times.push(now);
        if self.payload_times.len() > MAX_PAYLOADS {
            return Err(FakeGatewayEnd::Close(4008));
        }
        if text.len() > MAX_PAYLOAD_BYTES {
            return Err(FakeGatewayEnd::Close(4002));
        }
        let payload: Value = serde_json::from_str(text).map_err(|_| FakeGatewayEnd::Close(4002))?;
        let answer = match payload["op"].as_u64() {
            Some(1) => self.on_heartbeat(&payload["d"])?,
            Some(2) => self.on_identify(&payload["d"])?,
            Some(6) => self.on_resume(&payload["d"])?,
            _ => return Err(FakeGatewayEnd::Close(4001)),
        };
        match answer {
            Some(answer) => self.send_payload(&answer).await.map_err(|_| FakeGatewayEnd::ClientLeft(None)),
            None => Ok(()),
        }
    }

    fn on_heartbeat(&mut self, seq: &Value) -> Result<Option<Value>, FakeGatewayEnd> {
        let seq = match seq {
            Value::Null => None,
            seq => Some(seq.as_u64().ok_or(FakeGatewayEnd::Close(4002))?),
        };
        let (acknowledges, interval) = self.shared.state.update(|state| {
            state.heartbeats += 1;
            let own = state.sessions.iter_mut().find(|session| session.connection == self.number);
            if let (Some(session), Some(seq)) = (own, seq) {
                session.confirm_up_to(seq);
            }
            (state.acknowledges, state.heartbeat)
        });
        self.heartbeat_deadline = Instant::now() + 2 * interval;
        Ok(acknowledges.then(|| json!({"op": 11})))
    }

    fn on_identify(&mut self, data: &Value) -> Result<Option<Value>, FakeGatewayEnd> {
        if self.session.is_some() {
            return Err(FakeGatewayEnd::Close(4005));
        }
        check_token(data)?;
        let properties = ["os", "browser", "device"].iter().all(|key| data["properties"][key].is_string());
        let Some(intents) = data["intents"].as_u64().filter(|_| properties) else {
            return Err(FakeGatewayEnd::Close(4002));
        };
        if intents & !KNOWN_INTENTS != 0 {
            return Err(FakeGatewayEnd::Close(4013));
        }
        let shared = self.shared.state.clone();
        shared.update(|state| {
            let privileged = PRIVILEGED_INTENTS | if state.message_content { 0 } else { MESSAGE_CONTENT };
            if intents & privileged != 0 {
                return Err(FakeGatewayEnd::Close(4014));
            }
            if state.identifies_left == 0 {
                return Ok(Some(json!({"op": 9, "d": false})));
            }
            let id = format!("session-{}", state.chat_data.new_id());
            let mut session = FakeGatewaySession::new(id.clone(), intents, self.number);
            let ready = json!({
                "v": 10, "user": state.chat_data.user_json(BOT), "guilds": [], "session_id": id,
                "resume_gateway_url": state.gateway_url, "application": {"id": BOT, "flags": 0},
            });
            session.push_event("READY", &ready);
            state.identifies_left -= 1;
            state.identified += 1;
            state.sessions.push(session);
            (self.session, self.last_sent) = (Some(id), 0);
            Ok(None)
        })
    }

    fn on_resume(&mut self, data: &Value) -> Result<Option<Value>, FakeGatewayEnd> {
        if self.session.is_some() {
            return Err(FakeGatewayEnd::Close(4005));
        }
        check_token(data)?;
        let (Some(id), Some(seq)) = (data["session_id"].as_str(), data["seq"].as_u64()) else {
            return Err(FakeGatewayEnd::Close(4002));
        };
        let shared = self.shared.state.clone();
        shared.update(|state| match state.sessions.iter_mut().find(|session| session.id == id) {
            Some(session) if seq > session.last_seq => Err(FakeGatewayEnd::Close(4007)),
            Some(session) if session.can_resume(seq) => {
                session.connection = self.number;
                session.push_event("RESUMED", &json!({}));
                state.resumed += 1;
                (self.session, self.last_sent) = (Some(id.to_owned()), seq);
                Ok(None)
            }
            Some(_) | None => {
                state.not_resumed += 1;
                Ok(Some(json!({"op": 9, "d": false})))
            }
        })
    }
}

fn check_token(data: &Value) -> Result<(), FakeGatewayEnd> {
    if data["token"] == TOKEN { Ok(()) } else { Err(FakeGatewayEnd::Close(4004)) }
}
