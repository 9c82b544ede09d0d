//! Check a request: the history checker of its dialect, and rules that only the server can check.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::Value;

use crate::fake_server::http1::RawHttpRequest;
use crate::history_check::corpus::ModelDialect;
use crate::history_check::{self, HistoryRule, HistoryViolation, list_of, text_of};

pub(super) fn check_request_body(dialect: ModelDialect, body: &Value) -> Vec<HistoryViolation> {
    match dialect {
        ModelDialect::OpenAi => history_check::openai::check(body),
        ModelDialect::Anthropic => {
            let mut found = history_check::anthropic::check(body);
            found.extend(check_thinking_signatures(body));
            found.extend(check_thinking_settings(body));
            found
        }
    }
}

/// Names a missing header without which the service refuses every request.
pub(super) fn missing_header(dialect: ModelDialect, incoming: &RawHttpRequest) -> Option<&'static str> {
    match dialect {
        ModelDialect::OpenAi => None,
        ModelDialect::Anthropic if incoming.header("anthropic-version") != Some("2023-06-01") => {
            Some("anthropic-version: header is required")
        }
        ModelDialect::Anthropic if incoming.header("x-api-key").is_none_or(str::is_empty) => {
            Some("x-api-key header is required")
        }
        ModelDialect::Anthropic => None,
    }
}

/// Reasoning must come back unchanged in its place, or not at all: a signature covers one text after a number of calls.
fn check_thinking_signatures(body: &Value) -> Vec<HistoryViolation> {
    let mut found = Vec::new();
    for (at, message) in list_of(body, "messages").iter().enumerate() {
        let mut calls_before = 0;
        for (nth, block) in list_of(message, "content").iter().enumerate() {
            calls_before += usize::from(text_of(block, "type") == "tool_use");
            let signature = thinking_signature(text_of(block, "thinking"), calls_before);
            if text_of(block, "type") == "thinking" && text_of(block, "signature") != signature {
                let place = format!("messages[{at}].content[{nth}]");
                let detail = "carries a signature that this server did not give to this text in this place";
                found.push(HistoryViolation::new(HistoryRule::UnsignedThinking, place, detail));
            }
        }
    }
    found
}

/// The server's signature of this reasoning text after this number of calls in its message.
pub(super) fn thinking_signature(text: &str, calls_before: usize) -> String {
    let mut hasher = DefaultHasher::new();
    (text, calls_before).hash(&mut hasher);
    format!("signed-{:016x}", hasher.finish())
}

/// The API's rules for thinking: a budget of at least 1024 and below `max_tokens`, no temperature other than 1, and a
/// message with answered calls begins with thinking.
fn check_thinking_settings(body: &Value) -> Vec<HistoryViolation> {
    let Some(thinking) = body.get("thinking") else { return Vec::new() };
    let budget = thinking.get("budget_tokens").and_then(Value::as_u64).unwrap_or_default();
    let most = body.get("max_tokens").and_then(Value::as_u64).unwrap_or_default();
    let warm = body.get("temperature").is_some_and(|temperature| temperature.as_f64() != Some(1.0));
    let mut found = Vec::new();
    let mut wrong =
        |place: &str, detail: &str| found.push(HistoryViolation::new(HistoryRule::BodyShape, place, detail));
    if budget < 1024 || budget >= most {
        wrong("body.thinking.budget_tokens", "is below 1024 or not below max_tokens");
    }
    if warm {
        wrong("body.temperature", "may only be 1 where thinking is on");
    }
    if tool_loop_lacks_thinking(body) {
        wrong("body.messages", "the message with the calls does not begin with thinking, which is on");
    }
    found
}

fn tool_loop_lacks_thinking(body: &Value) -> bool {
    match list_of(body, "messages") {
        [.., said, heard] => first_type(heard) == "tool_result" && !first_type(said).ends_with("thinking"),
        _ => false,
    }
}

/// Type of the first block of a message.
fn first_type(message: &Value) -> &str {
    list_of(message, "content").first().map_or("", |block| text_of(block, "type"))
}
