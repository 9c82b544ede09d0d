//! What is shown, changed and signed, and what becomes of it when something goes wrong.

use std::time::Duration;

use quell_protocol::{Attachment, AttachmentKind};
use quell_testkit::networks::telegram::{FakeTelegram, Fault};
use rstest::rstest;

use super::{ANN, GROUP, assert_keeps_the_secret, bot, message, place, plain};
use crate::channels::format::Piece;
use crate::channels::seam::{Drafts, Files, Network, NotSent, Place, Reactions, Typing};
use crate::channels::telegram::Telegram;

/// A bot to which somebody has written.
async fn written_to() -> (FakeTelegram, Telegram) {
    let fake = FakeTelegram::start().await;
    fake.say(7, ANN, "hello");
    let telegram = bot(&fake);
    (fake, telegram)
}

fn shown(fake: &FakeTelegram) -> Vec<String> {
    fake.state().bot_texts(7).into_iter().map(str::to_owned).collect()
}

#[tokio::test]
async fn an_answer_is_shown_with_its_markup() {
    let (fake, telegram) = written_to().await;
    let piece = Piece { marked: "<b>a</b> &lt; c".to_owned(), plain: "a < c".to_owned() };
    let id = Network::send(&telegram, &place(7), &piece, "key").await.unwrap();
    let last = fake.messages(7).pop().unwrap();
    assert_eq!((message(last.id), last.text.as_str(), last.entities[0].kind.as_str()), (id, "a < c", "bold"));
    assert_eq!(fake.calls("sendMessage")[0].body["link_preview_options"]["is_disabled"], true);
}

#[tokio::test]
async fn markup_that_telegram_cannot_read_goes_without() {
    let (fake, telegram) = written_to().await;
    let broken = |text: &str| Piece { marked: format!("{text} <p>"), plain: text.to_owned() };
    let id = Network::send(&telegram, &place(7), &broken("one"), "key").await.unwrap();
    assert_eq!(shown(&fake), ["one"]);
    telegram.edit(&place(7), &id, &broken("two")).await.unwrap();
    assert_eq!(shown(&fake), ["two"]);
    assert_eq!((fake.calls("sendMessage").len(), fake.calls("editMessageText").len()), (2, 2));
}

#[tokio::test]
async fn a_draft_grows_and_an_edit_that_changes_nothing_is_done() {
    let (fake, telegram) = written_to().await;
    let id = Network::send(&telegram, &place(7), &plain("..."), "key").await.unwrap();
    for text in ["He", "Hello", "Hello"] {
        telegram.edit(&place(7), &id, &plain(text)).await.unwrap();
    }
    assert_eq!(shown(&fake), ["Hello"]);
    let gone = telegram.edit(&place(7), &message(99), &plain("x")).await.unwrap_err();
    assert!(matches!(&gone, NotSent::Refused { why } if why.contains("message to edit not found")), "{gone:?}");
    fake.limit_edits(Duration::from_secs(60));
    telegram.edit(&place(7), &id, &plain("Hello!")).await.unwrap_err();
    fake.fault("editMessageText", Fault::LoseAnswer);
    let lost = telegram.edit(&place(7), &id, &plain("Hello!")).await.unwrap_err();
    assert!(matches!(lost, NotSent::Unknown { repeatable: true, .. }), "{lost:?}");
}

#[tokio::test]
async fn who_is_too_fast_is_told_how_long_to_wait() {
    let (fake, telegram) = written_to().await;
    fake.fault("sendMessage", Fault::TooMany(3));
    let told = Network::send(&telegram, &place(7), &plain("x"), "key").await.unwrap_err();
    assert!(matches!(&told, NotSent::Undelivered { after: Some(after), .. } if after.as_secs() == 3), "{told:?}");
    assert!(shown(&fake).is_empty());
}

#[rstest]
#[case::answer_lost(Fault::LoseAnswer, "Unknown", 1)]
#[case::proxy_fails_afterwards(Fault::ActThenPage(502), "Unknown", 1)]
#[case::proxy_fails_before(Fault::Page(504), "Unknown", 0)]
#[case::connection_lost(Fault::Drop, "Unknown", 0)]
#[case::not_an_answer(Fault::ActThenPage(200), "Unknown", 1)]
#[case::server_error(Fault::Refuse(500, "Internal Server Error"), "Unknown", 0)]
#[case::not_telegram(Fault::Page(404), "Refused", 0)]
#[case::elsewhere(Fault::Page(302), "Refused", 0)]
#[case::wrong_token(Fault::Refuse(401, "Unauthorized"), "Refused", 0)]
#[tokio::test]
async fn a_failure_says_whether_it_may_be_shown(#[case] fault: Fault, #[case] kind: &str, #[case] count: usize) {
    let (fake, telegram) = written_to().await;
    fake.fault("sendMessage", fault);
    let told = Network::send(&telegram, &place(7), &plain("x"), "key").await.unwrap_err();
    assert!(format!("{told:?}").starts_with(kind), "{told:?}");
    assert!(!matches!(told, NotSent::Unknown { repeatable: true, .. }), "a second try would show it twice");
    assert_keeps_the_secret(&format!("{told} {told:?}"));
    assert_eq!((shown(&fake).len(), fake.calls("sendMessage").len()), (count, 1));
}

#[tokio::test]
async fn what_does_not_reach_the_server_may_be_sent_again() {
    let (fake, telegram) = written_to().await;
    fake.stop().await;
    let told = Network::send(&telegram, &place(7), &plain("x"), "key").await.unwrap_err();
    assert!(matches!(told, NotSent::Undelivered { after: None, .. }), "{told:?}");
    fake.start_again().await;
    Network::send(&telegram, &place(7), &plain("x"), "key").await.unwrap();
    assert_eq!(shown(&fake), ["x"]);
}

#[tokio::test]
async fn a_refusal_is_told_in_telegrams_words() {
    let (fake, telegram) = written_to().await;
    fake.say(-5, ANN, "hello");
    fake.close_to_bot(7);
    fake.migrate(-5, -1_005);
    let long = "x".repeat(4097);
    fake.say(GROUP, ANN, "hello");
    let cases = [
        (place(7), "x", "bot was blocked by the user"),
        (place(99), "x", "chat not found"),
        (place(-5), "x", "it is chat -1005 now"),
        (place(GROUP), &long, "message is too long"),
        (Place { target: "ann".to_owned(), thread: None }, "x", "is no chat of Telegram"),
        (Place { target: GROUP.to_string(), thread: Some("t".to_owned()) }, "x", "is no topic"),
        (Place { target: GROUP.to_string(), thread: Some("99".to_owned()) }, "x", "message thread not found"),
    ];
    for (place, text, words) in cases {
        let told = Network::send(&telegram, &place, &plain(text), "key").await.unwrap_err();
        assert!(matches!(&told, NotSent::Refused { why } if why.contains(words)), "{told:?}");
    }
}

#[tokio::test]
async fn typing_is_shown_until_a_message_comes() {
    let (fake, telegram) = written_to().await;
    telegram.show(&place(7)).await.unwrap();
    assert!(fake.typing(7));
    telegram.hide(&place(7)).await.unwrap();
    Network::send(&telegram, &place(7), &plain("x"), "key").await.unwrap();
    assert!(!fake.typing(7));
    let topic = fake.open_topic(GROUP);
    let in_topic = Place { target: GROUP.to_string(), thread: Some(topic.to_string()) };
    telegram.show(&in_topic).await.unwrap();
    assert_eq!(fake.calls("sendChatAction")[1].body["message_thread_id"], topic);
}

#[tokio::test]
async fn signs_of_the_flow_have_stand_ins_that_differ() {
    let (fake, telegram) = written_to().await;
    let (here, asked) = (place(7), message(1));
    for (sign, seen) in [("👀", "👀"), ("✅", "👍"), ("⚠️", "💔"), ("⏹", "🫡"), ("⏹\u{fe0f}", "🫡"), ("❤️", "❤")]
    {
        telegram.add(&here, &asked, sign).await.unwrap();
        assert_eq!(fake.messages(7)[0].reactions, [seen]);
    }
    let refused = telegram.add(&here, &asked, "🛑").await.unwrap_err();
    assert!(matches!(&refused, NotSent::Refused { why } if why.contains("REACTION_INVALID")), "{refused:?}");
}

#[tokio::test]
async fn taking_off_the_old_sign_leaves_the_new_one() {
    let (fake, telegram) = written_to().await;
    let (here, asked) = (place(7), message(1));
    telegram.add(&here, &asked, "👀").await.unwrap();
    telegram.add(&here, &asked, "✅").await.unwrap();
    telegram.remove(&here, &asked, "👀").await.unwrap();
    assert_eq!(fake.messages(7)[0].reactions, ["👍"]);
    telegram.remove(&here, &asked, "✅").await.unwrap();
    assert!(fake.messages(7)[0].reactions.is_empty());
    // Nobody knows of a sign after a restart, and one that is not there is no error.
    telegram.add(&here, &asked, "👀").await.unwrap();
    for _ in 0..2 {
        bot(&fake).remove(&here, &asked, "👀").await.unwrap();
        assert!(fake.messages(7)[0].reactions.is_empty());
    }
}

#[rstest]
#[case(AttachmentKind::Image, "image/png", "photo")]
#[case(AttachmentKind::Image, "image/svg+xml", "document")]
#[case(AttachmentKind::Audio, "audio/ogg", "voice")]
#[case(AttachmentKind::Audio, "audio/ogg; codecs=opus", "voice")]
#[case(AttachmentKind::Audio, "audio/mpeg", "audio")]
#[case(AttachmentKind::Audio, "audio/flac", "document")]
#[case(AttachmentKind::Video, "video/mp4", "video")]
#[case(AttachmentKind::File, "text/plain\r\nX: y", "document")]
#[tokio::test]
async fn a_file_is_sent_as_what_it_is(#[case] kind: AttachmentKind, #[case] media_type: &str, #[case] sent_as: &str) {
    let fake = FakeTelegram::start().await;
    let topic = fake.open_topic(GROUP);
    let here = Place { target: GROUP.to_string(), thread: Some(topic.to_string()) };
    let (name, media_type) = (Some("a \"b\".x".to_owned()), Some(media_type.to_owned()));
    let attachment = Attachment { kind, source: "out".to_owned(), name, media_type, bytes: None };
    let id = Files::send(&bot(&fake), &here, &attachment, b"\r\nbytes\r\n".to_vec()).await.unwrap();
    let last = fake.messages(GROUP).pop().unwrap();
    let file = last.file.unwrap();
    assert_eq!((message(last.id), last.thread, file.kind.as_str()), (id, Some(topic), sent_as));
    assert_eq!((file.name.as_str(), &file.bytes[..]), ("a %22b%22.x", &b"\r\nbytes\r\n"[..]));
}

#[tokio::test]
async fn a_picture_that_is_no_photo_to_telegram_is_a_document() {
    let (fake, telegram) = written_to().await;
    let media_type = Some("image/png".to_owned());
    let (kind, source) = (AttachmentKind::Image, String::new());
    let picture = Attachment { kind, source, name: None, media_type, bytes: None };
    Files::send(&telegram, &place(7), &picture, vec![0; 10 * 1024 * 1024 + 1]).await.unwrap();
    assert_eq!(fake.messages(7).pop().unwrap().file.unwrap().kind, "document");
    fake.fault("sendPhoto", Fault::Refuse(400, "Bad Request: PHOTO_INVALID_DIMENSIONS"));
    Files::send(&telegram, &place(7), &picture, b"long and narrow".to_vec()).await.unwrap();
    assert_eq!(fake.messages(7).pop().unwrap().file.unwrap().kind, "document");
    let refused = Files::send(&telegram, &place(7), &picture, vec![0; 50 * 1024 * 1024 + 1]).await.unwrap_err();
    assert!(matches!(refused, NotSent::Refused { .. }), "{refused:?}");
}
