//! Inline keyboards and answers to presses of their buttons.

use serde_json::{Value, json};

use super::super::super::FakeButton;
use super::super::state::FakeTelegramState;
use super::{bad_request, check_known_parameters};
use crate::fake_server::FakeHttpReply;

/// Bot API: `InlineKeyboardButton`, `callback_data`, "1-64 bytes".
const MAX_DATA_BYTES: usize = 64;
/// Bot API: answerCallbackQuery, `text`, "0-200 characters".
const MAX_ANSWER_CHARS: usize = 200;

/// The buttons of a call; none without `reply_markup`.
pub(in super::super) fn parse_keyboard(body: &Value) -> Result<Vec<FakeButton>, FakeHttpReply> {
    let Some(markup) = body.get("reply_markup") else { return Ok(Vec::new()) };
    check_known_parameters(markup, &["inline_keyboard"])?;
    let wrong = || bad_request("can't parse inline keyboard");
    let mut buttons = Vec::new();
    for row in markup["inline_keyboard"].as_array().ok_or_else(wrong)? {
        for button in row.as_array().ok_or_else(wrong)? {
            check_known_parameters(button, &["text", "callback_data"])?;
            let label = button["text"].as_str().filter(|label| !label.is_empty()).ok_or_else(wrong)?;
            let data = button["callback_data"].as_str();
            let data = data.filter(|data| (1..=MAX_DATA_BYTES).contains(&data.len()));
            let data = data.ok_or_else(|| bad_request("BUTTON_DATA_INVALID"))?;
            buttons.push(FakeButton { label: label.to_owned(), data: data.to_owned() });
        }
    }
    Ok(buttons)
}

pub(super) fn answer_callback_query(state: &mut FakeTelegramState, body: &Value) -> Result<Value, FakeHttpReply> {
    check_known_parameters(body, &["callback_query_id", "text", "show_alert"])?;
    let text = body["text"].as_str().unwrap_or_default();
    if text.chars().count() > MAX_ANSWER_CHARS {
        return Err(bad_request("MESSAGE_TOO_LONG"));
    }
    let press = state.presses.iter_mut().find(|press| body["callback_query_id"] == press.query_id.as_str());
    let too_old = "query is too old and response timeout expired or query ID is invalid";
    let press = press.ok_or_else(|| bad_request(too_old))?;
    press.answers.push((text.to_owned(), body["show_alert"] == true));
    Ok(json!(true))
}
