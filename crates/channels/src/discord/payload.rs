//! Parse and build gateway payloads. Pure; the input is untrusted.

use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A larger event is ignored. The largest message that Discord allows is a tenth of this.
const MAX_EVENT_BYTES: usize = 1024 * 1024;
/// Discord: gateway intents `GUILD_MESSAGES`, `DIRECT_MESSAGES` and `MESSAGE_CONTENT`. Without `GUILDS` there are no
/// events about channels and members, which are not needed.
const INTENTS: u64 = (1 << 9) | (1 << 12) | (1 << 15);
/// Bounds of the heartbeat interval, whatever the server sends. Discord sends 41.25 s.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
const MAX_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) enum GatewayPayload {
    /// Opcode 0.
    Dispatch {
        seq: Option<u64>,
        event: GatewayEvent,
    },
    /// Opcode 1: the server wants a heartbeat at once.
    HeartbeatRequested,
    /// Opcode 7: reconnect and resume.
    Reconnect,
    /// Opcode 9.
    InvalidSession {
        is_resumable: bool,
    },
    /// Opcode 10.
    Hello {
        interval: Duration,
    },
    /// Opcode 11.
    HeartbeatAck,
    Unknown,
}

#[derive(Debug)]
pub(super) enum GatewayEvent {
    Ready(ReadyEvent),
    Resumed,
    MessageCreate(Value),
    InteractionCreate(Value),
    /// Any other event; ignored.
    Other,
}

#[derive(Debug, Deserialize)]
pub(super) struct ReadyEvent {
    pub(super) user: DiscordUser,
    pub(super) session_id: String,
    pub(super) resume_gateway_url: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct DiscordUser {
    pub(super) id: String,
    #[serde(default)]
    pub(super) username: String,
}

#[derive(Debug, Deserialize)]
struct HelloData {
    heartbeat_interval: u64,
}

/// Discord: gateway event payload. The data is parsed only where it is needed.
#[derive(Debug, Deserialize)]
struct GatewayEnvelope<'a> {
    op: u64,
    #[serde(default)]
    s: Option<u64>,
    #[serde(default)]
    t: Option<String>,
    #[serde(borrow, default)]
    d: Option<&'a RawValue>,
}

pub(super) fn parse_payload(text: &str) -> GatewayPayload {
    let Ok(envelope) = serde_json::from_str::<GatewayEnvelope<'_>>(text) else { return GatewayPayload::Unknown };
    let data = envelope.d.map_or("null", RawValue::get);
    match envelope.op {
        0 => GatewayPayload::Dispatch { seq: envelope.s, event: parse_event(envelope.t.as_deref(), data) },
        1 => GatewayPayload::HeartbeatRequested,
        7 => GatewayPayload::Reconnect,
        9 => GatewayPayload::InvalidSession { is_resumable: data == "true" },
        10 => match serde_json::from_str::<HelloData>(data) {
            Ok(hello) => GatewayPayload::Hello {
                interval: Duration::from_millis(hello.heartbeat_interval)
                    .clamp(MIN_HEARTBEAT_INTERVAL, MAX_HEARTBEAT_INTERVAL),
            },
            Err(_) => GatewayPayload::Unknown,
        },
        11 => GatewayPayload::HeartbeatAck,
        _ => GatewayPayload::Unknown,
    }
}

fn parse_event(name: Option<&str>, data: &str) -> GatewayEvent {
    let event = match name {
        Some("READY") => serde_json::from_str(data).map(GatewayEvent::Ready).ok(),
        Some("RESUMED") => Some(GatewayEvent::Resumed),
        Some("MESSAGE_CREATE") if data.len() <= MAX_EVENT_BYTES => {
            serde_json::from_str(data).map(GatewayEvent::MessageCreate).ok()
        }
        // Needs no intent.
        Some("INTERACTION_CREATE") if data.len() <= MAX_EVENT_BYTES => {
            serde_json::from_str(data).map(GatewayEvent::InteractionCreate).ok()
        }
        _ => None,
    };
    event.unwrap_or(GatewayEvent::Other)
}

pub(super) fn heartbeat_payload(seq: Option<u64>) -> String {
    json!({"op": 1, "d": seq}).to_string()
}

pub(super) fn identify_payload(token: &SecretString) -> String {
    let properties = json!({"os": "linux", "browser": "quell", "device": "quell"});
    let data = json!({"token": token.expose_secret(), "intents": INTENTS, "properties": properties});
    json!({"op": 2, "d": data}).to_string()
}

pub(super) fn resume_payload(token: &SecretString, session: &str, seq: u64) -> String {
    json!({"op": 6, "d": {"token": token.expose_secret(), "session_id": session, "seq": seq}}).to_string()
}
