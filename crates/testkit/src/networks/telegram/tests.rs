//! The fake refuses what the real Telegram refuses.

use std::time::Instant;

use rstest::rstest;
use serde_json::{Value, json};

use super::methods::run_method;
use super::state::{FakeTelegramMessage, FakeTelegramState, TelegramCall};
use super::{BOT_ID, html};

#[rstest]
#[case("a < b", "Unclosed start tag at byte offset 2")]
#[case("<p>a</p>", "Unsupported start tag \"p\" at byte offset 0")]
#[case("ä<b>x", "Can't find end tag corresponding to start tag \"b\"")]
#[case("<b><i>x</b></i>", "Unmatched end tag at byte offset 7, expected \"</i>\", found \"</b>\"")]
#[case("x</b>", "Unexpected end tag at byte offset 1")]
#[case("<span>x</span>", "Tag \"span\" must have class \"tg-spoiler\" at byte offset 0")]
fn html_that_it_refuses(#[case] source: &str, #[case] why: &str) {
    assert_eq!(html::parse_html(source).unwrap_err(), why);
}

#[rstest]
#[case::utf16("sendMessage", json!({"text": "😀".repeat(2049)}), "message is too long")]
#[case::blank("sendMessage", json!({"text": " \n"}), "message text is empty")]
#[case::unknown_parameter("sendMessage", json!({"text": "x", "loud": true}), "unknown parameter loud")]
#[case::same_text("editMessageText", json!({"message_id": 1, "text": "shown"}), "message is not modified: ")]
#[case::anothers("editMessageText", json!({"message_id": 2, "text": "x"}), "message can't be edited")]
#[case::long_data(
    "sendMessage",
    json!({"text": "x", "reply_markup": {"inline_keyboard": [[{"text": "A", "callback_data": "x".repeat(65)}]]}}),
    "BUTTON_DATA_INVALID"
)]
#[case::reaction(
    "setMessageReaction",
    json!({"message_id": 1, "reaction": [{"type": "emoji", "emoji": "✅"}]}),
    "REACTION_INVALID"
)]
fn it_refuses(#[case] method: &str, #[case] mut body: Value, #[case] why: &str) {
    let mut state = FakeTelegramState::default();
    for (id, from) in [(1, BOT_ID), (2, 7)] {
        state.chat_mut(7).messages.push(FakeTelegramMessage::new(id, from, "shown".to_owned()));
    }
    body["chat_id"] = json!(7);
    let request = TelegramCall { method: method.to_owned(), body, file: None, at: Instant::now() };
    let refusal = run_method(&mut state, &request).unwrap_err();
    let answer: Value = serde_json::from_slice(&refusal.body).unwrap();
    let description = answer["description"].as_str().unwrap();
    assert!(refusal.status == 400 && description.starts_with(&format!("Bad Request: {why}")), "{answer}");
}
