//! One gateway connection: Hello, Identify or Resume, heartbeats, events.
//!
//! Everything here is one future without tasks. It may be dropped at any await: the connection is then closed without a
//! close code, which keeps the session open, and the next call resumes it.

use std::convert::Infallible;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::Method;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::Message;
use tracing::debug;
use url::Url;

use super::DiscordNetwork;
use super::buttons;
use super::gateway_session::{GatewaySession, ResumeState};
use super::message_parser;
use super::payload::{self, GatewayEvent, GatewayPayload};
use super::rest_client;
use crate::network::{InboundSink, ListenError};
use crate::wire::call_error::CallError;
use crate::wire::cursor_saver::CursorSaver;
use crate::wire::text::single_line;
use crate::wire::websocket::{self, ClientWebSocket};

/// Remedy if messages arrive without their content.
pub(super) const MESSAGE_CONTENT_INTENT_HINT: &str =
    "switch on Message Content Intent in the Developer Portal, under Bot, Privileged Gateway Intents";
/// Time limit for the server's Hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit of writing a payload. Payloads are small: a server that does not read one is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Discord: after Invalid Session, wait a random time between one and five seconds.
const INVALID_SESSION_DELAY: Duration = Duration::from_secs(1);
const INVALID_SESSION_JITTER: Duration = Duration::from_secs(4);
/// Discord: session start limit. It is counted by the day.
const MAX_SESSION_START_WAIT: Duration = Duration::from_secs(86_400);

/// Listens until the connection is lost.
///
/// # Cancel safety
/// Safe: the next call resumes the session.
pub(super) async fn connect_and_read(
    discord: &DiscordNetwork,
    sink: &dyn InboundSink,
) -> Result<Infallible, ListenError> {
    let session = discord.load_session(sink).await;
    let url = match session.as_ref().and_then(|session| session.resume_url.as_deref()) {
        Some(url) => discord.parse_gateway_url(url)?,
        None => discord.fetch_gateway_url(session.is_some()).await?,
    };
    let socket = websocket::open_websocket(&url).await.map_err(|error| {
        // Discord: handling a disconnect. If the resume URL of the session is unreachable, use the general URL next
        // time.
        if let ResumeState::Open(session) = &mut *discord.lock_resume_state() {
            session.resume_url = None;
        }
        ListenError::Connection(format!("the gateway cannot be reached: {error}"))
    })?;
    GatewayConnection::connect(discord, sink, socket, session).await?.read_until_lost().await
}

/// A connection whose Hello was received.
pub(super) struct GatewayConnection<'a> {
    discord: &'a DiscordNetwork,
    sink: &'a dyn InboundSink,
    socket: ClientWebSocket,
    heartbeat_interval: Duration,
    /// When the next heartbeat is due.
    next_heartbeat_at: Instant,
    /// True while the last heartbeat is not acknowledged.
    awaiting_ack: bool,
    cursor_saver: CursorSaver<'a>,
}

impl<'a> GatewayConnection<'a> {
    /// Waits for Hello, then sends Identify or Resume.
    pub(super) async fn connect(
        discord: &'a DiscordNetwork,
        sink: &'a dyn InboundSink,
        socket: ClientWebSocket,
        session: Option<GatewaySession>,
    ) -> Result<Self, ListenError> {
        let mut connection = Self {
            discord,
            sink,
            socket,
            heartbeat_interval: HELLO_TIMEOUT,
            next_heartbeat_at: Instant::now() + HELLO_TIMEOUT,
            awaiting_ack: false,
            cursor_saver: CursorSaver::new(sink),
        };
        let silent = |_| ListenError::Connection("the gateway sent no Hello in time".to_owned());
        connection.heartbeat_interval = timeout(HELLO_TIMEOUT, connection.wait_for_hello()).await.map_err(silent)??;
        connection.next_heartbeat_at = Instant::now() + connection.heartbeat_interval.mul_f64(random_fraction());
        let token = discord.rest_client.token();
        let first = match session {
            Some(session) => payload::resume_payload(token, &session.id, session.last_seq),
            None => payload::identify_payload(token),
        };
        connection.send_payload(first).await?;
        Ok(connection)
    }

    async fn wait_for_hello(&mut self) -> Result<Duration, ListenError> {
        loop {
            let message = self.socket.next().await;
            if let Some(GatewayPayload::Hello { interval }) = self.parse_frame(message)? {
                return Ok(interval);
            }
        }
    }

    /// Reads until the connection is lost.
    pub(super) async fn read_until_lost(mut self) -> Result<Infallible, ListenError> {
        loop {
            // Check the clock before each event, so that a flood of events does not delay a heartbeat. The
            // acknowledgement of the last one may still be behind the received events: do not give up here.
            if Instant::now() >= self.next_heartbeat_at {
                self.next_heartbeat_at = Instant::now() + self.heartbeat_interval;
                self.write_heartbeat().await?;
                self.save_progress();
            }
            // Each branch only receives; nothing is lost when another one wins.
            tokio::select! {
                biased;
                cursor = self.cursor_saver.save_next() => self.record_saved_seq(&cursor),
                message = self.socket.next() => {
                    if let Some(payload) = self.parse_frame(message)? {
                        self.handle_payload(payload).await?;
                    }
                }
                // No received frame is waiting, so a missing acknowledgement is really missing.
                () = sleep_until(self.next_heartbeat_at) => if self.awaiting_ack {
                    // Discord: a zombied connection. Close it without a close code; the session is resumed.
                    return Err(ListenError::Connection("the gateway answers no heartbeats".to_owned()));
                },
            }
        }
    }

    /// The payload in a frame, if there is one.
    fn parse_frame(
        &self,
        message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
    ) -> Result<Option<GatewayPayload>, ListenError> {
        match message {
            Some(Ok(Message::Text(text))) => Ok(Some(payload::parse_payload(&text))),
            Some(Ok(Message::Close(frame))) => {
                let (code, reason) = frame
                    .map_or((None, String::new()), |frame| (Some(u16::from(frame.code)), single_line(&frame.reason)));
                Err(self.discord.listen_error_for_close(code, &reason))
            }
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Err(ListenError::Connection(format!("the gateway's connection broke: {error}"))),
            None => Err(ListenError::Connection("the gateway's connection broke".to_owned())),
        }
    }

    async fn handle_payload(&mut self, payload: GatewayPayload) -> Result<(), ListenError> {
        match payload {
            GatewayPayload::Dispatch { seq, event } => self.handle_event(seq, event),
            GatewayPayload::HeartbeatRequested => {
                // A requested heartbeat does not delay the check of an earlier one that is not acknowledged yet.
                if !self.awaiting_ack {
                    self.next_heartbeat_at = Instant::now() + self.heartbeat_interval;
                }
                self.write_heartbeat().await
            }
            GatewayPayload::HeartbeatAck => {
                self.awaiting_ack = false;
                Ok(())
            }
            GatewayPayload::Reconnect => Err(ListenError::Connection("Discord asks for a reconnect".to_owned())),
            GatewayPayload::InvalidSession { is_resumable } => {
                if !is_resumable {
                    *self.discord.lock_resume_state() = ResumeState::NoSession;
                }
                let delay = INVALID_SESSION_DELAY + INVALID_SESSION_JITTER.mul_f64(random_fraction());
                Err(ListenError::Busy { why: "Discord has ended the session".to_owned(), after: delay })
            }
            GatewayPayload::Hello { .. } => Ok(()),
            GatewayPayload::Unknown => {
                debug!("an unknown payload from the gateway was ignored");
                Ok(())
            }
        }
    }

    /// Handles an event. There is no await between the sink and the sequence number, so an event counts exactly when
    /// the sink has it.
    fn handle_event(&mut self, seq: Option<u64>, event: GatewayEvent) -> Result<(), ListenError> {
        let mut should_save = false;
        match event {
            GatewayEvent::Ready(ready) => {
                let unnamed = || ListenError::Connection("Discord does not say who this account is".to_owned());
                let session = GatewaySession::from_ready(ready).ok_or_else(unnamed)?;
                self.sink.on_connected(session.account.clone());
                *self.discord.lock_resume_state() = ResumeState::Open(session);
                should_save = true;
            }
            GatewayEvent::Resumed => {
                if let Some(session) = self.discord.open_session() {
                    self.sink.on_connected(session.account);
                }
                should_save = true;
            }
            GatewayEvent::MessageCreate(event) => {
                let inbound = match &*self.discord.lock_resume_state() {
                    ResumeState::Open(session) => {
                        message_parser::parse_message(&event, &session.account.id, self.discord.mention_only)
                    }
                    ResumeState::NotLoaded | ResumeState::NoSession => None,
                };
                if let Some(inbound) = inbound {
                    self.sink.on_message(inbound);
                }
            }
            GatewayEvent::InteractionCreate(event) => {
                if let Some(press) = buttons::parse_press(&event) {
                    self.sink.on_button_press(press);
                }
            }
            GatewayEvent::Other => {}
        }
        if let (Some(seq), ResumeState::Open(session)) = (seq, &mut *self.discord.lock_resume_state()) {
            session.last_seq = session.last_seq.max(seq);
        }
        if should_save {
            self.save_progress();
        }
        Ok(())
    }

    async fn write_heartbeat(&mut self) -> Result<(), ListenError> {
        self.awaiting_ack = true;
        let saved_seq = self.discord.open_session().and_then(|session| session.saved_seq);
        self.send_payload(payload::heartbeat_payload(saved_seq)).await
    }

    async fn send_payload(&mut self, payload: String) -> Result<(), ListenError> {
        match timeout(WRITE_TIMEOUT, self.socket.send(Message::text(payload))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(ListenError::Connection(format!("the gateway's connection broke: {error}"))),
            Err(_) => Err(ListenError::Connection("the gateway does not read any more".to_owned())),
        }
    }

    /// Saves the number of the last received event, once the database has all events up to it.
    fn save_progress(&mut self) {
        if let Some(session) = self.discord.open_session().filter(|session| session.saved_seq != Some(session.last_seq))
        {
            self.cursor_saver.set_cursor(session.to_cursor());
        }
    }

    fn record_saved_seq(&self, cursor: &str) {
        if let ResumeState::Open(session) = &mut *self.discord.lock_resume_state() {
            session.saved_seq = GatewaySession::from_cursor(cursor).and_then(|saved| saved.saved_seq);
        }
    }
}

impl DiscordNetwork {
    /// A poisoned lock means that a sink panicked; the state is still valid.
    fn lock_resume_state(&self) -> MutexGuard<'_, ResumeState> {
        self.resume_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_session(&self) -> Option<GatewaySession> {
        match &*self.lock_resume_state() {
            ResumeState::Open(session) => Some(session.clone()),
            ResumeState::NotLoaded | ResumeState::NoSession => None,
        }
    }

    /// The session to resume: that of the last connection, or the one saved before a restart.
    async fn load_session(&self, sink: &dyn InboundSink) -> Option<GatewaySession> {
        if matches!(*self.lock_resume_state(), ResumeState::NotLoaded) {
            let session = sink.load_cursor().await.as_deref().and_then(GatewaySession::from_cursor);
            *self.lock_resume_state() = session.map_or(ResumeState::NoSession, ResumeState::Open);
        }
        self.open_session()
    }

    /// Fetches the URL of the gateway, and checks that a session may be started.
    async fn fetch_gateway_url(&self, resuming: bool) -> Result<Url, ListenError> {
        let response = rest_client::call_api(self.rest_client.request(Method::GET, &["gateway", "bot"])).await;
        let response = response.map_err(CallError::into_listen_error)?;
        let limit = &response["session_start_limit"];
        if !resuming && limit["remaining"] == 0 {
            // Discord: identifying. After more than 1000 session starts in a day the token is reset.
            let after = Duration::from_millis(limit["reset_after"].as_u64().unwrap_or_default())
                .clamp(INVALID_SESSION_DELAY, MAX_SESSION_START_WAIT);
            let why = "this account has begun as many sessions as Discord allows in a day".to_owned();
            return Err(ListenError::Busy { why, after });
        }
        self.parse_gateway_url(response["url"].as_str().unwrap_or_default())
    }

    /// Discord: connecting, query of the URL. Without TLS it is refused, unless the API has none either: the token is
    /// sent there.
    fn parse_gateway_url(&self, text: &str) -> Result<Url, ListenError> {
        let url =
            Url::parse(text).ok().filter(|url| url.scheme() == "wss" || self.rest_client.base().scheme() == "http");
        let mut url =
            url.ok_or_else(|| ListenError::Connection("Discord does not say where its gateway is".to_owned()))?;
        url.set_query(Some("v=10&encoding=json"));
        Ok(url)
    }

    /// Maps a close code. Discord: gateway close event codes.
    fn listen_error_for_close(&self, code: Option<u16>, reason: &str) -> ListenError {
        let rejection = match code {
            Some(4004) => Some("Discord does not take the token: reset it in the Developer Portal under Bot"),
            Some(4010 | 4011) => {
                Some("the bot is in too many guilds for one connection, and sharding is not supported")
            }
            Some(4012) => Some("Discord has no gateway of version 10 any more: a newer version of Quell is needed"),
            Some(4013) => Some("Discord does not know the intents: a newer version of Quell is needed"),
            Some(4014) => Some(MESSAGE_CONTENT_INTENT_HINT),
            _ => None,
        };
        if rejection.is_some() || matches!(code, Some(4003 | 4007 | 4009)) {
            *self.lock_resume_state() = ResumeState::NoSession;
        }
        let code = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
        match rejection {
            Some(problem) => ListenError::Refused(format!("{problem} (close code {code})")),
            None => ListenError::Connection(
                format!("Discord closed the connection ({code}) {reason}").trim_end().to_owned(),
            ),
        }
    }
}

/// A random number between 0 and 1; 0.5 if the system has no randomness. It only spreads the load.
fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}
