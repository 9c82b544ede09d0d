//! Rules for the messages of an Anthropic request.

use serde_json::{Map, Value};

use super::{
    CallReference, HistoryFindings, HistoryRule, HistoryViolation, WRONG_PICTURE, is_blank, is_valid_tool_name,
    list_of, match_calls_to_results, message_place, text_of,
};

const BODY_FIELDS: &str = "model messages max_tokens stream system tools tool_choice temperature top_p top_k stop_sequences metadata \
    thinking service_tier";

/// All violations in the body of a request, in order of place within each rule.
pub fn check(body: &Value) -> Vec<HistoryViolation> {
    let mut findings = HistoryFindings::default();
    let messages = findings.check_body(body, BODY_FIELDS, "messages");
    findings.check_model_name(body);
    let has_limit = !body.is_object() || body.get("max_tokens").and_then(Value::as_u64).is_some_and(|n| n > 0);
    findings.expect(has_limit, HistoryRule::BodyShape, "body.max_tokens", "is no positive number");
    if let Some(system) = body.get("system") {
        check_system_prompt(&mut findings, system, "body.system");
    }
    findings.check_tools(list_of(body, "tools"), |tool| {
        tool.get("input_schema").is_some_and(Value::is_object).then(|| text_of(tool, "name"))
    });
    if messages.is_empty() {
        return findings.0;
    }
    for (at, value) in messages.iter().enumerate() {
        check_message(&mut findings, at, value);
    }
    let roles: Vec<(usize, &str)> = messages.iter().map(|message| text_of(message, "role")).enumerate().collect();
    findings.check_role_order(&roles);
    check_call_pairing(&mut findings, messages);
    findings.0
}

/// Checks the system prompt: text, or a list of text blocks.
fn check_system_prompt(findings: &mut HistoryFindings, content: &Value, at: &str) {
    match content {
        Value::String(text) if is_blank(text) => findings.add(HistoryRule::EmptyText, at, "says nothing"),
        Value::String(_) => {}
        Value::Array(blocks) => {
            for (nth, value) in blocks.iter().enumerate() {
                check_block(findings, value, &["text"], &format!("{at}[{nth}]"));
            }
        }
        _ => findings.add(HistoryRule::ContentType, at, "is neither text nor a list of blocks"),
    }
}

fn check_message(findings: &mut HistoryFindings, at: usize, message: &Value) {
    let place = message_place(at);
    let role = text_of(message, "role");
    let kinds: &[&str] = match role {
        "user" => &["text", "image", "document", "tool_result"],
        "assistant" => &["text", "thinking", "redacted_thinking", "tool_use"],
        other => {
            findings.add(HistoryRule::UnknownRole, place, format!("{other:?} is no role"));
            return;
        }
    };
    if let Some(object) = message.as_object() {
        findings.check_unknown_fields(object, "role content", &place);
    }
    match message.get("content") {
        Some(Value::String(text)) if is_blank(text) && role == "user" => {
            findings.add(HistoryRule::EmptyText, place, "says nothing");
        }
        Some(Value::String(text)) if is_blank(text) => findings.add(HistoryRule::EmptyAssistant, place, "says nothing"),
        Some(Value::String(_)) => {}
        Some(Value::Array(list)) if list.is_empty() && role == "user" => {
            findings.add(HistoryRule::EmptyText, place, "has no block");
        }
        Some(Value::Array(list)) => {
            for (nth, value) in list.iter().enumerate() {
                check_block(findings, value, kinds, &format!("{place}.content[{nth}]"));
            }
            check_block_order(findings, role, list, &place);
        }
        _ => findings.add(HistoryRule::ContentType, place, "content is neither text nor a list of blocks"),
    }
}

/// Checks the order of blocks in one message.
fn check_block_order(findings: &mut HistoryFindings, role: &str, list: &[Value], place: &str) {
    if role == "assistant" {
        let thinks = |block: &Value| matches!(text_of(block, "type"), "thinking" | "redacted_thinking");
        if list.iter().all(thinks) {
            findings.add(HistoryRule::EmptyAssistant, place, "neither says nor calls anything");
        } else if list.last().is_some_and(thinks) {
            findings.add(HistoryRule::ThinkingLast, place, "ends with thinking");
        }
        return;
    }
    let results_end = list.iter().position(|block| text_of(block, "type") != "tool_result").unwrap_or(list.len());
    let are_first = list.iter().skip(results_end).all(|block| text_of(block, "type") != "tool_result");
    findings.expect(are_first, HistoryRule::ResultsNotFirst, place, "a result stands behind another block");
}

fn check_block(findings: &mut HistoryFindings, value: &Value, kinds: &[&str], place: &str) {
    let kind = text_of(value, "type");
    if !kinds.contains(&kind) {
        findings.add(HistoryRule::ContentType, place, format!("{kind:?} is no block of this role"));
        return;
    }
    let empty = Map::new();
    let object = value.as_object().unwrap_or(&empty);
    let text = |name: &str| object.get(name).and_then(Value::as_str).filter(|text| !is_blank(text));
    match kind {
        "text" => {
            findings.check_unknown_fields(object, "type text cache_control citations", place);
            findings.expect(text("text").is_some(), HistoryRule::EmptyText, place, "says nothing");
        }
        "thinking" => {
            findings.check_unknown_fields(object, "type thinking signature", place);
            findings.expect(text("signature").is_some(), HistoryRule::UnsignedThinking, place, "has no signature");
        }
        "redacted_thinking" if text("data").is_none() => {
            findings.add(HistoryRule::UnsignedThinking, place, "has no data");
        }
        "image" => {
            findings.check_unknown_fields(object, "type source cache_control", place);
            let is_valid = object.get("source").is_some_and(is_valid_image_source);
            findings.expect(is_valid, HistoryRule::ContentType, place, WRONG_PICTURE);
        }
        "tool_use" => {
            findings.check_unknown_fields(object, "type id name input cache_control", place);
            let is_named = text("name").is_some_and(is_valid_tool_name);
            findings.expect(is_named, HistoryRule::CallShape, place, "has no legal name");
            let has_input = object.get("input").is_some_and(Value::is_object);
            findings.expect(has_input, HistoryRule::Arguments, place, "input is no object");
        }
        "tool_result" => {
            findings.check_unknown_fields(object, "type tool_use_id content is_error cache_control", place);
            match object.get("content") {
                None | Some(Value::String(_)) => {}
                Some(Value::Array(blocks)) => {
                    for (nth, value) in blocks.iter().enumerate() {
                        check_block(findings, value, &["text", "image"], &format!("{place}.content[{nth}]"));
                    }
                }
                Some(_) => {
                    findings.add(HistoryRule::ContentType, place, "the content of a result is neither text nor blocks")
                }
            }
        }
        _ => {}
    }
}

fn is_valid_image_source(source: &Value) -> bool {
    let field = |name: &str| text_of(source, name);
    let fields = source.as_object().map_or(0, Map::len);
    match field("type") {
        "base64" => {
            let known = matches!(field("media_type"), "image/jpeg" | "image/png" | "image/gif" | "image/webp");
            known && fields == 3 && super::is_base64(field("data"))
        }
        "url" => fields == 2 && field("url").starts_with("https://"),
        _ => false,
    }
}

fn check_call_pairing(findings: &mut HistoryFindings, messages: &[Value]) {
    let mut calls = Vec::new();
    let mut results = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        for (nth, block) in list_of(message, "content").iter().enumerate() {
            let place = format!("{}.content[{nth}]", message_place(at));
            match text_of(block, "type") {
                "tool_use" => {
                    if let Some(id) = findings.check_call_id(block.get("id"), &place) {
                        calls.push(CallReference { message: at, place, id });
                    }
                }
                "tool_result" => {
                    if let Some(id) = findings.check_call_id(block.get("tool_use_id"), &place) {
                        results.push((CallReference { message: at, place, id }, at.checked_sub(1)));
                    }
                }
                _ => {}
            }
        }
    }
    match_calls_to_results(findings, &calls, &results);
}
