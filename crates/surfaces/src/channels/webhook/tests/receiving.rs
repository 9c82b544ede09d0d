//! What comes in: only what is signed, new and well made is heard.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use quell_protocol::AttachmentKind;
use quell_testkit::networks::webhook::FakeReceiver;
use rstest::rstest;
use serde_json::{Value, json};

use super::config;
use crate::channels::seam::{Heard, MessageId, Place};
use crate::channels::webhook::{LARGEST, Unwelcome, Webhook};

const NOW: i64 = 1_800_000_000;

fn webhook() -> Webhook {
    Webhook::new("shop", &config(&json!({}))).unwrap()
}

fn headers(body: &str, at: i64) -> HeaderMap {
    let pairs = FakeReceiver::headers(body, at).into_iter();
    pairs.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(&value).unwrap())).collect()
}

/// Posts a body as the owner of the secret would.
fn post(body: &str) -> Result<Heard, Unwelcome> {
    webhook().receive(&headers(body, NOW), body.as_bytes(), NOW)
}

fn message() -> Value {
    json!({"id": "o-17", "sender": "customer-4", "target": "order-17", "text": "Where is it?"})
}

/// The message with a field more, or another value for it.
fn with(field: &str, value: Value) -> String {
    let mut message = message();
    message[field] = value;
    message.to_string()
}

#[test]
fn a_message_is_heard() {
    let heard = post(&message().to_string()).unwrap();
    let expected = Heard {
        id: "o-17".to_owned(),
        message: MessageId("o-17".to_owned()),
        sender: "customer-4".to_owned(),
        sender_name: None,
        place: Place { target: "order-17".to_owned(), thread: None },
        scope_id: None,
        text: "Where is it?".to_owned(),
        addressed: true,
        group: false,
        attachments: Vec::new(),
    };
    assert_eq!(heard, expected);
}

#[test]
fn everything_about_it_is_heard() {
    let body = json!({"id": "1", "sender": "s", "senderName": "민수", "target": "t", "thread": "th", "scopeId": "sc", "text": "",
        "group": true, "attachments": [{"kind": "image", "source": "https://example.org/a b[1].png", "name": "a.png",
        "mediaType": "image/png", "bytes": 5}]});
    let heard = post(&body.to_string()).unwrap();
    assert_eq!((heard.sender_name.as_deref(), heard.place.thread.as_deref()), (Some("민수"), Some("th")));
    assert_eq!((heard.scope_id.as_deref(), heard.group), (Some("sc"), true));
    assert_eq!(heard.attachments[0].kind, AttachmentKind::Image);
    assert_eq!(heard.attachments[0].bytes, Some(5));
    assert!(heard.attachments[0].source.starts_with("https://example.org/a%20b"), "{heard:?}");
}

#[rstest]
#[case::other_secret("v1=00")]
#[case::no_version("abc")]
#[case::empty("")]
fn what_is_not_signed_with_the_secret_is_not_read(#[case] signature: &str) {
    let body = "this is not even JSON";
    let mut headers = headers(body, NOW);
    headers.insert("quell-signature", HeaderValue::from_str(signature).unwrap());
    assert_eq!(webhook().receive(&headers, body.as_bytes(), NOW), Err(Unwelcome::Forged));
    headers.remove("quell-signature");
    assert_eq!(webhook().receive(&headers, body.as_bytes(), NOW), Err(Unwelcome::Unsigned("quell-signature")));
    headers.remove("quell-timestamp");
    assert_eq!(webhook().receive(&headers, body.as_bytes(), NOW), Err(Unwelcome::Unsigned("quell-timestamp")));
}

#[test]
fn a_changed_body_or_time_is_a_forgery() {
    let body = message().to_string();
    let mut headers = headers(&body, NOW);
    let changed = body.replace("Where", "There");
    assert_eq!(webhook().receive(&headers, changed.as_bytes(), NOW), Err(Unwelcome::Forged));
    headers.insert("quell-timestamp", HeaderValue::from(NOW + 1));
    assert_eq!(webhook().receive(&headers, body.as_bytes(), NOW), Err(Unwelcome::Forged));
}

#[test]
fn an_old_copy_is_not_taken_and_a_clock_may_be_a_little_wrong() {
    let body = message().to_string();
    for away in [-300, 0, 300] {
        assert!(webhook().receive(&headers(&body, NOW + away), body.as_bytes(), NOW).is_ok(), "{away}");
    }
    for away in [-301, 301] {
        let error = webhook().receive(&headers(&body, NOW + away), body.as_bytes(), NOW);
        assert_eq!(error, Err(Unwelcome::Untimely(301)));
    }
    for far in [i64::MIN, i64::MAX] {
        let error = webhook().receive(&headers(&body, far), body.as_bytes(), NOW);
        assert!(matches!(error, Err(Unwelcome::Untimely(_))), "{error:?}");
    }
}

#[rstest]
#[case::no_json("{".to_owned(), "not the JSON of a message")]
#[case::no_object("[]".to_owned(), "not the JSON of a message")]
#[case::no_id(r#"{"sender": "s", "target": "t", "text": "x"}"#.to_owned(), "missing field `id`")]
#[case::a_slip(with("senderNmae", json!("x")), "unknown field `senderNmae`")]
#[case::an_answer_sent_back(with("type", json!("message")), "unknown field `type`")]
#[case::empty_id(with("id", json!(" ")), "id is empty")]
#[case::long_sender(with("sender", json!("s".repeat(257))), "sender has more than 256 bytes")]
#[case::odd_target(with("target", json!("a\u{0}b")), "target has control characters")]
#[case::odd_thread(with("thread", json!("a\nb")), "thread has control characters")]
#[case::no_text(with("text", json!(" \n")), "text is empty")]
#[case::a_path(with("attachments", json!([{"kind": "file", "source": "/etc/passwd"}])), "http:// or https:// URL")]
#[case::a_file_url(with("attachments", json!([{"kind": "file", "source": "file:///etc/passwd"}])), "http:// or https:// URL")]
#[case::many_files(with("attachments", json!(vec![json!({"kind": "file", "source": "https://e.org"}); 11])), "more than 10")]
fn what_is_no_message_is_said_to_be_none(#[case] body: String, #[case] why: &str) {
    let error = post(&body).unwrap_err();
    assert!(error.to_string().contains(why), "{error}");
    assert!(matches!(error, Unwelcome::Malformed(_)), "{error:?}");
}

#[test]
fn a_large_body_is_not_read() {
    let body = with("text", json!("x".repeat(LARGEST)));
    let error = post(&body).unwrap_err();
    assert_eq!(error, Unwelcome::TooLarge);
}
