//! Buttons below messages (Slack: Block Kit, `block_actions` payloads, chat.postEphemeral).

use serde_json::{Value, json};

use super::event_parser::{is_message_timestamp, is_slack_id, is_user_id};
use super::{SlackNetwork, text};
use crate::format::{MessageFormat, MessagePiece};
use crate::network::{
    ButtonPress, ButtonStyle, ChatAddress, MessageButton, MessageButtons, MessageId, Network as _, PressReply,
    SendError, async_trait,
};
use crate::wire::http_client::Repeatable;

/// Slack: section block, `text`, "maximum length for the text in this field is 3000 characters".
const MAX_SECTION_CHARS: usize = 3000;

#[async_trait]
impl MessageButtons for SlackNetwork {
    fn message_format(&self) -> MessageFormat {
        MessageFormat { max_length: MAX_SECTION_CHARS, ..self.limits().message_format }
    }

    async fn send(
        &self,
        address: &ChatAddress,
        piece: &MessagePiece,
        buttons: &[MessageButton],
        _key: &str,
    ) -> Result<MessageId, SendError> {
        self.post_message(address, json!({"text": piece.formatted, "blocks": blocks(piece, buttons)})).await
    }

    async fn edit(
        &self,
        address: &ChatAddress,
        message: &MessageId,
        piece: &MessagePiece,
        buttons: &[MessageButton],
    ) -> Result<(), SendError> {
        // Slack: chat.update. Without `blocks` the earlier ones stay.
        let body = json!({
            "channel": address.target, "ts": message.0, "text": piece.formatted, "blocks": blocks(piece, buttons),
        });
        let result = self.api.call_method("chat.update", &body).await;
        result.map(drop).map_err(|failure| failure.into_send_error(Repeatable::Yes))
    }

    /// The envelope of the press was acknowledged when it arrived. A refusal is a message that only this person sees.
    async fn answer_press(&self, press: &ButtonPress, reply: &PressReply) -> Result<(), SendError> {
        let PressReply::Refused(refusal) = reply else { return Ok(()) };
        let mut body = json!({
            "channel": press.address.target, "user": press.sender, "text": text::escape(refusal),
        });
        if let Some(thread) = &press.address.thread {
            body["thread_ts"] = json!(thread);
        }
        let result = self.api.call_method("chat.postEphemeral", &body).await;
        result.map(drop).map_err(|failure| failure.into_send_error(Repeatable::No))
    }
}

/// The text, and below it one row of buttons.
fn blocks(piece: &MessagePiece, buttons: &[MessageButton]) -> Value {
    let section = json!({"type": "section", "text": {"type": "mrkdwn", "text": piece.formatted}});
    let to_json = |(number, button): (usize, &MessageButton)| {
        let style = match button.style {
            ButtonStyle::Positive => "primary",
            ButtonStyle::Negative => "danger",
        };
        json!({
            "type": "button", "text": {"type": "plain_text", "text": button.label}, "style": style,
            "action_id": format!("button-{number}"), "value": button.data,
        })
    };
    match buttons {
        [] => json!([section]),
        buttons => {
            let elements: Vec<Value> = buttons.iter().enumerate().map(to_json).collect();
            json!([section, {"type": "actions", "elements": elements}])
        }
    }
}

/// Parses the payload of an `interactive` envelope, if it is the press of a button below a message. Pure; the input is
/// untrusted.
pub(super) fn parse_press(payload: &Value) -> Option<ButtonPress> {
    let is_press = payload["type"] == "block_actions" && payload["actions"][0]["type"] == "button";
    let sender = payload["user"]["id"].as_str().filter(|id| is_press && is_user_id(id))?;
    let target = payload["channel"]["id"].as_str().filter(|id| is_slack_id(id))?;
    let message = &payload["message"];
    let ts = message["ts"].as_str().filter(|ts| is_message_timestamp(ts))?;
    let thread = message["thread_ts"].as_str().filter(|ts| is_message_timestamp(ts));
    Some(ButtonPress {
        sender: sender.to_owned(),
        address: ChatAddress { target: target.to_owned(), thread: thread.map(str::to_owned) },
        message_id: MessageId(ts.to_owned()),
        data: payload["actions"][0]["value"].as_str().unwrap_or_default().to_owned(),
        // A refusal is sent to the person in the channel.
        reply_token: String::new().into(),
    })
}
