//! All that the server knows and was asked: one value, which tests look at and wait on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::limits::{Allowance, Limits};
use super::rest::{Reply, Route};
use super::sessions::{DIRECT_MESSAGES, GUILD_MESSAGES, MESSAGE_CONTENT, Session};
use super::world::{BOT, Message, World};

/// How the next call of a route goes wrong.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It is refused.
    Status {
        /// The status of HTTP.
        status: u16,
        /// Discord's code.
        code: u64,
        /// Discord's words.
        message: String,
    },
    /// It is one too many.
    RateLimited {
        /// When the next one may come.
        after: Duration,
        /// What is counted.
        scope: Scope,
    },
    /// The connection is closed, and nothing was done.
    CloseBefore,
    /// It is done, and the connection is closed without an answer.
    LoseAnswer,
}

/// What a rate limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Calls of this account on this route.
    User,
    /// All calls of this account.
    Global,
}

/// A call of the REST API.
#[derive(Debug, Clone)]
pub struct Call {
    /// What was asked.
    pub route: Route,
    /// The body, where it is JSON.
    pub body: Value,
}

/// Everything that the server knows and was asked.
#[derive(Debug, Clone)]
pub struct State {
    /// People, channels and messages.
    pub world: World,
    /// The calls of the REST API, in their order.
    pub calls: Vec<Call>,
    /// Open connections of the gateway.
    pub connections: usize,
    /// Sessions that began with Identify.
    pub identified: usize,
    /// Connections that went on with Resume.
    pub resumed: usize,
    /// Resumes that were answered with Invalid Session.
    pub not_resumed: usize,
    /// Heartbeats that came in time.
    pub heartbeats: usize,
    /// The codes with which the server has closed connections.
    pub closed: Vec<u16>,
    /// The codes with which clients have closed connections, none where they just left.
    pub left: Vec<Option<u16>>,
    /// What no client should do and Discord bears.
    pub complaints: Vec<String>,
    pub(super) faults: Vec<(Route, VecDeque<Fault>)>,
    pub(super) limits: Option<Limits>,
    pub(super) sessions: Vec<Session>,
    pub(super) next_connection: u64,
    pub(super) heartbeat: Duration,
    pub(super) acknowledges: bool,
    pub(super) message_content: bool,
    pub(super) identifies_left: u64,
    pub(super) identifies_reset: Duration,
    pub(super) files: String,
}

impl State {
    pub(super) fn new(files: String) -> Self {
        Self {
            world: World::new(),
            calls: Vec::new(),
            connections: 0,
            identified: 0,
            resumed: 0,
            not_resumed: 0,
            heartbeats: 0,
            closed: Vec::new(),
            left: Vec::new(),
            complaints: Vec::new(),
            faults: Vec::new(),
            limits: Some(Limits::default()),
            sessions: Vec::new(),
            next_connection: 0,
            // Discord: Hello. It tells 41.25 s.
            heartbeat: Duration::from_millis(41_250),
            acknowledges: true,
            message_content: true,
            identifies_left: 1000,
            identifies_reset: Duration::from_secs(86_400),
            files,
        }
    }

    /// How often a route was called.
    #[must_use]
    pub fn called(&self, route: Route) -> usize {
        self.calls.iter().filter(|call| call.route == route).count()
    }

    /// The texts that a channel shows now.
    #[must_use]
    pub fn texts(&self, channel: &str) -> Vec<String> {
        let messages = self.world.channel(channel).map_or(&[][..], |channel| channel.messages.as_slice());
        messages.iter().map(|message| message.text.clone()).collect()
    }

    pub(super) fn complain(&mut self, what: String) {
        self.complaints.push(what);
    }

    pub(super) fn count_call(&mut self, route: Route, body: &[u8]) {
        self.calls.push(Call { route, body: serde_json::from_slice(body).unwrap_or_default() });
    }

    pub(super) fn take_fault(&mut self, route: Route) -> Option<Fault> {
        self.faults.iter_mut().find(|(of, _)| *of == route)?.1.pop_front()
    }

    pub(super) fn allow(&mut self, route: Route, channel: &str, now: Instant) -> Option<Allowance> {
        Some(self.limits.as_mut()?.count(route, channel, now))
    }

    /// Discord ignores keys that it does not know; a client that sends them means something else.
    pub(super) fn check_keys(&mut self, payload: &Value, known: &[&str]) {
        let keys = payload.as_object().into_iter().flat_map(|object| object.keys());
        for key in keys.filter(|key| !known.contains(&key.as_str())) {
            self.complaints.push(format!("an unknown key: {key}"));
        }
    }

    /// Where a message of the account with this nonce is shown.
    pub(super) fn shown_with(&self, nonce: &Value) -> Option<(String, String)> {
        self.world.find(|message| message.author == BOT && message.nonce.as_ref() == Some(nonce))
    }

    pub(super) fn type_in(&mut self, channel: &str) {
        if let Some(channel) = self.world.channel_mut(channel) {
            channel.typing += 1;
        }
    }

    /// Shows a message in a channel and tells every session that may see it.
    pub(super) fn show(&mut self, channel: &str, mut message: Message) -> String {
        let id = self.world.new_id();
        message.id.clone_from(&id);
        match self.world.channel_mut(channel) {
            Some(channel) => channel.messages.push(message),
            None => panic!("there is no channel {channel}"),
        }
        self.tell("MESSAGE_CREATE", channel, &id);
        id
    }

    /// Tells every session that may see it of a message.
    pub(super) fn tell(&mut self, event: &str, channel: &str, id: &str) {
        let direct = self.world.is_direct(channel);
        let intent = if direct { DIRECT_MESSAGES } else { GUILD_MESSAGES };
        let data = self.world.event_json(channel, id, &self.files);
        let author = data["author"]["id"].as_str() == Some(BOT);
        let named = data["mentions"].as_array().is_some_and(|named| named.iter().any(|user| user["id"] == BOT));
        for session in self.sessions.iter_mut().filter(|session| session.intents & intent != 0) {
            let mut data = data.clone();
            // Discord: message content intent.
            if session.intents & MESSAGE_CONTENT == 0 && !(direct || author || named) {
                data["content"] = json!("");
                data["attachments"] = json!([]);
            }
            session.dispatch(event, &data);
        }
    }

    /// Tells every session of anything.
    pub(super) fn dispatch(&mut self, event: &str, data: &Value) {
        for session in &mut self.sessions {
            session.dispatch(event, data);
        }
    }
}

/// Discord: rate limit response.
pub(super) fn rate_limited(after: Duration, scope: Scope) -> Reply {
    let global = scope == Scope::Global;
    let seconds = after.as_secs_f64();
    let body = json!({"message": "You are being rate limited.", "retry_after": seconds, "global": global});
    let mut headers = vec![
        ("retry-after".to_owned(), format!("{}", seconds.ceil())),
        ("x-ratelimit-scope".to_owned(), if global { "global" } else { "user" }.to_owned()),
    ];
    if global {
        headers.push(("x-ratelimit-global".to_owned(), "true".to_owned()));
    }
    Reply { status: 429, headers, body: body.to_string().into_bytes() }
}
