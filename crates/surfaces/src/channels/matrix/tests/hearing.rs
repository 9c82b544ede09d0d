//! From events to what is heard, without a server.

use quell_protocol::AttachmentKind;
use rstest::rstest;
use serde_json::{Value, json};

use crate::channels::matrix::events::{Event, Joined};
use crate::channels::matrix::hearing::{Hearing, begin};
use crate::channels::matrix::rooms::Rooms;
use crate::channels::seam::{Heard, Own};

const ROOM: &str = "!room:quell.test";

fn own() -> Own {
    Own { id: "@quell:quell.test".to_owned(), name: "Quell Bot".to_owned() }
}

fn event(kind: &str, content: Value) -> Value {
    json!({"type": kind, "event_id": "$event", "sender": "@alice:quell.test", "content": content})
}

fn text(body: &str) -> Value {
    event("m.room.message", json!({"msgtype": "m.text", "body": body}))
}

/// As it is heard in a room of three, where only what names the account is meant for it.
fn heard_in_group(event: Value) -> Option<Heard> {
    heard(event, 3)
}

fn heard(event: Value, members: u64) -> Option<Heard> {
    let mut rooms = Rooms::default();
    let joined: Joined = serde_json::from_value(json!({"summary": {"m.joined_member_count": members}})).unwrap();
    assert!(rooms.learn(ROOM, &joined) && !rooms.learn(ROOM, &Joined::default()), "a room is new once");
    let event: Event = serde_json::from_value(event).unwrap();
    Hearing { own: &own(), mention_only: true }.message(ROOM, rooms.of(ROOM), &event)
}

#[rstest]
#[case("hello", "hello", false)]
#[case("Quell Bot: hello", "hello", true)]
#[case("quell bot, hello", "hello", true)]
#[case("Quell: hello", "hello", true)]
#[case("@quell hello", "hello", true)]
#[case("@quell:quell.test hello", "hello", true)]
#[case("  @Quell:quell.test:  /stop", "/stop", true)]
#[case("Quell Bot", "", true)]
#[case("Quell Bot says hello", "Quell Bot says hello", false)]
#[case("quells: waters", "quells: waters", false)]
#[case("hello Quell Bot:", "hello Quell Bot:", false)]
#[case("", "", false)]
#[case("ſ", "ſ", false)]
fn a_name_at_the_beginning_is_a_call(#[case] said: &str, #[case] words: &str, #[case] addressed: bool) {
    let heard = heard_in_group(text(said)).unwrap();
    assert_eq!((heard.text.as_str(), heard.addressed, heard.group), (words, addressed, true));
}

#[rstest]
#[case(json!({"m.mentions": {"user_ids": ["@bob:quell.test", "@quell:quell.test"]}}), true)]
#[case(json!({"m.mentions": {"user_ids": ["@bob:quell.test"]}}), false)]
#[case(json!({"m.mentions": {}}), false)]
#[case(json!({"formatted_body": "<a href=\"https://matrix.to/#/@quell:quell.test\">Quell Bot</a> hello"}), true)]
#[case(json!({"formatted_body": "<a href=\"matrix:u/quell:quell.test\">Quell Bot</a> hello"}), true)]
#[case(json!({"formatted_body": "<a href=\"https://matrix.to/#/@quell:quell.test.evil\">Quell Bot</a> hello"}), false)]
fn who_is_named_in_the_data_is_addressed(#[case] data: Value, #[case] addressed: bool) {
    let mut event = text("Quell Bot hello");
    for (key, value) in data.as_object().unwrap() {
        event["content"][key] = value.clone();
    }
    let heard = heard_in_group(event).unwrap();
    let words = if addressed { "hello" } else { "Quell Bot hello" };
    assert_eq!((heard.addressed, heard.text.as_str()), (addressed, words));
}

#[test]
fn two_need_no_names() {
    let heard = heard(text("hello"), 2).unwrap();
    assert!(heard.addressed && !heard.group);
}

#[rstest]
#[case("> <@quell:quell.test> old\n> lines\n\nnew", "new")]
#[case("> * <@quell:quell.test> waves\n\nnew\n\n> own quote", "new\n\n> own quote")]
#[case("> a quote of my own\n\nand words", "> a quote of my own\n\nand words")]
#[case("> <@quell:quell.test> nothing but that", "")]
fn the_quote_of_a_reply_is_not_part_of_it(#[case] body: &str, #[case] words: &str) {
    let mut event = text(body);
    event["content"]["m.relates_to"] = json!({"m.in_reply_to": {"event_id": "$old"}});
    assert_eq!(heard_in_group(event).unwrap().text, words);
    assert_eq!(heard_in_group(text(body)).unwrap().text, body, "without the relation it is the writer's own");
}

#[rstest]
#[case(event("m.room.message", json!({})))]
#[case(event("m.room.message", json!({"msgtype": "m.text", "body": 5})))]
#[case(event("m.room.message", json!({"msgtype": "m.text", "body": "hello", "m.relates_to": "odd"})))]
#[case(event("m.room.message", json!({"msgtype": "m.notice", "body": "hello"})))]
#[case(event("m.room.message", json!({"msgtype": "m.image", "body": "cat.png"})))]
#[case(event("m.room.message", json!({"msgtype": "m.image", "body": "cat.png", "url": "https://evil.test/cat.png"})))]
#[case(event("m.room.message", json!("odd")))]
#[case(event("m.room.topic", json!({"msgtype": "m.text", "body": "hello"})))]
#[case(json!({"type": "m.room.message", "sender": "@alice:quell.test", "content": {"msgtype": "m.text", "body": "a"}}))]
#[case(json!({"type": "m.room.message", "event_id": "$a", "sender": "alice", "content": {"msgtype": "m.text", "body": "a"}}))]
#[case(json!({"type": "m.room.message", "event_id": "$a", "sender": "@quell:quell.test", "content": {"msgtype": "m.text", "body": "a"}}))]
fn what_is_no_message_of_somebody_else_is_not_heard(#[case] event: Value) {
    assert_eq!(heard_in_group(event), None);
}

#[test]
fn nothing_is_longer_than_a_sound_server_would_let_it_be() {
    let heard = heard_in_group(text(&"ä".repeat(100_000))).unwrap();
    assert_eq!(heard.text.len(), 65_536);
    let mut file = event("m.room.message", json!({"msgtype": "m.file", "body": "n".repeat(1_000), "url": "mxc://a/b"}));
    file["content"]["info"] = json!({"size": -1, "mimetype": ["odd"]});
    let heard = heard_in_group(file).unwrap();
    let [attachment] = heard.attachments.as_slice() else { panic!("{heard:?}") };
    assert_eq!(attachment.kind, AttachmentKind::File);
    assert_eq!((attachment.bytes, attachment.media_type.as_deref()), (None, None));
    assert_eq!(attachment.name.as_deref().map(str::len), Some(255));
    assert_eq!(heard.text, "", "the body is the file's name");
}

#[rstest]
#[case(json!({"rel_type": "m.thread", "event_id": "$root"}), Some("$root"))]
#[case(json!({"rel_type": "m.thread", "event_id": "no event"}), None)]
#[case(json!({"rel_type": "m.reference", "event_id": "$root"}), None)]
fn a_thread_is_a_place_of_its_own(#[case] relation: Value, #[case] thread: Option<&str>) {
    let mut event = text("hello");
    event["content"]["m.relates_to"] = relation;
    let heard = heard_in_group(event).unwrap();
    assert_eq!((heard.place.thread.as_deref(), heard.scope_id.as_deref()), (thread, thread));
}

/// Who comes and goes: `a` is somebody else's message.
fn row(kinds: &[&str]) -> Vec<Event> {
    let member = |membership: &str, before: &str| {
        let unsigned = json!({"prev_content": {"membership": before}});
        json!({
            "type": "m.room.member", "sender": "@alice:quell.test", "state_key": "@quell:quell.test",
            "content": {"membership": membership}, "unsigned": unsigned,
        })
    };
    let events = kinds.iter().map(|kind| match *kind {
        "invited" => member("invite", "leave"),
        "joined" => member("join", "invite"),
        "renamed" => member("join", "join"),
        "left" => member("leave", "join"),
        _ => text("a"),
    });
    events.map(|event| serde_json::from_value(event).unwrap()).collect()
}

#[rstest]
#[case(&["a", "a"], None)]
#[case(&["a", "renamed", "a"], None)]
#[case(&["a", "joined", "a"], Some(1))]
#[case(&["a", "invited", "a", "joined", "a"], Some(1))]
#[case(&["invited", "left", "a", "joined"], Some(3))]
#[case(&["joined", "a", "left", "a", "invited", "a", "joined", "renamed"], Some(4))]
#[case(&["a", "invited", "a"], None)]
fn nothing_is_heard_from_before_the_account_was_asked_in(#[case] kinds: &[&str], #[case] begun: Option<usize>) {
    assert_eq!(begin(&row(kinds), "@quell:quell.test"), begun);
    assert_eq!(begin(&row(kinds), "@bob:quell.test"), None);
}
