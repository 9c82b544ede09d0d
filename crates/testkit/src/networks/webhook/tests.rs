//! The receiver refuses what docs/channels/webhook.md does not allow.

use rstest::rstest;
use serde_json::{Value, json};

use super::delivery_rules::{POST_PATH, answer_request, unix_now};
use super::{FakeReceiverState, TOKEN, sign};
use crate::fake_server::http1::RawHttpRequest;

/// A signed post of this age in seconds.
fn signed_post(body: &Value, age: i64) -> RawHttpRequest {
    let (text, at) = (body.to_string(), (unix_now() - age).to_string());
    let of = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    let headers = [
        ("quell-event", of("type")),
        ("quell-delivery", of("id")),
        ("quell-signature", sign(TOKEN, &at, text.as_bytes())),
        ("quell-timestamp", at),
    ];
    RawHttpRequest::post(POST_PATH, &headers, body)
}

fn message_body() -> Value {
    json!({"type": "message", "channel": "c", "id": "1", "target": "t", "text": "**a**", "plain": "a"})
}

fn edit_body(message: &str, revision: i64, text: &str) -> Value {
    json!({"type": "edit", "channel": "c", "id": format!("1.{revision}"), "target": "t", "message": message,
        "revision": revision, "text": text, "plain": text})
}

#[rstest]
#[case::no_type("content-type", None, 400)]
#[case::no_event("quell-event", None, 400)]
#[case::no_id("quell-delivery", None, 400)]
#[case::no_signature("quell-signature", None, 400)]
#[case::no_time("quell-timestamp", None, 400)]
#[case::wrong_signature("quell-signature", Some("v1=00"), 401)]
fn a_post_without_its_headers_is_refused(#[case] name: &str, #[case] value: Option<&str>, #[case] status: u16) {
    let (mut state, mut post) = (FakeReceiverState::default(), signed_post(&message_body(), 0));
    assert_eq!(answer_request(&mut state, &post).unwrap().status, 200);
    post.headers.retain(|(other, _)| other != name);
    post.headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    assert_eq!(answer_request(&mut state, &post).unwrap().status, status);
}

#[rstest]
#[case::too_old(message_body(), 1000, 401)]
#[case::unknown_field(json!({"type": "message", "channel": "c", "id": "1", "target": "t", "text": "a", "plain": "a", "x": 1}), 0, 400)]
#[case::unknown_event(json!({"type": "typing", "channel": "c", "id": "1"}), 0, 400)]
#[case::no_such_message(edit_body("m9", 1, "a"), 0, 404)]
fn an_undocumented_post_is_refused(#[case] body: Value, #[case] age: i64, #[case] status: u16) {
    let mut state = FakeReceiverState::default();
    assert_eq!(answer_request(&mut state, &signed_post(&body, age)).unwrap().status, status);
    assert_eq!(state.messages_by_target.values().flatten().count(), 0);
}

#[test]
fn an_edit_that_comes_late_changes_nothing() {
    let mut state = FakeReceiverState::default();
    for body in [message_body(), edit_body("m1", 2, "second"), edit_body("m1", 1, "first")] {
        assert_eq!(answer_request(&mut state, &signed_post(&body, 0)).unwrap().status, 200);
    }
    assert_eq!(state.texts("t"), ["second"]);
}
