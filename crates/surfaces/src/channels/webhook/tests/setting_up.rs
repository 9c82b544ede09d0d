//! Keys of the configuration, and the question whether it works.

use quell_testkit::networks::webhook::{FakeReceiver, Fault};
use rstest::rstest;
use serde_json::{Value, json};

use super::{assert_keeps_the_secrets, channel, config};
use crate::channels::seam::Network;
use crate::channels::seam::recording::RecordingEar;
use crate::channels::webhook::Webhook;

#[rstest]
#[case(json!({"join": ["x"]}), "join")]
#[case(json!({"api_base": "http://x"}), "api_base")]
#[case(json!({"mention_only": true}), "mention_only")]
#[case(json!({"reply_url": "ftp://x/"}), "reply_url")]
#[case(json!({"reply_url": "nowhere"}), "reply_url")]
#[case(json!({"reply_url": "https://me:secret@example.org/"}), "reply_url")]
fn a_wrong_key_is_named(#[case] keys: Value, #[case] key: &str) {
    let error = Webhook::new("shop", &config(&keys)).unwrap_err();
    assert_eq!(error.key, key);
    assert!(!error.to_string().contains("secret@"), "{error}");
}

#[test]
fn without_a_secret_that_deserves_the_name_nothing_is_signed() {
    let mut config = config(&json!({}));
    config.token = Some("short".into());
    assert!(Webhook::new("shop", &config).unwrap_err().problem.contains("too short"));
    config.token = None;
    assert_eq!(Webhook::new("shop", &config).unwrap_err().key, "token_env");
}

#[tokio::test]
async fn it_is_connected_at_once_and_listens_for_ever() {
    let (fake, ear) = (FakeReceiver::start().await, RecordingEar::new());
    let channel = channel(&fake);
    tokio::select! {
        biased;
        lost = channel.listen(&ear) => panic!("listening ended: {lost}"),
        state = ear.wait_for("the connection", |state| !state.connected.is_empty()) => {
            assert_eq!(state.connected[0].name, "webhook shop");
        }
    }
}

#[tokio::test]
async fn the_receiver_is_asked_whether_it_is_there_and_neither_secret_is_told() {
    let fake = FakeReceiver::start().await;
    let channel = channel(&fake);
    let told = channel.probe().await.unwrap();
    assert!(told.contains("POST /api/channels/shop/messages") && told.contains("127.0.0.1"), "{told}");
    assert_eq!(fake.state().deliveries[0].event, "ping");
    fake.fault(Fault::Page(404));
    let trouble = channel.probe().await.unwrap_err().to_string();
    assert!(trouble.contains("404"), "{trouble}");
    [told, trouble, format!("{channel:?}")].iter().for_each(|text| assert_keeps_the_secrets(text));
}

#[tokio::test]
async fn without_reply_url_answers_are_taken_and_go_nowhere() {
    let channel = Webhook::new("shop", &config(&json!({}))).unwrap();
    assert!(channel.probe().await.unwrap().contains("without reply_url"));
    assert!(channel.drafts().is_none());
    assert!(Network::send(&channel, &super::place("t"), &super::piece("a", "a"), "k").await.is_ok());
}
