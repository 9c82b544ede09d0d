//! Send and edit messages, send the typing notification.

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::MatrixNetwork;
use super::api::MatrixApi;
use crate::format::MessagePiece;
use crate::network::{ChatAddress, Drafts, MessageId, SendError, TypingIndicator, async_trait};
use crate::wire::call_error::CallError;
use crate::wire::http_client::Repeatable;

/// How long a typing notification lasts unless it is sent again, in milliseconds.
const TYPING_TIMEOUT_MS: u32 = 10_000;
/// Characters of an edit that are shown by clients without support for edits.
const MAX_FALLBACK_CHARS: usize = 200;

/// Sends one piece. The homeserver recognises a repeated key and then shows the message once.
pub(super) async fn send_message(
    api: &MatrixApi,
    address: &ChatAddress,
    piece: &MessagePiece,
    key: &str,
) -> Result<MessageId, SendError> {
    let mut content = text_content(piece);
    set_thread_relation(&mut content, address);
    let sent = api.send_event(&address.target, "m.room.message", &transaction_id_for(key), &content).await;
    sent.map(MessageId).map_err(|fault| fault.into_send_error(Repeatable::Yes))
}

/// Adds the thread of a message.
pub(super) fn set_thread_relation(content: &mut Value, address: &ChatAddress) {
    let Some(root) = &address.thread else { return };
    // Clients without support for threads show it as a reply.
    let reply = json!({"event_id": root});
    content["m.relates_to"] =
        json!({"rel_type": "m.thread", "event_id": root, "is_falling_back": true, "m.in_reply_to": reply});
}

/// A transaction id that is the same for the same key, whatever characters the key has.
pub(super) fn transaction_id_for(key: &str) -> String {
    digest(&SHA256, key.as_bytes()).as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn new_transaction_id() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

/// The content of a text message. It mentions nobody, so that a name in it causes no notification.
fn text_content(piece: &MessagePiece) -> Value {
    let mut content = json!({"msgtype": "m.text", "body": piece.plain, "m.mentions": {}});
    if !piece.formatted.is_empty() {
        content["format"] = "org.matrix.custom.html".into();
        content["formatted_body"] = piece.formatted.as_str().into();
    }
    content
}

/// The content that replaces an earlier message. The thread of the earlier message stays.
fn edit_content(piece: &MessagePiece, message: &MessageId) -> Value {
    let shown: String = piece.plain.chars().take(MAX_FALLBACK_CHARS).collect();
    json!({
        "msgtype": "m.text", "body": format!("* {shown}"), "m.mentions": {}, "m.new_content": text_content(piece),
        "m.relates_to": {"rel_type": "m.replace", "event_id": message.0},
    })
}

#[async_trait]
impl Drafts for MatrixNetwork {
    async fn edit(&self, address: &ChatAddress, message: &MessageId, piece: &MessagePiece) -> Result<(), SendError> {
        let content = edit_content(piece, message);
        // Do not derive the transaction id from the text: a return to an earlier text would be taken for a repetition.
        let sent = self.api.send_event(&address.target, "m.room.message", &new_transaction_id(), &content).await;
        sent.map(drop).map_err(|fault| fault.into_send_error(Repeatable::Yes))
    }
}

impl MatrixNetwork {
    async fn set_typing(&self, address: &ChatAddress, content: Value) -> Result<(), SendError> {
        let sending = async {
            let own_id = self.account_id().await?;
            self.api.set_typing(&address.target, &own_id, &content).await
        };
        sending.await.map_err(|fault: CallError| fault.into_send_error(Repeatable::Yes))
    }
}

#[async_trait]
impl TypingIndicator for MatrixNetwork {
    async fn show(&self, address: &ChatAddress) -> Result<(), SendError> {
        self.set_typing(address, json!({"typing": true, "timeout": TYPING_TIMEOUT_MS})).await
    }

    async fn hide(&self, address: &ChatAddress) -> Result<(), SendError> {
        self.set_typing(address, json!({"typing": false})).await
    }
}
