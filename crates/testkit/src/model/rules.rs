//! What is wrong with a request: the history checker of its dialect, and what only the server itself can know.

use serde_json::Value;

use super::frames::signature;
use crate::history::corpus::Dialect;
use crate::history::{self, Rule, Violation};

/// Everything that is wrong with a body.
pub(super) fn check(dialect: Dialect, body: &Value) -> Vec<Violation> {
    match dialect {
        Dialect::OpenAi => history::openai::check(body),
        Dialect::Anthropic => {
            let mut found = history::anthropic::check(body);
            found.extend(changed_reasoning(body));
            found.extend(thinking_settings(body));
            found
        }
    }
}

/// Headers without which the service refuses every request.
pub(super) fn missing_header(dialect: Dialect, headers: &[(String, String)]) -> Option<&'static str> {
    let value = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    match dialect {
        Dialect::OpenAi => None,
        Dialect::Anthropic if value("anthropic-version") != Some("2023-06-01") => {
            Some("anthropic-version: header is required")
        }
        Dialect::Anthropic if value("x-api-key").is_none_or(str::is_empty) => Some("x-api-key header is required"),
        Dialect::Anthropic => None,
    }
}

/// Reasoning comes back as it went out and where it stood, or not at all: a signature covers one text behind so many calls.
fn changed_reasoning(body: &Value) -> Vec<Violation> {
    let list = |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut found = Vec::new();
    for (at, message) in list(body, "messages").iter().enumerate() {
        let mut calls_before = 0;
        for (nth, block) in list(message, "content").iter().enumerate() {
            let text = |name: &str| block.get(name).and_then(Value::as_str);
            calls_before += usize::from(text("type") == Some("tool_use"));
            let (Some("thinking"), Some(thought), Some(signed)) = (text("type"), text("thinking"), text("signature"))
            else {
                continue;
            };
            if signed != signature(thought, calls_before) {
                let place = format!("messages[{at}].content[{nth}]");
                let detail = "carries a signature that this server did not give to this text in this place".to_owned();
                found.push(Violation { rule: Rule::UnsignedThinking, place, detail });
            }
        }
    }
    found
}

/// The API's rules about thinking: a budget of at least 1024 below the length, no other temperature, and calls that are
/// worked off began with thinking.
fn thinking_settings(body: &Value) -> Vec<Violation> {
    let Some(thinking) = body.get("thinking") else { return Vec::new() };
    let budget = thinking.get("budget_tokens").and_then(Value::as_u64).unwrap_or_default();
    let most = body.get("max_tokens").and_then(Value::as_u64).unwrap_or_default();
    let warm = body.get("temperature").is_some_and(|temperature| temperature.as_f64() != Some(1.0));
    let mut found = Vec::new();
    let mut wrong = |place: &str, detail: &str| {
        found.push(Violation { rule: Rule::BodyShape, place: place.to_owned(), detail: detail.to_owned() });
    };
    if budget < 1024 || budget >= most {
        wrong("body.thinking.budget_tokens", "is below 1024 or not below max_tokens");
    }
    if warm {
        wrong("body.temperature", "may only be 1 where thinking is on");
    }
    if unthought_loop(body) {
        wrong("body.messages", "the message with the calls does not begin with thinking, which is on");
    }
    found
}

fn unthought_loop(body: &Value) -> bool {
    let messages = body.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let kind =
        |message: &Value| message.pointer("/content/0/type").and_then(Value::as_str).unwrap_or_default().to_owned();
    match messages {
        [.., said, heard] => kind(heard) == "tool_result" && !kind(said).ends_with("thinking"),
        _ => false,
    }
}
