//! What every chat network must do, tested in the same way for each of them. Tests of one network alone are beside it.

use std::time::Duration;

use quell_protocol::AttachmentKind;
use rstest::rstest;

use super::test_support::{RecordingInboundSink, message_piece, while_listening};
use super::{
    ButtonStyle, ChatAddress, InboundSink, ListenError, MessageButton, MessageId, Network, PressReply, SendError,
    async_trait,
};
use crate::config::ChannelKind;
use crate::config::ChannelKind::{Discord, Irc, Matrix, Slack, Telegram, Webhook};
use crate::format::split_message;
use crate::{discord, irc, matrix, slack, telegram, webhook};

/// One network with a server of its own, and a person who has a chat with the account.
#[async_trait]
pub(crate) trait NetworkFixture: Send + Sync {
    fn network(&self) -> &dyn Network;

    /// The chat of the person and the account.
    fn address(&self) -> ChatAddress;

    /// The person writes to the account. Only a network that calls Quell needs `sink`.
    async fn write(&self, text: &str, sink: &dyn InboundSink);

    /// The person sends a file.
    async fn write_file(&self, _bytes: &'static [u8], _sink: &dyn InboundSink) {
        unreachable!("the fixture has no files")
    }

    /// The texts of the account in the chat as they are now. Where a sent message is not yet there when `send` returns,
    /// it waits for `count` of them.
    async fn wait_for_shown(&self, count: usize) -> Vec<String>;

    /// The person presses a button with this data below a message of the account.
    fn press(&self, _message: &MessageId, _data: &str) {
        unreachable!("the network has no buttons")
    }

    fn fail_next_send(&self, _fault: SendFault) {
        unreachable!("the protocol has no such answers")
    }

    /// Closes the server's ports and all connections.
    async fn stop_server(&self) {
        unreachable!("the fixture has a server that cannot be stopped")
    }

    async fn start_server(&self) {
        unreachable!("the fixture has a server that cannot be stopped")
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum SendFault {
    /// Refused; the next try is allowed after this many seconds.
    RateLimited(u64),
    /// The message is shown, and the connection breaks before the answer.
    AnswerLost,
}

async fn start(kind: ChannelKind) -> Box<dyn NetworkFixture> {
    match kind {
        Irc => Box::new(irc::tests::conformance::IrcConformance::start().await),
        Matrix => Box::new(matrix::tests::conformance::MatrixConformance::start().await),
        Telegram => Box::new(telegram::tests::conformance::TelegramConformance::start().await),
        Discord => Box::new(discord::tests::conformance::start().await),
        Slack => Box::new(slack::tests::conformance::start().await),
        Webhook => Box::new(webhook::tests::conformance::WebhookConformance::start().await),
    }
}

/// Runs a scenario while the network listens, after the person has said hello. `sink` is new.
async fn in_conversation<T>(
    fixture: &dyn NetworkFixture,
    sink: &RecordingInboundSink,
    scenario: impl Future<Output = T>,
) -> T {
    while_listening(fixture.network(), sink, async {
        say_hello(fixture, sink).await;
        scenario.await
    })
    .await
}

async fn say_hello(fixture: &dyn NetworkFixture, sink: &RecordingInboundSink) {
    sink.wait_for("the connection", |state| !state.accounts.is_empty()).await;
    fixture.write("hello", sink).await;
    sink.wait_for("hello", |state| state.texts() == ["hello"]).await;
}

async fn send(fixture: &dyn NetworkFixture, text: &str, key: &str) -> Result<MessageId, SendError> {
    fixture.network().send(&fixture.address(), &message_piece(text), key).await
}

#[rstest]
#[ignore = "full: ngircd"]
#[case::irc(Irc)]
#[case::matrix(Matrix)]
#[case::telegram(Telegram)]
#[case::discord(Discord)]
#[case::slack(Slack)]
#[case::webhook(Webhook)]
#[tokio::test]
async fn a_message_is_received_and_answered_in_its_place(#[case] kind: ChannelKind) {
    let (fixture, sink) = (start(kind).await, RecordingInboundSink::new());
    let scenario = async {
        let inbound = sink.state().messages.remove(0);
        assert!(inbound.is_addressed, "{inbound:?}");
        fixture.network().send(&inbound.address, &message_piece("good day"), "key").await.unwrap();
        assert_eq!(fixture.wait_for_shown(1).await, ["good day"]);
    };
    in_conversation(&*fixture, &sink, scenario).await;
}

/// A stop may come while the database is slow or full.
#[rstest]
#[ignore = "full: ngircd"]
#[case::irc(Irc)]
#[case::matrix(Matrix)]
#[case::telegram(Telegram)]
#[case::discord(Discord)]
#[case::slack(Slack)]
#[tokio::test]
async fn a_stop_is_received_while_nothing_can_be_stored(#[case] kind: ChannelKind) {
    let (fixture, sink) = (start(kind).await, RecordingInboundSink::with_stuck_database());
    let scenario = async {
        fixture.write("stop", &sink).await;
        let state = sink.wait_for("the stop", |state| state.messages.len() >= 2).await;
        assert_eq!(state.texts(), ["hello", "stop"]);
    };
    in_conversation(&*fixture, &sink, scenario).await;
}

/// A press is no message: nothing about it is stored, and it is not delivered behind messages that are.
#[rstest]
#[tokio::test]
async fn a_press_is_received_at_once_and_answered(#[values(Telegram, Discord, Slack)] kind: ChannelKind) {
    let (fixture, sink) = (start(kind).await, RecordingInboundSink::with_stuck_database());
    let buttons = fixture.network().features().buttons.unwrap();
    let scenario = async {
        let (address, sender) = (fixture.address(), sink.state().messages.remove(0).sender);
        let button = |style, data: &str| MessageButton { style, label: "Press", data: data.to_owned() };
        let row = [button(ButtonStyle::Positive, "yes"), button(ButtonStyle::Negative, "no")];
        let id = buttons.send(&address, &message_piece("one of two"), &row, "key").await.unwrap();
        for (number, data) in ["yes", "no", "forged"].into_iter().enumerate() {
            fixture.press(&id, data);
            let state = sink.wait_for("the press", |state| state.presses.len() > number).await;
            let press = &state.presses[number];
            assert_eq!((&press.sender, press.data.as_str()), (&sender, data));
            assert_eq!((&press.address, &press.message_id), (&address, &id));
            for reply in [PressReply::Counted("done".to_owned()), PressReply::Refused("x".repeat(1000))] {
                // Discord permits one answer to each press, so the second one is refused.
                let answered = buttons.answer_press(press, &reply).await;
                let is_second = kind == Discord && matches!(reply, PressReply::Refused(_));
                assert_eq!(answered.is_err(), is_second, "{answered:?}");
            }
        }
        for _ in 0..2 {
            buttons.edit(&address, &id, &message_piece("two of two"), &row[..1]).await.unwrap();
            buttons.edit(&address, &id, &message_piece("over"), &[]).await.unwrap();
        }
        assert_eq!(fixture.wait_for_shown(1).await, ["over"]);
        let press = &sink.state().presses[0];
        assert!(!format!("{press:?}").contains("aW50ZXJhY3Rpb24"), "the token of the answer is a secret");
    };
    in_conversation(&*fixture, &sink, scenario).await;
}

#[rstest]
#[ignore = "full: ngircd"]
#[case::irc(Irc)]
#[case::matrix(Matrix)]
#[case::telegram(Telegram)]
#[case::discord(Discord)]
#[case::slack(Slack)]
#[case::webhook(Webhook)]
#[tokio::test]
async fn the_pieces_of_a_long_answer_arrive_whole_and_in_order(#[case] kind: ChannelKind) {
    let (fixture, sink) = (start(kind).await, RecordingInboundSink::new());
    let format = fixture.network().limits().message_format;
    let mut text = String::new();
    for number in 0.. {
        text.push_str(&format!("word{number} "));
        if text.len() > 2 * format.max_length {
            break;
        }
    }
    let pieces = split_message(&text, &format);
    assert!(pieces.len() >= 3, "{}", pieces.len());
    let scenario = async {
        for (number, piece) in pieces.iter().enumerate() {
            fixture.network().send(&fixture.address(), piece, &format!("key-{number}")).await.unwrap();
        }
        let shown = fixture.wait_for_shown(pieces.len()).await.join(" ");
        assert!(shown.split_whitespace().eq(text.split_whitespace()), "{shown}");
    };
    in_conversation(&*fixture, &sink, scenario).await;
}

#[rstest]
#[ignore = "full: ngircd"]
#[case::irc(Irc)]
#[case::matrix(Matrix)]
#[case::telegram(Telegram)]
#[case::discord(Discord)]
#[case::slack(Slack)]
#[case::webhook(Webhook)]
#[tokio::test]
async fn a_draft_grows_in_its_message_where_there_are_edits(#[case] kind: ChannelKind) {
    let (fixture, sink) = (start(kind).await, RecordingInboundSink::new());
    let Some(drafts) = fixture.network().features().drafts else {
        assert_eq!(kind, Irc, "only IRC has no edits");
        return;
    };
    let scenario = async {
        let id = send(&*fixture, "...", "key").await.unwrap();
        for text in ["Good", "Good morning."] {
            drafts.edit(&fixture.address(), &id, &message_piece(text)).await.unwrap();
        }
        assert_eq!(fixture.wait_for_shown(1).await, ["Good morning."]);
    };
    in_conversation(&*fixture, &sink, scenario).await;
}

#[rstest]
#[tokio::test]
async fn a_rate_limit_gives_the_time_to_wait_and_shows_nothing(
    #[values(Matrix, Telegram, Discord, Slack, Webhook)] kind: ChannelKind,
) {
    let (fixture, sink) = (start(kind).await, RecordingInboundSink::new());
    let scenario = async {
        fixture.fail_next_send(SendFault::RateLimited(7));
        let limited = send(&*fixture, "once", "key").await.unwrap_err();
        let SendError::NotDelivered { retry_after, .. } = &limited else { panic!("{limited:?}") };
        assert_eq!(*retry_after, Some(Duration::from_secs(7)));
        send(&*fixture, "once", "key").await.unwrap();
        assert_eq!(fixture.wait_for_shown(1).await, ["once"]);
    };
    in_conversation(&*fixture, &sink, scenario).await;
}

/// Sent again, the message would be shown twice, except where the network recognises its key.
#[rstest]
#[case::matrix(Matrix, true)]
#[case::telegram(Telegram, false)]
#[case::discord(Discord, true)]
#[case::slack(Slack, false)]
#[case::webhook(Webhook, true)]
#[tokio::test]
async fn after_a_lost_answer_the_message_is_never_shown_twice(#[case] kind: ChannelKind, #[case] knows_keys: bool) {
    let (fixture, sink) = (start(kind).await, RecordingInboundSink::new());
    let scenario = async {
        fixture.fail_next_send(SendFault::AnswerLost);
        let lost = send(&*fixture, "once", "key").await.unwrap_err();
        let SendError::Unknown { is_repeatable, .. } = lost else { panic!("{lost:?}") };
        assert_eq!(is_repeatable, knows_keys);
        if is_repeatable {
            send(&*fixture, "once", "key").await.unwrap();
        }
        assert_eq!(fixture.wait_for_shown(1).await, ["once"]);
    };
    in_conversation(&*fixture, &sink, scenario).await;
}

/// IRC keeps no messages for those who are away.
#[rstest]
#[ignore = "full: ngircd"]
#[case::irc(Irc, false)]
#[case::telegram(Telegram, true)]
#[case::discord(Discord, true)]
#[case::slack(Slack, true)]
#[tokio::test]
async fn around_an_outage_of_the_server_no_message_is_lost_or_doubled(
    #[case] kind: ChannelKind,
    #[case] keeps_messages: bool,
) {
    let (fixture, sink) = (start(kind).await, RecordingInboundSink::new());
    let (lost, ()) = tokio::join!(fixture.network().listen(&sink), async {
        say_hello(&*fixture, &sink).await;
        fixture.stop_server().await;
    });
    assert!(matches!(lost, ListenError::Connection(_)), "{lost:?}");
    let unreachable = fixture.network().listen(&sink).await;
    let ListenError::Connection(why) = &unreachable else { panic!("{unreachable:?}") };
    assert!(why.contains("cannot be reached"), "{why}");
    let not_sent = send(&*fixture, "into the void", "key").await.unwrap_err();
    // Only IRC gives a time itself: that of its next connection.
    let has_time = |retry_after: Option<Duration>| retry_after.is_some() == (kind == Irc);
    assert!(matches!(not_sent, SendError::NotDelivered { retry_after, .. } if has_time(retry_after)), "{not_sent:?}");

    fixture.start_server().await;
    if keeps_messages {
        fixture.write("meanwhile", &sink).await;
    }
    while_listening(fixture.network(), &sink, async {
        sink.wait_for("the next connection", |state| state.accounts.len() == 2).await;
        fixture.write("after", &sink).await;
        let state = sink.wait_for("the last message", |state| state.texts().contains(&"after")).await;
        // A message that the network could not confirm comes again, with the same id.
        let expected =
            ["hello", "meanwhile", "after"].into_iter().filter(|text| keeps_messages || *text != "meanwhile");
        assert_eq!(state.distinct_texts(), expected.collect::<Vec<_>>());
        // What was not sent does not come late.
        send(&*fixture, "back", "another key").await.unwrap();
        assert_eq!(fixture.wait_for_shown(1).await, ["back"]);
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_file_is_fetched_unless_it_is_larger_than_allowed(
    #[values(Telegram, Discord, Slack, Webhook)] kind: ChannelKind,
) {
    let (fixture, sink) = (start(kind).await, RecordingInboundSink::new());
    let scenario = async {
        fixture.write_file(b"a cat", &sink).await;
        let state = sink.wait_for("the file", |state| state.messages.len() == 2).await;
        let [attachment] = state.messages[1].attachments.as_slice() else { panic!("{state:?}") };
        // The program behind a webhook describes its file only if it wants to.
        if kind != Webhook {
            let described = (attachment.kind, attachment.name.as_deref(), attachment.media_type.as_deref());
            assert_eq!(described, (AttachmentKind::File, Some("a.txt"), Some("text/plain")));
            assert_eq!(attachment.bytes, Some(5));
        }
        let files = fixture.network().features().files.unwrap();
        assert_eq!(files.fetch(attachment, 5).await.unwrap(), b"a cat");
        assert!(files.fetch(attachment, 4).await.is_err());
    };
    in_conversation(&*fixture, &sink, scenario).await;
}
