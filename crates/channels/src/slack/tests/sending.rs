//! Sending of messages, edits and reactions.

use std::time::Duration;

use super::*;

#[tokio::test]
async fn a_message_is_shown_changed_and_signed() {
    let fixture = SlackFixture::new().await;
    let address = fixture.channel_address();
    let id = fixture.send("...", "key").await.unwrap();
    let reactions = fixture.network.features().reactions.unwrap();
    for text in ["one", "one two", "one two"] {
        fixture.edit(&id, text).await.unwrap();
    }
    // Each call is idempotent.
    for emoji in ["👀", "👀", "✅", "⚠️", "⏹", "⏹️"] {
        assert_eq!(reactions.add(&address, &id, emoji).await, Ok(()), "{emoji}");
    }
    for _ in 0..2 {
        assert_eq!(reactions.remove(&address, &id, "👀").await, Ok(()));
    }
    let messages = fixture.messages();
    assert_eq!((messages[0].text.as_str(), messages[0].edits, messages.len()), ("one two", 3, 1));
    assert_eq!(messages[0].reactions, ["white_check_mark", "warning", "black_square_for_stop"]);
}

#[tokio::test]
async fn an_answer_in_a_thread_stays_there() {
    let fixture = SlackFixture::new().await;
    let parent = fixture.post("question");
    let thread = thread_address(&fixture.channel, &parent);
    fixture.send_to(&thread, "answer", "key").await.unwrap();
    assert_eq!(fixture.messages()[1].thread, Some(parent));
}

#[tokio::test]
async fn an_edit_that_is_one_too_many_says_when_to_ask_again() {
    let fixture = SlackFixture::new().await;
    let id = fixture.send("x", "key").await.unwrap();
    fixture.server.update(|state| state.limits.insert("chat.update".to_owned(), (1, Duration::from_secs(60))));
    assert_eq!(fixture.edit(&id, "y").await, Ok(()));
    let why = "Slack is asked too often; again in 60 s".to_owned();
    let limited = SendError::NotDelivered { why, retry_after: Some(Duration::from_secs(60)) };
    assert_eq!(fixture.edit(&id, "z").await, Err(limited));
    assert_eq!(fixture.messages()[0].text, "y");
}

#[tokio::test]
async fn an_edit_without_an_answer_may_be_repeated() {
    let fixture = SlackFixture::new().await;
    let id = fixture.send("x", "key").await.unwrap();
    for fault in [FakeSlackFault::LoseAnswer, FakeSlackFault::Error("internal_error"), FakeSlackFault::HtmlPage(502)] {
        fixture.server.inject_fault("chat.update", fault);
        let lost = fixture.edit(&id, "y").await;
        assert!(matches!(lost, Err(SendError::Unknown { is_repeatable: true, .. })), "{lost:?}");
    }
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let fixture = SlackFixture::new().await;
    let why = |sent: Result<MessageId, SendError>| match sent {
        Err(SendError::Refused { why }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(fixture.send_to(&chat_address("C404"), "x", "key").await).contains("/invite"));
    fixture.server.update(|state| state.scopes = "reactions:write".to_owned());
    assert!(why(fixture.send("x", "key").await).contains("add the scope chat:write"));
}

#[tokio::test]
async fn a_message_that_is_gone_cannot_be_changed_and_bears_no_sign() {
    let fixture = SlackFixture::new().await;
    let address = fixture.channel_address();
    let id = fixture.send("x", "key").await.unwrap();
    fixture.server.delete_message(&fixture.channel, &id.0);
    let gone = fixture.edit(&id, "y").await;
    assert!(matches!(gone, Err(SendError::Refused { .. })), "{gone:?}");
    let reactions = fixture.network.features().reactions.unwrap();
    assert!(matches!(reactions.add(&address, &id, "✅").await, Err(SendError::Refused { .. })));
    assert_eq!(reactions.remove(&address, &id, "✅").await, Ok(()));
    assert!(matches!(reactions.add(&address, &id, "🦀").await, Err(SendError::Refused { .. })));
}
