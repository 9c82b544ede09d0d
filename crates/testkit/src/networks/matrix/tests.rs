//! Whether the homeserver does what tests build upon.

use std::time::Duration;

use super::{Synapse, is_skipped};
use crate::leaks;

#[tokio::test]
async fn people_meet_in_a_room_which_survives_a_restart_and_nothing_is_left_over() {
    if is_skipped() {
        return;
    }
    let mut server = Synapse::start().await;
    let (mut alice, mut bob) = (server.person("alice").await, server.person("bob").await);
    let room = alice.create_room(&[bob.id()]).await;
    bob.wait_for("the invitation", |view| view.invited.contains(&room)).await;
    bob.join(&room).await;
    let hello = alice.say(&room, "hello").await;
    alice.edit(&room, &hello, "hello Bob").await;
    bob.react(&room, &hello, "👍").await;
    server.restart().await;
    let bob_id = bob.id().to_owned();
    let seen = alice.wait_for("the reaction", |view| view.room(&room).signs(&hello, &bob_id) == ["👍"]).await;
    assert_eq!(seen.room(&room).texts_of(alice.id()), ["hello Bob"]);
    assert_eq!(seen.room(&room).members.len(), 2);
    let pid = server.pid().unwrap();
    drop(server);
    leaks::settled(Duration::from_secs(5), move || match leaks::process(pid) {
        None => Ok(()),
        Some(process) => Err(format!("{process:?}")),
    })
    .await;
}
