//! Check a request: the history checker of its dialect, and rules that only the server can check.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::Value;

use crate::fake_server::http1::RawHttpRequest;
use crate::history_check::corpus::ModelDialect;
use crate::history_check::gemini::search_type;
use crate::history_check::{self, HistoryRule, HistoryViolation, list_of, text_of};

pub(super) fn check_request_body(dialect: ModelDialect, body: &Value) -> Vec<HistoryViolation> {
    match dialect {
        ModelDialect::OpenAi => history_check::openai::check(body),
        ModelDialect::OpenAiResponses => {
            let mut found = history_check::responses::check(body);
            found.extend(check_reasoning_items(body));
            found
        }
        ModelDialect::Gemini => {
            let mut found = history_check::gemini::check(body);
            found.extend(check_part_signatures(body));
            found
        }
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
        ModelDialect::OpenAi | ModelDialect::OpenAiResponses => None,
        ModelDialect::Gemini if incoming.header("x-goog-api-key").is_none_or(str::is_empty) => {
            Some("x-goog-api-key header is required")
        }
        ModelDialect::Gemini => None,
        // The first is the version of the dialect, the second that of the official client, whose stream is the same.
        ModelDialect::Anthropic
            if !matches!(incoming.header("anthropic-version"), Some("2023-06-01" | "2026-10-21")) =>
        {
            Some("anthropic-version: header is required")
        }
        // The official client sends its key as a bearer token.
        ModelDialect::Anthropic
            if incoming.header("x-api-key").or(incoming.header("authorization")).is_none_or(str::is_empty) =>
        {
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

/// Reasoning must come back unchanged, and only where nothing is stored.
fn check_reasoning_items(body: &Value) -> Vec<HistoryViolation> {
    let mut found = Vec::new();
    if body.get("store") != Some(&Value::Bool(false)) {
        found.push(HistoryViolation::new(HistoryRule::BodyShape, "body.store", "asks this server to store something"));
    }
    for (at, item) in list_of(body, "input").iter().enumerate() {
        let summary = list_of(item, "summary");
        let text: Vec<&str> = summary.iter().map(|part| text_of(part, "text")).collect();
        let expected = reasoning_signature(text_of(item, "id"), &text.concat());
        // Reasoning without a summary has what the script said.
        if text_of(item, "type") == "reasoning" && !summary.is_empty() && text_of(item, "encrypted_content") != expected
        {
            let detail = "carries content that this server did not give to this reasoning";
            found.push(HistoryViolation::new(HistoryRule::UnsignedThinking, format!("input[{at}]"), detail));
        }
    }
    found
}

/// The server's encrypted content of a reasoning item with this summary.
pub(super) fn reasoning_signature(id: &str, summary: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (id, summary).hash(&mut hasher);
    format!("encrypted-{:016x}", hasher.finish())
}

/// A signature goes back on its own part. In the current turn, which the last text of the user began, the first call of
/// each answer must have its signature.
fn check_part_signatures(body: &Value) -> Vec<HistoryViolation> {
    let contents = list_of(body, "contents");
    let is_text = |content: &Value| list_of(content, "parts").iter().any(|part| part.get("text").is_some());
    let turn = contents.iter().rposition(|content| text_of(content, "role") == "user" && is_text(content));
    let mut found = Vec::new();
    for (at, content) in contents.iter().enumerate().filter(|(_, content)| text_of(content, "role") == "model") {
        let mut has_call = false;
        for (nth, part) in list_of(content, "parts").iter().enumerate() {
            let is_first_call = part.get("functionCall").is_some() && !std::mem::replace(&mut has_call, true);
            let is_wanted = is_first_call && turn.is_some_and(|turn| at > turn);
            let wrong = match part.get("thoughtSignature").and_then(Value::as_str) {
                // The service takes this word for a call of another model.
                Some("skip_thought_signature_validator") => !is_first_call,
                Some(signature) => signature != part_signature(part),
                None => is_wanted || part.get("toolCall").or(part.get("toolResponse")).is_some(),
            };
            if wrong {
                let place = format!("contents[{at}].parts[{nth}]");
                let detail = "misses the signature that this server gave to this part, or has another one";
                found.push(HistoryViolation::new(HistoryRule::UnsignedThinking, place, detail));
            }
        }
    }
    found
}

/// The server's signature of a text, a call or a search; base64, as in the service. It does not cover the id of a call.
pub(super) fn part_signature(part: &Value) -> String {
    let call = &part["functionCall"];
    let mut hasher = DefaultHasher::new();
    let search = [&part["toolCall"], &part["toolResponse"]].map(|search| {
        let content = [&search["args"], &search["response"]].map(Value::to_string);
        (text_of(search, "id"), search_type(search), content)
    });
    (text_of(part, "text"), text_of(call, "name"), call["args"].to_string(), search).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
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
