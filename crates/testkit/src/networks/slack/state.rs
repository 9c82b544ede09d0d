//! State of the server and its received calls: one value that tests read and wait on.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::FakeChatFile;
use super::BOT;
use super::chat_data::{FakeSlackData, FakeSlackMessage};
use crate::or_fail::OrFail as _;

/// The account's bot id, which its own messages carry.
pub(super) const BOT_ID: &str = "B0QUELL";
/// Slack: Socket Mode. An envelope that is not acknowledged within three seconds is sent again.
pub(super) const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(3);
/// Slack: Events API, retries. At most three.
const MAX_RETRIES: u32 = 3;
/// Slack: rate limits, Tier 3.
const TIER_3: (usize, Duration) = (50, Duration::from_secs(60));
/// Slack: chat.postMessage, one message per second in a channel, "with short bursts".
const POST_LIMIT: (usize, Duration) = (60, Duration::from_secs(60));
/// Scopes of the account unless a test changes them.
const DEFAULT_SCOPES: &str =
    "app_mentions:read,channels:history,chat:write,commands,files:read,files:write,im:history,reactions:write";

/// Fault that is injected into the next call of a method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FakeSlackFault {
    /// Slack refuses with this error.
    Error(&'static str),
    /// Refused by a rate limit; the next call is allowed after this many seconds.
    RateLimited(u64),
    /// A proxy answers with an HTML page and this status.
    HtmlPage(u16),
    /// Nothing is done, and the connection is closed.
    CloseBefore,
    /// The call is executed, and the connection is closed without an answer.
    LoseAnswer,
}

/// A call of the Web API.
#[derive(Debug, Clone)]
pub struct SlackCall {
    pub method: String,
    pub body: Value,
}

/// A message that only one person in a channel sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeEphemeralMessage {
    pub channel: String,
    /// User id.
    pub user: String,
    pub text: String,
}

/// An envelope that one connection sends until it is acknowledged.
#[derive(Debug, Clone)]
struct FakeSlackEnvelope {
    id: String,
    kind: &'static str,
    payload: Value,
    /// The connection that sent it, and when.
    sent: Option<(u64, Instant)>,
    retries: u32,
}

/// A file that is being uploaded.
#[derive(Debug, Clone)]
pub(super) struct FakeSlackUpload {
    pub(super) file: FakeChatFile,
    pub(super) length: usize,
    pub(super) is_complete: bool,
}

#[derive(Debug, Clone, Default)]
pub struct FakeSlackState {
    pub chat_data: FakeSlackData,
    /// Calls of the Web API, in order.
    pub calls: Vec<SlackCall>,
    /// Messages that only one person sees, in order.
    pub ephemeral: Vec<FakeEphemeralMessage>,
    pub connections: usize,
    /// Connections opened so far.
    pub opened: usize,
    pub frozen: usize,
    /// Ids of acknowledged envelopes in order, each once.
    pub acknowledged: Vec<String>,
    /// How often an envelope was sent again, because it was not acknowledged in time or its connection was gone.
    pub resent: usize,
    /// Client errors that Slack tolerates.
    pub client_errors: Vec<String>,
    pub(super) faults: BTreeMap<String, VecDeque<FakeSlackFault>>,
    /// Calls of a method within a time; a test may replace Slack's own limits.
    pub limits: BTreeMap<String, (usize, Duration)>,
    pub scopes: String,
    pub(super) socket_mode_enabled: bool,
    pub(super) tickets: Vec<String>,
    pub(super) uploads: BTreeMap<String, FakeSlackUpload>,
    pub(super) api_url: String,
    pub(super) socket_url: String,
    /// Connections that were asked to reconnect.
    pub(super) leaving: Vec<u64>,
    call_times: BTreeMap<(String, String), Vec<Instant>>,
    envelopes: Vec<FakeSlackEnvelope>,
    last_payload: Option<(&'static str, Value)>,
}

impl FakeSlackState {
    pub(super) fn new() -> Self {
        let tier_3 = ["chat.update", "reactions.add", "reactions.remove"].map(|method| (method.to_owned(), TIER_3));
        let mut limits = BTreeMap::from(tier_3);
        limits.insert("chat.postMessage".to_owned(), POST_LIMIT);
        Self { limits, scopes: DEFAULT_SCOPES.to_owned(), socket_mode_enabled: true, ..Self::default() }
    }

    pub fn call_count(&self, method: &str) -> usize {
        self.calls.iter().filter(|call| call.method == method).count()
    }

    pub fn unacknowledged(&self) -> usize {
        self.envelopes.len()
    }

    pub(super) fn take_fault(&mut self, method: &str) -> Option<FakeSlackFault> {
        self.faults.get_mut(method)?.pop_front()
    }

    /// Counts a call. If it exceeds the limit, returns the time to wait.
    pub(super) fn count_call(&mut self, method: &str, channel: &str, now: Instant) -> Result<(), Duration> {
        let Some((most, within)) = self.limits.get(method).copied() else { return Ok(()) };
        // Only posting is counted per channel.
        let place = if method == "chat.postMessage" { channel } else { "" };
        let calls = self.call_times.entry((method.to_owned(), place.to_owned())).or_default();
        calls.retain(|at| now.duration_since(*at) < within);
        if calls.len() < most {
            calls.push(now);
            return Ok(());
        }
        let oldest = calls.first().map_or(Duration::ZERO, |at| now.duration_since(*at));
        Err(within.saturating_sub(oldest))
    }

    /// Adds a message and sends its event to the app.
    pub(super) fn add_message(&mut self, channel: &str, message: FakeSlackMessage) -> String {
        let is_own = message.author == BOT;
        let ts = self.chat_data.add_message(channel, message);
        let event = self.message_event(channel, &ts);
        // Slack: app_mention. An app in the channel gets two events for a message that mentions it.
        let is_mention = event["text"].as_str().is_some_and(|text| text.contains(&format!("<@{BOT}>")));
        self.send_event(event.clone());
        if is_mention && !is_own && !channel.starts_with('D') {
            let mut mention = event;
            mention["type"] = json!("app_mention");
            self.send_event(mention);
        }
        ts
    }

    /// Slack: message event.
    fn message_event(&self, channel: &str, ts: &str) -> Value {
        let message = self.chat_data.message(channel, ts).or_fail(format_args!("there is no message {ts}"));
        let mut event = json!({
            "type": "message", "channel": channel, "user": message.author, "text": message.text, "ts": ts, "event_ts": ts,
            "team": "T0000001", "channel_type": if channel.starts_with('D') { "im" } else { "channel" },
        });
        if message.author == BOT {
            event["bot_id"] = json!(BOT_ID);
            event["app_id"] = json!("A1111");
        } else {
            event["client_msg_id"] = json!(format!("00000000-0000-4000-8000-{}", ts.replace('.', "")));
        }
        if let Some(thread) = &message.thread {
            event["thread_ts"] = json!(thread);
        }
        if !message.files.is_empty() {
            event["subtype"] = json!("file_share");
            event["files"] = message.files.iter().map(|file| self.file_json(file)).collect();
        }
        event
    }

    fn file_json(&self, file: &FakeChatFile) -> Value {
        let url = format!("{}/files-pri/{}/{}", self.api_url, file.id, file.name);
        json!({
            "id": file.id, "name": file.name, "mimetype": file.media_type, "size": file.bytes.len(), "mode": "hosted",
            "url_private": url, "url_private_download": url,
        })
    }

    /// Slack: message_changed, which reports every change, also the app's own.
    pub(super) fn send_message_changed(&mut self, channel: &str, ts: &str) {
        let event = json!({
            "type": "message", "subtype": "message_changed", "hidden": true, "channel": channel, "ts": ts, "event_ts": ts,
            "message": self.message_event(channel, ts),
        });
        self.send_event(event);
    }

    pub(super) fn send_event(&mut self, event: Value) {
        let payload = json!({
            "type": "event_callback", "team_id": "T0000001", "api_app_id": "A1111", "event": event,
            "event_id": self.chat_data.new_id('E'), "event_time": 1_750_000_000,
        });
        self.queue_envelope("events_api", payload);
    }

    /// Slack: slash commands.
    pub(super) fn send_slash_command(&mut self, channel: &str, user: &str, (command, text): (&str, &str)) {
        let name = self.chat_data.people.get(user).cloned();
        let payload = json!({
            "command": command, "text": text, "user_id": user, "user_name": name, "channel_id": channel,
            "team_id": "T0000001", "api_app_id": "A1111", "trigger_id": self.chat_data.new_id('X'),
            "response_url": "https://hooks.slack.com/commands/T0000001/1/x",
        });
        self.queue_envelope("slash_commands", payload);
    }

    /// Slack: `block_actions` payload.
    pub(super) fn press_button(&mut self, channel: &str, user: &str, (message, data): (&str, &str)) {
        let shown = self.chat_data.message(channel, message).or_fail(format_args!("there is no message {message}"));
        let mut told = json!({"type": "message", "user": BOT, "bot_id": BOT_ID, "ts": message, "text": shown.text});
        if let Some(thread) = &shown.thread {
            told["thread_ts"] = json!(thread);
        }
        let payload = json!({
            "type": "block_actions", "user": {"id": user, "team_id": "T0000001"}, "api_app_id": "A1111",
            "channel": {"id": channel}, "message": told, "trigger_id": self.chat_data.new_id('X'),
            "container": {"type": "message", "message_ts": message, "channel_id": channel, "is_ephemeral": false},
            "response_url": "https://hooks.slack.com/actions/T0000001/1/x",
            "actions": [{"type": "button", "block_id": "b1", "action_id": "button-0", "value": data}],
        });
        self.queue_envelope("interactive", payload);
    }

    pub(super) fn resend_last(&mut self) {
        if let Some((kind, payload)) = self.last_payload.clone() {
            self.queue_envelope(kind, payload);
        }
    }

    fn queue_envelope(&mut self, kind: &'static str, payload: Value) {
        self.last_payload = Some((kind, payload.clone()));
        let id = self.chat_data.new_id('N');
        self.envelopes.push(FakeSlackEnvelope { id, kind, payload, sent: None, retries: 0 });
    }

    /// The next envelope that this connection must send.
    pub(super) fn next_envelope_for(&mut self, connection: u64, now: Instant) -> Option<Value> {
        // A connection that was asked to reconnect gets no new envelopes while another one exists.
        if self.leaving.contains(&connection) && self.connections > self.leaving.len() {
            return None;
        }
        let is_due = |envelope: &&mut FakeSlackEnvelope| match envelope.sent {
            None => true,
            Some((_, at)) => envelope.retries < MAX_RETRIES && now.duration_since(at) >= ACKNOWLEDGE_TIMEOUT,
        };
        let envelope = self.envelopes.iter_mut().find(is_due)?;
        if envelope.sent.replace((connection, now)).is_some() {
            envelope.retries += 1;
            self.resent += 1;
        }
        let reason = if envelope.retries == 0 { "" } else { "timeout" };
        let told = json!({
            "envelope_id": envelope.id, "type": envelope.kind, "payload": envelope.payload,
            "accepts_response_payload": envelope.kind == "slash_commands",
            "retry_attempt": envelope.retries, "retry_reason": reason,
        });
        Some(told)
    }

    /// When the next unacknowledged envelope is due to be sent again.
    pub(super) fn next_retry_at(&self) -> Option<Instant> {
        let again = self.envelopes.iter().filter(|envelope| envelope.retries < MAX_RETRIES);
        again.filter_map(|envelope| envelope.sent).map(|(_, at)| at + ACKNOWLEDGE_TIMEOUT).min()
    }

    /// True when a connection still waits for acknowledgements.
    pub(super) fn has_unacknowledged(&self, connection: u64) -> bool {
        self.envelopes.iter().any(|envelope| envelope.sent.is_some_and(|(told, _)| told == connection))
    }

    pub(super) fn acknowledge(&mut self, id: &str) {
        let open = self.envelopes.iter().find(|envelope| envelope.id == id && envelope.sent.is_some());
        if let Some(open) = open {
            // The person is shown an error if the press of a button is not acknowledged in time.
            if open.kind == "interactive" && open.retries > 0 {
                self.client_errors.push("a press was acknowledged too late".to_owned());
            }
            self.envelopes.retain(|envelope| envelope.id != id);
            self.acknowledged.push(id.to_owned());
        } else if !self.acknowledged.iter().any(|known| known == id) {
            self.client_errors.push(format!("an envelope is acknowledged that was not told: {id}"));
        }
    }

    /// Removes a connection; another one sends its unacknowledged envelopes.
    pub(super) fn remove_connection(&mut self, connection: u64) {
        self.connections -= 1;
        self.leaving.retain(|leaving| *leaving != connection);
        for envelope in &mut self.envelopes {
            if envelope.sent.is_some_and(|(told, _)| told == connection) {
                envelope.sent = None;
                envelope.retries += 1;
                self.resent += 1;
            }
        }
    }
}
