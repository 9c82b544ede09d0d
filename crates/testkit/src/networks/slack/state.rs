//! All that the server knows and was asked: one value, which tests look at and wait on.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::BOT;
use super::world::{File, Message, World};

/// The account's id as a program. It stands in its own messages.
pub(super) const BOT_ID: &str = "B0QUELL";
/// Slack: Socket Mode. An envelope that is not acknowledged within three seconds is told again.
pub(super) const PATIENCE_OF_SLACK: Duration = Duration::from_secs(3);
/// Slack: Events API, retries. Three at the most.
const MOST_RETRIES: u32 = 3;
/// Slack: rate limits, Tier 3.
const TIER_3: (usize, Duration) = (50, Duration::from_secs(60));
/// Slack: chat.postMessage, one message per second in a channel, "with short bursts".
const POSTS: (usize, Duration) = (60, Duration::from_secs(60));
/// All that the account may do, unless a test says otherwise.
const SCOPES: &str =
    "app_mentions:read,channels:history,chat:write,commands,files:read,files:write,im:history,reactions:write";

/// How the next call of a method goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Slack refuses with this error.
    Error(&'static str),
    /// It is one too many; the next may come after so many seconds.
    TooMany(u64),
    /// Something in between answers with a page.
    Page(u16),
    /// The connection is closed, and nothing was done.
    CloseBefore,
    /// It is done, and the connection is closed without an answer.
    LoseAnswer,
}

/// A call of the Web API.
#[derive(Debug, Clone)]
pub struct Call {
    /// What was called.
    pub method: String,
    /// With what.
    pub body: Value,
}

/// Where the server is.
#[derive(Debug, Clone)]
pub(super) struct Addresses {
    pub(super) sockets: String,
    pub(super) api: String,
}

/// What is told to one of the connections until it is acknowledged.
#[derive(Debug, Clone)]
struct Envelope {
    id: String,
    kind: &'static str,
    payload: Value,
    /// Which connection was told, and when.
    told: Option<(u64, Instant)>,
    retries: u32,
}

/// A file on its way.
#[derive(Debug, Clone)]
pub(super) struct Upload {
    pub(super) file: File,
    pub(super) length: usize,
    pub(super) has_come: bool,
}

/// Everything that the server knows and was asked.
#[derive(Debug, Clone)]
pub struct State {
    /// People, channels and messages.
    pub world: World,
    /// The calls of the Web API, in their order.
    pub calls: Vec<Call>,
    /// Open connections of Socket Mode.
    pub connections: usize,
    /// Connections that were opened so far.
    pub opened: usize,
    /// Connections that do nothing any more.
    pub frozen: usize,
    /// Envelopes that were acknowledged, in their order, each once.
    pub acknowledged: Vec<String>,
    /// How often an envelope was told again, because nobody had acknowledged it in time or its connection was gone.
    pub retold: usize,
    /// What no client should do and Slack bears.
    pub complaints: Vec<String>,
    pub(super) faults: BTreeMap<String, VecDeque<Fault>>,
    pub(super) limits: BTreeMap<String, (usize, Duration)>,
    pub(super) scopes: String,
    pub(super) is_on: bool,
    pub(super) tickets: Vec<String>,
    pub(super) uploads: BTreeMap<String, Upload>,
    pub(super) addresses: Addresses,
    /// Connections that were asked to leave.
    pub(super) leaving: Vec<u64>,
    counted: BTreeMap<(String, String), Vec<Instant>>,
    envelopes: Vec<Envelope>,
    last: Option<(&'static str, Value)>,
}

impl State {
    pub(super) fn new(addresses: Addresses) -> Self {
        let tier_3 = ["chat.update", "reactions.add", "reactions.remove"].map(|method| (method.to_owned(), TIER_3));
        let mut limits = BTreeMap::from(tier_3);
        limits.insert("chat.postMessage".to_owned(), POSTS);
        Self {
            world: World::default(),
            calls: Vec::new(),
            connections: 0,
            opened: 0,
            frozen: 0,
            acknowledged: Vec::new(),
            retold: 0,
            complaints: Vec::new(),
            faults: BTreeMap::new(),
            limits,
            scopes: SCOPES.to_owned(),
            is_on: true,
            tickets: Vec::new(),
            uploads: BTreeMap::new(),
            addresses,
            leaving: Vec::new(),
            counted: BTreeMap::new(),
            envelopes: Vec::new(),
            last: None,
        }
    }

    /// How often a method was called.
    #[must_use]
    pub fn called(&self, method: &str) -> usize {
        self.calls.iter().filter(|call| call.method == method).count()
    }

    /// How many envelopes nobody has acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.envelopes.len()
    }

    pub(super) fn complain(&mut self, what: String) {
        self.complaints.push(what);
    }

    pub(super) fn take_fault(&mut self, method: &str) -> Option<Fault> {
        self.faults.get_mut(method)?.pop_front()
    }

    /// Counts a call, unless it is one too many: then it says how long to wait.
    pub(super) fn count(&mut self, method: &str, channel: &str, now: Instant) -> Result<(), Duration> {
        let Some((most, within)) = self.limits.get(method).copied() else { return Ok(()) };
        // Only posting is counted by channel.
        let place = if method == "chat.postMessage" { channel } else { "" };
        let calls = self.counted.entry((method.to_owned(), place.to_owned())).or_default();
        calls.retain(|at| now.duration_since(*at) < within);
        if calls.len() < most {
            calls.push(now);
            return Ok(());
        }
        let oldest = calls.first().map_or(Duration::ZERO, |at| now.duration_since(*at));
        Err(within.saturating_sub(oldest))
    }

    /// Shows a message and tells the app of it.
    pub(super) fn show(&mut self, channel: &str, message: Message) -> String {
        let is_own = message.author == BOT;
        let ts = self.world.show(channel, message);
        let event = self.event_of(channel, &ts);
        // Slack: app_mention. An app in the channel is told twice of a message that mentions it.
        let is_mention = event["text"].as_str().is_some_and(|text| text.contains(&format!("<@{BOT}>")));
        self.tell_event(event.clone());
        if is_mention && !is_own && !channel.starts_with('D') {
            let mut mention = event;
            mention["type"] = json!("app_mention");
            self.tell_event(mention);
        }
        ts
    }

    /// Slack: message event.
    fn event_of(&self, channel: &str, ts: &str) -> Value {
        let Some(message) = self.world.message(channel, ts) else { panic!("there is no message {ts}") };
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
            event["files"] = message.files.iter().map(|file| self.file_of(file)).collect();
        }
        event
    }

    fn file_of(&self, file: &File) -> Value {
        let url = format!("{}/files-pri/{}/{}", self.addresses.api, file.id, file.name);
        json!({
            "id": file.id, "name": file.name, "mimetype": file.media_type, "size": file.bytes.len(), "mode": "hosted",
            "url_private": url, "url_private_download": url,
        })
    }

    /// Slack: message_changed, which tells of every change, the app's own too.
    pub(super) fn tell_change(&mut self, channel: &str, ts: &str) {
        let event = json!({
            "type": "message", "subtype": "message_changed", "hidden": true, "channel": channel, "ts": ts, "event_ts": ts,
            "message": self.event_of(channel, ts),
        });
        self.tell_event(event);
    }

    pub(super) fn tell_event(&mut self, event: Value) {
        let payload = json!({
            "type": "event_callback", "team_id": "T0000001", "api_app_id": "A1111", "event": event,
            "event_id": self.world.new_id('E'), "event_time": 1_750_000_000,
        });
        self.tell("events_api", payload);
    }

    /// Slack: slash commands.
    pub(super) fn tell_command(&mut self, channel: &str, user: &str, (command, text): (&str, &str)) {
        let name = self.world.people.get(user).cloned();
        let payload = json!({
            "command": command, "text": text, "user_id": user, "user_name": name, "channel_id": channel,
            "team_id": "T0000001", "api_app_id": "A1111", "trigger_id": self.world.new_id('X'),
            "response_url": "https://hooks.slack.com/commands/T0000001/1/x",
        });
        self.tell("slash_commands", payload);
    }

    pub(super) fn tell_again(&mut self) {
        if let Some((kind, payload)) = self.last.clone() {
            self.tell(kind, payload);
        }
    }

    fn tell(&mut self, kind: &'static str, payload: Value) {
        self.last = Some((kind, payload.clone()));
        let id = self.world.new_id('N');
        self.envelopes.push(Envelope { id, kind, payload, told: None, retries: 0 });
    }

    /// The next envelope that this connection has to tell, and when to ask again.
    pub(super) fn next_for(&mut self, connection: u64, now: Instant) -> Option<Value> {
        // Who was asked to leave is told nothing new while there is somebody else.
        if self.leaving.contains(&connection) && self.connections > self.leaving.len() {
            return None;
        }
        let is_due = |envelope: &&mut Envelope| match envelope.told {
            None => true,
            Some((_, at)) => envelope.retries < MOST_RETRIES && now.duration_since(at) >= PATIENCE_OF_SLACK,
        };
        let envelope = self.envelopes.iter_mut().find(is_due)?;
        if envelope.told.replace((connection, now)).is_some() {
            envelope.retries += 1;
            self.retold += 1;
        }
        let reason = if envelope.retries == 0 { "" } else { "timeout" };
        let told = json!({
            "envelope_id": envelope.id, "type": envelope.kind, "payload": envelope.payload,
            "accepts_response_payload": envelope.kind == "slash_commands",
            "retry_attempt": envelope.retries, "retry_reason": reason,
        });
        Some(told)
    }

    /// When the next envelope is told again, if nobody acknowledges it.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let again = self.envelopes.iter().filter(|envelope| envelope.retries < MOST_RETRIES);
        again.filter_map(|envelope| envelope.told).map(|(_, at)| at + PATIENCE_OF_SLACK).min()
    }

    /// True when a connection still waits for acknowledgements.
    pub(super) fn waits(&self, connection: u64) -> bool {
        self.envelopes.iter().any(|envelope| envelope.told.is_some_and(|(told, _)| told == connection))
    }

    pub(super) fn acknowledge(&mut self, id: &str) {
        let is_open = self.envelopes.iter().any(|envelope| envelope.id == id && envelope.told.is_some());
        if is_open {
            self.envelopes.retain(|envelope| envelope.id != id);
            self.acknowledged.push(id.to_owned());
        } else if !self.acknowledged.iter().any(|known| known == id) {
            self.complain(format!("an envelope is acknowledged that was not told: {id}"));
        }
    }

    /// A connection is gone: what it was told and nobody acknowledged is told to another.
    pub(super) fn forget(&mut self, connection: u64) {
        self.connections -= 1;
        self.leaving.retain(|leaving| *leaving != connection);
        for envelope in &mut self.envelopes {
            if envelope.told.is_some_and(|(told, _)| told == connection) {
                envelope.told = None;
                envelope.retries += 1;
                self.retold += 1;
            }
        }
    }
}
