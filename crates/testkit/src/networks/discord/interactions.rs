//! Buttons, their presses, and the bot's responses to them (Discord: message components, interactions).

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::FakeButton;
use super::chat_data::BOT;
use super::rest_api::{api_error, invalid_field};
use super::state::FakeDiscordState;
use crate::fake_server::FakeHttpReply;

/// Discord: responding to an interaction. "You must send an initial response within 3 seconds".
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Discord: button, `custom_id`.
const MAX_CUSTOM_ID_CHARS: usize = 100;
/// Discord: message flag.
const EPHEMERAL: u64 = 1 << 6;

/// The press of a button.
#[derive(Debug, Clone)]
pub struct FakeDiscordPress {
    id: String,
    token: String,
    /// User id.
    pub user: String,
    at: Instant,
    pub response: Option<FakeInteractionResponse>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FakeInteractionResponse {
    /// Nothing is shown; the bot edits the message.
    Deferred,
    /// A message that only the person who pressed sees.
    Ephemeral(String),
}

/// The buttons in the components of a message.
pub(super) fn parse_components(payload: &Value) -> Result<Option<Vec<FakeButton>>, FakeHttpReply> {
    let Some(rows) = payload.get("components") else { return Ok(None) };
    let wrong = |why: &str| invalid_field("components", why);
    let mut buttons: Vec<FakeButton> = Vec::new();
    for row in rows.as_array().ok_or_else(|| wrong("Not a list."))? {
        let components = row["components"].as_array().filter(|all| row["type"] == 1 && (1..=5).contains(&all.len()));
        for button in components.ok_or_else(|| wrong("Not a row of one to five buttons."))? {
            let has_style = button["style"].as_u64().is_some_and(|style| (1..=4).contains(&style));
            let label = button["label"].as_str().filter(|label| (1..=80).contains(&label.chars().count()));
            let data = button["custom_id"].as_str();
            let data = data.filter(|data| (1..=MAX_CUSTOM_ID_CHARS).contains(&data.chars().count()));
            match (label, data) {
                (Some(label), Some(data)) if button["type"] == 2 && has_style => {
                    if buttons.iter().any(|other| other.data == data) {
                        return Err(wrong("Component custom id cannot be duplicated."));
                    }
                    buttons.push(FakeButton { label: label.to_owned(), data: data.to_owned() });
                }
                _ => return Err(wrong("Not a button.")),
            }
        }
    }
    Ok(Some(buttons))
}

/// Discord: create interaction response.
pub(super) fn respond(
    state: &mut FakeDiscordState,
    [id, token]: [&str; 2],
    payload: &Value,
) -> Result<FakeHttpReply, FakeHttpReply> {
    state.check_keys(payload, &["type", "data"]);
    state.check_keys(&payload["data"], &["content", "flags", "allowed_mentions"]);
    let press = state.presses.iter_mut().find(|press| press.id == id && press.token == token);
    let press = press.filter(|press| press.at.elapsed() < RESPONSE_TIMEOUT);
    let press = press.ok_or_else(|| api_error(404, 10062, "Unknown interaction"))?;
    if press.response.is_some() {
        return Err(api_error(400, 40060, "Interaction has already been acknowledged."));
    }
    let text = payload["data"]["content"].as_str().filter(|text| !text.is_empty());
    press.response = Some(match (payload["type"].as_u64(), text) {
        (Some(6), None) => FakeInteractionResponse::Deferred,
        (Some(4), Some(text)) if payload["data"]["flags"] == EPHEMERAL => {
            FakeInteractionResponse::Ephemeral(text.to_owned())
        }
        // A message that everybody sees is valid, too, but no test wants one.
        _ => return Err(invalid_field("type", "Neither a deferred update nor an ephemeral message.")),
    });
    Ok(FakeHttpReply::new(204, ""))
}

impl FakeDiscordState {
    /// A user presses a button with this data below a message of the bot.
    pub(super) fn press_button(&mut self, channel: &str, user: &str, (message, data): (&str, &str)) {
        let (id, number) = (self.chat_data.new_id(), self.presses.len());
        // As long as real ones, with characters that a path has to escape.
        let token = format!("aW50ZXJhY3Rpb24{number}:{}/=", "x".repeat(150));
        let person = self.chat_data.user_json(user);
        let mut event = json!({
            "id": id, "application_id": BOT, "type": 3, "token": token, "version": 1, "channel_id": channel,
            "channel": {"id": channel, "type": 0},
            "data": {"custom_id": data, "component_type": 2},
            "message": self.chat_data.message_json(channel, message, &self.file_base_url),
        });
        if self.chat_data.is_direct(channel) {
            event["user"] = person;
        } else {
            event["guild_id"] = json!("1100000000000000000");
            event["member"] = json!({"user": person, "roles": [], "nick": null});
        }
        self.presses.push(FakeDiscordPress { id, token, user: user.to_owned(), at: Instant::now(), response: None });
        self.send_event("INTERACTION_CREATE", &event);
    }
}
