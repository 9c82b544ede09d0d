//! Which messages are received, when they are confirmed, and how listening ends.

use quell_protocol::AttachmentKind;
use quell_testkit::networks::telegram::{BOT_ID, BOT_NAME, FakeTelegram, FakeTelegramFault, FakeTelegramFile};
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    ANN, BOB, GROUP, assert_token_hidden, chat_address, message_id, telegram_config, telegram_network,
    wait_for_messages,
};
use crate::network::test_support::{RecordingInboundSink, message_piece, thread_address, while_listening};
use crate::network::{ChatAddress, FileTransfer, InboundMessage, ListenError, Network, OwnAccount};
use crate::telegram::TelegramNetwork;

#[tokio::test]
async fn a_message_is_heard_with_all_that_is_known_of_it() {
    let fake = FakeTelegram::start().await;
    let number = fake.post_message(7, ANN, "hello");
    let state = wait_for_messages(&telegram_network(&fake), 1).await;
    assert_eq!(state.accounts, [OwnAccount { id: BOT_ID.to_string(), name: BOT_NAME.to_owned() }]);
    let expected = InboundMessage {
        id: format!("7:{number}"),
        message_id: message_id(number),
        sender: "7".to_owned(),
        sender_name: Some("ann".to_owned()),
        address: chat_address(7),
        scope_id: None,
        text: "hello".to_owned(),
        is_addressed: true,
        is_group: false,
        attachments: Vec::new(),
    };
    assert_eq!(state.messages, [expected]);
}

#[tokio::test]
async fn a_message_is_confirmed_when_it_is_kept_and_told_again_until_then() {
    let fake = FakeTelegram::start().await;
    fake.post_message(7, ANN, "hello");
    let (telegram, sink) = (telegram_network(&fake), RecordingInboundSink::with_stuck_database());
    let first = while_listening(&telegram, &sink, sink.wait_for("a wait", |state| state.store_waits == 1)).await;
    assert_eq!(fake.state().confirmed_update, 0, "it was confirmed and is not kept");
    assert_eq!(fake.calls("getUpdates").len(), 1);
    // As after a crash: nothing is known of the first delivery.
    let sink = RecordingInboundSink::new();
    let confirmed = fake.wait_for("the confirmation", |state| state.confirmed_update == 1);
    while_listening(&telegram_network(&fake), &sink, confirmed).await;
    assert_eq!(sink.state().messages, first.messages);
    assert_eq!(sink.state().store_waits, 1);
}

#[tokio::test]
async fn a_message_is_heard_while_another_is_being_sent() {
    let fake = FakeTelegram::start().await;
    fake.post_message(7, ANN, "hello");
    fake.inject_fault("sendMessage", FakeTelegramFault::Silent);
    let (telegram, sink) = (telegram_network(&fake), RecordingInboundSink::new());
    let (address, piece) = (chat_address(7), message_piece("an answer"));
    let scenario = async {
        fake.wait_for("the answer", |state| state.calls_of("sendMessage").count() == 1).await;
        fake.post_message(7, ANN, "/stop");
        sink.wait_for("the stop", |state| state.texts() == ["hello", "/stop"]).await;
    };
    tokio::select! {
        biased;
        done = Network::send(&telegram, &address, &piece, "key") => panic!("nobody answered, but {done:?}"),
        () = while_listening(&telegram, &sink, scenario) => {}
    }
}

/// Regression: the first hundred messages came again and again, and later ones were never received.
#[tokio::test]
async fn a_stop_is_heard_behind_more_than_telegram_tells_at_once() {
    let fake = FakeTelegram::start().await;
    for number in 0..250 {
        fake.post_message(7, ANN, &number.to_string());
    }
    fake.post_message(8, BOB, "/stop");
    let (telegram, sink) = (telegram_network(&fake), RecordingInboundSink::with_stuck_database());
    let stop = sink.wait_for("the stop", |state| state.texts().contains(&"/stop"));
    let state = while_listening(&telegram, &sink, stop).await;
    assert_eq!(state.texts().len(), 251, "each is delivered once");
    assert_eq!(fake.state().confirmed_update, 200, "what fits on a page is told again");
}

#[tokio::test]
async fn a_pile_of_messages_is_heard_in_order_and_once() {
    let fake = FakeTelegram::start().await;
    for number in 0..250 {
        fake.post_message(7, ANN, &number.to_string());
    }
    let sink = RecordingInboundSink::new();
    let confirmed = fake.wait_for("the confirmation", |state| state.confirmed_update == 250);
    while_listening(&telegram_network(&fake), &sink, confirmed).await;
    let expected: Vec<String> = (0..250).map(|number| number.to_string()).collect();
    assert_eq!(sink.state().texts(), expected);
}

#[tokio::test]
async fn updates_that_are_no_request_are_ignored() {
    let fake = FakeTelegram::start().await;
    let said = fake.post_message(GROUP, ANN, "first");
    let post = |content: Value| fake.post_content(GROUP, BOB, content);
    post(json!({"sticker": {"file_id": "s", "emoji": "😀"}}));
    post(json!({"new_chat_title": "title"}));
    post(json!({"text": "of a channel", "sender_chat": {"id": -1_009, "type": "channel"}}));
    post(json!({"text": {"what": "is this"}}));
    post(
        json!({"text": "?", "chat": 5, "photo": "none", "entities": [{"type": "bot_command", "offset": -1, "length": 9}]}),
    );
    fake.edit_message(GROUP, ANN, said, "changed");
    fake.post_message(GROUP, ANN, "last");
    assert_eq!(wait_for_messages(&telegram_network(&fake), 2).await.texts(), ["first", "last"]);
}

#[tokio::test]
async fn a_topic_is_a_thread_and_an_answer_is_none() {
    let fake = FakeTelegram::start().await;
    let topic = fake.open_topic(GROUP);
    fake.post_in_topic(GROUP, topic, ANN, "in the topic");
    // In groups without topics, replies to one message have a thread id, too.
    fake.post_content(-5, ANN, json!({"text": "an answer", "message_thread_id": 3}));
    let inbound = wait_for_messages(&telegram_network(&fake), 2).await.messages;
    let in_topic = ChatAddress { target: GROUP.to_string(), thread: Some(topic.to_string()) };
    assert_eq!([&inbound[0].address, &inbound[1].address], [&in_topic, &chat_address(-5)]);
    assert!(inbound[0].is_group && inbound[1].is_group);
    Network::send(&telegram_network(&fake), &in_topic, &message_piece("there"), "key").await.unwrap();
    assert_eq!(fake.messages(GROUP).last().unwrap().thread, Some(topic));
}

#[rstest]
#[case::everything("hello", true, false)]
#[case::a_name("@quell_test_bot hello", true, true)]
#[case::a_name_inside("hello @Quell_Test_Bot there", true, true)]
#[case::a_command("/status", true, false)]
#[case::our_command("/status@quell_test_bot", true, true)]
#[case::anothers_command("/status@other_bot", false, false)]
#[case::anothers_name("@other_bot hello", true, false)]
#[tokio::test]
async fn in_groups_it_matters_who_is_named(#[case] text: &str, #[case] always: bool, #[case] when_named: bool) {
    for (mention_only, expected) in [(false, always), (true, when_named)] {
        let fake = FakeTelegram::start().await;
        let keys = json!({"api_base": fake.base_url(), "mention_only": mention_only});
        let telegram = TelegramNetwork::new("telegram", &telegram_config(keys)).unwrap();
        fake.post_message(GROUP, ANN, text);
        fake.post_message(7, ANN, text);
        let inbound = wait_for_messages(&telegram, 2).await.messages;
        assert_eq!(inbound[0].is_addressed, expected, "mention_only = {mention_only}");
        assert!(inbound[1].is_addressed, "alone with the bot every word is for it");
    }
}

#[tokio::test]
async fn an_answer_to_the_bot_names_it() {
    let fake = FakeTelegram::start().await;
    let telegram =
        TelegramNetwork::new("t", &telegram_config(json!({"api_base": fake.base_url(), "mention_only": true})))
            .unwrap();
    let asked = fake.post_message(GROUP, ANN, "hello");
    let answer = Network::send(&telegram, &chat_address(GROUP), &message_piece("hi"), "key").await.unwrap();
    fake.post_reply(GROUP, BOB, asked, "to ann");
    fake.post_reply(GROUP, BOB, answer.0.parse().unwrap(), "to the bot");
    let topic = fake.open_topic(GROUP);
    fake.post_in_topic(GROUP, topic, BOB, "in a topic that the bot opened");
    let inbound = wait_for_messages(&telegram, 4).await.messages;
    let addressed: Vec<bool> = inbound.iter().map(|inbound| inbound.is_addressed).collect();
    assert_eq!(addressed, [false, false, true, false]);
}

#[tokio::test]
async fn files_are_named_and_fetched() {
    let fake = FakeTelegram::start().await;
    let telegram = telegram_network(&fake);
    let picture = FakeTelegramFile::new("photo", "p", "image/jpeg", &b"large picture"[..]);
    fake.post_file(7, ANN, &picture, "look");
    fake.post_file(7, ANN, &FakeTelegramFile::new("document", "a b.txt", "text/plain", &b"text"[..]), "");
    fake.post_file(7, ANN, &FakeTelegramFile::new("document", "drawing.png", "image/png", &b"png"[..]), "");
    fake.post_file(7, ANN, &FakeTelegramFile::new("voice", "v", "audio/ogg", &b"voice"[..]), "");
    fake.post_file(7, ANN, &FakeTelegramFile::new("video", "v.mp4", "video/mp4", &b"video"[..]), "");
    let inbound = wait_for_messages(&telegram, 5).await.messages;
    assert_eq!(inbound[0].text, "look");
    let (mut kinds, mut contents) = (Vec::new(), Vec::new());
    for attachment in inbound.iter().flat_map(|inbound| &inbound.attachments) {
        kinds.push((attachment.kind, attachment.name.as_deref(), attachment.media_type.as_deref()));
        contents.push(String::from_utf8(telegram.fetch(attachment, 100).await.unwrap()).unwrap());
    }
    let expected = [
        (AttachmentKind::Image, None, Some("image/jpeg")),
        (AttachmentKind::File, Some("a b.txt"), Some("text/plain")),
        (AttachmentKind::Image, Some("drawing.png"), Some("image/png")),
        (AttachmentKind::Audio, None, Some("audio/ogg")),
        (AttachmentKind::Video, Some("v.mp4"), Some("video/mp4")),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(contents, ["large picture", "text", "png", "voice", "video"]);
}

#[tokio::test]
async fn a_file_that_is_too_large_or_gone_is_not_fetched() {
    let fake = FakeTelegram::start().await;
    let telegram = telegram_network(&fake);
    fake.post_file(7, ANN, &FakeTelegramFile::new("document", "a", "text/plain", &b"12345"[..]), "");
    fake.post_file(7, ANN, &FakeTelegramFile::new("document", "huge", "text/plain", vec![0; 21 * 1024 * 1024]), "");
    let mut inbound = wait_for_messages(&telegram, 2).await.messages;
    let mut file = inbound.remove(0).attachments.remove(0);
    assert_eq!(telegram.fetch(&file, 5).await.unwrap(), b"12345");
    // Independent of whether Telegram sent the size with the message, and whether the size was right.
    for size in [Some(5), None, Some(1)] {
        file.bytes = size;
        assert!(telegram.fetch(&file, 4).await.is_err());
    }
    assert!(telegram.fetch(&inbound[0].attachments[0], u64::MAX).await.is_err(), "bots cannot fetch that much");
    file.source = "gone".to_owned();
    let error = telegram.fetch(&file, 100).await.unwrap_err().to_string();
    assert!(error.contains("wrong file_id"), "{error}");
    fake.inject_fault("getFile", FakeTelegramFault::HtmlPage(404));
    assert_token_hidden(&telegram.fetch(&file, 100).await.unwrap_err().to_string());
}

#[tokio::test]
async fn of_two_who_listen_one_is_told_that_there_is_another() {
    let fake = FakeTelegram::start().await;
    let (first, second, sink) = (telegram_network(&fake), telegram_network(&fake), RecordingInboundSink::new());
    let other = async {
        fake.wait_for("a poll", |state| state.waiting_polls == 1).await;
        second.listen(&sink).await
    };
    tokio::select! {
        lost = first.listen(&sink) => {
            let ListenError::Busy { why, after } = lost else { panic!("{lost:?}") };
            assert!(why.contains("another program") && after.as_secs() >= 10, "{why}");
        }
        lost = other => panic!("the newer one has to listen: {lost}"),
    }
    fake.update(|state| state.webhook = "https://example.org/hook".to_owned());
    let lost = first.listen(&sink).await;
    assert!(matches!(&lost, ListenError::Busy { why, .. } if why.contains("deleteWebhook")), "{lost:?}");
}

#[rstest]
#[case(FakeTelegramFault::RateLimited(7), "Busy")]
#[case(FakeTelegramFault::HtmlPage(502), "Connection")]
#[case(FakeTelegramFault::HtmlPage(404), "Refused")]
#[case(FakeTelegramFault::Refuse(401, "Unauthorized"), "Refused")]
#[case(FakeTelegramFault::Refuse(500, "Internal Server Error"), "Connection")]
#[case(FakeTelegramFault::Drop, "Connection")]
#[tokio::test]
async fn listening_ends_as_the_server_says(#[case] fault: FakeTelegramFault, #[case] kind: &str) {
    for method in ["getMe", "getUpdates"] {
        let fake = FakeTelegram::start().await;
        fake.inject_fault(method, fault.clone());
        let lost = telegram_network(&fake).listen(&RecordingInboundSink::new()).await;
        let text = format!("{lost:?}");
        assert!(text.starts_with(kind), "{method}: {text}");
        assert_token_hidden(&text);
        if let ListenError::Busy { after, .. } = lost {
            assert_eq!(after.as_secs(), 7);
        }
    }
}

#[tokio::test]
async fn a_press_in_a_topic_has_its_place_and_bots_do_not_press() {
    let fake = FakeTelegram::start().await;
    let (bot, sink) = (telegram_network(&fake), RecordingInboundSink::new());
    let query = |id: &str, is_bot: bool, message: Value| {
        let from = json!({"id": 7, "is_bot": is_bot, "first_name": "ann"});
        json!({"id": id, "from": from, "chat_instance": "1", "message": message, "data": "yes"})
    };
    let topic = json!({
        "message_id": 5, "date": 0, "chat": {"id": GROUP, "type": "supergroup"}, "message_thread_id": 3, "is_topic_message": true,
    });
    let scenario = async {
        sink.wait_for("the connection", |state| !state.accounts.is_empty()).await;
        for content in [json!({"id": "broken"}), query("1", true, topic.clone()), query("2", false, topic.clone())] {
            fake.post_callback_query(content);
        }
        sink.wait_for("the press", |state| !state.presses.is_empty()).await
    };
    let state = while_listening(&bot, &sink, scenario).await;
    let [press] = state.presses.as_slice() else { panic!("{state:?}") };
    assert_eq!((press.sender.as_str(), &press.message_id), ("7", &message_id(5)));
    assert_eq!(press.address, thread_address(&GROUP.to_string(), "3"));
}
