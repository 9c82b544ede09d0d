//! OpenAI chat completions: what a body's messages must be.

use serde_json::{Map, Value};

use super::{Findings, Mention, Rule, Violation, blank, legal_tool_name, pair, place};

const BODY: &[&str] = &[
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "seed",
    "n",
    "user",
    "metadata",
    "store",
    "reasoning_effort",
    "response_format",
    "presence_penalty",
    "frequency_penalty",
];

/// Everything that is wrong with the body of a request, in order of place within each rule.
#[must_use]
pub fn check(body: &Value) -> Vec<Violation> {
    let mut findings = Findings::default();
    let messages = findings.messages(body, BODY);
    if body.get("stream_options").is_some() && body.get("stream") != Some(&Value::Bool(true)) {
        findings.add(Rule::BodyShape, "body.stream_options", "is only for streams");
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
    order(&mut findings, messages);
    pairing(&mut findings, messages);
    findings.0
}

fn declarations(findings: &mut Findings, tools: &Value) {
    let Some(tools) = tools.as_array().filter(|tools| !tools.is_empty()) else {
        findings.add(Rule::ToolDeclaration, "body.tools", "is no list with at least one tool");
        return;
    };
    let mut names = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        let place = format!("tools[{at}]");
        let name = tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
        let parameters = tool.pointer("/function/parameters");
        let typed = tool.get("type").and_then(Value::as_str) == Some("function");
        if !typed || !legal_tool_name(name) || parameters.is_some_and(|p| !p.is_object()) {
            findings.add(Rule::ToolDeclaration, &place, "is no function with a legal name and an object of parameters");
        }
        if names.contains(&name) {
            findings.add(Rule::ToolDeclaration, &place, format!("{name:?} is declared twice"));
        }
        names.push(name);
    }
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

fn is_system(role: &str) -> bool {
    matches!(role, "system" | "developer")
}

fn order(findings: &mut Findings, messages: &[Value]) {
    for (at, message) in messages.iter().enumerate().skip(1) {
        if is_system(role(message)) {
            findings.add(Rule::SystemNotFirst, place(at), "a system message behind the first message");
        }
    }
    let roles: Vec<(usize, &str)> =
        messages.iter().map(role).enumerate().filter(|(_, role)| !is_system(role)).collect();
    findings.order(&roles);
}

fn message(findings: &mut Findings, at: usize, message: &Value) {
    let place = place(at);
    let empty = Map::new();
    let object = message.as_object().unwrap_or(&empty);
    match role(message) {
        "system" | "developer" => {
            findings.unknown_fields(object, &["role", "content", "name"], &place);
            spoken(findings, object, &place, &["text"]);
        }
        "user" => {
            findings.unknown_fields(object, &["role", "content", "name"], &place);
            spoken(findings, object, &place, &["text", "image_url", "input_audio", "file"]);
        }
        "tool" => {
            findings.unknown_fields(object, &["role", "content", "tool_call_id"], &place);
            result_content(findings, object, &place);
        }
        "assistant" => {
            let known: &[&str] = &["role", "content", "name", "refusal", "tool_calls", "reasoning_content"];
            // Reasoning goes back with the calls that it led to; with an answer it is refused.
            let known = if object.contains_key("tool_calls") { known } else { &known[..4] };
            findings.unknown_fields(object, known, &place);
            assistant(findings, object, &place);
        }
        other => findings.add(Rule::UnknownRole, place, format!("{other:?} is no role")),
    }
}

/// Content that must say something: of the system or a user.
fn spoken(findings: &mut Findings, message: &Map<String, Value>, place: &str, kinds: &[&str]) {
    match message.get("content") {
        Some(Value::String(text)) if blank(text) => findings.add(Rule::EmptyText, place, "says nothing"),
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) if !parts.is_empty() => content_parts(findings, parts, place, kinds),
        _ => findings.add(Rule::ContentType, place, "content is neither text nor a list of parts"),
    }
}

fn content_parts(findings: &mut Findings, parts: &[Value], place: &str, kinds: &[&str]) {
    for (at, part) in parts.iter().enumerate() {
        let place = format!("{place}.content[{at}]");
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        if !kinds.contains(&kind) || part.get(kind).is_none() {
            findings.add(Rule::ContentType, place, format!("{kind:?} is no part of this role, or is not filled"));
        } else if kind == "image_url" && !is_picture(part) {
            findings.add(Rule::ContentType, place, "is a picture that is neither data of a known kind nor a URL");
        } else if kind == "text" && part.get("text").and_then(Value::as_str).is_none_or(blank) {
            findings.add(Rule::EmptyText, place, "says nothing");
        }
    }
}

/// A `data:` URL of one of the four kinds that the API takes, or a URL of the web, and no field besides.
fn is_picture(part: &Value) -> bool {
    let url = part.pointer("/image_url/url").and_then(Value::as_str).unwrap_or_default();
    let known =
        part.as_object().is_some_and(|part| part.keys().all(|key| matches!(key.as_str(), "type" | "image_url")));
    let kinds =
        ["data:image/png;base64,", "data:image/jpeg;base64,", "data:image/gif;base64,", "data:image/webp;base64,"];
    let data = kinds.iter().find_map(|kind| url.strip_prefix(kind));
    known && (url.starts_with("https://") || url.starts_with("http://") || data.is_some_and(super::is_base64))
}

/// A command may have printed nothing, so the text of a result may be empty; but a text it is.
fn result_content(findings: &mut Findings, message: &Map<String, Value>, place: &str) {
    match message.get("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) if !parts.is_empty() => content_parts(findings, parts, place, &["text"]),
        _ => findings.add(Rule::ContentType, place, "the content of a result is no text"),
    }
}

fn assistant(findings: &mut Findings, message: &Map<String, Value>, place: &str) {
    let calls = message.get("tool_calls");
    let says_something = match message.get("content") {
        None | Some(Value::Null) => message.get("refusal").is_some_and(Value::is_string),
        Some(Value::String(text)) => !blank(text),
        Some(Value::Array(parts)) if !parts.is_empty() => {
            content_parts(findings, parts, place, &["text", "refusal"]);
            true
        }
        Some(_) => {
            findings.add(Rule::ContentType, place, "content is neither text nor a list of parts");
            true
        }
    };
    let Some(calls) = calls else {
        if !says_something {
            findings.add(Rule::EmptyAssistant, place, "neither says nor calls anything");
        }
        return;
    };
    match calls.as_array() {
        Some(calls) if !calls.is_empty() => {
            for (at, value) in calls.iter().enumerate() {
                call(findings, value, &format!("{place}.tool_calls[{at}]"));
            }
        }
        _ => findings.add(Rule::CallShape, format!("{place}.tool_calls"), "is no list with at least one call"),
    }
}

fn call(findings: &mut Findings, call: &Value, place: &str) {
    let name = call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
    if call.get("type").and_then(Value::as_str) != Some("function") || !legal_tool_name(name) {
        findings.add(Rule::CallShape, place, "is no call of a function with a legal name");
    }
    if let Some(object) = call.as_object() {
        findings.unknown_fields(object, &["id", "type", "function"], place);
    }
    if let Some(function) = call.get("function").and_then(Value::as_object) {
        findings.unknown_fields(function, &["name", "arguments"], &format!("{place}.function"));
    }
    let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
    let parsed = arguments.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    if parsed.is_none() {
        findings.add(Rule::Arguments, place, format!("{arguments:?} is not the text of a JSON object"));
    }
}

fn pairing(findings: &mut Findings, messages: &[Value]) {
    let mut calls = Vec::new();
    let mut results = Vec::new();
    // The assistant message whose results may stand here.
    let mut block = None;
    for (at, message) in messages.iter().enumerate() {
        if role(message) == "tool" {
            let place = format!("{}.tool_call_id", place(at));
            if let Some(id) = findings.id(message.get("tool_call_id"), &place) {
                results.push((Mention { message: at, place, id }, block));
            }
            continue;
        }
        block = Some(at);
        let made = message.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (nth, call) in made.iter().enumerate().filter(|_| role(message) == "assistant") {
            let place = format!("{}.tool_calls[{nth}]", place(at));
            if let Some(id) = findings.id(call.get("id"), &place) {
                calls.push(Mention { message: at, place, id });
            }
        }
    }
    pair(findings, &calls, &results);
}
