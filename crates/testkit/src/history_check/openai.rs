//! Rules for the messages of an OpenAI chat completions request.

use serde_json::{Map, Value};

use super::{
    CallReference, HistoryFindings, HistoryRule, HistoryViolation, WRONG_PICTURE, is_blank, is_valid_tool_name,
    list_of, match_calls_to_results, message_place, text_of,
};

const BODY_FIELDS: &str = "model messages stream stream_options tools tool_choice parallel_tool_calls temperature top_p max_tokens \
    max_completion_tokens stop seed n user metadata store reasoning_effort response_format presence_penalty \
    frequency_penalty";

/// All violations in the body of a request, in order of place within each rule.
pub fn check(body: &Value) -> Vec<HistoryViolation> {
    let mut findings = HistoryFindings::default();
    let messages = findings.check_body(body, BODY_FIELDS, "messages");
    findings.check_model_name(body);
    let streams = body.get("stream_options").is_none() || body.get("stream") == Some(&Value::Bool(true));
    findings.expect(streams, HistoryRule::BodyShape, "body.stream_options", "is only for streams");
    let has_tools = body.get("tools").is_none() || !list_of(body, "tools").is_empty();
    findings.expect(has_tools, HistoryRule::ToolDeclaration, "body.tools", "is no list with at least one tool");
    findings.check_tools(list_of(body, "tools"), |tool| {
        let is_typed = text_of(tool, "type") == "function";
        let is_described = tool.pointer("/function/parameters").is_none_or(Value::is_object);
        tool.pointer("/function/name").and_then(Value::as_str).filter(|_| is_typed && is_described)
    });
    if messages.is_empty() {
        return findings.0;
    }
    for (at, value) in messages.iter().enumerate() {
        check_message(&mut findings, at, value);
    }
    check_message_order(&mut findings, messages);
    check_call_pairing(&mut findings, messages);
    findings.0
}

fn is_system(role: &str) -> bool {
    matches!(role, "system" | "developer")
}

fn check_message_order(findings: &mut HistoryFindings, messages: &[Value]) {
    let roles = || messages.iter().map(|message| text_of(message, "role")).enumerate();
    for (at, _) in roles().skip(1).filter(|(_, role)| is_system(role)) {
        findings.add(HistoryRule::SystemNotFirst, message_place(at), "a system message behind the first message");
    }
    findings.check_role_order(&roles().filter(|(_, role)| !is_system(role)).collect::<Vec<_>>());
}

fn check_message(findings: &mut HistoryFindings, at: usize, message: &Value) {
    let place = message_place(at);
    let empty = Map::new();
    let object = message.as_object().unwrap_or(&empty);
    match text_of(message, "role") {
        "system" | "developer" => {
            findings.check_unknown_fields(object, "role content name", &place);
            check_text_content(findings, object, &place, &["text"]);
        }
        "user" => {
            findings.check_unknown_fields(object, "role content name", &place);
            check_text_content(findings, object, &place, &["text", "image_url", "input_audio", "file"]);
        }
        "tool" => {
            findings.check_unknown_fields(object, "role content tool_call_id", &place);
            check_result_content(findings, object, &place);
        }
        "assistant" => {
            // Reasoning is sent back with the calls that followed it; with an answer it is refused.
            let of_calls = if object.contains_key("tool_calls") { " tool_calls reasoning_content" } else { "" };
            let known = &format!("role content name refusal{of_calls}");
            findings.check_unknown_fields(object, known, &place);
            check_assistant_message(findings, object, &place);
        }
        other => findings.add(HistoryRule::UnknownRole, place, format!("{other:?} is no role")),
    }
}

/// Content of the system or a user, which must not be empty.
fn check_text_content(findings: &mut HistoryFindings, message: &Map<String, Value>, place: &str, kinds: &[&str]) {
    match message.get("content") {
        Some(Value::String(text)) if is_blank(text) => findings.add(HistoryRule::EmptyText, place, "says nothing"),
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) if !parts.is_empty() => check_content_parts(findings, parts, place, kinds),
        _ => findings.add(HistoryRule::ContentType, place, "content is neither text nor a list of parts"),
    }
}

fn check_content_parts(findings: &mut HistoryFindings, parts: &[Value], place: &str, kinds: &[&str]) {
    for (at, part) in parts.iter().enumerate() {
        let place = format!("{place}.content[{at}]");
        let kind = text_of(part, "type");
        if !kinds.contains(&kind) || part.get(kind).is_none() {
            let detail = format!("{kind:?} is no part of this role, or is not filled");
            findings.add(HistoryRule::ContentType, place, detail);
        } else if kind == "image_url" && !is_valid_image_part(part) {
            findings.add(HistoryRule::ContentType, place, WRONG_PICTURE);
        } else if kind == "text" && is_blank(text_of(part, "text")) {
            findings.add(HistoryRule::EmptyText, place, "says nothing");
        }
    }
}

/// A `data:` URL of one of the four media types of the API, or a web URL, and no other field.
fn is_valid_image_part(part: &Value) -> bool {
    let url = part.pointer("/image_url/url").and_then(Value::as_str).unwrap_or_default();
    let known =
        part.as_object().is_some_and(|part| part.keys().all(|key| matches!(key.as_str(), "type" | "image_url")));
    known && (url.starts_with("https://") || url.starts_with("http://") || super::is_data_url(url))
}

/// The text of a result may be empty, since a command may print nothing; but it must be text.
fn check_result_content(findings: &mut HistoryFindings, message: &Map<String, Value>, place: &str) {
    match message.get("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) if !parts.is_empty() => check_content_parts(findings, parts, place, &["text"]),
        _ => findings.add(HistoryRule::ContentType, place, "the content of a result is no text"),
    }
}

fn check_assistant_message(findings: &mut HistoryFindings, message: &Map<String, Value>, place: &str) {
    let calls = message.get("tool_calls");
    let says_something = match message.get("content") {
        None | Some(Value::Null) => message.get("refusal").is_some_and(Value::is_string),
        Some(Value::String(text)) => !is_blank(text),
        Some(Value::Array(parts)) if !parts.is_empty() => {
            check_content_parts(findings, parts, place, &["text", "refusal"]);
            true
        }
        Some(_) => {
            findings.add(HistoryRule::ContentType, place, "content is neither text nor a list of parts");
            true
        }
    };
    let Some(calls) = calls else {
        findings.expect(says_something, HistoryRule::EmptyAssistant, place, "neither says nor calls anything");
        return;
    };
    let (calls, place) = (calls.as_array().map_or(&[][..], Vec::as_slice), format!("{place}.tool_calls"));
    findings.expect(!calls.is_empty(), HistoryRule::CallShape, &place, "is no list with at least one call");
    for (at, value) in calls.iter().enumerate() {
        check_tool_call(findings, value, &format!("{place}[{at}]"));
    }
}

fn check_tool_call(findings: &mut HistoryFindings, call: &Value, place: &str) {
    let name = call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
    let is_call = text_of(call, "type") == "function" && is_valid_tool_name(name);
    findings.expect(is_call, HistoryRule::CallShape, place, "is no call of a function with a legal name");
    if let Some(object) = call.as_object() {
        findings.check_unknown_fields(object, "id type function", place);
    }
    if let Some(function) = call.get("function").and_then(Value::as_object) {
        findings.check_unknown_fields(function, "name arguments", &format!("{place}.function"));
    }
    let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
    let parsed = arguments.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    let detail = format!("{arguments:?} is not the text of a JSON object");
    findings.expect(parsed.is_some(), HistoryRule::Arguments, place, detail);
}

fn check_call_pairing(findings: &mut HistoryFindings, messages: &[Value]) {
    let mut calls = Vec::new();
    let mut results = Vec::new();
    // The assistant message whose results may follow here.
    let mut answered_message = None;
    for (at, message) in messages.iter().enumerate() {
        if text_of(message, "role") == "tool" {
            let place = format!("{}.tool_call_id", message_place(at));
            if let Some(id) = findings.check_call_id(message.get("tool_call_id"), &place) {
                results.push((CallReference { message: at, place, id }, answered_message));
            }
            continue;
        }
        answered_message = Some(at);
        for (nth, call) in
            list_of(message, "tool_calls").iter().enumerate().filter(|_| text_of(message, "role") == "assistant")
        {
            let place = format!("{}.tool_calls[{nth}]", message_place(at));
            if let Some(id) = findings.check_call_id(call.get("id"), &place) {
                calls.push(CallReference { message: at, place, id });
            }
        }
    }
    match_calls_to_results(findings, &calls, &results);
}
