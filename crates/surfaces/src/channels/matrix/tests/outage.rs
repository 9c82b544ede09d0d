//! Against a real Synapse that goes away: nothing is lost, and what is told again has the same id.

use std::collections::HashSet;

use quell_testkit::networks::matrix::{MatrixPerson, Synapse, is_skipped};
use serde_json::json;

use super::{matrix, piece, place, while_listening};
use crate::channels::seam::recording::RecordingEar;
use crate::channels::seam::{Ear as _, Heard, Lost, Network as _, NotSent};

/// More than one poll brings.
const MANY: usize = 45;

/// What was heard, each message once, in the order of its first telling.
fn told_once(ear: &RecordingEar) -> Vec<String> {
    let mut ids = HashSet::new();
    let heard = ear.state().heard;
    heard.into_iter().filter(|heard| ids.insert(heard.id.clone())).map(|heard| heard.text).collect()
}

async fn hears(ear: &RecordingEar, text: &str) {
    ear.wait_for(text, |state| state.texts().contains(&text)).await;
}

async fn say_many(person: &MatrixPerson, room: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for n in 0..MANY {
        let text = format!("message {n}");
        person.say(room, &text).await;
        texts.push(text);
    }
    texts
}

#[tokio::test]
async fn nothing_is_lost_or_doubled_when_the_server_restarts_and_when_nobody_listens() {
    if is_skipped() {
        return;
    }
    let mut server = Synapse::start().await;
    let (mut alice, quell) = (server.person("alice").await, server.person("quell").await);
    let network = matrix(&server.base_url(), quell.token(), json!({"allow": [alice.id()]}));
    let ear = RecordingEar::new();
    let room = alice.create_room(&[]).await;
    alice.say(&room, "before the invitation").await;

    while_listening(&network, &ear, async {
        alice.invite(&room, quell.id()).await;
        alice.say(&room, "one").await;
        hears(&ear, "one").await;
        // The place is kept after it, so that it is not told again.
        ear.wait_for("a later place", |state| state.cursors.len() >= 2 && state.settled >= 2).await;
    })
    .await;
    let sent = network.send(&place(&room), &piece("", "only once"), "key").await.unwrap();
    let (lost, ()) = tokio::join!(network.listen(&ear), async {
        ear.wait_for("the second connection", |state| state.connected.len() == 2).await;
        alice.say(&room, "two").await;
        hears(&ear, "two").await;
        server.kill();
    });
    assert!(matches!(lost, Lost::Connection(_)), "{lost:?}");
    let down = network.listen(&ear).await;
    assert!(matches!(down, Lost::Connection(_)), "{down:?}");
    let down = network.send(&place(&room), &piece("", "hello"), "another key").await;
    assert!(matches!(down, Err(NotSent::Undelivered { .. })), "nothing was sent to nobody: {down:?}");

    server.restart().await;
    let many = say_many(&alice, &room).await;
    while_listening(&network, &ear, hears(&ear, &many[MANY - 1])).await;
    let mut expected = vec!["one".to_owned(), "two".to_owned()];
    expected.extend(many);
    assert_eq!(told_once(&ear), expected);
    let is_known = |heard: &Heard| heard.sender_name.as_deref() == Some("alice") && !heard.group;
    assert!(ear.state().heard.iter().all(is_known), "names and rooms are known again: {:#?}", ear.state().heard);

    assert_eq!(
        network.send(&place(&room), &piece("", "only once"), "key").await,
        Ok(sent),
        "keys are known after a restart"
    );
    let last = network.send(&place(&room), &piece("", "last"), "next key").await.unwrap();
    let view = alice.wait_for("the last", |view| view.room(&room).messages.iter().any(|m| m.id == last.0)).await;
    assert_eq!(view.room(&room).texts_of(quell.id()), ["only once", "last"]);
    a_place_that_the_server_does_not_know_is_forgotten(&server, &alice, &quell, &room).await;
    a_wrong_token_is_refused(&server, &room).await;
}

async fn a_place_that_the_server_does_not_know_is_forgotten(
    server: &Synapse,
    alice: &MatrixPerson,
    quell: &MatrixPerson,
    room: &str,
) {
    let ear = RecordingEar::new();
    ear.keep_cursor("of another server".to_owned()).await;
    let network = matrix(&server.base_url(), quell.token(), json!({}));
    while_listening(&network, &ear, async {
        ear.wait_for("a place of this server", |state| state.cursors.len() == 2).await;
        alice.say(room, "now").await;
        hears(&ear, "now").await;
    })
    .await;
    assert_eq!(ear.state().texts(), ["now"], "what is old is not answered");
}

async fn a_wrong_token_is_refused(server: &Synapse, room: &str) {
    let network = matrix(&server.base_url(), "syt_secret_of_nobody", json!({}));
    let lost = network.listen(&RecordingEar::new()).await;
    let Lost::Refused(why) = &lost else { panic!("{lost:?}") };
    assert!(why.contains("M_UNKNOWN_TOKEN") && why.contains("QUELL_MATRIX_TOKEN"), "{why}");
    let trouble = network.probe().await.unwrap_err();
    let not_sent = network.send(&place(room), &piece("", "hello"), "key").await.unwrap_err();
    assert!(matches!(not_sent, NotSent::Refused { .. }), "{not_sent:?}");
    let told = format!("{why} {trouble} {not_sent} {network:?}");
    assert!(!told.contains("syt_secret"), "{told}");
}
