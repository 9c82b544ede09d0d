//! Messages that are shown, changed, and announced by "typing".

use serde_json::{Value, json};

use super::api::{Api, Failure};
use crate::channels::format::Piece;
use crate::channels::seam::{MessageId, NotSent, Place};
use crate::channels::wire::http::Repeatable;

/// How Telegram refuses markup that it cannot read.
const UNREADABLE: &str = "can't parse entities";
/// How it says that an edit changes nothing.
const UNCHANGED: &str = "message is not modified";

/// Shows a message.
///
/// # Cancel safety
/// A dropped call may or may not have shown it.
pub(super) async fn message(api: &Api, place: &Place, piece: &Piece) -> Result<MessageId, NotSent> {
    let sent = written(api, "sendMessage", address(place)?, piece).await;
    let shown = sent.map_err(|failure| failure.not_sent(Repeatable::No))?;
    message_id(&shown)
}

/// Changes a message. Changing it into what it is already is no error, and doing it twice does no harm.
///
/// # Cancel safety
/// A dropped call may or may not have changed it.
pub(super) async fn edit(api: &Api, place: &Place, message: &MessageId, piece: &Piece) -> Result<(), NotSent> {
    let mut body = address(place)?;
    body["message_id"] = number(message)?;
    // A message does not leave its topic.
    forget_topic(&mut body);
    match written(api, "editMessageText", body, piece).await {
        Err(failure) if failure.says(UNCHANGED) => Ok(()),
        Err(failure) => Err(failure.not_sent(Repeatable::Yes)),
        Ok(_) => Ok(()),
    }
}

/// Shows for some seconds that somebody is writing.
///
/// # Cancel safety
/// A dropped call may or may not have shown it.
pub(super) async fn typing(api: &Api, place: &Place) -> Result<(), NotSent> {
    let mut body = address(place)?;
    body["action"] = json!("typing");
    let shown = api.call("sendChatAction", &body).await;
    shown.map(drop).map_err(|failure| failure.not_sent(Repeatable::Yes))
}

/// Sends a text with its markup, and without where Telegram cannot read that: nothing was shown then.
async fn written(api: &Api, method: &str, mut body: Value, piece: &Piece) -> Result<Value, Failure> {
    body["text"] = json!(piece.marked);
    body["parse_mode"] = json!("HTML");
    // Answers name many addresses, and a picture of one of them would push the answer off the screen.
    body["link_preview_options"] = json!({"is_disabled": true});
    match api.call(method, &body).await {
        Err(failure) if failure.says(UNREADABLE) => {
            tracing::debug!(why = ?failure, "Telegram does not take the markup of a message, which goes without");
            body["text"] = json!(piece.plain);
            if let Some(body) = body.as_object_mut() {
                body.remove("parse_mode");
            }
            api.call(method, &body).await
        }
        done => done,
    }
}

/// The chat and the topic, as every call names them.
pub(super) fn address(place: &Place) -> Result<Value, NotSent> {
    let target = place.target.as_str();
    let chat = match target.parse::<i64>() {
        Ok(id) => json!(id),
        // Public channels and groups have names.
        Err(_) if target.starts_with('@') => json!(target),
        Err(_) => {
            let why =
                format!("{target:?} is no chat of Telegram: it is a number, or the @name of a public group or channel");
            return Err(NotSent::Refused { why });
        }
    };
    let mut body = json!({ "chat_id": chat });
    if let Some(thread) = &place.thread {
        let id: Result<i64, _> = thread.parse();
        let why = || format!("{thread:?} is no topic of Telegram, which is a number");
        body["message_thread_id"] = json!(id.map_err(|_| NotSent::Refused { why: why() })?);
    }
    Ok(body)
}

/// Takes the topic out of a call that names a message.
pub(super) fn forget_topic(body: &mut Value) {
    if let Some(body) = body.as_object_mut() {
        body.remove("message_thread_id");
    }
}

/// A message, as calls name it.
pub(super) fn number(message: &MessageId) -> Result<Value, NotSent> {
    let number: Result<i64, _> = message.0.parse();
    let why = || format!("{:?} is no message of Telegram, which is a number", message.0);
    Ok(json!(number.map_err(|_| NotSent::Refused { why: why() })?))
}

/// The number of a message that was shown.
pub(super) fn message_id(shown: &Value) -> Result<MessageId, NotSent> {
    let id = shown["message_id"].as_i64().map(|id| MessageId(id.to_string()));
    let why = || "Telegram does not say which message it showed".to_owned();
    id.ok_or_else(|| NotSent::Unknown { why: why(), repeatable: false })
}
