//! Receiving: only a signed, recent and valid message is accepted.

use quell_protocol::AttachmentKind;
use quell_testkit::networks::webhook::FakeWebhookReceiver;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rstest::rstest;
use serde_json::{Value, json};

use super::webhook_config;
use crate::network::{ChatAddress, InboundEndpoint as _, InboundMessage, InboundRejection, MessageId};
use crate::webhook::WebhookNetwork;
use crate::webhook::receive::MAX_BODY_BYTES;

pub(super) const NOW: i64 = 1_800_000_000;

fn webhook_network() -> WebhookNetwork {
    WebhookNetwork::new("shop", &webhook_config(&json!({}))).unwrap()
}

pub(super) fn signed_headers(body: &str, at: i64) -> HeaderMap {
    let pairs = FakeWebhookReceiver::signed_headers(body, at).into_iter();
    pairs.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(&value).unwrap())).collect()
}

fn parse_post(headers: &HeaderMap, body: &str) -> Result<InboundMessage, InboundRejection> {
    webhook_network().parse_request(headers, body.as_bytes(), NOW)
}

/// Posts a body with a valid signature.
fn parse_signed_post(body: &str) -> Result<InboundMessage, InboundRejection> {
    parse_post(&signed_headers(body, NOW), body)
}

/// Posts a body whose caller is not proven, and expects the reason.
fn assert_unauthenticated(headers: &HeaderMap, body: &str, reason: &str) {
    let rejection = parse_post(headers, body).unwrap_err();
    assert!(matches!(&rejection, InboundRejection::Unauthenticated(why) if why.contains(reason)), "{rejection:?}");
}

fn message_json() -> Value {
    json!({"id": "o-17", "sender": "customer-4", "target": "order-17", "text": "Where is it?"})
}

/// The message with one field added or replaced.
fn message_with_field(field: &str, value: Value) -> String {
    let mut message = message_json();
    message[field] = value;
    message.to_string()
}

#[test]
fn a_message_is_heard() {
    let inbound = parse_signed_post(&message_json().to_string()).unwrap();
    let expected = InboundMessage {
        id: "o-17".to_owned(),
        message_id: MessageId("o-17".to_owned()),
        sender: "customer-4".to_owned(),
        sender_name: None,
        address: ChatAddress { target: "order-17".to_owned(), thread: None },
        scope_id: None,
        text: "Where is it?".to_owned(),
        is_addressed: true,
        is_group: false,
        attachments: Vec::new(),
    };
    assert_eq!(inbound, expected);
}

#[test]
fn everything_about_it_is_heard() {
    let body = json!({"id": "1", "sender": "s", "senderName": "민수", "target": "t", "thread": "th", "scopeId": "sc", "text": "",
        "group": true, "attachments": [{"kind": "image", "source": "https://example.org/a b[1].png", "name": "a.png",
        "mediaType": "image/png", "bytes": 5}]});
    let inbound = parse_signed_post(&body.to_string()).unwrap();
    assert_eq!((inbound.sender_name.as_deref(), inbound.address.thread.as_deref()), (Some("민수"), Some("th")));
    assert_eq!((inbound.scope_id.as_deref(), inbound.is_group), (Some("sc"), true));
    assert_eq!(inbound.attachments[0].kind, AttachmentKind::Image);
    assert_eq!(inbound.attachments[0].bytes, Some(5));
    assert!(inbound.attachments[0].source.starts_with("https://example.org/a%20b"), "{inbound:?}");
}

#[rstest]
#[case::other_secret("v1=00")]
#[case::no_version("abc")]
#[case::empty("")]
fn a_post_with_a_wrong_signature_is_not_read(#[case] signature: &str) {
    let body = "this is not even JSON";
    let mut headers = signed_headers(body, NOW);
    headers.insert("quell-signature", HeaderValue::from_str(signature).unwrap());
    assert_unauthenticated(&headers, body, "the signature is not that");
    headers.remove("quell-signature");
    assert_unauthenticated(&headers, body, "the header quell-signature is missing");
    headers.remove("quell-timestamp");
    assert_unauthenticated(&headers, body, "the header quell-timestamp is missing");
}

#[test]
fn a_changed_body_or_time_is_a_forgery() {
    let body = message_json().to_string();
    let mut headers = signed_headers(&body, NOW);
    assert_unauthenticated(&headers, &body.replace("Where", "There"), "the signature is not that");
    headers.insert("quell-timestamp", HeaderValue::from(NOW + 1));
    assert_unauthenticated(&headers, &body, "the signature is not that");
}

#[test]
fn an_old_copy_is_not_taken_and_a_clock_may_be_a_little_wrong() {
    let body = message_json().to_string();
    for away in [-300, 0, 300] {
        assert!(parse_post(&signed_headers(&body, NOW + away), &body).is_ok(), "{away}");
    }
    for (at, reason) in [(NOW - 301, "is 301 s away"), (NOW + 301, "is 301 s away"), (i64::MIN, ""), (i64::MAX, "")] {
        let error = parse_post(&signed_headers(&body, at), &body).unwrap_err();
        assert!(matches!(&error, InboundRejection::Stale(why) if why.contains(reason)), "{error:?}");
    }
}

#[rstest]
#[case::no_json("{".to_owned(), "not the JSON of a message")]
#[case::no_object("[]".to_owned(), "not the JSON of a message")]
#[case::no_id(r#"{"sender": "s", "target": "t", "text": "x"}"#.to_owned(), "missing field `id`")]
#[case::a_slip(message_with_field("senderNmae", json!("x")), "unknown field `senderNmae`")]
#[case::an_answer_sent_back(message_with_field("type", json!("message")), "unknown field `type`")]
#[case::empty_id(message_with_field("id", json!(" ")), "id is empty")]
#[case::long_sender(message_with_field("sender", json!("s".repeat(257))), "sender has more than 256 bytes")]
#[case::odd_target(message_with_field("target", json!("a\u{0}b")), "target has control characters")]
#[case::odd_thread(message_with_field("thread", json!("a\nb")), "thread has control characters")]
#[case::no_text(message_with_field("text", json!(" \n")), "text is empty")]
#[case::a_path(message_with_field("attachments", json!([{"kind": "file", "source": "/etc/passwd"}])), "http:// or https:// URL")]
#[case::a_file_url(message_with_field("attachments", json!([{"kind": "file", "source": "file:///etc/passwd"}])), "http:// or https:// URL")]
#[case::many_files(message_with_field("attachments", json!(vec![json!({"kind": "file", "source": "https://e.org"}); 11])), "more than 10")]
fn an_invalid_message_is_refused_with_the_reason(#[case] body: String, #[case] why: &str) {
    let error = parse_signed_post(&body).unwrap_err();
    assert!(error.to_string().contains(why), "{error}");
    assert!(matches!(error, InboundRejection::Malformed(_)), "{error:?}");
}

#[test]
fn a_large_body_is_not_read() {
    let body = message_with_field("text", json!("x".repeat(MAX_BODY_BYTES)));
    assert!(matches!(parse_signed_post(&body), Err(InboundRejection::TooLarge(_))));
}
