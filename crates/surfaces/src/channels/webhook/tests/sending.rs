//! What goes out, and what is made of what the receiver says.

use std::time::Duration;

use quell_protocol::{Attachment, AttachmentKind};
use quell_testkit::networks::webhook::{FakeReceiver, Fault};
use rstest::rstest;

use super::{assert_keeps_the_secrets, channel, piece, place};
use crate::channels::seam::{Drafts as _, Files as _, MessageId, Network, NotSent, Place};

#[tokio::test]
async fn a_message_goes_out_with_its_markdown_its_plain_words_and_its_thread() {
    let fake = FakeReceiver::start().await;
    let room = Place { target: "room 7".to_owned(), thread: Some("t1".to_owned()) };
    let id =
        Network::send(&channel(&fake), &room, &piece("**안녕** & \"you\"", "안녕 & \"you\""), "run-0").await.unwrap();
    let shown = &fake.messages("room 7")[0];
    assert_eq!((&id.0, shown.thread.as_deref()), (&shown.id, Some("t1")));
    assert_eq!((shown.text.as_str(), shown.plain.as_str()), ("**안녕** & \"you\"", "안녕 & \"you\""));
    assert_eq!(fake.state().deliveries[0].body["channel"], "shop");
    assert_eq!(fake.state().refusals, Vec::<String>::new());
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_the_same_key_again_shows_it_once() {
    let fake = FakeReceiver::start().await;
    fake.fault(Fault::LoseAnswer);
    let channel = channel(&fake);
    let (place, text) = (place("t"), piece("a", "a"));
    let lost = Network::send(&channel, &place, &text, "run-0").await.unwrap_err();
    assert!(matches!(lost, NotSent::Unknown { repeatable: true, .. }), "{lost:?}");
    let id = Network::send(&channel, &place, &text, "run-0").await.unwrap();
    Network::send(&channel, &place, &piece("b", "b"), "run-1").await.unwrap();
    assert_eq!(fake.state().texts("t"), ["a", "b"]);
    assert_eq!(fake.messages("t")[0].id, id.0);
}

#[tokio::test]
async fn a_key_that_cannot_stand_in_a_header_has_a_name_of_its_own() {
    let fake = FakeReceiver::start().await;
    let channel = channel(&fake);
    for key in ["with space", "with\nline", "", "안녕", &"k".repeat(500)] {
        Network::send(&channel, &place("t"), &piece("a", "a"), key).await.unwrap();
        Network::send(&channel, &place("t"), &piece("a", "a"), key).await.unwrap();
    }
    assert_eq!(fake.messages("t").len(), 5);
}

#[rstest]
#[case::with_ids(false)]
#[case::without_ids(true)]
#[tokio::test]
async fn a_draft_changes_its_message_and_a_late_change_does_not_come_back(#[case] silent: bool) {
    let fake = FakeReceiver::start().await;
    if silent {
        fake.without_ids();
    }
    let channel = channel(&fake);
    let place = place("t");
    let id = Network::send(&channel, &place, &piece("...", "..."), "run-draft").await.unwrap();
    for text in ["one", "two", "one"] {
        channel.edit(&place, &id, &piece(text, text)).await.unwrap();
    }
    let shown = &fake.messages("t")[0];
    assert_eq!((shown.text.as_str(), shown.edits), ("one", 3));
    let revisions: Vec<i64> = fake.state().deliveries.iter().filter_map(|it| it.body["revision"].as_i64()).collect();
    assert!(revisions.is_sorted_by(|one, other| one < other), "{revisions:?}");
    let gone = channel.edit(&place, &MessageId("m99".to_owned()), &piece("x", "x")).await.unwrap_err();
    assert!(matches!(gone, NotSent::Refused { .. }), "{gone:?}");
}

#[rstest]
#[case(Fault::Status(429, Some(7)), NotSent::Undelivered { why: String::new(), after: Some(Duration::from_secs(7)) })]
#[case(Fault::Status(503, None), NotSent::Undelivered { why: String::new(), after: None })]
#[case(Fault::Status(500, None), NotSent::Unknown { why: String::new(), repeatable: true })]
#[case(Fault::Status(408, None), NotSent::Unknown { why: String::new(), repeatable: true })]
#[case(Fault::Status(400, None), NotSent::Refused { why: String::new() })]
#[case(Fault::Status(302, None), NotSent::Refused { why: String::new() })]
#[case(Fault::Page(410), NotSent::Refused { why: String::new() })]
#[case(Fault::Drop, NotSent::Unknown { why: String::new(), repeatable: true })]
#[tokio::test]
async fn what_the_receiver_says_is_understood(#[case] fault: Fault, #[case] expected: NotSent) {
    let fake = FakeReceiver::start().await;
    fake.fault(fault);
    let error = Network::send(&channel(&fake), &place("t"), &piece("a", "a"), "k").await.unwrap_err();
    assert_keeps_the_secrets(&error.to_string());
    let told = match error.clone() {
        NotSent::Undelivered { after, .. } => NotSent::Undelivered { why: String::new(), after },
        NotSent::Refused { .. } => NotSent::Refused { why: String::new() },
        NotSent::Unknown { repeatable, .. } => NotSent::Unknown { why: String::new(), repeatable },
    };
    assert_eq!(told, expected, "{error}");
}

#[tokio::test]
async fn nobody_there_is_certain() {
    let fake = FakeReceiver::start().await;
    let channel = channel(&fake);
    drop(fake);
    // The port is closed when the receiver's task is gone, which nobody tells.
    let error = loop {
        match Network::send(&channel, &place("t"), &piece("a", "a"), "k").await {
            Err(error @ NotSent::Undelivered { .. }) => break error,
            Err(NotSent::Unknown { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_keeps_the_secrets(&error.to_string());
}

#[tokio::test]
async fn files_come_from_the_receivers_own_server_alone_and_none_go_out() {
    let fake = FakeReceiver::start().await;
    let (channel, url) = (channel(&fake), fake.file("/files/cat.png", b"a cat"));
    let file = |source: &str| {
        let source = source.to_owned();
        Attachment { kind: AttachmentKind::Image, source, name: None, media_type: None, bytes: None }
    };
    assert_eq!(channel.fetch(&file(&url), 100).await.unwrap(), b"a cat");
    assert!(channel.fetch(&file(&url), 4).await.is_err());
    for elsewhere in
        ["http://127.0.0.1:1/x", "https://example.org/x", "/etc/passwd", &url.replace("127.0.0.1", "localhost")]
    {
        let trouble = channel.fetch(&file(elsewhere), 100).await.unwrap_err();
        assert!(trouble.0.contains("reply_url"), "{trouble}");
    }
    let files = channel.files().unwrap();
    let refused = files.send(&place("t"), &file(&url), vec![1]).await.unwrap_err();
    assert!(matches!(refused, NotSent::Refused { .. }), "{refused:?}");
}
