//! Sending: messages and edits, and errors for each response of the receiver.

use std::time::Duration;

use quell_testkit::networks::webhook::{FakeWebhookFault, FakeWebhookReceiver};
use rstest::rstest;

use super::{assert_secrets_hidden, webhook_network};
use crate::format::MessagePiece;
use crate::network::test_support::{attachment_from, chat_address, message_piece, thread_address};
use crate::network::{Drafts as _, FileTransfer as _, MessageId, Network, SendError};

#[tokio::test]
async fn a_message_goes_out_with_its_markdown_its_plain_words_and_its_thread() {
    let fake = FakeWebhookReceiver::start().await;
    let (formatted, plain) = ("**안녕** & \"you\"".to_owned(), "안녕 & \"you\"".to_owned());
    let piece = MessagePiece { formatted, plain };
    let id = Network::send(&webhook_network(&fake), &thread_address("room 7", "t1"), &piece, "run-0").await.unwrap();
    let shown = &fake.messages("room 7")[0];
    assert_eq!((&id.0, shown.thread.as_deref()), (&shown.id, Some("t1")));
    assert_eq!((shown.text.as_str(), shown.plain.as_str()), ("**안녕** & \"you\"", "안녕 & \"you\""));
    assert_eq!(fake.state().deliveries[0].body["channel"], "shop");
    assert_eq!(fake.state().refusals, Vec::<String>::new());
}

#[tokio::test]
async fn a_key_that_cannot_stand_in_a_header_has_a_name_of_its_own() {
    let fake = FakeWebhookReceiver::start().await;
    let channel = webhook_network(&fake);
    for key in ["with space", "with\nline", "", "안녕", &"k".repeat(500)] {
        Network::send(&channel, &chat_address("t"), &message_piece("a"), key).await.unwrap();
        Network::send(&channel, &chat_address("t"), &message_piece("a"), key).await.unwrap();
    }
    assert_eq!(fake.messages("t").len(), 5);
}

#[rstest]
#[case::with_ids(false)]
#[case::without_ids(true)]
#[tokio::test]
async fn a_draft_changes_its_message_and_a_late_change_does_not_come_back(#[case] silent: bool) {
    let fake = FakeWebhookReceiver::start().await;
    if silent {
        fake.update(|state| state.omits_ids = true);
    }
    let channel = webhook_network(&fake);
    let address = chat_address("t");
    let id = Network::send(&channel, &address, &message_piece("..."), "run-draft").await.unwrap();
    for text in ["one", "two", "one"] {
        channel.edit(&address, &id, &message_piece(text)).await.unwrap();
    }
    let shown = &fake.messages("t")[0];
    assert_eq!((shown.text.as_str(), shown.edits), ("one", 3));
    let revisions: Vec<i64> = fake.state().deliveries.iter().filter_map(|it| it.body["revision"].as_i64()).collect();
    assert!(revisions.is_sorted_by(|one, other| one < other), "{revisions:?}");
    let gone = channel.edit(&address, &MessageId("m99".to_owned()), &message_piece("x")).await.unwrap_err();
    assert!(matches!(gone, SendError::Refused { .. }), "{gone:?}");
}

#[rstest]
#[case(FakeWebhookFault::Status(429, Some(7)), SendError::NotDelivered { why: String::new(), retry_after: Some(Duration::from_secs(7)) })]
#[case(FakeWebhookFault::Status(503, None), SendError::NotDelivered { why: String::new(), retry_after: None })]
#[case(FakeWebhookFault::Status(500, None), SendError::Unknown { why: String::new(), is_repeatable: true })]
#[case(FakeWebhookFault::Status(408, None), SendError::Unknown { why: String::new(), is_repeatable: true })]
#[case(FakeWebhookFault::Status(400, None), SendError::Refused { why: String::new() })]
#[case(FakeWebhookFault::Status(302, None), SendError::Refused { why: String::new() })]
#[case(FakeWebhookFault::HtmlPage(410), SendError::Refused { why: String::new() })]
#[case(FakeWebhookFault::Drop, SendError::Unknown { why: String::new(), is_repeatable: true })]
#[tokio::test]
async fn the_receivers_answer_decides_the_send_error(#[case] fault: FakeWebhookFault, #[case] expected: SendError) {
    let fake = FakeWebhookReceiver::start().await;
    fake.inject_fault(fault);
    let error = Network::send(&webhook_network(&fake), &chat_address("t"), &message_piece("a"), "k").await.unwrap_err();
    assert_secrets_hidden(&error.to_string());
    let without_reason = match error.clone() {
        SendError::NotDelivered { retry_after, .. } => SendError::NotDelivered { why: String::new(), retry_after },
        SendError::Refused { .. } => SendError::Refused { why: String::new() },
        SendError::Unknown { is_repeatable, .. } => SendError::Unknown { why: String::new(), is_repeatable },
    };
    assert_eq!(without_reason, expected, "{error}");
}

#[tokio::test]
async fn files_come_from_the_receivers_own_server_alone_and_none_go_out() {
    let fake = FakeWebhookReceiver::start().await;
    let (channel, url) = (webhook_network(&fake), fake.add_file("/files/cat.png", b"a cat"));
    for elsewhere in
        ["http://127.0.0.1:1/x", "https://example.org/x", "/etc/passwd", &url.replace("127.0.0.1", "localhost")]
    {
        let error = channel.fetch(&attachment_from(elsewhere), 100).await.unwrap_err();
        assert!(error.0.contains("reply_url"), "{error}");
    }
    let files = channel.features().files.unwrap();
    let refused = files.send(&chat_address("t"), &attachment_from(&url), vec![1]).await.unwrap_err();
    assert!(matches!(refused, SendError::Refused { .. }), "{refused:?}");
}
