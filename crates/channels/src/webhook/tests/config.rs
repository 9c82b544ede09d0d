//! Configuration keys of a webhook channel, and its probe.

use quell_testkit::networks::webhook::{FakeWebhookFault, FakeWebhookReceiver};
use rstest::rstest;
use serde_json::{Value, json};

use super::{assert_secrets_hidden, webhook_config, webhook_network};
use crate::network::Network;
use crate::network::test_support::{RecordingInboundSink, chat_address, message_piece};
use crate::webhook::WebhookNetwork;

#[rstest]
#[case(json!({"join": ["x"]}), "join")]
#[case(json!({"api_base": "http://x"}), "api_base")]
#[case(json!({"mention_only": true}), "mention_only")]
#[case(json!({"reply_url": "ftp://x/"}), "reply_url")]
#[case(json!({"reply_url": "nowhere"}), "reply_url")]
#[case(json!({"reply_url": "https://me:secret@example.org/"}), "reply_url")]
fn a_wrong_key_is_named(#[case] keys: Value, #[case] key: &str) {
    let error = WebhookNetwork::new("shop", &webhook_config(&keys)).unwrap_err();
    assert_eq!(error.key, key);
    assert!(!error.to_string().contains("secret@"), "{error}");
}

#[test]
fn without_a_secret_that_deserves_the_name_nothing_is_signed() {
    let mut config = webhook_config(&json!({}));
    config.token = Some("short".into());
    assert!(WebhookNetwork::new("shop", &config).unwrap_err().problem.contains("too short"));
    config.token = None;
    assert_eq!(WebhookNetwork::new("shop", &config).unwrap_err().key, "token_env");
}

#[tokio::test]
async fn it_is_connected_at_once_and_listens_for_ever() {
    let (fake, sink) = (FakeWebhookReceiver::start().await, RecordingInboundSink::new());
    let channel = webhook_network(&fake);
    tokio::select! {
        biased;
        lost = channel.listen(&sink) => panic!("listening ended: {lost}"),
        state = sink.wait_for("the connection", |state| !state.accounts.is_empty()) => {
            assert_eq!(state.accounts[0].name, "webhook shop");
        }
    }
}

#[tokio::test]
async fn the_receiver_is_asked_whether_it_is_there_and_neither_secret_is_told() {
    let fake = FakeWebhookReceiver::start().await;
    let channel = webhook_network(&fake);
    let description = channel.probe().await.unwrap();
    assert!(
        description.contains("POST /api/channels/shop/messages") && description.contains("127.0.0.1"),
        "{description}"
    );
    assert_eq!(fake.state().deliveries[0].event, "ping");
    fake.inject_fault(FakeWebhookFault::HtmlPage(404));
    let error = channel.probe().await.unwrap_err().to_string();
    assert!(error.contains("404"), "{error}");
    [description, error, format!("{channel:?}")].iter().for_each(|text| assert_secrets_hidden(text));
}

#[tokio::test]
async fn without_reply_url_answers_are_taken_and_go_nowhere() {
    let channel = WebhookNetwork::new("shop", &webhook_config(&json!({}))).unwrap();
    assert!(channel.probe().await.unwrap().contains("without reply_url"));
    assert!(channel.features().drafts.is_none());
    assert!(Network::send(&channel, &chat_address("t"), &message_piece("a"), "k").await.is_ok());
}
