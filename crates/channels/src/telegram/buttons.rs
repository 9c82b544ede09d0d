//! Buttons below messages (Bot API: `InlineKeyboardMarkup`, answerCallbackQuery).

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::TelegramNetwork;
use super::messages::{chat_fields, edit_fields, edit_message, send_new_message};
use crate::format::{MessageFormat, MessagePiece};
use crate::network::{
    ButtonPress, ButtonStyle, ChatAddress, MessageButton, MessageButtons, MessageId, Network as _, PressReply,
    SendError, async_trait,
};
use crate::wire::http_client::Repeatable;

/// Bot API: answerCallbackQuery, `text`, "0-200 characters".
const MAX_PRESS_REPLY_CHARS: usize = 200;

#[async_trait]
impl MessageButtons for TelegramNetwork {
    fn message_format(&self) -> MessageFormat {
        self.limits().message_format
    }

    async fn send(
        &self,
        address: &ChatAddress,
        piece: &MessagePiece,
        buttons: &[MessageButton],
        _key: &str,
    ) -> Result<MessageId, SendError> {
        let mut body = chat_fields(address)?;
        body["reply_markup"] = inline_keyboard(buttons);
        send_new_message(&self.api, body, piece).await
    }

    async fn edit(
        &self,
        address: &ChatAddress,
        message: &MessageId,
        piece: &MessagePiece,
        buttons: &[MessageButton],
    ) -> Result<(), SendError> {
        let mut body = edit_fields(address, message)?;
        if !buttons.is_empty() {
            body["reply_markup"] = inline_keyboard(buttons);
        }
        edit_message(&self.api, body, piece).await
    }

    /// Until the answer, the person's client shows that it waits.
    async fn answer_press(&self, press: &ButtonPress, reply: &PressReply) -> Result<(), SendError> {
        let text: String = reply.text().chars().take(MAX_PRESS_REPLY_CHARS).collect();
        let is_refused = matches!(reply, PressReply::Refused(_));
        let id = press.reply_token.expose_secret();
        let body = json!({"callback_query_id": id, "text": text, "show_alert": is_refused});
        let result = self.api.call_method("answerCallbackQuery", &body).await;
        result.map(drop).map_err(|failure| failure.into_send_error(Repeatable::Yes))
    }
}

/// One row of buttons. Telegram has no colours for them, so the labels begin with a sign.
fn inline_keyboard(buttons: &[MessageButton]) -> Value {
    let to_json = |button: &MessageButton| {
        let sign = match button.style {
            ButtonStyle::Positive => "✅",
            ButtonStyle::Negative => "🚫",
        };
        json!({"text": format!("{sign} {}", button.label), "callback_data": button.data})
    };
    json!({"inline_keyboard": [buttons.iter().map(to_json).collect::<Vec<_>>()]})
}
