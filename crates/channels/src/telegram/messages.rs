//! Send and edit messages, send the typing action.

use serde_json::{Value, json};

use super::TelegramNetwork;
use super::api::{TelegramApi, reason_contains};
use crate::format::MessagePiece;
use crate::network::{ChatAddress, Drafts, MessageId, SendError, TypingIndicator, async_trait};
use crate::wire::call_error::CallError;
use crate::wire::http_client::Repeatable;

/// Error for markup that Telegram cannot parse.
const PARSE_ERROR_TEXT: &str = "can't parse entities";
/// Error for an edit that changes nothing.
const NOT_MODIFIED_TEXT: &str = "message is not modified";

/// Sends a message.
///
/// # Cancel safety
/// Not safe to repeat: a dropped call may or may not have sent the message.
pub(super) async fn send_message(
    api: &TelegramApi,
    address: &ChatAddress,
    piece: &MessagePiece,
) -> Result<MessageId, SendError> {
    send_new_message(api, chat_fields(address)?, piece).await
}

/// Sends a message with these fields besides its text.
///
/// # Cancel safety
/// Like [`send_message`].
pub(super) async fn send_new_message(
    api: &TelegramApi,
    body: Value,
    piece: &MessagePiece,
) -> Result<MessageId, SendError> {
    let sent = send_with_markup(api, "sendMessage", body, piece).await;
    let shown = sent.map_err(|failure| failure.into_send_error(Repeatable::No))?;
    parse_message_id(&shown)
}

/// The fields of an edit besides its text. An edit must not name the topic.
pub(super) fn edit_fields(address: &ChatAddress, message: &MessageId) -> Result<Value, SendError> {
    let mut body = chat_fields(address)?;
    body["message_id"] = message_number(message)?;
    remove_topic(&mut body);
    Ok(body)
}

/// Edits a message; without a `reply_markup` in `body`, its buttons are removed. An edit that changes nothing is no
/// error.
pub(super) async fn edit_message(api: &TelegramApi, body: Value, piece: &MessagePiece) -> Result<(), SendError> {
    match send_with_markup(api, "editMessageText", body, piece).await {
        Err(failure) if reason_contains(&failure, NOT_MODIFIED_TEXT) => Ok(()),
        Err(failure) => Err(failure.into_send_error(Repeatable::Yes)),
        Ok(_) => Ok(()),
    }
}

#[async_trait]
impl Drafts for TelegramNetwork {
    async fn edit(&self, address: &ChatAddress, message: &MessageId, piece: &MessagePiece) -> Result<(), SendError> {
        edit_message(&self.api, edit_fields(address, message)?, piece).await
    }
}

#[async_trait]
impl TypingIndicator for TelegramNetwork {
    async fn show(&self, address: &ChatAddress) -> Result<(), SendError> {
        let mut body = chat_fields(address)?;
        body["action"] = json!("typing");
        let result = self.api.call_method("sendChatAction", &body).await;
        result.map(drop).map_err(|failure| failure.into_send_error(Repeatable::Yes))
    }
}

/// Sends a text with markup. If Telegram cannot parse the markup, nothing was shown, and the plain text is sent.
async fn send_with_markup(
    api: &TelegramApi,
    method: &str,
    mut body: Value,
    piece: &MessagePiece,
) -> Result<Value, CallError> {
    body["text"] = json!(piece.formatted);
    body["parse_mode"] = json!("HTML");
    // Answers often contain links, and the preview of one would push the answer off the screen.
    body["link_preview_options"] = json!({"is_disabled": true});
    match api.call_method(method, &body).await {
        Err(failure) if reason_contains(&failure, PARSE_ERROR_TEXT) => {
            tracing::debug!(why = ?failure, "Telegram cannot parse the markup of a message: it is sent as plain text");
            body["text"] = json!(piece.plain);
            if let Some(body) = body.as_object_mut() {
                body.remove("parse_mode");
            }
            api.call_method(method, &body).await
        }
        result => result,
    }
}

/// The fields of a call that name the chat and the topic.
pub(super) fn chat_fields(address: &ChatAddress) -> Result<Value, SendError> {
    let target = address.target.as_str();
    let chat = match target.parse::<i64>() {
        Ok(id) => json!(id),
        // Public channels and groups have names.
        Err(_) if target.starts_with('@') => json!(target),
        Err(_) => {
            let why =
                format!("{target:?} is no chat of Telegram: it is a number, or the @name of a public group or channel");
            return Err(SendError::Refused { why });
        }
    };
    let mut body = json!({ "chat_id": chat });
    if let Some(thread) = &address.thread {
        let id: Result<i64, _> = thread.parse();
        let why = || format!("{thread:?} is no topic of Telegram, which is a number");
        body["message_thread_id"] = json!(id.map_err(|_| SendError::Refused { why: why() })?);
    }
    Ok(body)
}

/// Removes the topic from a call that names a message.
pub(super) fn remove_topic(body: &mut Value) {
    if let Some(body) = body.as_object_mut() {
        body.remove("message_thread_id");
    }
}

/// The id of a message as calls need it.
pub(super) fn message_number(message: &MessageId) -> Result<Value, SendError> {
    let number: Result<i64, _> = message.0.parse();
    let why = || format!("{:?} is no message of Telegram, which is a number", message.0);
    Ok(json!(number.map_err(|_| SendError::Refused { why: why() })?))
}

/// The id in the response to a sent message.
pub(super) fn parse_message_id(sent_message: &Value) -> Result<MessageId, SendError> {
    let id = sent_message["message_id"].as_i64().map(|id| MessageId(id.to_string()));
    let why = || "Telegram does not say which message it showed".to_owned();
    id.ok_or_else(|| SendError::Unknown { why: why(), is_repeatable: false })
}
