//! The fake refuses what Slack refuses.

use rstest::rstest;
use serde_json::{Value, json};

use super::chat_data::FakeSlackMessage;
use super::state::FakeSlackState;
use super::web_api::answer_request;
use super::{APP_TOKEN, BOT, BOT_TOKEN};
use crate::fake_server::http1::RawHttpRequest;

fn call_method(state: &mut FakeSlackState, method: &str, token: &str, body: &Value) -> Value {
    let authorization = [("authorization", format!("Bearer {token}"))];
    let incoming = RawHttpRequest::post(&format!("/api/{method}"), &authorization, body);
    let reply = answer_request(state, &incoming).expect("an answer");
    serde_json::from_slice(&reply.body).expect("JSON")
}

#[rstest]
#[case::no_such_channel("chat.postMessage", BOT_TOKEN, json!({"channel": "C9", "text": "x"}), "channel_not_found")]
#[case::nothing_to_say("chat.postMessage", BOT_TOKEN, json!({"channel": "C00000001", "text": " "}), "no_text")]
#[case::no_such_thread(
    "chat.postMessage", BOT_TOKEN, json!({"channel": "C00000001", "text": "x", "thread_ts": "1.2"}), "thread_not_found"
)]
#[case::wrong_token("chat.postMessage", "xoxb-other", json!({}), "invalid_auth")]
#[case::app_token("chat.postMessage", APP_TOKEN, json!({}), "not_allowed_token_type")]
#[case::bot_token("apps.connections.open", BOT_TOKEN, json!({}), "not_allowed_token_type")]
#[case::not_own("chat.update", BOT_TOKEN, json!({"channel": "C00000001", "ts": "1750000000.000002", "text": "x"}), "cant_update_message")]
#[case::too_long(
    "chat.update", BOT_TOKEN, json!({"channel": "C00000001", "ts": "1750000000.000003", "text": "x".repeat(4001)}), "msg_too_long"
)]
#[case::long_section(
    "chat.postMessage", BOT_TOKEN,
    json!({"channel": "C00000001", "text": "x", "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "x".repeat(3001)}}]}),
    "invalid_blocks"
)]
#[case::not_there("chat.postEphemeral", BOT_TOKEN, json!({"channel": "C00000001", "user": "U9", "text": "x"}), "user_not_in_channel")]
#[case::gone("chat.update", BOT_TOKEN, json!({"channel": "C00000001", "ts": "1.9", "text": "x"}), "message_not_found")]
#[case::no_emoji("reactions.add", BOT_TOKEN, json!({"channel": "C00000001", "timestamp": "1750000000.000002", "name": "👀"}), "invalid_name")]
#[case::no_reaction("reactions.remove", BOT_TOKEN, json!({"channel": "C00000001", "timestamp": "1750000000.000002", "name": "x"}), "no_reaction")]
#[case::no_file(
    "files.completeUploadExternal", BOT_TOKEN, json!({"channel_id": "C00000001", "files": [{"id": "F1"}]}), "file_not_found"
)]
#[case::form_only("files.getUploadURLExternal", BOT_TOKEN, json!({"filename": "a", "length": 1}), "invalid_arguments")]
#[case::unknown("chat.shout", BOT_TOKEN, json!({}), "unknown_method")]
fn it_refuses(#[case] method: &str, #[case] token: &str, #[case] body: Value, #[case] error: &str) {
    let mut state = FakeSlackState::new();
    let channel = state.chat_data.add_channel('C');
    for author in ["U1", BOT] {
        state
            .chat_data
            .add_message(&channel, FakeSlackMessage { author: author.to_owned(), ..FakeSlackMessage::default() });
    }
    let told = call_method(&mut state, method, token, &body);
    assert_eq!((&told["ok"], &told["error"]), (&json!(false), &json!(error)));
}

#[test]
fn an_unknown_key_is_complained_about() {
    let mut state = FakeSlackState::new();
    let channel = state.chat_data.add_channel('C');
    call_method(&mut state, "chat.postMessage", BOT_TOKEN, &json!({"channel": channel, "text": "x", "loud": true}));
    assert_eq!(state.client_errors, ["chat.postMessage: an unknown key: loud"]);
}
