//! Background tasks for rooms: join a room, send the notice that a room is encrypted.

use serde_json::json;

use super::sending::transaction_id_for;
use super::{MatrixNetwork, lock};
use crate::wire::call_error::CallError;

/// Largest number of tries to join a room, if the server limits the rate.
const MAX_JOIN_TRIES: usize = 5;
/// Largest number of rooms that get the notice during the life of the daemon.
const MAX_NOTIFIED_ROOMS: usize = 10_000;

/// Joins a room by its id or alias, through the server in its name or `via_servers`.
///
/// # Cancel safety
/// Safe to repeat; a dropped call may or may not have joined it.
pub(super) async fn join_room(network: &MatrixNetwork, room: String, via_servers: Vec<String>) {
    match try_join_room(network, &room, &via_servers).await {
        Ok(()) => tracing::info!(channel = network.channel_name, room, "joined"),
        Err(error) => {
            tracing::warn!(channel = network.channel_name, room, %error, "the room cannot be joined; invite the account there");
        }
    }
}

async fn try_join_room(network: &MatrixNetwork, room: &str, via_servers: &[String]) -> Result<(), CallError> {
    for _ in 1..MAX_JOIN_TRIES {
        match network.api.join_room(room, via_servers).await {
            Err(CallError::RateLimited { after, .. }) => tokio::time::sleep(after).await,
            result => return result,
        }
    }
    network.api.join_room(room, via_servers).await
}

/// True on the first call for each room; false if too many rooms are recorded.
pub(super) fn mark_notified(network: &MatrixNetwork, room: &str) -> bool {
    let mut notified_rooms = lock(&network.notified_rooms);
    notified_rooms.len() < MAX_NOTIFIED_ROOMS
        && !notified_rooms.contains(room)
        && notified_rooms.insert(room.to_owned())
}

/// Sends the notice that a room is encrypted. The transaction id is the same after a restart, so that a homeserver that
/// still knows it shows the notice once.
///
/// # Cancel safety
/// Safe to repeat; a dropped call may or may not have sent it.
pub(super) async fn send_encryption_notice(network: &MatrixNetwork, room: String) {
    tracing::warn!(channel = network.channel_name, room, "the room is encrypted: what is written there cannot be read");
    let text =
        "This room is encrypted, which Quell cannot read. Please make a room without encryption and invite me there.";
    let notice = json!({"msgtype": "m.notice", "body": text, "m.mentions": {}});
    let key = transaction_id_for(&format!("encrypted {room}"));
    if let Err(error) = network.api.send_event(&room, "m.room.message", &key, &notice).await {
        tracing::debug!(channel = network.channel_name, room, %error, "cannot send the notice that the room is encrypted");
    }
}
