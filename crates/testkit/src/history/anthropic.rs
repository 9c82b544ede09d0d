//! Anthropic messages: what a body's messages must be.

use serde_json::{Map, Value};

use super::{Findings, Mention, Rule, Violation, blank, legal_tool_name, pair, place};

const BODY: &[&str] = &[
    "model",
    "messages",
    "max_tokens",
    "stream",
    "system",
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "thinking",
    "service_tier",
];

/// Everything that is wrong with the body of a request, in order of place within each rule.
#[must_use]
pub fn check(body: &Value) -> Vec<Violation> {
    let mut findings = Findings::default();
    let messages = findings.messages(body, BODY);
    if body.is_object() && body.get("max_tokens").and_then(Value::as_u64).is_none_or(|n| n == 0) {
        findings.add(Rule::BodyShape, "body.max_tokens", "is no positive number");
    }
    if let Some(system) = body.get("system") {
        text_or_blocks(&mut findings, system, "body.system");
    }
    if let Some(tools) = body.get("tools") {
        declarations(&mut findings, tools);
    }
    if messages.is_empty() {
        return findings.0;
    }
    for (at, value) in messages.iter().enumerate() {
        message(&mut findings, at, value);
    }
    let roles: Vec<(usize, &str)> = messages.iter().map(role).enumerate().collect();
    findings.order(&roles);
    pairing(&mut findings, messages);
    findings.0
}

fn declarations(findings: &mut Findings, tools: &Value) {
    let mut names = Vec::new();
    for (at, tool) in tools.as_array().map_or(&[][..], Vec::as_slice).iter().enumerate() {
        let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
        if !legal_tool_name(name) || !tool.get("input_schema").is_some_and(Value::is_object) || names.contains(&name) {
            findings.add(
                Rule::ToolDeclaration,
                format!("tools[{at}]"),
                "is no tool with a legal name of its own and an object as input_schema",
            );
        }
        names.push(name);
    }
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

fn blocks(message: &Value) -> &[Value] {
    message.get("content").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn kind(block: &Value) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// Text, or a list of text blocks: the system prompt.
fn text_or_blocks(findings: &mut Findings, content: &Value, at: &str) {
    match content {
        Value::String(text) if blank(text) => findings.add(Rule::EmptyText, at, "says nothing"),
        Value::String(_) => {}
        Value::Array(blocks) => {
            for (nth, value) in blocks.iter().enumerate() {
                block(findings, value, &["text"], &format!("{at}[{nth}]"));
            }
        }
        _ => findings.add(Rule::ContentType, at, "is neither text nor a list of blocks"),
    }
}

fn message(findings: &mut Findings, at: usize, message: &Value) {
    let place = place(at);
    let role = role(message);
    let kinds: &[&str] = match role {
        "user" => &["text", "image", "document", "tool_result"],
        "assistant" => &["text", "thinking", "redacted_thinking", "tool_use"],
        other => {
            findings.add(Rule::UnknownRole, place, format!("{other:?} is no role"));
            return;
        }
    };
    if let Some(object) = message.as_object() {
        findings.unknown_fields(object, &["role", "content"], &place);
    }
    match message.get("content") {
        Some(Value::String(text)) if blank(text) && role == "user" => {
            findings.add(Rule::EmptyText, place, "says nothing");
        }
        Some(Value::String(text)) if blank(text) => findings.add(Rule::EmptyAssistant, place, "says nothing"),
        Some(Value::String(_)) => {}
        Some(Value::Array(list)) if list.is_empty() && role == "user" => {
            findings.add(Rule::EmptyText, place, "has no block");
        }
        Some(Value::Array(list)) => {
            for (nth, value) in list.iter().enumerate() {
                block(findings, value, kinds, &format!("{place}.content[{nth}]"));
            }
            arrangement(findings, role, list, &place);
        }
        _ => findings.add(Rule::ContentType, place, "content is neither text nor a list of blocks"),
    }
}

/// Rules about the order of blocks in one message.
fn arrangement(findings: &mut Findings, role: &str, list: &[Value], place: &str) {
    if role == "assistant" {
        let thinks = |block: &Value| matches!(kind(block), "thinking" | "redacted_thinking");
        if list.iter().all(thinks) {
            findings.add(Rule::EmptyAssistant, place, "neither says nor calls anything");
        } else if list.last().is_some_and(thinks) {
            findings.add(Rule::ThinkingLast, place, "ends with thinking");
        }
        return;
    }
    let results_end = list.iter().position(|block| kind(block) != "tool_result").unwrap_or(list.len());
    if list.iter().skip(results_end).any(|block| kind(block) == "tool_result") {
        findings.add(Rule::ResultsNotFirst, place, "a result stands behind another block");
    }
}

fn block(findings: &mut Findings, value: &Value, kinds: &[&str], place: &str) {
    let kind = kind(value);
    if !kinds.contains(&kind) {
        findings.add(Rule::ContentType, place, format!("{kind:?} is no block of this role"));
        return;
    }
    let empty = Map::new();
    let object = value.as_object().unwrap_or(&empty);
    let text = |name: &str| object.get(name).and_then(Value::as_str).filter(|text| !blank(text));
    match kind {
        "text" => {
            findings.unknown_fields(object, &["type", "text", "cache_control", "citations"], place);
            if text("text").is_none() {
                findings.add(Rule::EmptyText, place, "says nothing");
            }
        }
        "thinking" => {
            findings.unknown_fields(object, &["type", "thinking", "signature"], place);
            if text("signature").is_none() {
                findings.add(Rule::UnsignedThinking, place, "has no signature");
            }
        }
        "redacted_thinking" if text("data").is_none() => {
            findings.add(Rule::UnsignedThinking, place, "has no data");
        }
        "image" => {
            findings.unknown_fields(object, &["type", "source", "cache_control"], place);
            if !object.get("source").is_some_and(is_picture) {
                findings.add(Rule::ContentType, place, "is a picture that is neither data of a known kind nor a URL");
            }
        }
        "tool_use" => {
            findings.unknown_fields(object, &["type", "id", "name", "input", "cache_control"], place);
            if !text("name").is_some_and(legal_tool_name) {
                findings.add(Rule::CallShape, place, "has no legal name");
            }
            if !object.get("input").is_some_and(Value::is_object) {
                findings.add(Rule::Arguments, place, "input is no object");
            }
        }
        "tool_result" => {
            findings.unknown_fields(object, &["type", "tool_use_id", "content", "is_error", "cache_control"], place);
            match object.get("content") {
                None | Some(Value::String(_)) => {}
                Some(Value::Array(blocks)) => {
                    for (nth, value) in blocks.iter().enumerate() {
                        block(findings, value, &["text", "image"], &format!("{place}.content[{nth}]"));
                    }
                }
                Some(_) => findings.add(Rule::ContentType, place, "the content of a result is neither text nor blocks"),
            }
        }
        _ => {}
    }
}

fn is_picture(source: &Value) -> bool {
    let field = |name: &str| source.get(name).and_then(Value::as_str).unwrap_or_default();
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

fn pairing(findings: &mut Findings, messages: &[Value]) {
    let mut calls = Vec::new();
    let mut results = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        for (nth, block) in blocks(message).iter().enumerate() {
            let place = format!("{}.content[{nth}]", place(at));
            match kind(block) {
                "tool_use" => {
                    if let Some(id) = findings.id(block.get("id"), &place) {
                        calls.push(Mention { message: at, place, id });
                    }
                }
                "tool_result" => {
                    if let Some(id) = findings.id(block.get("tool_use_id"), &place) {
                        results.push((Mention { message: at, place, id }, at.checked_sub(1)));
                    }
                }
                _ => {}
            }
        }
    }
    pair(findings, &calls, &results);
}
