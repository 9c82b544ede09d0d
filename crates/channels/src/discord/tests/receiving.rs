//! Which messages are received, and how they are parsed.

use quell_protocol::AttachmentKind;
use rstest::rstest;
use serde_json::Value;

use super::*;
use crate::network::{InboundMessage, OwnAccount};

const BOT_ID: &str = "1100000000000000001";

#[tokio::test]
async fn a_message_in_a_channel_is_heard_with_who_wrote_it_and_where() {
    let fixture = DiscordFixture::listening().await;
    let id = fixture.post("hello");
    fixture.wait_for_texts(1).await;
    let state = fixture.sink.state();
    assert_eq!(state.accounts[0], OwnAccount { id: fixture.server.bot_id(), name: "quell".to_owned() });
    let inbound = &state.messages[0];
    assert_eq!((&inbound.id, &inbound.message_id.0, &inbound.sender), (&id, &id, &fixture.person));
    assert_eq!(inbound.sender_name.as_deref(), Some("anna"));
    assert_eq!((&inbound.address, &inbound.scope_id), (&fixture.channel_address(), &None));
    assert!(inbound.is_group && inbound.is_addressed);
}

#[tokio::test]
async fn a_direct_chat_is_no_group_and_a_thread_is_a_channel_of_its_own() {
    let fixture = DiscordFixture::listening().await;
    let DiscordFixture { server, person: anna, channel, .. } = &fixture;
    let (direct, thread) = (server.add_direct_channel(anna), server.add_thread(channel));
    server.post_message(&direct, anna, "psst");
    server.post_message(&thread, anna, "aloud");
    fixture.wait_for_texts(2).await;
    let inbound = fixture.sink.state().messages;
    assert_eq!((&inbound[0].address, inbound[0].is_group), (&chat_address(&direct), false));
    assert_eq!((&inbound[1].address, inbound[1].is_group), (&chat_address(&thread), true));
}

#[tokio::test]
async fn own_messages_and_those_of_other_programs_are_not_heard() {
    let fixture = DiscordFixture::listening().await;
    let bot = fixture.server.add_other_bot("bot");
    fixture.send("mine", "1").await.unwrap();
    fixture.server.post_message(&fixture.channel, &bot, "beep");
    fixture.server.dispatch_event("MESSAGE_CREATE", &message_create_event(|event| event["webhook_id"] = json!("7")));
    fixture.server.dispatch_event("MESSAGE_CREATE", &message_create_event(|event| event["type"] = json!(7)));
    fixture.server.dispatch_event("MESSAGE_UPDATE", &message_create_event(|_| {}));
    fixture.post("hello");
    assert_eq!(fixture.wait_for_texts(1).await, ["hello"]);
}

#[tokio::test]
async fn mention_only_accepts_replies_to_the_bot() {
    let mut fixture = DiscordFixture::new().await;
    let mut config = discord_config(&fixture.server.base_url());
    config.mention_only = true;
    fixture.network = Arc::new(DiscordNetwork::new("discord", &config).unwrap());
    fixture.listen().await;
    let own = fixture.send("what is it?", "1").await.unwrap();
    let other = fixture.post("to nobody");
    fixture.post(&format!("<@{BOT_ID}> to you"));
    fixture.post(&format!("also you, <@{BOT_ID}>"));
    fixture.server.post_reply(&fixture.channel, &fixture.person, &own.0, "an answer");
    fixture.server.post_reply(&fixture.channel, &fixture.person, &other, "to myself");
    fixture.server.post_message(&fixture.server.add_direct_channel(&fixture.person), &fixture.person, "in private");
    fixture.wait_for_texts(6).await;
    let state = fixture.sink.state();
    let inbound: Vec<_> = state.messages.iter().map(|inbound| (inbound.text.as_str(), inbound.is_addressed)).collect();
    assert_eq!(
        inbound,
        [
            ("to nobody", false),
            ("to you", true),
            ("also you, @quell", true),
            ("an answer", true),
            ("to myself", false),
            ("in private", true)
        ]
    );
}

/// A message of anna in a channel, as the gateway sends it.
pub(super) fn message_create_event(change: impl FnOnce(&mut Value)) -> Value {
    let mut event = json!({
        "id": "100", "channel_id": "200", "guild_id": "300", "type": 0, "content": "hello",
        "author": {"id": "400", "username": "anna", "global_name": "Anna"},
        "member": {"nick": null},
        "mentions": [], "attachments": [],
    });
    change(&mut event);
    event
}

pub(super) fn parse_changed(change: impl FnOnce(&mut Value)) -> Option<InboundMessage> {
    message_parser::parse_message(&message_create_event(change), BOT_ID, false)
}

#[rstest]
#[case::ours_goes("<@1100000000000000001> stop", "stop")]
#[case::also_in_the_older_form("<@!1100000000000000001>, /stop", "/stop")]
#[case::also_twice(" <@1100000000000000001> <@1100000000000000001>: hi", "hi")]
#[case::ours_within_is_named("ask <@1100000000000000001>!", "ask @quell!")]
#[case::others_are_named("<@500> and <@!500>", "@Bob and @Bob")]
#[case::who_is_unknown_stays("<@999> hi", "<@999> hi")]
#[case::what_is_no_mention_stays("<@ <@> <@!> <@&500> <@500", "<@ <@> <@!> <@&500> <@500")]
#[case::nothing_but_text("a < b @500", "a < b @500")]
fn mentions_are_made_readable(#[case] text: &str, #[case] readable: &str) {
    let inbound = parse_changed(|event| {
        event["content"] = json!(text);
        event["mentions"] = json!([
            {"id": BOT_ID, "username": "quell"},
            {"id": "500", "username": "bob", "global_name": "Bob"},
        ]);
    });
    assert_eq!(inbound.unwrap().text, readable);
}

#[test]
fn a_name_is_the_one_that_people_see() {
    let name = |change: fn(&mut Value)| parse_changed(change).unwrap().sender_name.unwrap();
    assert_eq!(name(|event| event["member"]["nick"] = json!("Annie")), "Annie");
    assert_eq!(name(|_| {}), "Anna");
    assert_eq!(name(|event| event["author"]["global_name"] = Value::Null), "anna");
    let cut = name(|event| event["member"]["nick"] = json!("x\n".repeat(10_000)));
    assert!(cut.len() <= 200 && !cut.contains('\n'));
}

#[test]
fn files_come_with_their_kind() {
    let file = |name: &str, kind: Value| json!({"id": "1", "filename": name, "content_type": kind, "size": 3, "url": format!("https://cdn.discordapp.com/{name}")});
    let inbound = parse_changed(|event| {
        event["content"] = json!("");
        event["attachments"] = json!([
            file("a.png", json!("image/png")),
            file("b.ogg", json!("audio/ogg")),
            file("c.mp4", json!("video/mp4")),
            file("d", Value::Null),
            {"id": "2", "filename": "no address"},
        ]);
    });
    let inbound = inbound.unwrap();
    let kinds: Vec<_> = inbound.attachments.iter().map(|file| file.kind).collect();
    assert_eq!(kinds, [AttachmentKind::Image, AttachmentKind::Audio, AttachmentKind::Video, AttachmentKind::File]);
    assert_eq!(inbound.attachments[0].bytes, Some(3));
    assert_eq!(inbound.attachments[0].name.as_deref(), Some("a.png"));
}

#[test]
fn own_messages_are_ignored_without_a_bot_flag() {
    assert!(parse_changed(|_| {}).is_some());
    assert_eq!(message_parser::parse_message(&message_create_event(|_| {}), "400", false), None);
}

#[test]
fn a_mention_alone_is_ignored() {
    let bare = parse_changed(|event| {
        event["content"] = json!(format!("<@{BOT_ID}>"));
        event["mentions"] = json!([{"id": BOT_ID, "username": "quell"}]);
    });
    assert_eq!(bare, None);
}

#[tokio::test]
async fn a_press_in_a_direct_chat_and_only_presses_are_received() {
    let fixture = DiscordFixture::listening().await;
    let direct = fixture.server.add_direct_channel(&fixture.person);
    let id = fixture.send_to(&chat_address(&direct), "press me", "key").await.unwrap();
    // A slash command, a menu, and a press without a person.
    for event in [
        json!({"id": "1", "type": 2, "token": "t", "channel_id": direct, "user": {"id": fixture.person}}),
        json!({
            "id": "2", "type": 3, "token": "t", "channel_id": direct, "user": {"id": fixture.person},
            "message": {"id": id.0}, "data": {"component_type": 3, "custom_id": "menu"},
        }),
        json!({
            "id": "3", "type": 3, "token": "t", "channel_id": direct, "message": {"id": id.0},
            "data": {"component_type": 2, "custom_id": "yes"},
        }),
    ] {
        fixture.server.dispatch_event("INTERACTION_CREATE", &event);
    }
    fixture.server.press_button(&direct, &fixture.person, &id.0, "yes");
    let state = fixture.sink.wait_for("the press", |state| !state.presses.is_empty()).await;
    let [press] = state.presses.as_slice() else { panic!("{state:?}") };
    assert_eq!((&press.sender, &press.address), (&fixture.person, &chat_address(&direct)));
}
