//! The homeserver behaves as other tests expect.

use std::time::Duration;

use super::{Synapse, is_skipped};
use crate::leaks;

#[tokio::test]
async fn people_meet_in_a_room_which_survives_a_restart_and_nothing_is_left_over() {
    if is_skipped() {
        return;
    }
    let mut server = Synapse::start().await;
    let (mut alice, mut bob) = (server.register_user("alice").await, server.register_user("bob").await);
    let room = alice.create_room(&[bob.id()]).await;
    bob.wait_for("the invitation", |view| view.invited.contains(&room)).await;
    bob.join(&room).await;
    let hello = alice.send_message(&room, "hello").await;
    alice.edit_message(&room, &hello, "hello Bob").await;
    bob.add_reaction(&room, &hello, "👍").await;
    server.restart().await;
    let bob_id = bob.id().to_owned();
    let seen = alice.wait_for("the reaction", |view| view.room(&room).reactions_by(&hello, &bob_id) == ["👍"]).await;
    assert_eq!(seen.room(&room).texts_of(alice.id()), ["hello Bob"]);
    assert_eq!(seen.room(&room).members.len(), 2);
    let pid = server.pid().unwrap();
    drop(server);
    leaks::wait_until(Duration::from_secs(5), move || match leaks::read_process(pid) {
        None => Ok(()),
        Some(process) => Err(format!("{process:?}")),
    })
    .await;
}
