//! Payloads of the gateway, in and out. Pure; what it reads is hostile.

use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// An event that is longer is not looked into. Discord's longest, a message with everything that fits into it, has a tenth.
const LONGEST_EVENT: usize = 1024 * 1024;
/// Discord: gateway intents `GUILD_MESSAGES`, `DIRECT_MESSAGES` and `MESSAGE_CONTENT`. Without `GUILDS` nothing is told of
/// channels and members, which nobody here wants to know.
const INTENTS: u64 = (1 << 9) | (1 << 12) | (1 << 15);
/// What heartbeats are kept within, whatever the server says. Discord says 41.25 s.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(300);

/// What the gateway says.
#[derive(Debug)]
pub(super) enum Payload {
    /// Opcode 0.
    Dispatch {
        /// The number in the session.
        seq: Option<u64>,
        event: Event,
    },
    /// Opcode 1: it wants a heartbeat at once.
    HeartbeatWanted,
    /// Opcode 7: come back and resume.
    Reconnect,
    /// Opcode 9.
    InvalidSession(Resumable),
    /// Opcode 10.
    Hello { interval: Duration },
    /// Opcode 11.
    Acknowledged,
    /// Anything else.
    Unknown,
}

/// What happened on Discord.
#[derive(Debug)]
pub(super) enum Event {
    Ready(Ready),
    Resumed,
    MessageCreate(Value),
    /// Everything that nobody here wants to know.
    Other,
}

/// Whether a session that is invalid now can be resumed all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resumable {
    Yes,
    No,
}

/// Discord: Ready event.
#[derive(Debug, Deserialize)]
pub(super) struct Ready {
    pub(super) user: User,
    pub(super) session_id: String,
    pub(super) resume_gateway_url: String,
}

/// Discord: user object.
#[derive(Debug, Deserialize)]
pub(super) struct User {
    pub(super) id: String,
    #[serde(default)]
    pub(super) username: String,
}

#[derive(Debug, Deserialize)]
struct Hello {
    heartbeat_interval: u64,
}

/// Discord: gateway event payload. The data is looked into only where somebody wants it.
#[derive(Debug, Deserialize)]
struct Envelope<'a> {
    op: u64,
    #[serde(default)]
    s: Option<u64>,
    #[serde(default)]
    t: Option<String>,
    #[serde(borrow, default)]
    d: Option<&'a RawValue>,
}

/// Reads a payload.
pub(super) fn read(text: &str) -> Payload {
    let Ok(envelope) = serde_json::from_str::<Envelope<'_>>(text) else { return Payload::Unknown };
    let data = envelope.d.map_or("null", RawValue::get);
    match envelope.op {
        0 => Payload::Dispatch { seq: envelope.s, event: event(envelope.t.as_deref(), data) },
        1 => Payload::HeartbeatWanted,
        7 => Payload::Reconnect,
        9 => Payload::InvalidSession(if data == "true" { Resumable::Yes } else { Resumable::No }),
        10 => match serde_json::from_str::<Hello>(data) {
            Ok(hello) => {
                Payload::Hello { interval: Duration::from_millis(hello.heartbeat_interval).clamp(SHORTEST, LONGEST) }
            }
            Err(_) => Payload::Unknown,
        },
        11 => Payload::Acknowledged,
        _ => Payload::Unknown,
    }
}

fn event(name: Option<&str>, data: &str) -> Event {
    let event = match name {
        Some("READY") => serde_json::from_str(data).map(Event::Ready).ok(),
        Some("RESUMED") => Some(Event::Resumed),
        Some("MESSAGE_CREATE") if data.len() <= LONGEST_EVENT => {
            serde_json::from_str(data).map(Event::MessageCreate).ok()
        }
        _ => None,
    };
    event.unwrap_or(Event::Other)
}

/// Discord: Heartbeat.
pub(super) fn heartbeat(seq: Option<u64>) -> String {
    json!({"op": 1, "d": seq}).to_string()
}

/// Discord: Identify.
pub(super) fn identify(token: &SecretString) -> String {
    let properties = json!({"os": "linux", "browser": "quell", "device": "quell"});
    let data = json!({"token": token.expose_secret(), "intents": INTENTS, "properties": properties});
    json!({"op": 2, "d": data}).to_string()
}

/// Discord: Resume.
pub(super) fn resume(token: &SecretString, session: &str, seq: u64) -> String {
    json!({"op": 6, "d": {"token": token.expose_secret(), "session_id": session, "seq": seq}}).to_string()
}
