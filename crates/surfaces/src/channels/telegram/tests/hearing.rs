//! What is heard, when Telegram may forget it, and how listening ends.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_protocol::AttachmentKind;
use quell_testkit::networks::telegram::{BOT_ID, BOT_NAME, ChatFile, FakeTelegram, Fault};
use rstest::rstest;
use serde_json::{Value, json};

use super::{ANN, BOB, GROUP, assert_keeps_the_secret, bot, config, hears, message, place, while_listening};
use crate::channels::seam::recording::RecordingEar;
use crate::channels::seam::{Ear, Files, Heard, Lost, Network, Own, Place};
use crate::channels::telegram::Telegram;

/// An ear with which nothing is ever kept.
#[derive(Debug)]
struct Forgetful(RecordingEar);

impl Ear for Forgetful {
    fn connected(&self, own: Own) {
        self.0.connected(own);
    }

    fn hear(&self, heard: Heard) {
        self.0.hear(heard);
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        drop(self.0.settled());
        std::future::pending().boxed()
    }

    fn cursor(&self) -> BoxFuture<'_, Option<String>> {
        self.0.cursor()
    }

    fn keep_cursor(&self, cursor: String) -> BoxFuture<'_, ()> {
        self.0.keep_cursor(cursor)
    }
}

#[tokio::test]
async fn a_message_is_heard_with_all_that_is_known_of_it() {
    let fake = FakeTelegram::start().await;
    let number = fake.say(7, ANN, "hello");
    let state = hears(&bot(&fake), 1).await;
    assert_eq!(state.connected, [Own { id: BOT_ID.to_string(), name: BOT_NAME.to_owned() }]);
    let expected = Heard {
        id: format!("7:{number}"),
        message: message(number),
        sender: "7".to_owned(),
        sender_name: Some("ann".to_owned()),
        place: place(7),
        scope_id: None,
        text: "hello".to_owned(),
        addressed: true,
        group: false,
        attachments: Vec::new(),
    };
    assert_eq!(state.heard, [expected]);
}

#[tokio::test]
async fn who_listens_is_connected_before_anybody_writes() {
    let fake = FakeTelegram::start().await;
    let (telegram, ear) = (bot(&fake), RecordingEar::new());
    let act = async {
        ear.wait_for("the connection", |state| state.connected.len() == 1).await;
        fake.wait_for("a poll", |state| state.polls == 1).await;
        fake.say(7, ANN, "hello");
        ear.wait_for("the message", |state| state.texts() == ["hello"]).await;
    };
    while_listening(&telegram, &ear, act).await;
}

#[tokio::test]
async fn a_message_is_confirmed_when_it_is_kept_and_told_again_until_then() {
    let fake = FakeTelegram::start().await;
    fake.say(7, ANN, "hello");
    let (telegram, ear) = (bot(&fake), Forgetful(RecordingEar::new()));
    let first = while_listening(&telegram, &ear, ear.0.wait_for("a wait", |state| state.settled == 1)).await;
    assert_eq!(fake.state().confirmed, 0, "it was confirmed and is not kept");
    assert_eq!(fake.calls("getUpdates").len(), 1);
    // As after a crash: nothing is known of the first time.
    let ear = RecordingEar::new();
    let confirmed = fake.wait_for("the confirmation", |state| state.confirmed == 1);
    while_listening(&bot(&fake), &ear, confirmed).await;
    assert_eq!(ear.state().heard, first.heard);
    assert_eq!(ear.state().settled, 1);
}

#[tokio::test]
async fn a_message_is_heard_while_another_is_being_sent() {
    let fake = FakeTelegram::start().await;
    fake.say(7, ANN, "hello");
    fake.fault("sendMessage", Fault::Silent);
    let (telegram, ear) = (bot(&fake), RecordingEar::new());
    let (here, piece) = (place(7), super::plain("an answer"));
    let act = async {
        fake.wait_for("the answer", |state| state.calls_of("sendMessage").count() == 1).await;
        fake.say(7, ANN, "/stop");
        ear.wait_for("the stop", |state| state.texts() == ["hello", "/stop"]).await;
    };
    tokio::select! {
        biased;
        done = Network::send(&telegram, &here, &piece, "key") => panic!("nobody answered, but {done:?}"),
        () = while_listening(&telegram, &ear, act) => {}
    }
}

#[tokio::test]
async fn a_stop_is_heard_while_nothing_can_be_kept() {
    let fake = FakeTelegram::start().await;
    fake.say(7, ANN, "hello");
    let (telegram, ear) = (bot(&fake), Forgetful(RecordingEar::new()));
    let act = async {
        ear.0.wait_for("a wait", |state| state.settled == 1).await;
        fake.say(7, ANN, "/stop");
        ear.0.wait_for("the stop", |state| state.texts().contains(&"/stop")).await;
        // Told again and again, each is heard once.
        ear.0.wait_for("another wait", |state| state.settled >= 4).await
    };
    let state = while_listening(&telegram, &ear, act).await;
    assert_eq!(state.texts(), ["hello", "/stop"]);
    assert_eq!(fake.state().confirmed, 0, "it was confirmed and is not kept");
}

/// The first hundred were told again and again, and nobody heard what came after them.
#[tokio::test]
async fn a_stop_is_heard_behind_more_than_telegram_tells_at_once() {
    let fake = FakeTelegram::start().await;
    for number in 0..250 {
        fake.say(7, ANN, &number.to_string());
    }
    fake.say(8, BOB, "/stop");
    let (telegram, ear) = (bot(&fake), Forgetful(RecordingEar::new()));
    let stop = ear.0.wait_for("the stop", |state| state.texts().contains(&"/stop"));
    let state = while_listening(&telegram, &ear, stop).await;
    assert_eq!(state.texts().len(), 251, "each is heard once");
    assert_eq!(fake.state().confirmed, 200, "what fits on a page is told again");
}

#[tokio::test]
async fn a_pile_of_messages_is_heard_in_order_and_once() {
    let fake = FakeTelegram::start().await;
    for number in 0..250 {
        fake.say(7, ANN, &number.to_string());
    }
    let ear = RecordingEar::new();
    let confirmed = fake.wait_for("the confirmation", |state| state.confirmed == 250);
    while_listening(&bot(&fake), &ear, confirmed).await;
    let expected: Vec<String> = (0..250).map(|number| number.to_string()).collect();
    assert_eq!(ear.state().texts(), expected);
}

#[tokio::test]
async fn what_is_nobodys_request_is_not_heard() {
    let fake = FakeTelegram::start().await;
    let said = fake.say(GROUP, ANN, "first");
    let told = |content: Value| fake.tell(GROUP, BOB, content);
    told(json!({"sticker": {"file_id": "s", "emoji": "😀"}}));
    told(json!({"new_chat_title": "title"}));
    told(json!({"text": "of a channel", "sender_chat": {"id": -1_009, "type": "channel"}}));
    told(json!({"text": {"what": "is this"}}));
    told(
        json!({"text": "?", "chat": 5, "photo": "none", "entities": [{"type": "bot_command", "offset": -1, "length": 9}]}),
    );
    fake.edit(GROUP, ANN, said, "changed");
    fake.say(GROUP, ANN, "last");
    assert_eq!(hears(&bot(&fake), 2).await.texts(), ["first", "last"]);
}

#[tokio::test]
async fn a_topic_is_a_thread_and_an_answer_is_none() {
    let fake = FakeTelegram::start().await;
    let topic = fake.open_topic(GROUP);
    fake.say_in(GROUP, topic, ANN, "in the topic");
    // Groups without topics tell a thread for the answers to one message.
    fake.tell(-5, ANN, json!({"text": "an answer", "message_thread_id": 3}));
    let heard = hears(&bot(&fake), 2).await.heard;
    let in_topic = Place { target: GROUP.to_string(), thread: Some(topic.to_string()) };
    assert_eq!([&heard[0].place, &heard[1].place], [&in_topic, &place(-5)]);
    assert!(heard[0].group && heard[1].group);
    Network::send(&bot(&fake), &in_topic, &super::plain("there"), "key").await.unwrap();
    assert_eq!(fake.messages(GROUP).last().unwrap().thread, Some(topic));
}

#[tokio::test]
async fn messages_of_two_chats_with_one_number_have_two_ids() {
    let fake = FakeTelegram::start().await;
    let numbers = [fake.say(GROUP, ANN, "a"), fake.say(GROUP - 1, ANN, "b")];
    assert_eq!(numbers, [1, 1]);
    let heard = hears(&bot(&fake), 2).await.heard;
    assert_ne!(heard[0].id, heard[1].id);
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
        let telegram = Telegram::new("telegram", &config(keys)).unwrap();
        fake.say(GROUP, ANN, text);
        fake.say(7, ANN, text);
        let heard = hears(&telegram, 2).await.heard;
        assert_eq!(heard[0].addressed, expected, "mention_only = {mention_only}");
        assert!(heard[1].addressed, "alone with the bot every word is for it");
    }
}

#[tokio::test]
async fn an_answer_to_the_bot_names_it() {
    let fake = FakeTelegram::start().await;
    let telegram = Telegram::new("t", &config(json!({"api_base": fake.base_url(), "mention_only": true}))).unwrap();
    let asked = fake.say(GROUP, ANN, "hello");
    let answer = Network::send(&telegram, &place(GROUP), &super::plain("hi"), "key").await.unwrap();
    fake.reply(GROUP, BOB, asked, "to ann");
    fake.reply(GROUP, BOB, answer.0.parse().unwrap(), "to the bot");
    let topic = fake.open_topic(GROUP);
    fake.say_in(GROUP, topic, BOB, "in a topic that the bot opened");
    let heard = hears(&telegram, 4).await.heard;
    let addressed: Vec<bool> = heard.iter().map(|heard| heard.addressed).collect();
    assert_eq!(addressed, [false, false, true, false]);
}

#[tokio::test]
async fn a_stop_with_the_name_of_the_bot_is_a_stop() {
    let fake = FakeTelegram::start().await;
    for text in ["/stop@quell_test_bot", "/stop@Quell_Test_Bot all", "@quell_test_bot /stop", "stop @quell_test_bot"] {
        fake.say(GROUP, ANN, text);
    }
    assert_eq!(hears(&bot(&fake), 4).await.texts(), ["/stop", "/stop all", "/stop", "stop"]);
}

#[tokio::test]
async fn files_are_named_and_fetched() {
    let fake = FakeTelegram::start().await;
    let telegram = bot(&fake);
    let picture = ChatFile::new("photo", "p", "image/jpeg", &b"large picture"[..]);
    fake.send_file(7, ANN, &picture, "look");
    fake.send_file(7, ANN, &ChatFile::new("document", "a b.txt", "text/plain", &b"text"[..]), "");
    fake.send_file(7, ANN, &ChatFile::new("document", "drawing.png", "image/png", &b"png"[..]), "");
    fake.send_file(7, ANN, &ChatFile::new("voice", "v", "audio/ogg", &b"voice"[..]), "");
    fake.send_file(7, ANN, &ChatFile::new("video", "v.mp4", "video/mp4", &b"video"[..]), "");
    let heard = hears(&telegram, 5).await.heard;
    assert_eq!(heard[0].text, "look");
    let (mut kinds, mut contents) = (Vec::new(), Vec::new());
    for attachment in heard.iter().flat_map(|heard| &heard.attachments) {
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
    let telegram = bot(&fake);
    fake.send_file(7, ANN, &ChatFile::new("document", "a", "text/plain", &b"12345"[..]), "");
    fake.send_file(7, ANN, &ChatFile::new("document", "huge", "text/plain", vec![0; 21 * 1024 * 1024]), "");
    let mut heard = hears(&telegram, 2).await.heard;
    let mut file = heard.remove(0).attachments.remove(0);
    assert_eq!(telegram.fetch(&file, 5).await.unwrap(), b"12345");
    // Whether or not Telegram told the size with the message, and whether or not it told it right.
    for told in [Some(5), None, Some(1)] {
        file.bytes = told;
        assert!(telegram.fetch(&file, 4).await.is_err());
    }
    assert!(telegram.fetch(&heard[0].attachments[0], u64::MAX).await.is_err(), "bots cannot fetch that much");
    file.source = "gone".to_owned();
    let trouble = telegram.fetch(&file, 100).await.unwrap_err().to_string();
    assert!(trouble.contains("wrong file_id"), "{trouble}");
    fake.fault("getFile", Fault::Page(404));
    assert_keeps_the_secret(&telegram.fetch(&file, 100).await.unwrap_err().to_string());
}

#[tokio::test]
async fn listening_ends_with_the_server_and_goes_on_with_it() {
    let fake = FakeTelegram::start().await;
    let (telegram, ear) = (bot(&fake), RecordingEar::new());
    let stop = async {
        fake.wait_for("a poll", |state| state.polls == 1).await;
        fake.stop().await;
    };
    let (lost, ()) = tokio::join!(telegram.listen(&ear), stop);
    assert!(matches!(lost, Lost::Connection(_)), "{lost:?}");
    fake.say(7, ANN, "while the server was away");
    let lost = telegram.listen(&ear).await;
    assert!(matches!(&lost, Lost::Connection(why) if why.contains("cannot be reached")), "{lost:?}");
    fake.start_again().await;
    let heard = ear.wait_for("the message", |state| state.heard.len() == 1);
    let state = while_listening(&telegram, &ear, heard).await;
    assert_eq!((state.texts(), state.connected.len()), (vec!["while the server was away"], 2));
}

#[tokio::test]
async fn of_two_who_listen_one_is_told_that_there_is_another() {
    let fake = FakeTelegram::start().await;
    let (first, second, ear) = (bot(&fake), bot(&fake), RecordingEar::new());
    let other = async {
        fake.wait_for("a poll", |state| state.polls == 1).await;
        second.listen(&ear).await
    };
    tokio::select! {
        lost = first.listen(&ear) => {
            let Lost::Busy { why, after } = lost else { panic!("{lost:?}") };
            assert!(why.contains("another program") && after.as_secs() >= 10, "{why}");
        }
        lost = other => panic!("the newer one has to listen: {lost}"),
    }
    fake.set_webhook("https://example.org/hook");
    let lost = first.listen(&ear).await;
    assert!(matches!(&lost, Lost::Busy { why, .. } if why.contains("deleteWebhook")), "{lost:?}");
}

#[rstest]
#[case(Fault::TooMany(7), "Busy")]
#[case(Fault::Page(502), "Connection")]
#[case(Fault::Page(404), "Refused")]
#[case(Fault::Refuse(401, "Unauthorized"), "Refused")]
#[case(Fault::Refuse(500, "Internal Server Error"), "Connection")]
#[case(Fault::Drop, "Connection")]
#[tokio::test]
async fn listening_ends_as_the_server_says(#[case] fault: Fault, #[case] kind: &str) {
    for method in ["getMe", "getUpdates"] {
        let fake = FakeTelegram::start().await;
        fake.fault(method, fault.clone());
        let lost = bot(&fake).listen(&RecordingEar::new()).await;
        let told = format!("{lost:?}");
        assert!(told.starts_with(kind), "{method}: {told}");
        assert_keeps_the_secret(&told);
        if let Lost::Busy { after, .. } = lost {
            assert_eq!(after.as_secs(), 7);
        }
    }
}
