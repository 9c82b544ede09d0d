//! Buttons below messages (Discord: message components, receiving and responding to interactions).

use reqwest::Method;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::message_parser::parse_snowflake;
use super::{DiscordNetwork, call_api_repeatable, no_allowed_mentions, require_snowflake};
use crate::format::{MessageFormat, MessagePiece};
use crate::network::{
    ButtonPress, ButtonStyle, ChatAddress, MessageButton, MessageButtons, MessageId, Network as _, PressReply,
    SendError, async_trait,
};

/// Discord: interaction type `MESSAGE_COMPONENT`, and component type of a button.
const MESSAGE_COMPONENT: u64 = 3;
const BUTTON: u64 = 2;
/// Discord: component type of a row.
const ACTION_ROW: u64 = 1;
/// Discord: interaction callback types `CHANNEL_MESSAGE_WITH_SOURCE` and `DEFERRED_UPDATE_MESSAGE`. The second shows
/// nothing: the message is edited afterwards.
const NEW_MESSAGE: u64 = 4;
const DEFERRED_UPDATE: u64 = 6;
/// Discord: message flag `EPHEMERAL`. Only the person who pressed sees the message.
const EPHEMERAL: u64 = 1 << 6;
/// Discord documents no length of an interaction's token; it has about 200 characters.
const MAX_TOKEN_BYTES: usize = 1024;

#[async_trait]
impl MessageButtons for DiscordNetwork {
    fn message_format(&self) -> MessageFormat {
        self.limits().message_format
    }

    async fn send(
        &self,
        address: &ChatAddress,
        piece: &MessagePiece,
        buttons: &[MessageButton],
        key: &str,
    ) -> Result<MessageId, SendError> {
        self.create_message(address, key, json!({"content": piece.formatted, "components": component_rows(buttons)}))
            .await
    }

    async fn edit(
        &self,
        address: &ChatAddress,
        message: &MessageId,
        piece: &MessagePiece,
        buttons: &[MessageButton],
    ) -> Result<(), SendError> {
        let body = json!({"content": piece.formatted, "components": component_rows(buttons)});
        self.edit_message(address, message, body).await
    }

    /// Discord waits three seconds for the answer, and then shows that the interaction has failed.
    async fn answer_press(&self, press: &ButtonPress, reply: &PressReply) -> Result<(), SendError> {
        let (id, token) = press.reply_token.expose_secret().split_once('/').unwrap_or_default();
        let body = match reply {
            PressReply::Counted(_) => json!({"type": DEFERRED_UPDATE}),
            PressReply::Refused(text) => {
                let data = json!({"content": text, "flags": EPHEMERAL, "allowed_mentions": no_allowed_mentions()});
                json!({"type": NEW_MESSAGE, "data": data})
            }
        };
        let path = ["interactions", require_snowflake(id)?, token, "callback"];
        call_api_repeatable(self.rest_client.request(Method::POST, &path).json(&body)).await
    }
}

/// One row of buttons, or none.
fn component_rows(buttons: &[MessageButton]) -> Value {
    let to_json = |button: &MessageButton| {
        // Discord: button styles, success and danger.
        let style = match button.style {
            ButtonStyle::Positive => 3,
            ButtonStyle::Negative => 4,
        };
        json!({"type": BUTTON, "style": style, "label": button.label, "custom_id": button.data})
    };
    match buttons {
        [] => json!([]),
        buttons => json!([{"type": ACTION_ROW, "components": buttons.iter().map(to_json).collect::<Vec<_>>()}]),
    }
}

/// Parses an `INTERACTION_CREATE` event, if it is the press of a button by a person. Pure; the input is untrusted.
pub(super) fn parse_press(event: &Value) -> Option<ButtonPress> {
    let is_button = event["type"] == MESSAGE_COMPONENT && event["data"]["component_type"] == BUTTON;
    // In a guild the user is in the member.
    let users = [&event["member"]["user"], &event["user"]];
    let user = users.into_iter().find(|user| user.is_object()).filter(|user| is_button && user["bot"] != true)?;
    let snowflake = |value: &'_ Value| Some(parse_snowflake(value.as_str()?)?.to_owned());
    let token = event["token"].as_str().filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN_BYTES)?;
    Some(ButtonPress {
        sender: snowflake(&user["id"])?,
        address: ChatAddress { target: snowflake(&event["channel_id"])?, thread: None },
        message_id: MessageId(snowflake(&event["message"]["id"])?),
        data: event["data"]["custom_id"].as_str()?.to_owned(),
        reply_token: format!("{}/{token}", snowflake(&event["id"])?).into(),
    })
}
