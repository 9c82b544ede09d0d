//! One connection to the gateway: Hello, Identify or Resume, heartbeats, events.
//!
//! Everything here is one future without tasks. It may be dropped at any await: the connection is closed without a close code,
//! which leaves the session open, and the next call resumes it.

use std::convert::Infallible;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, Fuse, FusedFuture as _};
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use reqwest::Method;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::Message;
use tracing::debug;
use url::Url;

use super::Discord;
use super::message::{self, line};
use super::payload::{self, Event, Payload, Resumable};
use super::rest;
use super::session::{Memory, Session};
use crate::channels::seam::{Ear, Lost};
use crate::channels::wire::socket::{self, Socket};

/// What to do where messages come without what they say.
pub(super) const SWITCH_ON_CONTENT: &str =
    "switch on Message Content Intent in the Developer Portal, under Bot, Privileged Gateway Intents";
/// How long the server may take to say Hello.
const HELLO: Duration = Duration::from_secs(20);
/// How long a payload may take to be written. It is small: a server that takes none is gone.
const WRITE: Duration = Duration::from_secs(10);
/// Discord: after Invalid Session, a random time between one and five seconds.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MORE: Duration = Duration::from_secs(4);
/// Discord: session start limit. It is counted by the day.
const DAY: Duration = Duration::from_secs(86_400);

/// Listens until the connection is lost.
///
/// # Cancel safety
/// Safe: the session is resumed by the next call.
pub(super) async fn listen(discord: &Discord, ear: &dyn Ear) -> Lost {
    match connect_and_hear(discord, ear).await {
        Ok(never) => match never {},
        Err(lost) => lost,
    }
}

async fn connect_and_hear(discord: &Discord, ear: &dyn Ear) -> Result<Infallible, Lost> {
    let session = discord.remembered(ear).await;
    let url = match session.as_ref().and_then(|session| session.url.as_deref()) {
        Some(url) => discord.gateway_url(url)?,
        None => discord.ask_for_gateway(session.is_some()).await?,
    };
    let socket = socket::open(&url).await.map_err(|error| {
        // Discord: handling a disconnect. Where the session's own address is out of reach, the one for everybody is taken.
        if let Memory::Open(session) = &mut *discord.memory() {
            session.url = None;
        }
        Lost::Connection(format!("the gateway cannot be reached: {error}"))
    })?;
    Connection::begin(discord, ear, socket, session).await?.hear().await
}

/// A connection that has said Hello.
pub(super) struct Connection<'a> {
    discord: &'a Discord,
    ear: &'a dyn Ear,
    socket: Socket,
    /// Between two heartbeats.
    interval: Duration,
    /// When the next one is due.
    due: Instant,
    /// True while the last one has no answer.
    unanswered: bool,
    /// What was heard is being put into the database; answers up to which number.
    keeping: Fuse<BoxFuture<'a, u64>>,
}

impl<'a> Connection<'a> {
    /// From Hello to Identify or Resume.
    pub(super) async fn begin(
        discord: &'a Discord,
        ear: &'a dyn Ear,
        socket: Socket,
        session: Option<Session>,
    ) -> Result<Self, Lost> {
        let (interval, due, keeping) = (HELLO, Instant::now() + HELLO, Fuse::terminated());
        let mut connection = Self { discord, ear, socket, interval, due, unanswered: false, keeping };
        let silent = |_| Lost::Connection("the gateway says nothing".to_owned());
        connection.interval = timeout(HELLO, connection.hello()).await.map_err(silent)??;
        connection.due = Instant::now() + connection.interval.mul_f64(chance());
        let token = discord.rest.token();
        let first = match session {
            Some(session) => payload::resume(token, &session.id, session.heard),
            None => payload::identify(token),
        };
        connection.write(first).await?;
        Ok(connection)
    }

    async fn hello(&mut self) -> Result<Duration, Lost> {
        loop {
            let message = self.socket.next().await;
            if let Some(Payload::Hello { interval }) = self.payload(message)? {
                return Ok(interval);
            }
        }
    }

    /// Hears until the connection is lost.
    pub(super) async fn hear(mut self) -> Result<Infallible, Lost> {
        loop {
            // The clock is asked before each event, so that a flood of them does not keep a heartbeat waiting. The answer to the
            // last one may be behind all that has come: that is no reason to leave.
            if Instant::now() >= self.due {
                self.due = Instant::now() + self.interval;
                self.write_heartbeat().await?;
                self.keep();
            }
            // Each of these only takes what has come; what is not taken comes again.
            tokio::select! {
                biased;
                seq = &mut self.keeping => self.kept(seq),
                message = self.socket.next() => {
                    if let Some(payload) = self.payload(message)? {
                        self.take(payload).await?;
                    }
                }
                // Nothing has come that would have to be looked at first.
                () = sleep_until(self.due) => self.check_answer()?,
            }
        }
    }

    /// What a message says, if it says anything.
    fn payload(
        &self,
        message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
    ) -> Result<Option<Payload>, Lost> {
        match message {
            Some(Ok(Message::Text(text))) => Ok(Some(payload::read(&text))),
            Some(Ok(Message::Close(frame))) => {
                let (code, reason) =
                    frame.map_or((None, String::new()), |frame| (Some(u16::from(frame.code)), line(&frame.reason)));
                Err(self.discord.closed(code, &reason))
            }
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Err(Lost::Connection(format!("the gateway's connection broke: {error}"))),
            None => Err(Lost::Connection("the gateway's connection broke".to_owned())),
        }
    }

    async fn take(&mut self, payload: Payload) -> Result<(), Lost> {
        match payload {
            Payload::Dispatch { seq, event } => self.dispatch(seq, event),
            Payload::HeartbeatWanted => {
                // One that is wanted while another has no answer does not put off the moment at which that is noticed.
                if !self.unanswered {
                    self.due = Instant::now() + self.interval;
                }
                self.write_heartbeat().await
            }
            Payload::Acknowledged => {
                self.unanswered = false;
                Ok(())
            }
            Payload::Reconnect => Err(Lost::Connection("Discord asks to come back".to_owned())),
            Payload::InvalidSession(resumable) => {
                if resumable == Resumable::No {
                    *self.discord.memory() = Memory::Nothing;
                }
                let after = PAUSE + PAUSE_MORE.mul_f64(chance());
                Err(Lost::Busy { why: "Discord has ended the session".to_owned(), after })
            }
            Payload::Hello { .. } => Ok(()),
            Payload::Unknown => {
                debug!("the gateway said what nobody understands");
                Ok(())
            }
        }
    }

    /// An event. It counts as heard once the ear has it: there is no await in between.
    fn dispatch(&mut self, seq: Option<u64>, event: Event) -> Result<(), Lost> {
        let mut news = false;
        match event {
            Event::Ready(ready) => {
                let unnamed = || Lost::Connection("Discord does not say who this account is".to_owned());
                let session = Session::begun(ready).ok_or_else(unnamed)?;
                self.ear.connected(session.own.clone());
                *self.discord.memory() = Memory::Open(session);
                news = true;
            }
            Event::Resumed => {
                if let Some(session) = self.discord.session() {
                    self.ear.connected(session.own);
                }
                news = true;
            }
            Event::MessageCreate(event) => {
                let heard = match &*self.discord.memory() {
                    Memory::Open(session) => message::heard(&event, &session.own.id, self.discord.mention_only),
                    Memory::Unasked | Memory::Nothing => None,
                };
                if let Some(heard) = heard {
                    self.ear.hear(heard);
                }
            }
            Event::Other => {}
        }
        if let (Some(seq), Memory::Open(session)) = (seq, &mut *self.discord.memory()) {
            session.heard = session.heard.max(seq);
        }
        if news {
            self.keep();
        }
        Ok(())
    }

    /// Discord: a zombied connection. It is dropped without a close code, and the session resumed.
    fn check_answer(&self) -> Result<(), Lost> {
        if self.unanswered {
            return Err(Lost::Connection("the gateway answers no heartbeats".to_owned()));
        }
        Ok(())
    }

    async fn write_heartbeat(&mut self) -> Result<(), Lost> {
        self.unanswered = true;
        let kept = self.discord.session().and_then(|session| session.kept);
        self.write(payload::heartbeat(kept)).await
    }

    async fn write(&mut self, payload: String) -> Result<(), Lost> {
        match timeout(WRITE, self.socket.send(Message::text(payload))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Lost::Connection(format!("the gateway's connection broke: {error}"))),
            Err(_) => Err(Lost::Connection("the gateway takes nothing any more".to_owned())),
        }
    }

    /// Begins to put what was heard into the database, unless that is under way.
    fn keep(&mut self) {
        let Some(session) = self.discord.session().filter(|session| session.kept != Some(session.heard)) else {
            return;
        };
        if self.keeping.is_terminated() {
            let ear = self.ear;
            let keeping = async move {
                ear.settled().await;
                ear.keep_cursor(session.cursor()).await;
                session.heard
            };
            self.keeping = keeping.boxed().fuse();
        }
    }

    fn kept(&self, seq: u64) {
        if let Memory::Open(session) = &mut *self.discord.memory() {
            session.kept = Some(seq);
        }
    }
}

impl Discord {
    /// A poisoned lock means that an ear has panicked; the session is as it was.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> Option<Session> {
        match &*self.memory() {
            Memory::Open(session) => Some(session.clone()),
            Memory::Unasked | Memory::Nothing => None,
        }
    }

    /// The session to resume: of the last connection, or of the time before the restart.
    async fn remembered(&self, ear: &dyn Ear) -> Option<Session> {
        if matches!(*self.memory(), Memory::Unasked) {
            let session = ear.cursor().await.as_deref().and_then(Session::from_cursor);
            *self.memory() = session.map_or(Memory::Nothing, Memory::Open);
        }
        self.session()
    }

    /// Asks where the gateway is, and whether a session may begin.
    async fn ask_for_gateway(&self, resuming: bool) -> Result<Url, Lost> {
        let answer = rest::call(self.rest.request(Method::GET, &["gateway", "bot"])).await;
        let answer = answer.map_err(rest::Failure::lost)?;
        let limit = &answer["session_start_limit"];
        if !resuming && limit["remaining"] == 0 {
            // Discord: identifying. Whoever begins more than 1000 sessions in a day gets a new token.
            let after = Duration::from_millis(limit["reset_after"].as_u64().unwrap_or_default()).clamp(PAUSE, DAY);
            let why = "this account has begun as many sessions as Discord allows in a day".to_owned();
            return Err(Lost::Busy { why, after });
        }
        self.gateway_url(answer["url"].as_str().unwrap_or_default())
    }

    /// Discord: connecting, query of the URL. The token is never sent with less security than to the API.
    fn gateway_url(&self, text: &str) -> Result<Url, Lost> {
        let url = Url::parse(text).ok().filter(|url| url.scheme() == "wss" || self.rest.base().scheme() == "http");
        let mut url = url.ok_or_else(|| Lost::Connection("Discord does not say where its gateway is".to_owned()))?;
        url.set_query(Some("v=10&encoding=json"));
        Ok(url)
    }

    /// What a close code means. Discord: gateway close event codes.
    fn closed(&self, code: Option<u16>, reason: &str) -> Lost {
        let refused = match code {
            Some(4004) => Some("Discord does not take the token: reset it in the Developer Portal under Bot"),
            Some(4010 | 4011) => {
                Some("the bot is in too many guilds for one connection, and sharding is not supported")
            }
            Some(4012) => Some("Discord has no gateway of version 10 any more: a newer version of Quell is needed"),
            Some(4013) => Some("Discord does not know the intents: a newer version of Quell is needed"),
            Some(4014) => Some(SWITCH_ON_CONTENT),
            _ => None,
        };
        if refused.is_some() || matches!(code, Some(4003 | 4007 | 4009)) {
            *self.memory() = Memory::Nothing;
        }
        let code = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
        match refused {
            Some(what) => Lost::Refused(format!("{what} (close code {code})")),
            None => Lost::Connection(format!("Discord closed the connection ({code}) {reason}").trim_end().to_owned()),
        }
    }
}

/// A number between 0 and 1. Where the system has none by chance, the middle does as well: it only spreads the load.
fn chance() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}
