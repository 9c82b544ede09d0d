//! Messages, edits, files and reactions, and the errors when a call fails.

use std::time::Duration;

use quell_protocol::{Attachment, AttachmentKind};
use quell_testkit::networks::telegram::{FakeTelegram, FakeTelegramFault};
use rstest::rstest;

use super::{ANN, GROUP, assert_token_hidden, chat_address, message_id, telegram_network};
use crate::format::MessagePiece;
use crate::network::test_support::message_piece;
use crate::network::{ChatAddress, Drafts, FileTransfer, Network, Reactions, SendError, TypingIndicator};
use crate::telegram::TelegramNetwork;

/// A bot to which a user has written.
async fn start_with_message() -> (FakeTelegram, TelegramNetwork) {
    let fake = FakeTelegram::start().await;
    fake.post_message(7, ANN, "hello");
    let telegram = telegram_network(&fake);
    (fake, telegram)
}

fn bot_texts(fake: &FakeTelegram) -> Vec<String> {
    fake.state().bot_texts(7).into_iter().map(str::to_owned).collect()
}

#[tokio::test]
async fn an_answer_is_shown_with_its_markup() {
    let (fake, telegram) = start_with_message().await;
    let piece = MessagePiece { formatted: "<b>a</b> &lt; c".to_owned(), plain: "a < c".to_owned() };
    let id = Network::send(&telegram, &chat_address(7), &piece, "key").await.unwrap();
    let last = fake.messages(7).pop().unwrap();
    assert_eq!((message_id(last.id), last.text.as_str(), last.entities[0].kind.as_str()), (id, "a < c", "bold"));
    assert_eq!(fake.calls("sendMessage")[0].body["link_preview_options"]["is_disabled"], true);
}

#[tokio::test]
async fn markup_that_telegram_cannot_read_goes_without() {
    let (fake, telegram) = start_with_message().await;
    let broken = |text: &str| MessagePiece { formatted: format!("{text} <p>"), plain: text.to_owned() };
    let id = Network::send(&telegram, &chat_address(7), &broken("one"), "key").await.unwrap();
    assert_eq!(bot_texts(&fake), ["one"]);
    telegram.edit(&chat_address(7), &id, &broken("two")).await.unwrap();
    assert_eq!(bot_texts(&fake), ["two"]);
    assert_eq!((fake.calls("sendMessage").len(), fake.calls("editMessageText").len()), (2, 2));
}

#[tokio::test]
async fn a_draft_grows_and_an_edit_that_changes_nothing_is_done() {
    let (fake, telegram) = start_with_message().await;
    let id = Network::send(&telegram, &chat_address(7), &message_piece("..."), "key").await.unwrap();
    for text in ["He", "Hello", "Hello"] {
        telegram.edit(&chat_address(7), &id, &message_piece(text)).await.unwrap();
    }
    assert_eq!(bot_texts(&fake), ["Hello"]);
    let gone = telegram.edit(&chat_address(7), &message_id(99), &message_piece("x")).await.unwrap_err();
    assert!(matches!(&gone, SendError::Refused { why } if why.contains("message to edit not found")), "{gone:?}");
    fake.update(|state| state.min_edit_interval = Some(Duration::from_secs(60)));
    telegram.edit(&chat_address(7), &id, &message_piece("Hello!")).await.unwrap_err();
    fake.inject_fault("editMessageText", FakeTelegramFault::LoseAnswer);
    let lost = telegram.edit(&chat_address(7), &id, &message_piece("Hello!")).await.unwrap_err();
    assert!(matches!(lost, SendError::Unknown { is_repeatable: true, .. }), "{lost:?}");
}

#[rstest]
#[case::answer_lost(FakeTelegramFault::LoseAnswer, "Unknown", 1)]
#[case::proxy_fails_afterwards(FakeTelegramFault::ActThenHtmlPage(502), "Unknown", 1)]
#[case::proxy_fails_before(FakeTelegramFault::HtmlPage(504), "Unknown", 0)]
#[case::connection_lost(FakeTelegramFault::Drop, "Unknown", 0)]
#[case::not_an_answer(FakeTelegramFault::ActThenHtmlPage(200), "Unknown", 1)]
#[case::server_error(FakeTelegramFault::Refuse(500, "Internal Server Error"), "Unknown", 0)]
#[case::not_telegram(FakeTelegramFault::HtmlPage(404), "Refused", 0)]
#[case::elsewhere(FakeTelegramFault::HtmlPage(302), "Refused", 0)]
#[case::wrong_token(FakeTelegramFault::Refuse(401, "Unauthorized"), "Refused", 0)]
#[tokio::test]
async fn a_failure_says_whether_it_may_be_shown(
    #[case] fault: FakeTelegramFault,
    #[case] kind: &str,
    #[case] count: usize,
) {
    let (fake, telegram) = start_with_message().await;
    fake.inject_fault("sendMessage", fault);
    let error = Network::send(&telegram, &chat_address(7), &message_piece("x"), "key").await.unwrap_err();
    assert!(format!("{error:?}").starts_with(kind), "{error:?}");
    assert!(!matches!(error, SendError::Unknown { is_repeatable: true, .. }), "a second try would show it twice");
    assert_token_hidden(&format!("{error} {error:?}"));
    assert_eq!((bot_texts(&fake).len(), fake.calls("sendMessage").len()), (count, 1));
}

#[tokio::test]
async fn a_refusal_is_told_in_telegrams_words() {
    let (fake, telegram) = start_with_message().await;
    fake.post_message(-5, ANN, "hello");
    fake.block_bot(7);
    fake.migrate_group(-5, -1_005);
    let long = "x".repeat(4097);
    fake.post_message(GROUP, ANN, "hello");
    let cases = [
        (chat_address(7), "x", "bot was blocked by the user"),
        (chat_address(99), "x", "chat not found"),
        (chat_address(-5), "x", "it is chat -1005 now"),
        (chat_address(GROUP), &long, "message is too long"),
        (ChatAddress { target: "ann".to_owned(), thread: None }, "x", "is no chat of Telegram"),
        (ChatAddress { target: GROUP.to_string(), thread: Some("t".to_owned()) }, "x", "is no topic"),
        (ChatAddress { target: GROUP.to_string(), thread: Some("99".to_owned()) }, "x", "message thread not found"),
    ];
    for (address, text, words) in cases {
        let error = Network::send(&telegram, &address, &message_piece(text), "key").await.unwrap_err();
        assert!(matches!(&error, SendError::Refused { why } if why.contains(words)), "{error:?}");
    }
}

#[tokio::test]
async fn typing_is_shown_until_a_message_comes() {
    let (fake, telegram) = start_with_message().await;
    telegram.show(&chat_address(7)).await.unwrap();
    assert!(fake.is_typing(7));
    telegram.hide(&chat_address(7)).await.unwrap();
    Network::send(&telegram, &chat_address(7), &message_piece("x"), "key").await.unwrap();
    assert!(!fake.is_typing(7));
    let topic = fake.open_topic(GROUP);
    let in_topic = ChatAddress { target: GROUP.to_string(), thread: Some(topic.to_string()) };
    telegram.show(&in_topic).await.unwrap();
    assert_eq!(fake.calls("sendChatAction")[1].body["message_thread_id"], topic);
}

#[tokio::test]
async fn signs_of_the_flow_have_stand_ins_that_differ() {
    let (fake, telegram) = start_with_message().await;
    let (address, asked) = (chat_address(7), message_id(1));
    for (emoji, seen) in [("👀", "👀"), ("✅", "👍"), ("⚠️", "💔"), ("⏹", "🫡"), ("⏹\u{fe0f}", "🫡"), ("❤️", "❤")]
    {
        telegram.add(&address, &asked, emoji).await.unwrap();
        assert_eq!(fake.messages(7)[0].reactions, [seen]);
    }
    let refused = telegram.add(&address, &asked, "🛑").await.unwrap_err();
    assert!(matches!(&refused, SendError::Refused { why } if why.contains("REACTION_INVALID")), "{refused:?}");
}

#[tokio::test]
async fn taking_off_the_old_sign_leaves_the_new_one() {
    let (fake, telegram) = start_with_message().await;
    let (address, asked) = (chat_address(7), message_id(1));
    telegram.add(&address, &asked, "👀").await.unwrap();
    telegram.add(&address, &asked, "✅").await.unwrap();
    telegram.remove(&address, &asked, "👀").await.unwrap();
    assert_eq!(fake.messages(7)[0].reactions, ["👍"]);
    telegram.remove(&address, &asked, "✅").await.unwrap();
    assert!(fake.messages(7)[0].reactions.is_empty());
    // After a restart the reactions are not remembered. Removing one that is not there is no error.
    telegram.add(&address, &asked, "👀").await.unwrap();
    for _ in 0..2 {
        telegram_network(&fake).remove(&address, &asked, "👀").await.unwrap();
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
    let address = ChatAddress { target: GROUP.to_string(), thread: Some(topic.to_string()) };
    let (name, media_type) = (Some("a \"b\".x".to_owned()), Some(media_type.to_owned()));
    let attachment = Attachment { kind, source: "out".to_owned(), name, media_type, bytes: None };
    let id =
        FileTransfer::send(&telegram_network(&fake), &address, &attachment, b"\r\nbytes\r\n".to_vec()).await.unwrap();
    let last = fake.messages(GROUP).pop().unwrap();
    let file = last.file.unwrap();
    assert_eq!((message_id(last.id), last.thread, file.kind.as_str()), (id, Some(topic), sent_as));
    assert_eq!((file.name.as_str(), &file.bytes[..]), ("a %22b%22.x", &b"\r\nbytes\r\n"[..]));
}

#[tokio::test]
async fn a_picture_that_is_no_photo_to_telegram_is_a_document() {
    let (fake, telegram) = start_with_message().await;
    let media_type = Some("image/png".to_owned());
    let (kind, source) = (AttachmentKind::Image, String::new());
    let picture = Attachment { kind, source, name: None, media_type, bytes: None };
    FileTransfer::send(&telegram, &chat_address(7), &picture, vec![0; 10 * 1024 * 1024 + 1]).await.unwrap();
    assert_eq!(fake.messages(7).pop().unwrap().file.unwrap().kind, "document");
    fake.inject_fault("sendPhoto", FakeTelegramFault::Refuse(400, "Bad Request: PHOTO_INVALID_DIMENSIONS"));
    FileTransfer::send(&telegram, &chat_address(7), &picture, b"long and narrow".to_vec()).await.unwrap();
    assert_eq!(fake.messages(7).pop().unwrap().file.unwrap().kind, "document");
    let refused =
        FileTransfer::send(&telegram, &chat_address(7), &picture, vec![0; 50 * 1024 * 1024 + 1]).await.unwrap_err();
    assert!(matches!(refused, SendError::Refused { .. }), "{refused:?}");
}
