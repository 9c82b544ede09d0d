//! Against a homeserver that answers by a script: limits, lost and odd answers, and what must not hold up listening.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rstest::rstest;
use serde_json::{Value, json};

use super::homeserver::{Homeserver, Reply};
use super::{matrix, piece, place, while_listening};
use crate::channels::matrix::Matrix;
use crate::channels::seam::recording::RecordingEar;
use crate::channels::seam::{Ear, Heard, Lost, MessageId, Network as _, NotSent, Own};

const ROOM: &str = "!room:quell.test";

async fn homeserver() -> (Homeserver, Matrix) {
    let server = Homeserver::start().await;
    let matrix = matrix(&server.base_url(), "token", json!({"allow": ["@alice:quell.test"]}));
    (server, matrix)
}

fn said(n: usize) -> Value {
    let content = json!({"msgtype": "m.text", "body": format!("message {n}")});
    json!({"type": "m.room.message", "event_id": format!("$event{n}"), "sender": "@alice:quell.test", "content": content})
}

fn poll(next: &str, timeline: Value) -> Reply {
    Reply::Json(200, json!({"next_batch": next, "rooms": {"join": {ROOM: {"timeline": timeline}}}}))
}

/// The account is in the room, with one other.
fn survey() -> Reply {
    let room = json!({"summary": {"m.joined_member_count": 2}});
    Reply::Json(200, json!({"next_batch": "s0", "rooms": {"join": {ROOM: room}}}))
}

fn limited(after: &'static str, body: Value) -> Reply {
    Reply::Raw(429, after, body.to_string())
}

async fn send(server: &Homeserver, matrix: &Matrix) -> Result<MessageId, NotSent> {
    server.during(matrix.send(&place(ROOM), &piece("<p>a</p>", "a"), "key")).await
}

#[rstest]
#[case(limited("", json!({"errcode": "M_LIMIT_EXCEEDED", "error": "slow down", "retry_after_ms": 1500})), 1_500)]
#[case(limited("retry-after: 3\r\n", json!({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1500})), 3_000)]
#[case(limited("retry-after: 2\r\n", json!("a proxy says so")), 2_000)]
#[case(limited("", json!({"errcode": "M_LIMIT_EXCEEDED"})), 5_000)]
#[case(limited("", json!({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": u64::MAX})), 900_000)]
#[tokio::test]
async fn a_limit_says_when_to_come_again(#[case] reply: Reply, #[case] milliseconds: u64) {
    let (server, matrix) = homeserver().await;
    let wanted = Duration::from_millis(milliseconds);
    server.answer("/send/", reply.clone()).answer("/whoami", reply);
    let not_sent = send(&server, &matrix).await.unwrap_err();
    assert!(matches!(not_sent, NotSent::Undelivered { after: Some(after), .. } if after == wanted), "{not_sent:?}");
    assert_eq!(server.count("PUT "), 1, "the network does not try again by itself");
    let lost = server.during(matrix.listen(&RecordingEar::new())).await;
    assert!(matches!(lost, Lost::Busy { after, .. } if after == wanted), "{lost:?}");
}

#[rstest]
#[case(Reply::Lost)]
#[case(Reply::Json(500, json!({"errcode": "M_UNKNOWN", "error": "broken"})))]
#[case(Reply::Raw(502, "", "<html>bad gateway</html>".to_owned()))]
#[case(Reply::Raw(200, "", "{\"event_id\": ".to_owned()))]
#[case(Reply::Json(200, json!({})))]
#[tokio::test]
async fn a_lost_answer_is_asked_for_with_the_same_transaction(#[case] reply: Reply) {
    let (server, matrix) = homeserver().await;
    server.answer("/send/", reply).answer("/send/", Reply::Json(200, json!({"event_id": "$sent"})));
    let not_sent = send(&server, &matrix).await.unwrap_err();
    assert!(matches!(not_sent, NotSent::Unknown { repeatable: true, .. }), "{not_sent:?}");
    let first = server.called("/send/").await;
    assert_eq!(send(&server, &matrix).await, Ok(MessageId("$sent".to_owned())));
    assert_eq!(server.count(&first.line), 2, "{first:?}");
    assert_eq!(first.body["formatted_body"], "<p>a</p>");
}

#[rstest]
#[case(403, "M_FORBIDDEN")]
#[case(413, "M_TOO_LARGE")]
#[case(401, "M_UNKNOWN_TOKEN")]
#[case(403, "M_USER_DEACTIVATED")]
#[tokio::test]
async fn what_is_refused_is_not_sent_again(#[case] status: u16, #[case] code: &str) {
    let (server, matrix) = homeserver().await;
    let refusal = Reply::Json(status, json!({"errcode": code, "error": "because\r\nof rules"}));
    server.answer("/send/", refusal.clone()).answer("/sync", refusal);
    let not_sent = send(&server, &matrix).await.unwrap_err();
    let NotSent::Refused { why } = &not_sent else { panic!("{not_sent:?}") };
    assert!(why.contains(code) && !why.contains('\n'), "{why}");
    let lost = server.during(matrix.listen(&RecordingEar::new())).await;
    assert!(matches!(lost, Lost::Refused(_)), "{lost:?}");
}

#[tokio::test]
async fn a_file_whose_answer_was_lost_is_not_sent_again() {
    let (server, matrix) = homeserver().await;
    let file = serde_json::from_value(json!({"kind": "file", "source": "", "media_type": "bad\r\nheader: a"})).unwrap();
    let files = matrix.files().unwrap();
    server.answer("/upload", Reply::Lost);
    let not_sent = server.during(files.send(&place(ROOM), &file, b"a".to_vec())).await.unwrap_err();
    assert!(matches!(not_sent, NotSent::Undelivered { .. }), "nobody sees what no message names: {not_sent:?}");
    server
        .answer("/upload", Reply::Json(200, json!({"content_uri": "mxc://quell.test/a"})))
        .answer("/send/", Reply::Lost);
    let not_sent = server.during(files.send(&place(ROOM), &file, b"a".to_vec())).await.unwrap_err();
    assert!(matches!(not_sent, NotSent::Unknown { repeatable: false, .. }), "{not_sent:?}");
}

#[rstest]
#[case(Reply::Lost)]
#[case(Reply::Raw(200, "", "{\"next_batch\": \"s1\", \"rooms\": {\"join\": [".to_owned()))]
#[case(Reply::Raw(200, "", "\u{1}".repeat(100)))]
#[case(Reply::Json(200, json!({"rooms": {}})))]
#[case(Reply::Json(200, json!({"next_batch": "s1", "rooms": {"join": "odd"}})))]
#[case(Reply::Json(503, json!({"errcode": "M_UNKNOWN", "error": "starting"})))]
#[case(Reply::Raw(200, "", " ".repeat(33 * 1024 * 1024)))]
#[case(Reply::Raw(302, "location: http://127.0.0.1:1/\r\n", String::new()))]
#[tokio::test]
async fn an_answer_that_is_none_ends_the_connection_and_keeps_the_place(#[case] reply: Reply) {
    let (server, matrix) = homeserver().await;
    let ear = RecordingEar::new();
    server.answer("since=s0", poll("s1", json!({"events": [said(1)]}))).answer("since=s1", reply);
    let lost = server.during(matrix.listen(&ear)).await;
    assert!(matches!(lost, Lost::Connection(_)), "{lost:?}");
    assert_eq!(ear.state().texts(), ["message 1"]);
    assert!(!ear.state().cursors.contains(&"s2".to_owned()));
}

#[tokio::test]
async fn odd_events_hide_no_others() {
    let (server, matrix) = homeserver().await;
    let odd = [json!(null), json!(5), json!({"type": 5}), json!({"type": "m.room.message", "sender": []})];
    let deep = serde_json::from_str::<Value>(&format!("{}{}", "[".repeat(100), "]".repeat(100))).unwrap();
    let events: Vec<Value> = odd.into_iter().chain([deep, said(1)]).collect();
    let ear = RecordingEar::new();
    server.answer("since=s0", poll("s1", json!({"events": events})));
    server.during(while_listening(&matrix, &ear, ear.wait_for("the sound one", |state| state.heard.len() == 1))).await;
    assert_eq!(ear.state().texts(), ["message 1"]);
}

#[tokio::test]
async fn an_endless_gap_is_read_so_far_and_no_further() {
    let (server, matrix) = homeserver().await;
    let ear = RecordingEar::new();
    server.answer("/sync", survey());
    server.answer("since=s0", poll("s1", json!({"events": [said(999)], "limited": true, "prev_batch": "p0"})));
    for page in 0..8 {
        let newest = 900 - page * 100;
        let chunk: Vec<Value> = (0..100).map(|n| said(newest - n)).collect();
        server.answer("/messages", Reply::Json(200, json!({"chunk": chunk, "end": "more"})));
    }
    let wait = ear.wait_for("the newest", |state| state.texts().contains(&"message 999"));
    let state = server.during(while_listening(&matrix, &ear, wait)).await;
    let expected: Vec<String> = (401..=900).chain([999]).map(|n| format!("message {n}")).collect();
    assert_eq!(state.texts(), expected);
    assert_eq!(server.count("/messages"), 5);
    let asked = server.called("/messages").await.line;
    assert!(asked.contains("from=p0&to=s0"), "{asked}");
}

#[tokio::test]
async fn a_slow_gap_holds_up_its_own_room_alone_and_its_order_stays() {
    let (server, matrix) = homeserver().await;
    let ear = RecordingEar::new();
    let limited_with = |n: usize, end: &str| json!({"events": [said(n)], "limited": true, "prev_batch": end});
    let other = json!({"timeline": {"events": [said(99)]}, "summary": {"m.joined_member_count": 2}});
    let elsewhere = json!({"next_batch": "s4", "rooms": {"join": {"!other:quell.test": other}}});
    server.answer("/sync", survey()).answer("from=p0", Reply::Never);
    server
        .answer("since=s0", poll("s1", limited_with(2, "p0")))
        .answer("since=s1", poll("s2", json!({"events": [said(3)]})));
    server.answer("since=s2", poll("s3", limited_with(5, "p1"))).answer("since=s3", Reply::Json(200, elsewhere));
    server
        .during(while_listening(&matrix, &ear, async {
            ear.wait_for("the other room", |state| !state.heard.is_empty()).await;
            server.called("since=s4").await;
        }))
        .await;
    let state = ear.state();
    assert_eq!(state.texts(), ["message 99"]);
    assert!(state.cursors.iter().all(|cursor| cursor == "s0"), "no place is kept behind a gap: {:?}", state.cursors);

    server.answer("/sync", survey()).answer("from=p0", Reply::Json(200, json!({"chunk": [said(1)], "end": "p"})));
    server.answer("from=p&", Reply::Json(200, json!({"chunk": []})));
    server.answer("from=p1", Reply::Json(200, json!({"chunk": [said(4)]})));
    server
        .answer("since=s0", poll("s1", limited_with(2, "p0")))
        .answer("since=s1", poll("s2", json!({"events": [said(3)]})));
    server
        .answer("since=s2", poll("s3", limited_with(5, "p1")))
        .answer("since=s3", poll("s4", json!({"events": [said(6)]})));
    let wait = ear.wait_for("the place", |state| state.cursors.iter().any(|cursor| cursor == "s4"));
    let state = server.during(while_listening(&matrix, &ear, wait)).await;
    let expected: Vec<String> = [99].into_iter().chain(1..=6).map(|n| format!("message {n}")).collect();
    assert_eq!(state.texts(), expected);
}

#[tokio::test]
async fn a_room_whose_gap_cannot_be_read_does_not_end_listening() {
    let (server, matrix) = homeserver().await;
    let ear = RecordingEar::new();
    server.answer("/sync", survey());
    server.answer("since=s0", poll("s1", json!({"events": [said(2)], "limited": true, "prev_batch": "p0"})));
    server.answer("/messages", Reply::Json(403, json!({"errcode": "M_FORBIDDEN", "error": "no more"})));
    server.answer("since=s1", poll("s2", json!({"events": [said(3)]})));
    let wait = ear.wait_for("both", |state| state.heard.len() == 2);
    assert_eq!(server.during(while_listening(&matrix, &ear, wait)).await.texts(), ["message 2", "message 3"]);
}

#[tokio::test]
async fn a_gap_whose_answer_was_lost_is_asked_for_again() {
    let (server, matrix) = homeserver().await;
    let ear = RecordingEar::new();
    let news = || poll("s1", json!({"events": [said(2)], "limited": true, "prev_batch": "p0"}));
    server.answer("/sync", survey()).answer("since=s0", news()).answer("/messages", Reply::Lost);
    let lost = server.during(matrix.listen(&ear)).await;
    assert!(matches!(lost, Lost::Connection(_)), "{lost:?}");
    server.answer("/sync", survey()).answer("since=s0", news());
    server.answer("/messages", Reply::Json(200, json!({"chunk": [said(1)]})));
    let wait = ear.wait_for("both", |state| state.heard.len() == 2);
    assert_eq!(server.during(while_listening(&matrix, &ear, wait)).await.texts(), ["message 1", "message 2"]);
}

#[tokio::test]
async fn joining_holds_up_nobody() {
    let (server, matrix) = homeserver().await;
    let ear = RecordingEar::new();
    let member = json!({
        "type": "m.room.member", "sender": "@alice:quell.test", "state_key": "@quell:quell.test",
        "content": {"membership": "invite"},
    });
    let invitation = json!({"invite_state": {"events": [member]}});
    let invitations = json!({"next_batch": "s1", "rooms": {"invite": {"!new:quell.test": invitation}}});
    server.answer("since=s0", Reply::Json(200, invitations)).answer("/join/", Reply::Never);
    server
        .during(while_listening(&matrix, &ear, async {
            server.called("/join/").await;
            server.called("since=s1").await;
        }))
        .await;
    let again = json!({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1});
    server.answer("since=s1", poll("s2", json!({"events": [said(1)]})));
    server.answer(
        "/sync",
        Reply::Json(200, json!({"next_batch": "s1", "rooms": {"invite": {"!new:quell.test": invitation}}})),
    );
    server
        .answer("/join/", limited("", again))
        .answer("/join/", Reply::Json(200, json!({"room_id": "!new:quell.test"})));
    server
        .during(while_listening(&matrix, &ear, async {
            ear.wait_for("a message", |state| state.heard.len() == 1).await;
            server.called("since=s2").await;
        }))
        .await;
    assert!(server.count("/join/") >= 2, "an invitation is found again by the next connection");
}

fn tombstone(sender: &str, new: Value) -> Value {
    json!({
        "type": "m.room.tombstone", "event_id": "$end", "sender": sender, "state_key": "",
        "content": {"body": "This room has been replaced", "replacement_room": new},
    })
}

/// A room that was replaced was silent for good until somebody invited the account into the new one.
#[tokio::test]
async fn a_room_is_followed_only_on_the_word_of_somebody_who_may_invite() {
    let (server, matrix) = homeserver().await;
    let ear = RecordingEar::new();
    let mut no_state = tombstone("@alice:quell.test", json!("!no-state"));
    no_state.as_object_mut().unwrap().remove("state_key");
    let events = [
        tombstone("@mallory:quell.test", json!("!lair")),
        tombstone("@alice:quell.test", json!("#alias:quell.test")),
        tombstone("@alice:quell.test", json!(5)),
        tombstone("@alice:quell.test", json!(ROOM)),
        no_state,
        tombstone("@alice:quell.test", json!("!next-of-version-12")),
        said(1),
    ];
    server.answer("/sync", survey()).answer("since=s0", poll("s1", json!({"events": events})));
    let joined = json!({"room_id": "!next-of-version-12"});
    server.answer("/join/", Reply::Json(200, joined));
    server
        .during(while_listening(&matrix, &ear, async {
            let join = server.called("/join/").await.line;
            assert!(join.contains("/join/!next-of-version-12?via=quell.test&server_name=quell.test"), "{join}");
            server.called("since=s1").await;
        }))
        .await;
    assert_eq!((server.count("/join/"), ear.state().texts()), (1, vec!["message 1"]));
}

#[rstest]
#[case::by_somebody_who_may_invite(json!({"allow": ["@alice:quell.test"]}), "@alice:quell.test")]
#[case::of_a_room_that_was_asked_for(json!({"join": [ROOM]}), "@mallory:quell.test")]
#[case::by_one_that_was_asked_for(json!({"join": ["!next:far.test"]}), "@mallory:quell.test")]
#[tokio::test]
async fn a_room_that_was_replaced_while_nobody_listened_is_followed_later(#[case] wishes: Value, #[case] sender: &str) {
    let server = Homeserver::start().await;
    let matrix = matrix(&server.base_url(), "token", wishes);
    let replaced = json!({"state": {"events": [tombstone(sender, json!("!next:far.test"))]}});
    let survey = json!({"next_batch": "s0", "rooms": {"join": {ROOM: replaced}}});
    server.answer("/sync", Reply::Json(200, survey));
    let wait = server.called("/join/!next:far.test?via=far.test");
    server.during(while_listening(&matrix, &RecordingEar::new(), wait)).await;
}

/// An ear whose database is stuck.
struct StuckEar(RecordingEar);

impl Ear for StuckEar {
    fn connected(&self, own: Own) {
        self.0.connected(own);
    }

    fn hear(&self, heard: Heard) {
        self.0.hear(heard);
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }

    fn cursor(&self) -> BoxFuture<'_, Option<String>> {
        async { Some("s0".to_owned()) }.boxed()
    }

    fn keep_cursor(&self, cursor: String) -> BoxFuture<'_, ()> {
        self.0.keep_cursor(cursor)
    }
}

#[tokio::test]
async fn a_stuck_database_holds_up_no_stop_and_no_place_is_kept_before_its_messages() {
    let (server, matrix) = homeserver().await;
    let ear = StuckEar(RecordingEar::new());
    server.answer("since=s0", poll("s1", json!({"events": [said(1)]})));
    server.answer("since=s1", poll("s2", json!({"events": [said(2)]})));
    server
        .during(while_listening(&matrix, &ear, async {
            ear.0.wait_for("both", |state| state.heard.len() == 2).await;
            server.called("since=s2").await;
        }))
        .await;
    assert_eq!(ear.0.state().cursors, Vec::<String>::new());
}

#[tokio::test]
async fn a_dropped_listener_closes_its_connection_and_can_listen_again() {
    let (server, matrix) = homeserver().await;
    let ear = RecordingEar::new();
    server.during(while_listening(&matrix, &ear, server.called("since=s0"))).await;
    server.answer("since=s0", poll("s1", json!({"events": [said(1)]})));
    server.during(while_listening(&matrix, &ear, ear.wait_for("a message", |state| state.heard.len() == 1))).await;
    assert_eq!(ear.state().connected.len(), 2);
}
