//! Tests against a scripted homeserver: limits, lost and malformed responses, gaps.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::scripted_homeserver::{ScriptedHomeserver, ScriptedReply};
use super::{html_piece, matrix_network};
use crate::matrix::MatrixNetwork;
use crate::network::test_support::{RecordingInboundSink, chat_address, while_listening};
use crate::network::{ListenError, MessageId, Network as _, SendError};

const ROOM: &str = "!room:quell.test";

async fn start_homeserver() -> (ScriptedHomeserver, MatrixNetwork) {
    let server = ScriptedHomeserver::start().await;
    let matrix = matrix_network(&server.base_url(), "token", json!({"allow": ["@alice:quell.test"]}));
    (server, matrix)
}

fn message_event(n: usize) -> Value {
    let content = json!({"msgtype": "m.text", "body": format!("message {n}")});
    json!({"type": "m.room.message", "event_id": format!("$event{n}"), "sender": "@alice:quell.test", "content": content})
}

fn sync_reply(next: &str, timeline: Value) -> ScriptedReply {
    ScriptedReply::Json(200, json!({"next_batch": next, "rooms": {"join": {ROOM: {"timeline": timeline}}}}))
}

/// An initial sync in which the account is in the room with one other member.
fn initial_sync_reply() -> ScriptedReply {
    let room = json!({"summary": {"m.joined_member_count": 2}});
    ScriptedReply::Json(200, json!({"next_batch": "s0", "rooms": {"join": {ROOM: room}}}))
}

fn rate_limit_reply(after: &'static str, body: Value) -> ScriptedReply {
    ScriptedReply::Raw(429, after, body.to_string())
}

async fn send_message(matrix: &MatrixNetwork) -> Result<MessageId, SendError> {
    matrix.send(&chat_address(ROOM), &html_piece("<p>a</p>", "a"), "key").await
}

#[rstest]
#[case(rate_limit_reply("", json!({"errcode": "M_LIMIT_EXCEEDED", "error": "slow down", "retry_after_ms": 1500})), 1_500)]
#[case(rate_limit_reply("retry-after: 3\r\n", json!({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1500})), 3_000)]
#[case(rate_limit_reply("retry-after: 2\r\n", json!("a proxy says so")), 2_000)]
#[case(rate_limit_reply("", json!({"errcode": "M_LIMIT_EXCEEDED"})), 5_000)]
#[case(rate_limit_reply("", json!({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": u64::MAX})), 900_000)]
#[tokio::test]
async fn a_limit_says_when_to_come_again(#[case] reply: ScriptedReply, #[case] milliseconds: u64) {
    let (server, matrix) = start_homeserver().await;
    let wanted = Duration::from_millis(milliseconds);
    server.script_reply("/send/", reply.clone()).script_reply("/whoami", reply);
    let not_sent = send_message(&matrix).await.unwrap_err();
    assert!(
        matches!(not_sent, SendError::NotDelivered { retry_after: Some(after), .. } if after == wanted),
        "{not_sent:?}"
    );
    assert_eq!(server.count_calls("PUT "), 1, "the network does not try again by itself");
    let lost = matrix.listen(&RecordingInboundSink::new()).await;
    assert!(matches!(lost, ListenError::Busy { after, .. } if after == wanted), "{lost:?}");
}

#[rstest]
#[case(ScriptedReply::ConnectionLost)]
#[case(ScriptedReply::Json(500, json!({"errcode": "M_UNKNOWN", "error": "broken"})))]
#[case(ScriptedReply::Raw(502, "", "<html>bad gateway</html>".to_owned()))]
#[case(ScriptedReply::Raw(200, "", "{\"event_id\": ".to_owned()))]
#[case(ScriptedReply::Json(200, json!({})))]
#[tokio::test]
async fn a_lost_answer_is_asked_for_with_the_same_transaction(#[case] reply: ScriptedReply) {
    let (server, matrix) = start_homeserver().await;
    server.script_reply("/send/", reply).script_reply("/send/", ScriptedReply::Json(200, json!({"event_id": "$sent"})));
    let not_sent = send_message(&matrix).await.unwrap_err();
    assert!(matches!(not_sent, SendError::Unknown { is_repeatable: true, .. }), "{not_sent:?}");
    let first = server.wait_for_call("/send/").await;
    assert_eq!(send_message(&matrix).await, Ok(MessageId("$sent".to_owned())));
    assert_eq!(server.count_calls(&first.request_line), 2, "{first:?}");
    assert_eq!(first.body["formatted_body"], "<p>a</p>");
}

#[rstest]
#[case(403, "M_FORBIDDEN")]
#[case(413, "M_TOO_LARGE")]
#[case(401, "M_UNKNOWN_TOKEN")]
#[case(403, "M_USER_DEACTIVATED")]
#[tokio::test]
async fn a_refused_request_is_not_repeated(#[case] status: u16, #[case] code: &str) {
    let (server, matrix) = start_homeserver().await;
    let refusal = ScriptedReply::Json(status, json!({"errcode": code, "error": "because\r\nof rules"}));
    server.script_reply("/send/", refusal.clone()).script_reply("/sync", refusal);
    let not_sent = send_message(&matrix).await.unwrap_err();
    let SendError::Refused { why } = &not_sent else { panic!("{not_sent:?}") };
    assert!(why.contains(code) && !why.contains('\n'), "{why}");
    let lost = matrix.listen(&RecordingInboundSink::new()).await;
    assert!(matches!(lost, ListenError::Refused(_)), "{lost:?}");
}

#[tokio::test]
async fn a_file_whose_answer_was_lost_is_not_sent_again() {
    let (server, matrix) = start_homeserver().await;
    let file = serde_json::from_value(json!({"kind": "file", "source": "", "media_type": "bad\r\nheader: a"})).unwrap();
    let files = matrix.features().files.unwrap();
    server.script_reply("/upload", ScriptedReply::ConnectionLost);
    let not_sent = files.send(&chat_address(ROOM), &file, b"a".to_vec()).await.unwrap_err();
    assert!(matches!(not_sent, SendError::NotDelivered { .. }), "nobody sees what no message names: {not_sent:?}");
    server
        .script_reply("/upload", ScriptedReply::Json(200, json!({"content_uri": "mxc://quell.test/a"})))
        .script_reply("/send/", ScriptedReply::ConnectionLost);
    let not_sent = files.send(&chat_address(ROOM), &file, b"a".to_vec()).await.unwrap_err();
    assert!(matches!(not_sent, SendError::Unknown { is_repeatable: false, .. }), "{not_sent:?}");
}

#[rstest]
#[case(ScriptedReply::ConnectionLost)]
#[case(ScriptedReply::Raw(200, "", "{\"next_batch\": \"s1\", \"rooms\": {\"join\": [".to_owned()))]
#[case(ScriptedReply::Raw(200, "", "\u{1}".repeat(100)))]
#[case(ScriptedReply::Json(200, json!({"rooms": {}})))]
#[case(ScriptedReply::Json(200, json!({"next_batch": "s1", "rooms": {"join": "odd"}})))]
#[case(ScriptedReply::Json(503, json!({"errcode": "M_UNKNOWN", "error": "starting"})))]
#[case(ScriptedReply::Raw(200, "", " ".repeat(33 * 1024 * 1024)))]
#[case(ScriptedReply::Raw(302, "location: http://127.0.0.1:1/\r\n", String::new()))]
#[tokio::test]
async fn an_answer_that_is_none_ends_the_connection_and_keeps_the_place(#[case] reply: ScriptedReply) {
    let (server, matrix) = start_homeserver().await;
    let sink = RecordingInboundSink::new();
    server
        .script_reply("since=s0", sync_reply("s1", json!({"events": [message_event(1)]})))
        .script_reply("since=s1", reply);
    let lost = matrix.listen(&sink).await;
    assert!(matches!(lost, ListenError::Connection(_)), "{lost:?}");
    assert_eq!(sink.state().texts(), ["message 1"]);
    assert!(!sink.state().cursors.contains(&"s2".to_owned()));
}

#[tokio::test]
async fn odd_events_hide_no_others() {
    let (server, matrix) = start_homeserver().await;
    let odd = [json!(null), json!(5), json!({"type": 5}), json!({"type": "m.room.message", "sender": []})];
    let deep = serde_json::from_str::<Value>(&format!("{}{}", "[".repeat(100), "]".repeat(100))).unwrap();
    let events: Vec<Value> = odd.into_iter().chain([deep, message_event(1)]).collect();
    let sink = RecordingInboundSink::new();
    server.script_reply("since=s0", sync_reply("s1", json!({"events": events})));
    while_listening(&matrix, &sink, sink.wait_for("the sound one", |state| state.messages.len() == 1)).await;
    assert_eq!(sink.state().texts(), ["message 1"]);
}

#[tokio::test]
async fn an_endless_gap_is_read_so_far_and_no_further() {
    let (server, matrix) = start_homeserver().await;
    let sink = RecordingInboundSink::new();
    server.script_reply("/sync", initial_sync_reply());
    server.script_reply(
        "since=s0",
        sync_reply("s1", json!({"events": [message_event(999)], "limited": true, "prev_batch": "p0"})),
    );
    for page in 0..8 {
        let newest = 900 - page * 100;
        let chunk: Vec<Value> = (0..100).map(|n| message_event(newest - n)).collect();
        server.script_reply("/messages", ScriptedReply::Json(200, json!({"chunk": chunk, "end": "more"})));
    }
    let wait = sink.wait_for("the newest", |state| state.texts().contains(&"message 999"));
    let state = while_listening(&matrix, &sink, wait).await;
    let expected: Vec<String> = (401..=900).chain([999]).map(|n| format!("message {n}")).collect();
    assert_eq!(state.texts(), expected);
    assert_eq!(server.count_calls("/messages"), 5);
    let asked = server.wait_for_call("/messages").await.request_line;
    assert!(asked.contains("from=p0&to=s0"), "{asked}");
}

#[tokio::test]
async fn a_slow_gap_holds_up_its_own_room_alone_and_its_order_stays() {
    let (server, matrix) = start_homeserver().await;
    let sink = RecordingInboundSink::new();
    let limited_with = |n: usize, end: &str| json!({"events": [message_event(n)], "limited": true, "prev_batch": end});
    let other = json!({"timeline": {"events": [message_event(99)]}, "summary": {"m.joined_member_count": 2}});
    let elsewhere = json!({"next_batch": "s4", "rooms": {"join": {"!other:quell.test": other}}});
    server.script_reply("/sync", initial_sync_reply()).script_reply("from=p0", ScriptedReply::NoResponse);
    server
        .script_reply("since=s0", sync_reply("s1", limited_with(2, "p0")))
        .script_reply("since=s1", sync_reply("s2", json!({"events": [message_event(3)]})));
    server
        .script_reply("since=s2", sync_reply("s3", limited_with(5, "p1")))
        .script_reply("since=s3", ScriptedReply::Json(200, elsewhere));
    while_listening(&matrix, &sink, async {
        sink.wait_for("the other room", |state| !state.messages.is_empty()).await;
        server.wait_for_call("since=s4").await;
    })
    .await;
    server.drop_connections();
    let state = sink.state();
    assert_eq!(state.texts(), ["message 99"]);
    assert!(state.cursors.iter().all(|cursor| cursor == "s0"), "no place is kept behind a gap: {:?}", state.cursors);

    server
        .script_reply("/sync", initial_sync_reply())
        .script_reply("from=p0", ScriptedReply::Json(200, json!({"chunk": [message_event(1)], "end": "p"})));
    server.script_reply("from=p&", ScriptedReply::Json(200, json!({"chunk": []})));
    server.script_reply("from=p1", ScriptedReply::Json(200, json!({"chunk": [message_event(4)]})));
    server
        .script_reply("since=s0", sync_reply("s1", limited_with(2, "p0")))
        .script_reply("since=s1", sync_reply("s2", json!({"events": [message_event(3)]})));
    server
        .script_reply("since=s2", sync_reply("s3", limited_with(5, "p1")))
        .script_reply("since=s3", sync_reply("s4", json!({"events": [message_event(6)]})));
    let wait = sink.wait_for("the place", |state| state.cursors.iter().any(|cursor| cursor == "s4"));
    let state = while_listening(&matrix, &sink, wait).await;
    let expected: Vec<String> = [99].into_iter().chain(1..=6).map(|n| format!("message {n}")).collect();
    assert_eq!(state.texts(), expected);
}

#[tokio::test]
async fn a_room_whose_gap_cannot_be_read_does_not_end_listening() {
    let (server, matrix) = start_homeserver().await;
    let sink = RecordingInboundSink::new();
    server.script_reply("/sync", initial_sync_reply());
    server.script_reply(
        "since=s0",
        sync_reply("s1", json!({"events": [message_event(2)], "limited": true, "prev_batch": "p0"})),
    );
    server.script_reply("/messages", ScriptedReply::Json(403, json!({"errcode": "M_FORBIDDEN", "error": "no more"})));
    server.script_reply("since=s1", sync_reply("s2", json!({"events": [message_event(3)]})));
    let wait = sink.wait_for("both", |state| state.messages.len() == 2);
    assert_eq!(while_listening(&matrix, &sink, wait).await.texts(), ["message 2", "message 3"]);
}

#[tokio::test]
async fn a_gap_whose_answer_was_lost_is_asked_for_again() {
    let (server, matrix) = start_homeserver().await;
    let sink = RecordingInboundSink::new();
    let news = || sync_reply("s1", json!({"events": [message_event(2)], "limited": true, "prev_batch": "p0"}));
    server
        .script_reply("/sync", initial_sync_reply())
        .script_reply("since=s0", news())
        .script_reply("/messages", ScriptedReply::ConnectionLost);
    let lost = matrix.listen(&sink).await;
    assert!(matches!(lost, ListenError::Connection(_)), "{lost:?}");
    server.drop_connections();
    server.script_reply("/sync", initial_sync_reply()).script_reply("since=s0", news());
    server.script_reply("/messages", ScriptedReply::Json(200, json!({"chunk": [message_event(1)]})));
    let wait = sink.wait_for("both", |state| state.messages.len() == 2);
    assert_eq!(while_listening(&matrix, &sink, wait).await.texts(), ["message 1", "message 2"]);
}

#[tokio::test]
async fn joining_holds_up_nobody() {
    let (server, matrix) = start_homeserver().await;
    let sink = RecordingInboundSink::new();
    let member = json!({
        "type": "m.room.member", "sender": "@alice:quell.test", "state_key": "@quell:quell.test",
        "content": {"membership": "invite"},
    });
    let invitation = json!({"invite_state": {"events": [member]}});
    let invitations = json!({"next_batch": "s1", "rooms": {"invite": {"!new:quell.test": invitation}}});
    server
        .script_reply("since=s0", ScriptedReply::Json(200, invitations))
        .script_reply("/join/", ScriptedReply::NoResponse);
    while_listening(&matrix, &sink, async {
        server.wait_for_call("/join/").await;
        server.wait_for_call("since=s1").await;
    })
    .await;
    server.drop_connections();
    let again = json!({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1});
    server.script_reply("since=s1", sync_reply("s2", json!({"events": [message_event(1)]})));
    server.script_reply(
        "/sync",
        ScriptedReply::Json(200, json!({"next_batch": "s1", "rooms": {"invite": {"!new:quell.test": invitation}}})),
    );
    server
        .script_reply("/join/", rate_limit_reply("", again))
        .script_reply("/join/", ScriptedReply::Json(200, json!({"room_id": "!new:quell.test"})));
    while_listening(&matrix, &sink, async {
        sink.wait_for("a message", |state| state.messages.len() == 1).await;
        server.wait_for_call("since=s2").await;
    })
    .await;
    assert!(server.count_calls("/join/") >= 2, "an invitation is found again by the next connection");
}

fn tombstone_event(sender: &str, new: Value) -> Value {
    json!({
        "type": "m.room.tombstone", "event_id": "$end", "sender": sender, "state_key": "",
        "content": {"body": "This room has been replaced", "replacement_room": new},
    })
}

/// Regression: a replaced room was silent forever, until somebody invited the account into the new one.
#[tokio::test]
async fn a_room_is_followed_only_on_the_word_of_somebody_who_may_invite() {
    let (server, matrix) = start_homeserver().await;
    let sink = RecordingInboundSink::new();
    let mut no_state = tombstone_event("@alice:quell.test", json!("!no-state"));
    no_state.as_object_mut().unwrap().remove("state_key");
    let events = [
        tombstone_event("@mallory:quell.test", json!("!lair")),
        tombstone_event("@alice:quell.test", json!("#alias:quell.test")),
        tombstone_event("@alice:quell.test", json!(5)),
        tombstone_event("@alice:quell.test", json!(ROOM)),
        no_state,
        tombstone_event("@alice:quell.test", json!("!next-of-version-12")),
        message_event(1),
    ];
    server
        .script_reply("/sync", initial_sync_reply())
        .script_reply("since=s0", sync_reply("s1", json!({"events": events})));
    let joined = json!({"room_id": "!next-of-version-12"});
    server.script_reply("/join/", ScriptedReply::Json(200, joined));
    while_listening(&matrix, &sink, async {
        let join = server.wait_for_call("/join/").await.request_line;
        assert!(join.contains("/join/!next-of-version-12?via=quell.test&server_name=quell.test"), "{join}");
        server.wait_for_call("since=s1").await;
    })
    .await;
    assert_eq!((server.count_calls("/join/"), sink.state().texts()), (1, vec!["message 1"]));
}

#[rstest]
#[case::by_somebody_who_may_invite(json!({"allow": ["@alice:quell.test"]}), "@alice:quell.test")]
#[case::of_a_room_that_was_asked_for(json!({"join": [ROOM]}), "@mallory:quell.test")]
#[case::by_one_that_was_asked_for(json!({"join": ["!next:far.test"]}), "@mallory:quell.test")]
#[tokio::test]
async fn a_room_that_was_replaced_while_nobody_listened_is_followed_later(
    #[case] extra_keys: Value,
    #[case] sender: &str,
) {
    let server = ScriptedHomeserver::start().await;
    let matrix = matrix_network(&server.base_url(), "token", extra_keys);
    let replaced = json!({"state": {"events": [tombstone_event(sender, json!("!next:far.test"))]}});
    let initial_sync = json!({"next_batch": "s0", "rooms": {"join": {ROOM: replaced}}});
    server.script_reply("/sync", ScriptedReply::Json(200, initial_sync));
    let wait = server.wait_for_call("/join/!next:far.test?via=far.test");
    while_listening(&matrix, &RecordingInboundSink::new(), wait).await;
}

#[tokio::test]
async fn a_stuck_database_holds_up_no_stop_and_no_place_is_kept_before_its_messages() {
    let (server, matrix) = start_homeserver().await;
    let sink = RecordingInboundSink::with_stuck_database();
    sink.set_cursor("s0");
    server.script_reply("since=s0", sync_reply("s1", json!({"events": [message_event(1)]})));
    server.script_reply("since=s1", sync_reply("s2", json!({"events": [message_event(2)]})));
    while_listening(&matrix, &sink, async {
        sink.wait_for("both", |state| state.messages.len() == 2).await;
        server.wait_for_call("since=s2").await;
    })
    .await;
    assert_eq!(sink.state().cursors, Vec::<String>::new());
}

#[tokio::test]
async fn a_dropped_listener_closes_its_connection_and_can_listen_again() {
    let (server, matrix) = start_homeserver().await;
    let sink = RecordingInboundSink::new();
    while_listening(&matrix, &sink, server.wait_for_call("since=s0")).await;
    server.drop_connections();
    server.script_reply("since=s0", sync_reply("s1", json!({"events": [message_event(1)]})));
    while_listening(&matrix, &sink, sink.wait_for("a message", |state| state.messages.len() == 1)).await;
    assert_eq!(sink.state().accounts.len(), 2);
}
