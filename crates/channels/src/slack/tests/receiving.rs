//! Which messages are received, and how they are parsed.

use std::sync::Arc;

use super::*;
use crate::network::PressReply;

#[tokio::test]
async fn a_message_is_heard_and_acknowledged_when_it_is_kept() {
    let fixture = SlackFixture::listening().await;
    let ts = fixture.post("2 < 3 & so on");
    fixture.wait_for_texts(1).await;
    fixture.wait_for_acks(1).await;
    let state = fixture.sink.state();
    assert_eq!(state.accounts[0].id, BOT);
    let inbound = state.messages[0].clone();
    assert_eq!(inbound.id, format!("{}:{ts}", fixture.channel));
    assert_eq!(inbound.message_id, MessageId(ts));
    assert_eq!(
        (inbound.sender, inbound.address, inbound.scope_id),
        (fixture.person.clone(), fixture.channel_address(), None)
    );
    assert_eq!(inbound.text, "2 < 3 & so on");
    assert!(inbound.is_group && inbound.is_addressed && inbound.attachments.is_empty());
    assert_eq!(state.store_waits, 1);
}

#[tokio::test]
async fn a_thread_is_a_place_and_a_scope() {
    let fixture = SlackFixture::listening().await;
    let parent = fixture.post("one");
    fixture.server.post_in_thread((&fixture.channel, &parent), &fixture.person, "two");
    fixture.wait_for_texts(2).await;
    let inbound = fixture.sink.state().messages[1].clone();
    assert_eq!(inbound.address, thread_address(&fixture.channel, &parent));
    assert_eq!(inbound.scope_id, Some(parent));
}

#[tokio::test]
async fn a_direct_chat_is_no_group() {
    let mut fixture = SlackFixture::new().await;
    let config = ChannelConfig { mention_only: true, ..slack_config(&fixture.server.base_url()) };
    fixture.network = Arc::new(SlackNetwork::new("slack", &config).unwrap());
    fixture.listen().await;
    fixture.server.post_message(&fixture.server.add_direct_channel(), &fixture.person, "in private");
    fixture.post("to everybody");
    fixture.post(&format!("you there, <@{BOT}>"));
    // Slack sends a mention twice: as a message and as a mention. The flow drops the duplicate by its id.
    fixture.wait_for_texts(4).await;
    let inbound = fixture.sink.state().messages;
    let seen: Vec<_> =
        inbound.iter().map(|inbound| (inbound.text.as_str(), inbound.is_group, inbound.is_addressed)).collect();
    let mention = format!("you there, @{BOT}");
    let twice = (mention.as_str(), true, true);
    assert_eq!(seen, [("in private", false, true), ("to everybody", true, false), twice, twice]);
    assert_eq!(inbound[2].id, inbound[3].id);
}

#[tokio::test]
async fn a_slash_command_is_heard_as_its_words() {
    let fixture = SlackFixture::listening().await;
    fixture.server.send_slash_command(&fixture.channel, &fixture.person, "/stop", "");
    fixture.server.send_slash_command(&fixture.channel, &fixture.person, "/stop", "all");
    assert_eq!(fixture.wait_for_texts(2).await, ["/stop", "/stop all"]);
    fixture.wait_for_acks(2).await;
    let inbound = fixture.sink.state().messages;
    assert_ne!(inbound[0].id, inbound[1].id);
    assert_eq!(inbound[0].sender_name.as_deref(), Some("ann"));
    // A slash command cannot have reactions; adding one is no error.
    let reactions = fixture.network.features().reactions.unwrap();
    assert_eq!(reactions.add(&inbound[0].address, &inbound[0].message_id, "👀").await, Ok(()));
    assert_eq!(fixture.server.state().call_count("reactions.add"), 0);
}

#[tokio::test]
async fn own_messages_changes_and_programs_are_not_heard() {
    let fixture = SlackFixture::listening().await;
    let own = fixture.send("mine", "key").await.unwrap();
    fixture.edit(&own, "mine, changed").await.unwrap();
    let (ann, channel) = (&fixture.person, &fixture.channel);
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
    fixture.post("at last");
    assert_eq!(fixture.wait_for_texts(1).await, ["at last"]);
    // Events that are not for the flow are acknowledged, too.
    fixture.wait_for_acks(9).await;
}

#[tokio::test]
async fn a_press_in_a_thread_is_acknowledged_and_refused_there() {
    let fixture = SlackFixture::listening().await;
    fixture.sink.set_storing(false);
    let first = fixture.post("begin");
    let address = thread_address(&fixture.channel, &first);
    let id = fixture.send_to(&address, "press me", "key").await.unwrap();
    // One acknowledgement is for the message of the account, which is an event, too.
    fixture.wait_for_acks(1).await;
    fixture.server.press_button(&fixture.channel, &fixture.person, &id.0, "yes");
    fixture.wait_for_acks(2).await;
    let state = fixture.sink.wait_for("the press", |state| !state.presses.is_empty()).await;
    let press = &state.presses[0];
    assert_eq!((&press.sender, &press.address, &press.message_id), (&fixture.person, &address, &id));
    let buttons = fixture.network.features().buttons.unwrap();
    buttons.answer_press(press, &PressReply::Refused("<!channel> & you".to_owned())).await.unwrap();
    let told = fixture.server.state().ephemeral;
    assert_eq!(told[0].text, "&lt;!channel&gt; &amp; you");
    assert_eq!(fixture.server.state().calls.last().unwrap().body["thread_ts"], first);
}
