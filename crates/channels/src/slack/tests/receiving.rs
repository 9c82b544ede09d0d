//! Which messages are received, and how they are parsed.

use super::*;

#[tokio::test]
async fn a_message_is_heard_and_acknowledged_when_it_is_kept() {
    let fixture = SlackFixture::new().await;
    let (channel, ann) = (fixture.server.add_channel(), fixture.server.add_person("ann"));
    fixture.listen().await;
    let ts = fixture.server.post_message(&channel, &ann, "2 < 3 & so on");
    fixture.wait_for_texts(1).await;
    fixture.wait_for_acks(1).await;
    let state = fixture.sink.state();
    assert_eq!(state.accounts[0].id, BOT);
    let inbound = state.messages[0].clone();
    assert_eq!(inbound.id, format!("{channel}:{ts}"));
    assert_eq!(inbound.message_id, MessageId(ts));
    assert_eq!((inbound.sender, inbound.address, inbound.scope_id), (ann.clone(), chat_address(&channel), None));
    assert_eq!(inbound.text, "2 < 3 & so on");
    assert!(inbound.is_group && inbound.is_addressed && inbound.attachments.is_empty());
    assert_eq!(state.store_waits, 1);
}

#[tokio::test]
async fn a_thread_is_a_place_and_a_scope() {
    let fixture = SlackFixture::new().await;
    let (channel, ann) = (fixture.server.add_channel(), fixture.server.add_person("ann"));
    fixture.listen().await;
    let parent = fixture.server.post_message(&channel, &ann, "one");
    fixture.server.post_in_thread((&channel, &parent), &ann, "two");
    fixture.wait_for_texts(2).await;
    let inbound = fixture.sink.state().messages[1].clone();
    assert_eq!(inbound.address, thread_address(&channel, &parent));
    assert_eq!(inbound.scope_id, Some(parent));
}

#[tokio::test]
async fn a_direct_chat_is_no_group() {
    let mut config = slack_config("http://127.0.0.1:1/api");
    config.mention_only = true;
    let fixture = SlackFixture::new().await;
    let slack =
        SlackNetwork::new("slack", &ChannelConfig { api_base: Some(fixture.server.base_url()), ..config }).unwrap();
    let (direct, channel, ann) =
        (fixture.server.add_direct_channel(), fixture.server.add_channel(), fixture.server.add_person("ann"));
    run_while_listening_with(&slack, &*fixture.sink, &fixture.lost, async {
        fixture.wait_for_connections(1).await;
        fixture.server.post_message(&direct, &ann, "in private");
        fixture.server.post_message(&channel, &ann, "to everybody");
        fixture.server.post_message(&channel, &ann, &format!("you there, <@{BOT}>"));
        // Slack sends a mention twice: as a message and as a mention. The flow drops the duplicate by its id.
        fixture.wait_for_texts(4).await;
        let inbound = fixture.sink.state().messages;
        let seen: Vec<_> =
            inbound.iter().map(|inbound| (inbound.text.as_str(), inbound.is_group, inbound.is_addressed)).collect();
        let mention = format!("you there, @{BOT}");
        let twice = (mention.as_str(), true, true);
        assert_eq!(seen, [("in private", false, true), ("to everybody", true, false), twice, twice]);
        assert_eq!(inbound[2].id, inbound[3].id);
    })
    .await;
}

#[tokio::test]
async fn a_stop_word_after_a_mention_is_the_whole_message() {
    let fixture = SlackFixture::new().await;
    let (channel, ann) = (fixture.server.add_channel(), fixture.server.add_person("ann"));
    fixture.listen().await;
    fixture.server.post_message(&channel, &ann, &format!("<@{BOT}> stop"));
    assert_eq!(fixture.wait_for_texts(1).await[0], "stop");
}

#[tokio::test]
async fn a_slash_command_is_heard_as_its_words() {
    let fixture = SlackFixture::new().await;
    let (channel, ann) = (fixture.server.add_channel(), fixture.server.add_person("ann"));
    fixture.listen().await;
    fixture.server.send_slash_command(&channel, &ann, "/stop", "");
    fixture.server.send_slash_command(&channel, &ann, "/stop", "all");
    assert_eq!(fixture.wait_for_texts(2).await, ["/stop", "/stop all"]);
    fixture.wait_for_acks(2).await;
    let inbound = fixture.sink.state().messages;
    assert_ne!(inbound[0].id, inbound[1].id);
    assert_eq!(inbound[0].sender_name.as_deref(), Some("ann"));
    // A slash command cannot have reactions; adding one is no error.
    let reactions = fixture.network.reactions().unwrap();
    assert_eq!(reactions.add(&inbound[0].address, &inbound[0].message_id, "👀").await, Ok(()));
    assert_eq!(fixture.server.state().call_count("reactions.add"), 0);
}

#[tokio::test]
async fn own_messages_changes_and_programs_are_not_heard() {
    let fixture = SlackFixture::new().await;
    let (channel, ann) = (fixture.server.add_channel(), fixture.server.add_person("ann"));
    fixture.listen().await;
    let own = fixture.send(&chat_address(&channel), "mine").await.unwrap();
    fixture
        .network
        .drafts()
        .unwrap()
        .edit(&chat_address(&channel), &own, &message_piece("mine, changed"))
        .await
        .unwrap();
    for event in [
        json!({"type": "message", "subtype": "channel_join", "user": ann, "text": "x", "channel": channel, "ts": "1.1"}),
        json!({"type": "message", "subtype": "bot_message", "bot_id": "B9", "text": "x", "channel": channel, "ts": "1.2"}),
        json!({"type": "message", "bot_id": "B9", "user": ann, "text": "x", "channel": channel, "ts": "1.3"}),
        json!({"type": "message", "user": BOT, "text": "x", "channel": channel, "ts": "1.4"}),
        json!({"type": "message", "subtype": "message_deleted", "channel": channel, "ts": "1.5"}),
        json!({"type": "reaction_added", "user": ann}),
    ] {
        fixture.server.send_event(event);
    }
    fixture.server.post_message(&channel, &ann, "at last");
    assert_eq!(fixture.wait_for_texts(1).await, ["at last"]);
    // Events that are not for the flow are acknowledged, too.
    fixture.wait_for_acks(9).await;
}

#[tokio::test]
async fn a_message_that_is_told_again_has_the_same_id() {
    let fixture = SlackFixture::new().await;
    let (channel, ann) = (fixture.server.add_channel(), fixture.server.add_person("ann"));
    fixture.listen().await;
    fixture.server.post_message(&channel, &ann, "once");
    fixture.wait_for_texts(1).await;
    fixture.server.resend_last_event();
    fixture.wait_for_texts(2).await;
    let inbound = fixture.sink.state().messages;
    assert_eq!(inbound[0], inbound[1]);
}

#[tokio::test]
async fn a_file_comes_with_a_message() {
    let fixture = SlackFixture::new().await;
    let (channel, ann) = (fixture.server.add_channel(), fixture.server.add_person("ann"));
    fixture.listen().await;
    fixture.server.post_message_with_file(&channel, &ann, "", ("cat.png", "image/png", b"cat"));
    fixture.wait_for_texts(1).await;
    let file = fixture.sink.state().messages[0].attachments[0].clone();
    assert_eq!((file.name.as_deref(), file.media_type.as_deref()), (Some("cat.png"), Some("image/png")));
    assert_eq!((file.kind, file.bytes), (quell_protocol::AttachmentKind::Image, Some(3)));
    assert_eq!(fixture.network.files().unwrap().fetch(&file, 3).await, Ok(b"cat".to_vec()));
}
