//! Sending of messages, edits and reactions.

use std::time::Duration;

use super::*;

fn rate_limited_for(seconds: u64) -> SendError {
    SendError::NotDelivered {
        why: format!("Slack is asked too often; again in {seconds} s"),
        retry_after: Some(Duration::from_secs(seconds)),
    }
}

#[tokio::test]
async fn a_message_is_shown_changed_and_signed() {
    let fixture = SlackFixture::new().await;
    let channel = fixture.server.add_channel();
    let address = chat_address(&channel);
    let id = fixture.send(&address, "...").await.unwrap();
    let (drafts, reactions) = (fixture.network.drafts().unwrap(), fixture.network.reactions().unwrap());
    for text in ["one", "one two", "one two"] {
        drafts.edit(&address, &id, &message_piece(text)).await.unwrap();
    }
    // Each call is idempotent.
    for emoji in ["👀", "👀", "✅", "⚠️", "⏹", "⏹️"] {
        assert_eq!(reactions.add(&address, &id, emoji).await, Ok(()), "{emoji}");
    }
    for _ in 0..2 {
        assert_eq!(reactions.remove(&address, &id, "👀").await, Ok(()));
    }
    let messages = fixture.server.messages(&channel);
    assert_eq!((messages[0].text.as_str(), messages[0].edits, messages.len()), ("one two", 3, 1));
    assert_eq!(messages[0].reactions, ["white_check_mark", "warning", "black_square_for_stop"]);
}

#[tokio::test]
async fn an_answer_in_a_thread_stays_there() {
    let fixture = SlackFixture::new().await;
    let (channel, ann) = (fixture.server.add_channel(), fixture.server.add_person("ann"));
    let parent = fixture.server.post_message(&channel, &ann, "question");
    fixture.send(&thread_address(&channel, &parent), "answer").await.unwrap();
    assert_eq!(fixture.server.messages(&channel)[1].thread, Some(parent));
}

#[tokio::test]
async fn a_limit_says_when_to_ask_again() {
    let fixture = SlackFixture::new().await;
    let channel = fixture.server.add_channel();
    fixture.server.inject_fault("chat.postMessage", FakeSlackFault::RateLimited(30));
    assert_eq!(fixture.send(&chat_address(&channel), "x").await, Err(rate_limited_for(30)));
    let id = fixture.send(&chat_address(&channel), "x").await.unwrap();
    fixture.server.set_rate_limit("chat.update", 1, Duration::from_secs(60));
    let drafts = fixture.network.drafts().unwrap();
    assert_eq!(drafts.edit(&chat_address(&channel), &id, &message_piece("y")).await, Ok(()));
    assert_eq!(drafts.edit(&chat_address(&channel), &id, &message_piece("z")).await, Err(rate_limited_for(60)));
    assert_eq!(fixture.server.messages(&channel)[0].text, "y");
}

#[tokio::test]
async fn a_lost_answer_is_not_known() {
    let fixture = SlackFixture::new().await;
    let channel = fixture.server.add_channel();
    let address = chat_address(&channel);
    fixture.server.inject_fault("chat.postMessage", FakeSlackFault::LoseAnswer);
    let lost = fixture.send(&address, "x").await;
    assert!(matches!(lost, Err(SendError::Unknown { is_repeatable: false, .. })), "{lost:?}");
    assert_eq!(fixture.server.messages(&channel).len(), 1);
    let id = MessageId(fixture.server.messages(&channel)[0].ts.clone());
    for fault in [FakeSlackFault::LoseAnswer, FakeSlackFault::Error("internal_error"), FakeSlackFault::HtmlPage(502)] {
        fixture.server.inject_fault("chat.update", fault);
        let lost = fixture.network.drafts().unwrap().edit(&address, &id, &message_piece("y")).await;
        assert!(matches!(lost, Err(SendError::Unknown { is_repeatable: true, .. })), "{lost:?}");
    }
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let fixture = SlackFixture::new().await;
    let channel = fixture.server.add_channel();
    let why = |sent: Result<MessageId, SendError>| match sent {
        Err(SendError::Refused { why }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(fixture.send(&chat_address("C404"), "x").await).contains("/invite"));
    fixture.server.set_scopes("reactions:write");
    assert!(why(fixture.send(&chat_address(&channel), "x").await).contains("add the scope chat:write"));
}

#[tokio::test]
async fn a_message_that_is_gone_cannot_be_changed_and_bears_no_sign() {
    let fixture = SlackFixture::new().await;
    let channel = fixture.server.add_channel();
    let address = chat_address(&channel);
    let id = fixture.send(&address, "x").await.unwrap();
    fixture.server.delete_message(&channel, &id.0);
    let gone = fixture.network.drafts().unwrap().edit(&address, &id, &message_piece("y")).await;
    assert!(matches!(gone, Err(SendError::Refused { .. })), "{gone:?}");
    let reactions = fixture.network.reactions().unwrap();
    assert!(matches!(reactions.add(&address, &id, "✅").await, Err(SendError::Refused { .. })));
    assert_eq!(reactions.remove(&address, &id, "✅").await, Ok(()));
    assert!(matches!(reactions.add(&address, &id, "🦀").await, Err(SendError::Refused { .. })));
}
