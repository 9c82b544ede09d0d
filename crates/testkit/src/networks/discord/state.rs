//! State of the server and its received calls: one value that tests read and wait on.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::chat_data::{BOT, FakeDiscordData, FakeDiscordMessage};
use super::gateway_sessions::{DIRECT_MESSAGES, FakeGatewaySession, GUILD_MESSAGES, MESSAGE_CONTENT};
use super::interactions::FakeDiscordPress;
use super::rate_limits::{DiscordRoute, RateLimitCounters};
use crate::fake_server::FakeHttpReply;
use crate::or_fail::OrFail as _;

/// Fault that is injected into the next call of a route.
#[derive(Debug, Clone)]
pub enum FakeDiscordFault {
    Status {
        status: u16,
        code: u64,
        message: String,
    },
    /// Refused by a rate limit.
    RateLimited {
        /// Time until the next call is allowed.
        after: Duration,
        scope: RateLimitScope,
    },
    /// Nothing is done, and the connection is closed.
    CloseBefore,
    /// The call is executed, and the connection is closed without an answer.
    LoseAnswer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLimitScope {
    /// Calls of this account on this route.
    User,
    Global,
}

/// A call of the REST API.
#[derive(Debug, Clone)]
pub struct DiscordCall {
    pub route: DiscordRoute,
    /// The body, if it is JSON.
    pub body: Value,
}

#[derive(Debug, Clone, Default)]
pub struct FakeDiscordState {
    pub chat_data: FakeDiscordData,
    /// Calls of the REST API, in order.
    pub calls: Vec<DiscordCall>,
    /// Presses of buttons, in order.
    pub presses: Vec<FakeDiscordPress>,
    pub connections: usize,
    /// Sessions that started with Identify.
    pub identified: usize,
    /// Connections that continued with Resume.
    pub resumed: usize,
    /// Resumes that were answered with Invalid Session.
    pub not_resumed: usize,
    /// Heartbeats that arrived in time.
    pub heartbeats: usize,
    /// Close codes that the server has sent.
    pub close_codes_sent: Vec<u16>,
    /// Close codes that clients have sent; none if a client just disconnected.
    pub close_codes_received: Vec<Option<u16>>,
    /// Client errors that Discord tolerates.
    pub client_errors: Vec<String>,
    pub(super) faults: Vec<(DiscordRoute, VecDeque<FakeDiscordFault>)>,
    /// None switches rate limits off, for tests of other behaviour.
    pub limits: Option<RateLimitCounters>,
    pub sessions: Vec<FakeGatewaySession>,
    pub(super) next_connection: u64,
    /// Heartbeat interval of new connections.
    pub heartbeat: Duration,
    /// Whether heartbeats are acknowledged. A connection without acknowledgements is a zombie.
    pub acknowledges: bool,
    /// Whether the bot has the message content intent.
    pub message_content: bool,
    /// Sessions that may still start until the count is reset.
    pub identifies_left: u64,
    pub identifies_reset: Duration,
    pub(super) gateway_url: String,
    pub(super) file_base_url: String,
}

impl FakeDiscordState {
    pub(super) fn new() -> Self {
        Self {
            chat_data: FakeDiscordData::new(),
            limits: Some(RateLimitCounters::default()),
            // Discord: Hello. It sends 41.25 s.
            heartbeat: Duration::from_millis(41_250),
            acknowledges: true,
            message_content: true,
            identifies_left: 1000,
            identifies_reset: Duration::from_secs(86_400),
            ..Self::default()
        }
    }

    pub fn call_count(&self, route: DiscordRoute) -> usize {
        self.calls.iter().filter(|call| call.route == route).count()
    }

    /// The texts that a channel shows now.
    pub fn texts(&self, channel: &str) -> Vec<String> {
        let messages = self.chat_data.channel(channel).map_or(&[][..], |channel| channel.messages.as_slice());
        messages.iter().map(|message| message.text.clone()).collect()
    }

    pub(super) fn record_call(&mut self, route: DiscordRoute, body: &[u8]) {
        self.calls.push(DiscordCall { route, body: serde_json::from_slice(body).unwrap_or_default() });
    }

    pub(super) fn take_fault(&mut self, route: DiscordRoute) -> Option<FakeDiscordFault> {
        self.faults.iter_mut().find(|(of, _)| *of == route)?.1.pop_front()
    }

    /// Discord ignores unknown keys; a client that sends one has an error.
    pub(super) fn check_keys(&mut self, payload: &Value, known: &[&str]) {
        let keys = payload.as_object().into_iter().flat_map(|object| object.keys());
        for key in keys.filter(|key| !known.contains(&key.as_str())) {
            self.client_errors.push(format!("an unknown key: {key}"));
        }
    }

    /// Adds a message to a channel and sends it to every session that may see it.
    pub(super) fn add_message(&mut self, channel: &str, mut message: FakeDiscordMessage) -> String {
        let id = self.chat_data.new_id();
        message.id.clone_from(&id);
        let shown = self.chat_data.channel_mut(channel).or_fail(format_args!("there is no channel {channel}"));
        shown.messages.push(message);
        self.send_message_event("MESSAGE_CREATE", channel, &id);
        id
    }

    /// Sends an event about a message to every session that may see it.
    pub(super) fn send_message_event(&mut self, event: &str, channel: &str, id: &str) {
        let direct = self.chat_data.is_direct(channel);
        let intent = if direct { DIRECT_MESSAGES } else { GUILD_MESSAGES };
        let data = self.chat_data.event_json(channel, id, &self.file_base_url);
        let author = data["author"]["id"].as_str() == Some(BOT);
        let named = data["mentions"].as_array().is_some_and(|named| named.iter().any(|user| user["id"] == BOT));
        for session in self.sessions.iter_mut().filter(|session| session.intents & intent != 0) {
            let mut data = data.clone();
            // Discord: message content intent.
            if session.intents & MESSAGE_CONTENT == 0 && !(direct || author || named) {
                data["content"] = json!("");
                data["attachments"] = json!([]);
            }
            session.push_event(event, &data);
        }
    }

    /// Sends an event to every session.
    pub(super) fn send_event(&mut self, event: &str, data: &Value) {
        for session in &mut self.sessions {
            session.push_event(event, data);
        }
    }
}

/// Discord: rate limit response.
pub(super) fn rate_limit_reply(after: Duration, scope: RateLimitScope) -> FakeHttpReply {
    let global = scope == RateLimitScope::Global;
    let seconds = after.as_secs_f64();
    let body = json!({"message": "You are being rate limited.", "retry_after": seconds, "global": global});
    let reply = FakeHttpReply::json(429, &body)
        .with_header("retry-after", seconds.ceil().to_string())
        .with_header("x-ratelimit-scope", if global { "global" } else { "user" });
    if global { reply.with_header("x-ratelimit-global", "true") } else { reply }
}
