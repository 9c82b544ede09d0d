//! Parsing of events into messages, without a server.

use quell_protocol::AttachmentKind;
use rstest::rstest;
use serde_json::{Value, json};

use crate::matrix::events::{JoinedRoom, MatrixEvent};
use crate::matrix::known_rooms::KnownRooms;
use crate::matrix::message_parser::{MatrixMessageParser, own_membership_start};
use crate::network::{InboundMessage, OwnAccount};

const ROOM: &str = "!room:quell.test";

fn own_account() -> OwnAccount {
    OwnAccount { id: "@quell:quell.test".to_owned(), name: "Quell Bot".to_owned() }
}

fn event_json(kind: &str, content: Value) -> Value {
    json!({"type": kind, "event_id": "$event", "sender": "@alice:quell.test", "content": content})
}

fn text_event(body: &str) -> Value {
    event_json("m.room.message", json!({"msgtype": "m.text", "body": body}))
}

/// The message as parsed in a room of three, where only mentions are meant for the account.
fn parse_in_group(event: Value) -> Option<InboundMessage> {
    parse_in_room(event, 3)
}

fn parse_in_room(event: Value, members: u64) -> Option<InboundMessage> {
    let mut rooms = KnownRooms::default();
    let joined: JoinedRoom = serde_json::from_value(json!({"summary": {"m.joined_member_count": members}})).unwrap();
    assert!(
        rooms.apply_joined_room(ROOM, &joined) && !rooms.apply_joined_room(ROOM, &JoinedRoom::default()),
        "a room is new once"
    );
    let event: MatrixEvent = serde_json::from_value(event).unwrap();
    MatrixMessageParser { account: &own_account(), mention_only: true }.parse_message(
        ROOM,
        rooms.get_or_insert(ROOM),
        &event,
    )
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
fn a_name_at_the_beginning_is_a_call(#[case] body: &str, #[case] words: &str, #[case] addressed: bool) {
    let inbound = parse_in_group(text_event(body)).unwrap();
    assert_eq!((inbound.text.as_str(), inbound.is_addressed, inbound.is_group), (words, addressed, true));
}

#[rstest]
#[case(json!({"m.mentions": {"user_ids": ["@bob:quell.test", "@quell:quell.test"]}}), true)]
#[case(json!({"m.mentions": {"user_ids": ["@bob:quell.test"]}}), false)]
#[case(json!({"m.mentions": {}}), false)]
#[case(json!({"formatted_body": "<a href=\"https://matrix.to/#/@quell:quell.test\">Quell Bot</a> hello"}), true)]
#[case(json!({"formatted_body": "<a href=\"matrix:u/quell:quell.test\">Quell Bot</a> hello"}), true)]
#[case(json!({"formatted_body": "<a href=\"https://matrix.to/#/@quell:quell.test.evil\">Quell Bot</a> hello"}), false)]
fn mentions_in_the_event_data_address_the_bot(#[case] data: Value, #[case] addressed: bool) {
    let mut event = text_event("Quell Bot hello");
    for (key, value) in data.as_object().unwrap() {
        event["content"][key] = value.clone();
    }
    let inbound = parse_in_group(event).unwrap();
    let words = if addressed { "hello" } else { "Quell Bot hello" };
    assert_eq!((inbound.is_addressed, inbound.text.as_str()), (addressed, words));
}

#[test]
fn two_need_no_names() {
    let inbound = parse_in_room(text_event("hello"), 2).unwrap();
    assert!(inbound.is_addressed && !inbound.is_group);
}

#[rstest]
#[case("> <@quell:quell.test> old\n> lines\n\nnew", "new")]
#[case("> * <@quell:quell.test> waves\n\nnew\n\n> own quote", "new\n\n> own quote")]
#[case("> a quote of my own\n\nand words", "> a quote of my own\n\nand words")]
#[case("> <@quell:quell.test> nothing but that", "")]
fn the_quote_of_a_reply_is_not_part_of_it(#[case] body: &str, #[case] words: &str) {
    let mut event = text_event(body);
    event["content"]["m.relates_to"] = json!({"m.in_reply_to": {"event_id": "$old"}});
    assert_eq!(parse_in_group(event).unwrap().text, words);
    assert_eq!(parse_in_group(text_event(body)).unwrap().text, body, "without the relation it is the writer's own");
}

#[rstest]
#[case(event_json("m.room.message", json!({})))]
#[case(event_json("m.room.message", json!({"msgtype": "m.text", "body": 5})))]
#[case(event_json("m.room.message", json!({"msgtype": "m.text", "body": "hello", "m.relates_to": "odd"})))]
#[case(event_json("m.room.message", json!({"msgtype": "m.notice", "body": "hello"})))]
#[case(event_json("m.room.message", json!({"msgtype": "m.image", "body": "cat.png"})))]
#[case(event_json("m.room.message", json!({"msgtype": "m.image", "body": "cat.png", "url": "https://evil.test/cat.png"})))]
#[case(event_json("m.room.message", json!("odd")))]
#[case(event_json("m.room.topic", json!({"msgtype": "m.text", "body": "hello"})))]
#[case(json!({"type": "m.room.message", "sender": "@alice:quell.test", "content": {"msgtype": "m.text", "body": "a"}}))]
#[case(json!({"type": "m.room.message", "event_id": "$a", "sender": "alice", "content": {"msgtype": "m.text", "body": "a"}}))]
#[case(json!({"type": "m.room.message", "event_id": "$a", "sender": "@quell:quell.test", "content": {"msgtype": "m.text", "body": "a"}}))]
fn events_that_are_no_message_of_another_are_ignored(#[case] event: Value) {
    assert_eq!(parse_in_group(event), None);
}

#[test]
fn nothing_is_longer_than_a_sound_server_would_let_it_be() {
    let inbound = parse_in_group(text_event(&"ä".repeat(100_000))).unwrap();
    assert_eq!(inbound.text.len(), 65_536);
    let mut file =
        event_json("m.room.message", json!({"msgtype": "m.file", "body": "n".repeat(1_000), "url": "mxc://a/b"}));
    file["content"]["info"] = json!({"size": -1, "mimetype": ["odd"]});
    let inbound = parse_in_group(file).unwrap();
    let [attachment] = inbound.attachments.as_slice() else { panic!("{inbound:?}") };
    assert_eq!(attachment.kind, AttachmentKind::File);
    assert_eq!((attachment.bytes, attachment.media_type.as_deref()), (None, None));
    assert_eq!(attachment.name.as_deref().map(str::len), Some(255));
    assert_eq!(inbound.text, "", "the body is the file's name");
}

#[rstest]
#[case(json!({"rel_type": "m.thread", "event_id": "$root"}), Some("$root"))]
#[case(json!({"rel_type": "m.thread", "event_id": "no event"}), None)]
#[case(json!({"rel_type": "m.reference", "event_id": "$root"}), None)]
fn a_thread_is_a_place_of_its_own(#[case] relation: Value, #[case] thread: Option<&str>) {
    let mut event = text_event("hello");
    event["content"]["m.relates_to"] = relation;
    let inbound = parse_in_group(event).unwrap();
    assert_eq!((inbound.address.thread.as_deref(), inbound.scope_id.as_deref()), (thread, thread));
}

/// Events by name; `a` is a message of another user.
fn membership_events(kinds: &[&str]) -> Vec<MatrixEvent> {
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
        _ => text_event("a"),
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
fn messages_from_before_the_invitation_are_ignored(#[case] kinds: &[&str], #[case] begun: Option<usize>) {
    assert_eq!(own_membership_start(&membership_events(kinds), "@quell:quell.test"), begun);
    assert_eq!(own_membership_start(&membership_events(kinds), "@bob:quell.test"), None);
}
