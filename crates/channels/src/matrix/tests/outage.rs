//! Restarts of Synapse: no message is lost, and a repeated message has the same id.

use quell_testkit::networks::matrix::{MatrixTestUser, Synapse, is_skipped};
use serde_json::json;

use super::{html_piece, matrix_network};
use crate::network::test_support::{RecordingInboundSink, chat_address, while_listening};
use crate::network::{InboundMessage, InboundSink as _, ListenError, Network as _, SendError};

/// More messages than one poll returns.
const MESSAGE_COUNT: usize = 45;

async fn send_many(person: &MatrixTestUser, room: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for n in 0..MESSAGE_COUNT {
        let text = format!("message {n}");
        person.send_message(room, &text).await;
        texts.push(text);
    }
    texts
}

#[tokio::test]
#[ignore = "full: Synapse"]
async fn no_message_is_lost_or_doubled_by_a_restart_or_an_outage() {
    if is_skipped() {
        return;
    }
    let mut server = Synapse::start().await;
    let (mut alice, quell) = (server.register_user("alice").await, server.register_user("quell").await);
    let network = matrix_network(&server.base_url(), quell.token(), json!({"allow": [alice.id()]}));
    let sink = RecordingInboundSink::new();
    let room = alice.create_room(&[]).await;
    alice.send_message(&room, "before the invitation").await;

    while_listening(&network, &sink, async {
        alice.invite(&room, quell.id()).await;
        alice.send_message(&room, "one").await;
        sink.wait_for_text("one").await;
        // A cursor after the message is saved, so that the message does not come again.
        sink.wait_for("a later place", |state| state.cursors.len() >= 2 && state.store_waits >= 2).await;
    })
    .await;
    let sent = network.send(&chat_address(&room), &html_piece("", "only once"), "key").await.unwrap();
    let (lost, ()) = tokio::join!(network.listen(&sink), async {
        sink.wait_for("the second connection", |state| state.accounts.len() == 2).await;
        alice.send_message(&room, "two").await;
        sink.wait_for_text("two").await;
        server.kill();
    });
    assert!(matches!(lost, ListenError::Connection(_)), "{lost:?}");
    let down = network.listen(&sink).await;
    assert!(matches!(down, ListenError::Connection(_)), "{down:?}");
    let down = network.send(&chat_address(&room), &html_piece("", "hello"), "another key").await;
    assert!(matches!(down, Err(SendError::NotDelivered { .. })), "nothing was sent to nobody: {down:?}");

    server.restart().await;
    let many = send_many(&alice, &room).await;
    while_listening(&network, &sink, sink.wait_for_text(&many[MESSAGE_COUNT - 1])).await;
    let mut expected = vec!["one".to_owned(), "two".to_owned()];
    expected.extend(many);
    assert_eq!(sink.state().distinct_texts(), expected);
    let is_known = |inbound: &InboundMessage| inbound.sender_name.as_deref() == Some("alice") && !inbound.is_group;
    assert!(
        sink.state().messages.iter().all(is_known),
        "names and rooms are known again: {:#?}",
        sink.state().messages
    );

    assert_eq!(
        network.send(&chat_address(&room), &html_piece("", "only once"), "key").await,
        Ok(sent),
        "keys are known after a restart"
    );
    let last = network.send(&chat_address(&room), &html_piece("", "last"), "next key").await.unwrap();
    let view = alice.wait_for("the last", |view| view.room(&room).messages.iter().any(|m| m.id == last.0)).await;
    assert_eq!(view.room(&room).texts_of(quell.id()), ["only once", "last"]);
    check_unknown_cursor_ignored(&server, &alice, &quell, &room).await;
    check_wrong_token_refused(&server, &room).await;
}

async fn check_unknown_cursor_ignored(server: &Synapse, alice: &MatrixTestUser, quell: &MatrixTestUser, room: &str) {
    let sink = RecordingInboundSink::new();
    sink.save_cursor("of another server".to_owned()).await;
    let network = matrix_network(&server.base_url(), quell.token(), json!({}));
    while_listening(&network, &sink, async {
        sink.wait_for("a place of this server", |state| state.cursors.len() == 2).await;
        alice.send_message(room, "now").await;
        sink.wait_for_text("now").await;
    })
    .await;
    assert_eq!(sink.state().texts(), ["now"], "what is old is not answered");
}

async fn check_wrong_token_refused(server: &Synapse, room: &str) {
    let network = matrix_network(&server.base_url(), "syt_secret_of_nobody", json!({}));
    let lost = network.listen(&RecordingInboundSink::new()).await;
    let ListenError::Refused(why) = &lost else { panic!("{lost:?}") };
    assert!(why.contains("M_UNKNOWN_TOKEN") && why.contains("QUELL_MATRIX_TOKEN"), "{why}");
    let error = network.probe().await.unwrap_err();
    let not_sent = network.send(&chat_address(room), &html_piece("", "hello"), "key").await.unwrap_err();
    assert!(matches!(not_sent, SendError::Refused { .. }), "{not_sent:?}");
    let text = format!("{why} {error} {not_sent} {network:?}");
    assert!(!text.contains("syt_secret"), "{text}");
}
