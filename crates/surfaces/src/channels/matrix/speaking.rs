//! What is said: messages, edits of them, and the sign that somebody is writing.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::Matrix;
use super::api::Api;
use super::fault::Fault;
use crate::channels::format::Piece;
use crate::channels::seam::{Drafts, MessageId, NotSent, Place, Typing};
use crate::channels::wire::http::Repeatable;

/// How long the sign of typing lasts unless it is shown again, in milliseconds.
const TYPING_LASTS: u32 = 10_000;
/// How much of an edit is shown by clients that know no edits, in characters.
const SHOWN_BY_OLD_CLIENTS: usize = 200;

/// Sends one piece. The homeserver knows a key again, and then shows nothing new.
pub(super) async fn say(api: &Api, place: &Place, piece: &Piece, key: &str) -> Result<MessageId, NotSent> {
    let mut content = text(piece);
    relate(&mut content, place);
    let sent = api.send(&place.target, "m.room.message", &transaction(key), &content).await;
    sent.map(MessageId).map_err(|fault| fault.into_not_sent(Repeatable::Yes))
}

/// Adds where a message belongs.
pub(super) fn relate(content: &mut Value, place: &Place) {
    let Some(root) = &place.thread else { return };
    // Clients that know no threads show it as a reply.
    let reply = json!({"event_id": root});
    content["m.relates_to"] =
        json!({"rel_type": "m.thread", "event_id": root, "is_falling_back": true, "m.in_reply_to": reply});
}

/// A name for something that is sent once, whatever its key looks like.
pub(super) fn transaction(key: &str) -> String {
    digest(&SHA256, key.as_bytes()).as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A name that nothing else has.
pub(super) fn new_transaction() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

/// A message of text. It names nobody on purpose, so that a name in it rings nowhere.
fn text(piece: &Piece) -> Value {
    let mut content = json!({"msgtype": "m.text", "body": piece.plain, "m.mentions": {}});
    if !piece.marked.is_empty() {
        content["format"] = "org.matrix.custom.html".into();
        content["formatted_body"] = piece.marked.as_str().into();
    }
    content
}

/// What takes the place of an earlier message. The thread of that one stays.
fn edit(piece: &Piece, message: &MessageId) -> Value {
    let shown: String = piece.plain.chars().take(SHOWN_BY_OLD_CLIENTS).collect();
    json!({
        "msgtype": "m.text", "body": format!("* {shown}"), "m.mentions": {}, "m.new_content": text(piece),
        "m.relates_to": {"rel_type": "m.replace", "event_id": message.0},
    })
}

impl Drafts for Matrix {
    fn edit<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        piece: &'a Piece,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        async move {
            let content = edit(piece, message);
            // Never a transaction of its text: going back to an earlier text would be taken for a repetition.
            self.api.send(&place.target, "m.room.message", &new_transaction(), &content).await
        }
        .map(|sent| sent.map(drop).map_err(|fault| fault.into_not_sent(Repeatable::Yes)))
        .boxed()
    }
}

impl Matrix {
    async fn type_or_not(&self, place: &Place, content: Value) -> Result<(), NotSent> {
        let told = async {
            let own = self.own_id().await?;
            self.api.typing(&place.target, &own, &content).await
        };
        told.await.map_err(|fault: Fault| fault.into_not_sent(Repeatable::Yes))
    }
}

impl Typing for Matrix {
    fn show<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        self.type_or_not(place, json!({"typing": true, "timeout": TYPING_LASTS})).boxed()
    }

    fn hide<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        self.type_or_not(place, json!({"typing": false})).boxed()
    }
}
