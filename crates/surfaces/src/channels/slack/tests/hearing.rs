//! What is heard, and what is not.

use super::*;

#[tokio::test]
async fn a_message_is_heard_and_acknowledged_when_it_is_kept() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            let ts = stage.server.say(&channel, &ann, "2 < 3 & so on");
            stage.heard(1).await;
            stage.acknowledged(1).await;
            let state = stage.ear.state();
            assert_eq!(state.connected[0].id, BOT);
            let heard = state.heard[0].clone();
            assert_eq!(heard.id, format!("{channel}:{ts}"));
            assert_eq!(heard.message, MessageId(ts));
            assert_eq!((heard.sender, heard.place, heard.scope_id), (ann.clone(), place(&channel), None));
            assert_eq!(heard.text, "2 < 3 & so on");
            assert!(heard.group && heard.addressed && heard.attachments.is_empty());
            assert_eq!(state.settled, 1);
        })
        .await;
}

#[tokio::test]
async fn a_thread_is_a_place_and_a_scope() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            let parent = stage.server.say(&channel, &ann, "one");
            stage.server.say_in((&channel, &parent), &ann, "two");
            stage.heard(2).await;
            let heard = stage.ear.state().heard[1].clone();
            assert_eq!(heard.place, thread(&channel, &parent));
            assert_eq!(heard.scope_id, Some(parent));
        })
        .await;
}

#[tokio::test]
async fn a_direct_chat_is_no_group() {
    let mut config = config("http://127.0.0.1:1/api");
    config.mention_only = true;
    let stage = Stage::new().await;
    let slack = Slack::new("slack", &ChannelConfig { api_base: Some(stage.server.base_url()), ..config }).unwrap();
    let (direct, channel, ann) = (stage.server.direct(), stage.server.channel(), stage.server.person("ann"));
    play_with(&slack, &stage.ear, &stage.lost, async {
        stage.connected(1).await;
        stage.server.say(&direct, &ann, "in private");
        stage.server.say(&channel, &ann, "to everybody");
        stage.server.say(&channel, &ann, &format!("you there, <@{BOT}>"));
        // A mention is told twice: as a message and as a mention. The flow counts it once, by its id.
        stage.heard(4).await;
        let heard = stage.ear.state().heard;
        let seen: Vec<_> = heard.iter().map(|heard| (heard.text.as_str(), heard.group, heard.addressed)).collect();
        let mention = format!("you there, @{BOT}");
        let twice = (mention.as_str(), true, true);
        assert_eq!(seen, [("in private", false, true), ("to everybody", true, false), twice, twice]);
        assert_eq!(heard[2].id, heard[3].id);
    })
    .await;
}

#[tokio::test]
async fn a_stop_word_after_a_mention_is_the_whole_message() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.say(&channel, &ann, &format!("<@{BOT}> stop"));
            assert_eq!(stage.heard(1).await[0], "stop");
        })
        .await;
}

#[tokio::test]
async fn a_slash_command_is_heard_as_its_words() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.command(&channel, &ann, "/stop", "");
            stage.server.command(&channel, &ann, "/stop", "all");
            assert_eq!(stage.heard(2).await, ["/stop", "/stop all"]);
            stage.acknowledged(2).await;
            let heard = stage.ear.state().heard;
            assert_ne!(heard[0].id, heard[1].id);
            assert_eq!(heard[0].sender_name.as_deref(), Some("ann"));
            // Signs are for messages; a command bears none, and that is no error.
            let signs = stage.slack.reactions().unwrap();
            assert_eq!(signs.add(&heard[0].place, &heard[0].message, "👀").await, Ok(()));
            assert_eq!(stage.server.state().called("reactions.add"), 0);
        })
        .await;
}

#[tokio::test]
async fn own_messages_changes_and_programs_are_not_heard() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            let own = stage.send(&place(&channel), "mine").await.unwrap();
            stage.slack.drafts().unwrap().edit(&place(&channel), &own, &piece("mine, changed")).await.unwrap();
            for event in [
                json!({"type": "message", "subtype": "channel_join", "user": ann, "text": "x", "channel": channel, "ts": "1.1"}),
                json!({"type": "message", "subtype": "bot_message", "bot_id": "B9", "text": "x", "channel": channel, "ts": "1.2"}),
                json!({"type": "message", "bot_id": "B9", "user": ann, "text": "x", "channel": channel, "ts": "1.3"}),
                json!({"type": "message", "user": BOT, "text": "x", "channel": channel, "ts": "1.4"}),
                json!({"type": "message", "subtype": "message_deleted", "channel": channel, "ts": "1.5"}),
                json!({"type": "reaction_added", "user": ann}),
            ] {
                stage.server.event(event);
            }
            stage.server.say(&channel, &ann, "at last");
            assert_eq!(stage.heard(1).await, ["at last"]);
            // What is not for the flow is acknowledged all the same.
            stage.acknowledged(9).await;
        })
        .await;
}

#[tokio::test]
async fn a_message_that_is_told_again_has_the_same_id() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.say(&channel, &ann, "once");
            stage.heard(1).await;
            stage.server.tell_again();
            stage.heard(2).await;
            let heard = stage.ear.state().heard;
            assert_eq!(heard[0], heard[1]);
        })
        .await;
}

#[tokio::test]
async fn a_file_comes_with_a_message() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.say_with_file(&channel, &ann, "", ("cat.png", "image/png", b"cat"));
            stage.heard(1).await;
            let file = stage.ear.state().heard[0].attachments[0].clone();
            assert_eq!((file.name.as_deref(), file.media_type.as_deref()), (Some("cat.png"), Some("image/png")));
            assert_eq!((file.kind, file.bytes), (quell_protocol::AttachmentKind::Image, Some(3)));
            assert_eq!(stage.slack.files().unwrap().fetch(&file, 3).await, Ok(b"cat".to_vec()));
        })
        .await;
}
