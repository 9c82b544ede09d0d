//! The fake refuses what Discord refuses.

use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use rstest::rstest;
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

use super::gateway_sessions::{FakeGatewaySession, GUILD_MESSAGES};
use super::rate_limits::RateLimitCounters;
use super::rest_api::answer_request;
use super::*;
use crate::fake_server::http1::RawHttpRequest;

/// A request to send a message, in a state with one channel.
fn send_request(state: &mut FakeDiscordState, body: &Value) -> RawHttpRequest {
    let channel = state.chat_data.add_channel(FakeDiscordChannel::default());
    let agent = ("user-agent", "DiscordBot (https://example.org, 1)".to_owned());
    let authorization = ("authorization", format!("Bot {TOKEN}"));
    RawHttpRequest::post(&format!("/api/v10/channels/{channel}/messages"), &[agent, authorization], body)
}

#[rstest]
#[case::too_long(json!({"content": "x".repeat(2001)}), 50035)]
#[case::empty(json!({"content": ""}), 50006)]
#[case::no_text(json!({"content": 1}), 50035)]
#[case::long_nonce(json!({"content": "x", "nonce": "n".repeat(26)}), 50035)]
#[case::long_custom_id(
    json!({"content": "x", "components": [{"type": 1, "components": [
        {"type": 2, "style": 3, "label": "A", "custom_id": "x".repeat(101)}
    ]}]}),
    50035
)]
#[case::no_nonce(json!({"content": "x", "enforce_nonce": true}), 50035)]
#[case::no_such_message(json!({"content": "x", "message_reference": {"message_id": "7"}}), 50035)]
fn a_message_that_discord_would_not_take_is_refused(#[case] body: Value, #[case] code: u64) {
    let mut state = FakeDiscordState::new();
    let request = send_request(&mut state, &body);
    let reply = answer_request(&mut state, &request).unwrap();
    let answer: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.status, answer["code"].as_u64()), (400, Some(code)), "{answer}");
}

#[rstest]
#[case::no_agent("user-agent", 403)]
#[case::no_token("authorization", 401)]
fn without_token_or_user_agent_nothing_is_done(#[case] missing: &str, #[case] status: u16) {
    let mut state = FakeDiscordState::new();
    let mut request = send_request(&mut state, &json!({"content": "x"}));
    assert_eq!(answer_request(&mut state, &request).unwrap().status, 200);
    request.headers.retain(|(name, _)| name != missing);
    assert_eq!(answer_request(&mut state, &request).unwrap().status, status);
}

#[rstest]
#[case::enforced(true, 1)]
#[case::not_enforced(false, 2)]
fn only_a_nonce_that_is_enforced_shows_its_message_once(#[case] is_enforced: bool, #[case] shown: usize) {
    let mut state = FakeDiscordState::new();
    let request = send_request(&mut state, &json!({"content": "x", "nonce": "n", "enforce_nonce": is_enforced}));
    for _ in 0..2 {
        assert_eq!(answer_request(&mut state, &request).unwrap().status, 200);
    }
    let channel = request.path.split('/').nth(4).unwrap();
    assert_eq!(state.texts(channel).len(), shown);
}

#[test]
fn the_sixth_message_within_five_seconds_is_one_too_many() {
    let (mut limits, now) = (RateLimitCounters::default(), Instant::now());
    for left in (0..5).rev() {
        let allowance = limits.count_call(DiscordRoute::Send, "1", now);
        assert_eq!((allowance.exceeded, allowance.remaining), (false, left));
    }
    let sixth = limits.count_call(DiscordRoute::Send, "1", now + Duration::from_secs(2));
    assert_eq!((sixth.exceeded, sixth.reset_after), (true, Duration::from_secs(3)));
    assert!(!limits.count_call(DiscordRoute::Send, "2", now).exceeded, "another channel counts for itself");
    assert!(!limits.count_call(DiscordRoute::Send, "1", now + Duration::from_secs(5)).exceeded);
    assert!(!limits.count_call(DiscordRoute::React, "1", now).exceeded);
    assert!(limits.count_call(DiscordRoute::Unreact, "1", now).exceeded, "both are in one bucket");
}

#[test]
fn confirmed_events_cannot_be_replayed() {
    let mut session = FakeGatewaySession::new("s".into(), GUILD_MESSAGES, 1);
    for number in 1..=3 {
        session.push_event("MESSAGE_CREATE", &json!({"id": number}));
    }
    assert!(session.can_resume(0));
    session.confirm_up_to(2);
    assert!(!session.can_resume(1));
    assert!(session.can_resume(2) && session.can_resume(3));
    assert!(!session.can_resume(4), "it has not come so far");
}

/// The close code of the gateway after this payload.
async fn close_code_after(discord: &FakeDiscord, payload: Value) -> u16 {
    let url = format!("ws://{}/?v=10&encoding=json", discord.sockets.address());
    let mut socket = connect_async(url).await.unwrap().0;
    assert!(socket.next().await.unwrap().unwrap().is_text(), "it begins with Hello");
    socket.send(Message::text(payload.to_string())).await.unwrap();
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Close(Some(frame)) => return frame.code.into(),
            Message::Text(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn identify_payload(token: &str, intents: u64) -> Value {
    let properties = json!({"os": "linux", "browser": "test", "device": "test"});
    json!({"op": 2, "d": {"token": token, "intents": intents, "properties": properties}})
}

#[rstest]
#[case::token(identify_payload("another", 512), 4004)]
#[case::unknown_intent(identify_payload(TOKEN, 1 << 30), 4013)]
#[case::privileged_intent(identify_payload(TOKEN, 1 << 1), 4014)]
#[case::no_properties(json!({"op": 2, "d": {"token": TOKEN, "intents": 512}}), 4002)]
#[case::unknown_opcode(json!({"op": 77, "d": null}), 4001)]
#[case::too_long(json!({"op": 1, "d": "x".repeat(4096)}), 4002)]
#[case::resume_with_another_token(json!({"op": 6, "d": {"token": "another", "session_id": "s", "seq": 1}}), 4004)]
#[tokio::test]
async fn an_invalid_payload_closes_the_connection(#[case] payload: Value, #[case] code: u16) {
    assert_eq!(close_code_after(&FakeDiscord::start().await, payload).await, code);
}

#[tokio::test]
async fn a_client_without_heartbeats_is_closed() {
    let discord = FakeDiscord::start().await;
    discord.update(|state| state.heartbeat = Duration::from_millis(10));
    assert_eq!(close_code_after(&discord, json!({"op": 1, "d": null})).await, 4009);
}
