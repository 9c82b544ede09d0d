//! What the account does by itself: it goes into rooms, and says where it cannot read.

use serde_json::json;

use super::fault::Fault;
use super::speaking::transaction;
use super::{Matrix, locked};

/// So often a room is asked again that wants to be left alone for a while.
const MOST_TRIES: usize = 5;
/// So many rooms are remembered that were told that they cannot be read.
const MOST_TOLD: usize = 10_000;

/// Joins a room, by its id or alias. These servers know it, besides the one in its name.
///
/// # Cancel safety
/// A dropped call may or may not have joined it.
pub(super) async fn join(matrix: &Matrix, room: String, known_to: Vec<String>) {
    match try_to_join(matrix, &room, &known_to).await {
        Ok(()) => tracing::info!(channel = matrix.channel, room, "joined"),
        Err(error) => {
            tracing::warn!(channel = matrix.channel, room, %error, "the room cannot be joined; invite the account there");
        }
    }
}

async fn try_to_join(matrix: &Matrix, room: &str, known_to: &[String]) -> Result<(), Fault> {
    for _ in 1..MOST_TRIES {
        match matrix.api.join(room, known_to).await {
            Err(Fault::Busy(after)) => tokio::time::sleep(after).await,
            answer => return answer,
        }
    }
    matrix.api.join(room, known_to).await
}

/// True once for each room that is encrypted.
pub(super) fn is_news(matrix: &Matrix, encrypted: &str) -> bool {
    let mut told = locked(&matrix.told_encrypted);
    told.len() < MOST_TOLD && !told.contains(encrypted) && told.insert(encrypted.to_owned())
}

/// Says in a room that it cannot be read. The transaction is the same after a restart, so that a homeserver that remembers it shows it
/// once even then.
///
/// # Cancel safety
/// A dropped call may or may not have said it.
pub(super) async fn tell_encrypted(matrix: &Matrix, room: String) {
    tracing::warn!(channel = matrix.channel, room, "the room is encrypted: what is written there cannot be read");
    let text =
        "This room is encrypted, which Quell cannot read. Please make a room without encryption and invite me there.";
    let notice = json!({"msgtype": "m.notice", "body": text, "m.mentions": {}});
    let key = transaction(&format!("encrypted {room}"));
    if let Err(error) = matrix.api.send(&room, "m.room.message", &key, &notice).await {
        tracing::debug!(channel = matrix.channel, room, %error, "the room was not told that it cannot be read");
    }
}
