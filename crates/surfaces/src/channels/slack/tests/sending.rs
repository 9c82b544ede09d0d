//! Messages, their changes and signs.

use std::time::Duration;

use super::*;

fn undelivered_for(seconds: u64) -> NotSent {
    NotSent::Undelivered { why: "Slack is asked too often".to_owned(), after: Some(Duration::from_secs(seconds)) }
}

#[tokio::test]
async fn a_message_is_shown_changed_and_signed() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    let at = place(&channel);
    let id = stage.send(&at, "...").await.unwrap();
    let (drafts, signs) = (stage.slack.drafts().unwrap(), stage.slack.reactions().unwrap());
    for text in ["one", "one two", "one two"] {
        drafts.edit(&at, &id, &piece(text)).await.unwrap();
    }
    // Each can be done twice.
    for sign in ["👀", "👀", "✅", "⚠️", "⏹", "⏹️"] {
        assert_eq!(signs.add(&at, &id, sign).await, Ok(()), "{sign}");
    }
    for _ in 0..2 {
        assert_eq!(signs.remove(&at, &id, "👀").await, Ok(()));
    }
    let messages = stage.server.messages(&channel);
    assert_eq!((messages[0].text.as_str(), messages[0].edits, messages.len()), ("one two", 3, 1));
    assert_eq!(messages[0].reactions, ["white_check_mark", "warning", "black_square_for_stop"]);
}

#[tokio::test]
async fn an_answer_in_a_thread_stays_there() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    let parent = stage.server.say(&channel, &ann, "question");
    stage.send(&thread(&channel, &parent), "answer").await.unwrap();
    assert_eq!(stage.server.messages(&channel)[1].thread, Some(parent));
}

#[tokio::test]
async fn a_limit_says_when_to_ask_again() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    stage.server.fault("chat.postMessage", Fault::TooMany(30));
    assert_eq!(stage.send(&place(&channel), "x").await, Err(undelivered_for(30)));
    let id = stage.send(&place(&channel), "x").await.unwrap();
    stage.server.limit("chat.update", 1, Duration::from_secs(60));
    let drafts = stage.slack.drafts().unwrap();
    assert_eq!(drafts.edit(&place(&channel), &id, &piece("y")).await, Ok(()));
    assert_eq!(drafts.edit(&place(&channel), &id, &piece("z")).await, Err(undelivered_for(60)));
    assert_eq!(stage.server.messages(&channel)[0].text, "y");
}

#[tokio::test]
async fn a_lost_answer_is_not_known() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    let at = place(&channel);
    stage.server.fault("chat.postMessage", Fault::LoseAnswer);
    let lost = stage.send(&at, "x").await;
    assert!(matches!(lost, Err(NotSent::Unknown { repeatable: false, .. })), "{lost:?}");
    assert_eq!(stage.server.messages(&channel).len(), 1);
    let id = MessageId(stage.server.messages(&channel)[0].ts.clone());
    for fault in [Fault::LoseAnswer, Fault::Error("internal_error"), Fault::Page(502)] {
        stage.server.fault("chat.update", fault);
        let lost = stage.slack.drafts().unwrap().edit(&at, &id, &piece("y")).await;
        assert!(matches!(lost, Err(NotSent::Unknown { repeatable: true, .. })), "{lost:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_shows_nothing() {
    let stage = Stage::new().await;
    stage.server.go_away().await;
    let sent = stage.send(&place("C1"), "x").await;
    assert!(matches!(sent, Err(NotSent::Undelivered { after: None, .. })), "{sent:?}");
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    let why = |sent: Result<MessageId, NotSent>| match sent {
        Err(NotSent::Refused { why }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(stage.send(&place("C404"), "x").await).contains("/invite"));
    stage.server.grant("reactions:write");
    assert!(why(stage.send(&place(&channel), "x").await).contains("add the scope chat:write"));
}

#[tokio::test]
async fn a_message_that_is_gone_cannot_be_changed_and_bears_no_sign() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    let at = place(&channel);
    let id = stage.send(&at, "x").await.unwrap();
    stage.server.delete(&channel, &id.0);
    let gone = stage.slack.drafts().unwrap().edit(&at, &id, &piece("y")).await;
    assert!(matches!(gone, Err(NotSent::Refused { .. })), "{gone:?}");
    let signs = stage.slack.reactions().unwrap();
    assert!(matches!(signs.add(&at, &id, "✅").await, Err(NotSent::Refused { .. })));
    assert_eq!(signs.remove(&at, &id, "✅").await, Ok(()));
    assert!(matches!(signs.add(&at, &id, "🦀").await, Err(NotSent::Refused { .. })));
}
