//! Messages as people write them, and what is heard of them.

use quell_protocol::AttachmentKind;
use rstest::rstest;
use serde_json::Value;

use super::*;
use crate::channels::seam::Own;

const OWN: &str = "1100000000000000001";

#[tokio::test]
async fn a_message_in_a_channel_is_heard_with_who_wrote_it_and_where() {
    let stage = Stage::new().await;
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    stage.play(stage.connected(1)).await;
    let id = stage.server.say(&channel, &anna, "hello");
    stage.play(stage.heard(1)).await;
    let state = stage.ear.state();
    assert_eq!(state.connected[0], Own { id: stage.server.bot(), name: "quell".to_owned() });
    let heard = &state.heard[0];
    assert_eq!((&heard.id, &heard.message.0, &heard.sender), (&id, &id, &anna));
    assert_eq!(heard.sender_name.as_deref(), Some("anna"));
    assert_eq!((&heard.place, &heard.scope_id), (&place(&channel), &None));
    assert!(heard.group && heard.addressed);
}

#[tokio::test]
async fn a_direct_chat_is_no_group_and_a_thread_is_a_channel_of_its_own() {
    let stage = Stage::new().await;
    let anna = stage.server.person("anna");
    let (direct, thread) = (stage.server.direct(&anna), stage.server.thread(&stage.server.channel()));
    let plot = async {
        stage.connected(1).await;
        stage.server.say(&direct, &anna, "psst");
        stage.server.say(&thread, &anna, "aloud");
        stage.heard(2).await
    };
    stage.play(plot).await;
    let heard = stage.ear.state().heard;
    assert_eq!((&heard[0].place, heard[0].group), (&place(&direct), false));
    assert_eq!((&heard[1].place, heard[1].group), (&place(&thread), true));
}

#[tokio::test]
async fn own_messages_and_those_of_other_programs_are_not_heard() {
    let stage = Stage::new().await;
    let (anna, bot, channel) = (stage.server.person("anna"), stage.server.other_bot("bot"), stage.server.channel());
    let plot = async {
        stage.connected(1).await;
        stage.send(&channel, "mine", "1").await.unwrap();
        stage.server.say(&channel, &bot, "beep");
        stage.server.dispatch("MESSAGE_CREATE", &told(|event| event["webhook_id"] = json!("7")));
        stage.server.dispatch("MESSAGE_CREATE", &told(|event| event["type"] = json!(7)));
        stage.server.dispatch("MESSAGE_UPDATE", &told(|_| {}));
        stage.server.say(&channel, &anna, "hello");
        stage.heard(1).await
    };
    assert_eq!(stage.play(plot).await, ["hello"]);
}

#[tokio::test]
async fn where_only_mentions_count_replies_to_us_count_as_well() {
    let mut stage = Stage::new().await;
    let mut config = config(&stage.server.base_url());
    config.mention_only = true;
    stage.discord = Discord::new("discord", &config).unwrap();
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    let plot = async {
        stage.connected(1).await;
        let own = stage.send(&channel, "what is it?", "1").await.unwrap();
        let other = stage.server.say(&channel, &anna, "to nobody");
        stage.server.say(&channel, &anna, &format!("<@{OWN}> to you"));
        stage.server.say(&channel, &anna, &format!("also you, <@{OWN}>"));
        stage.server.reply(&channel, &anna, &own.0, "an answer");
        stage.server.reply(&channel, &anna, &other, "to myself");
        stage.server.say(&stage.server.direct(&anna), &anna, "in private");
        stage.heard(6).await
    };
    stage.play(plot).await;
    let state = stage.ear.state();
    let heard: Vec<_> = state.heard.iter().map(|heard| (heard.text.as_str(), heard.addressed)).collect();
    assert_eq!(
        heard,
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

/// A message of anna in a channel, as the gateway tells it.
pub(super) fn told(change: impl FnOnce(&mut Value)) -> Value {
    let mut event = json!({
        "id": "100", "channel_id": "200", "guild_id": "300", "type": 0, "content": "hello",
        "author": {"id": "400", "username": "anna", "global_name": "Anna"},
        "member": {"nick": null},
        "mentions": [], "attachments": [],
    });
    change(&mut event);
    event
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
    let event = told(|event| {
        event["content"] = json!(text);
        event["mentions"] = json!([
            {"id": OWN, "username": "quell"},
            {"id": "500", "username": "bob", "global_name": "Bob"},
        ]);
    });
    assert_eq!(message::heard(&event, OWN, false).unwrap().text, readable);
}

#[test]
fn a_name_is_the_one_that_people_see() {
    let name = |event: &Value| message::heard(event, OWN, false).unwrap().sender_name;
    assert_eq!(name(&told(|event| event["member"]["nick"] = json!("Annie"))).as_deref(), Some("Annie"));
    assert_eq!(name(&told(|_| {})).as_deref(), Some("Anna"));
    assert_eq!(name(&told(|event| event["author"]["global_name"] = Value::Null)).as_deref(), Some("anna"));
    let long = "x\n".repeat(10_000);
    let cut = name(&told(|event| event["member"]["nick"] = json!(long))).unwrap();
    assert!(cut.len() <= 200 && !cut.contains('\n'));
}

#[test]
fn files_come_with_their_kind() {
    let file = |name: &str, kind: Value| json!({"id": "1", "filename": name, "content_type": kind, "size": 3, "url": format!("https://cdn.discordapp.com/{name}")});
    let event = told(|event| {
        event["content"] = json!("");
        event["attachments"] = json!([
            file("a.png", json!("image/png")),
            file("b.ogg", json!("audio/ogg")),
            file("c.mp4", json!("video/mp4")),
            file("d", Value::Null),
            {"id": "2", "filename": "no address"},
        ]);
    });
    let heard = message::heard(&event, OWN, false).unwrap();
    let kinds: Vec<_> = heard.attachments.iter().map(|file| file.kind).collect();
    assert_eq!(kinds, [AttachmentKind::Image, AttachmentKind::Audio, AttachmentKind::Video, AttachmentKind::File]);
    assert_eq!(heard.attachments[0].bytes, Some(3));
    assert_eq!(heard.attachments[0].name.as_deref(), Some("a.png"));
}

#[test]
fn what_the_account_itself_wrote_is_not_heard_though_nobody_calls_it_a_bot() {
    assert!(message::heard(&told(|_| {}), OWN, false).is_some());
    assert_eq!(message::heard(&told(|_| {}), "400", false), None);
}

#[test]
fn what_says_nothing_is_not_heard() {
    assert_eq!(message::heard(&told(|event| event["content"] = json!("")), OWN, false), None);
    let bare = told(|event| {
        event["content"] = json!(format!("<@{OWN}>"));
        event["mentions"] = json!([{"id": OWN, "username": "quell"}]);
    });
    assert_eq!(message::heard(&bare, OWN, false), None);
}
