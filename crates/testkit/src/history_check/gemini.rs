//! Rules for the contents of a Gemini request.

use serde_json::{Map, Value};

use super::{
    CallReference, HistoryFindings, HistoryRule, HistoryViolation, WRONG_PICTURE, is_blank, is_valid_tool_name,
    list_of, match_calls_to_results, text_of,
};

const BODY_FIELDS: &str = "contents systemInstruction tools toolConfig generationConfig safetySettings cachedContent";
/// The kinds of parts; each part has exactly one of them.
const PART_KINDS: &[&str] =
    &["text", "inlineData", "fileData", "functionCall", "functionResponse", "toolCall", "toolResponse"];

/// All violations in the body of a request, in order of place within each rule. The model is a part of the path.
pub fn check(body: &Value) -> Vec<HistoryViolation> {
    let mut findings = HistoryFindings::default();
    let contents = findings.check_body(body, BODY_FIELDS, "contents");
    if let Some(system) = body.get("systemInstruction") {
        let parts = list_of(system, "parts");
        let says = !parts.is_empty() && parts.iter().all(|part| !is_blank(text_of(part, "text")));
        findings.expect(says, HistoryRule::EmptyText, "body.systemInstruction", "says nothing");
    }
    let declared: Vec<Value> =
        list_of(body, "tools").iter().flat_map(|tool| list_of(tool, "functionDeclarations")).cloned().collect();
    findings.check_tools(&declared, |tool| {
        let schema = tool.get("parametersJsonSchema").or_else(|| tool.get("parameters"));
        Some(text_of(tool, "name")).filter(|_| schema.is_none_or(Value::is_object))
    });
    let has_search = list_of(body, "tools").iter().any(|tool| tool.get("googleSearch").is_some());
    let is_mixed = body.pointer("/toolConfig/includeServerSideToolInvocations") == Some(&Value::Bool(true));
    let detail = "declares functions beside a tool of the service without toolConfig.includeServerSideToolInvocations";
    let is_allowed = !has_search || declared.is_empty() || is_mixed;
    findings.expect(is_allowed, HistoryRule::ToolDeclaration, "body.tools", detail);
    if contents.is_empty() {
        return findings.0;
    }
    for (at, content) in contents.iter().enumerate() {
        check_content(&mut findings, content, &content_place(at));
    }
    // The checks of all dialects know the model by this name.
    let role = |content| match text_of(content, "role") {
        "model" => "assistant",
        role => role,
    };
    let roles: Vec<(usize, &str)> = contents.iter().map(role).enumerate().collect();
    findings.check_role_order(&roles);
    check_call_pairing(&mut findings, contents);
    check_search_pairing(&mut findings, contents);
    findings.0
}

fn content_place(at: usize) -> String {
    format!("contents[{at}]")
}

fn check_content(findings: &mut HistoryFindings, content: &Value, place: &str) {
    let role = text_of(content, "role");
    let (kinds, empty): (&[&str], _) = match role {
        "user" => (&["text", "inlineData", "fileData", "functionResponse"], HistoryRule::EmptyText),
        "model" => (&["text", "functionCall", "toolCall", "toolResponse"], HistoryRule::EmptyAssistant),
        other => {
            findings.add(HistoryRule::UnknownRole, place, format!("{other:?} is no role"));
            return;
        }
    };
    if let Some(object) = content.as_object() {
        findings.check_unknown_fields(object, "role parts", place);
    }
    match content.get("parts") {
        Some(Value::Array(parts)) if parts.is_empty() => findings.add(empty, place, "has no part"),
        Some(Value::Array(parts)) => {
            for (nth, part) in parts.iter().enumerate() {
                check_part(findings, part, kinds, &format!("{place}.parts[{nth}]"));
            }
            let is_result = |part: &Value| part.get("functionResponse").is_some();
            let end = parts.iter().position(|part| !is_result(part)).unwrap_or(parts.len());
            let are_first = !parts.iter().skip(end).any(is_result);
            findings.expect(are_first, HistoryRule::ResultsNotFirst, place, "a result stands behind another part");
        }
        _ => findings.add(HistoryRule::ContentType, place, "has no list of parts"),
    }
}

fn check_part(findings: &mut HistoryFindings, part: &Value, kinds: &[&str], place: &str) {
    let empty = Map::new();
    let object = part.as_object().unwrap_or(&empty);
    let present: Vec<&str> = PART_KINDS.iter().copied().filter(|kind| object.contains_key(*kind)).collect();
    let &[kind] = present.as_slice() else {
        findings.add(HistoryRule::ContentType, place, "is not exactly one of a text, picture, call or result");
        return;
    };
    if !kinds.contains(&kind) {
        findings.add(HistoryRule::ContentType, place, format!("{kind} is no part of this role"));
        return;
    }
    let of_model = kinds.contains(&"functionCall");
    let known = if of_model { format!("{kind} thoughtSignature thought") } else { kind.to_owned() };
    findings.check_unknown_fields(object, &known, place);
    let signature = object.get("thoughtSignature").map(|signature| signature.as_str().unwrap_or_default());
    let is_signed = signature.is_none_or(|signature| !is_blank(signature)) && !object.contains_key("thought");
    findings.expect(is_signed, HistoryRule::UnsignedThinking, place, "is reasoning, or has an empty signature");
    match kind {
        "text" => findings.expect(!is_blank(text_of(part, kind)), HistoryRule::EmptyText, place, "says nothing"),
        "inlineData" => {
            let data = &part[kind];
            let known = matches!(text_of(data, "mimeType"), "image/jpeg" | "image/png" | "image/gif" | "image/webp");
            let is_valid = known && super::is_base64(text_of(data, "data"));
            findings.expect(is_valid, HistoryRule::ContentType, place, WRONG_PICTURE);
        }
        "fileData" => {
            let is_valid = text_of(&part[kind], "fileUri").starts_with("https://");
            findings.expect(is_valid, HistoryRule::ContentType, place, WRONG_PICTURE);
        }
        "toolCall" | "toolResponse" => {
            let is_complete = !text_of(&part[kind], "id").is_empty() && !search_type(&part[kind]).is_empty();
            findings.expect(is_complete, HistoryRule::CallShape, place, "has no id or no type");
        }
        "functionCall" => {
            let call = &part[kind];
            let fields = call.as_object().unwrap_or(&empty);
            findings.check_unknown_fields(fields, "id name args", place);
            let is_named = is_valid_tool_name(text_of(call, "name"));
            findings.expect(is_named, HistoryRule::CallShape, place, "has no legal name");
            let has_arguments = call.get("args").is_some_and(Value::is_object);
            findings.expect(has_arguments, HistoryRule::Arguments, place, "args is no object");
        }
        _ => {
            let result = &part[kind];
            let fields = result.as_object().unwrap_or(&empty);
            findings.check_unknown_fields(fields, "id name response", place);
            let is_object = result.get("response").is_some_and(Value::is_object);
            findings.expect(is_object, HistoryRule::ContentType, place, "the response is no object");
        }
    }
}

/// The type of a search. The service reads both spellings, and its own client writes the second one.
pub(crate) fn search_type(search: &Value) -> &str {
    let field = if search.get("toolType").is_some() { "toolType" } else { "tool_type" };
    text_of(search, field)
}

/// A search of the service and its result stand in one content, in this order.
fn check_search_pairing(findings: &mut HistoryFindings, contents: &[Value]) {
    for (at, content) in contents.iter().enumerate() {
        let mut open = Vec::new();
        for part in list_of(content, "parts") {
            if let Some(call) = part.get("toolCall") {
                open.push(text_of(call, "id"));
            } else if let Some(result) = part.get("toolResponse") {
                let id = text_of(result, "id");
                let is_open = open.contains(&id);
                findings.expect(is_open, HistoryRule::OrphanResult, content_place(at), "answers no search");
                open.retain(|call| *call != id);
            }
        }
        findings.expect(
            open.is_empty(),
            HistoryRule::UnansweredCall,
            content_place(at),
            "has a search without its result",
        );
    }
}

fn check_call_pairing(findings: &mut HistoryFindings, contents: &[Value]) {
    let mut calls = Vec::new();
    let mut results = Vec::new();
    let mut names: Vec<(&str, &str)> = Vec::new();
    for (at, content) in contents.iter().enumerate() {
        for (nth, part) in list_of(content, "parts").iter().enumerate() {
            let place = format!("{}.parts[{nth}]", content_place(at));
            if let Some(call) = part.get("functionCall") {
                if let Some(id) = findings.check_call_id(call.get("id"), &place) {
                    names.push((id, text_of(call, "name")));
                    calls.push(CallReference { message: at, place, id });
                }
            } else if let Some(result) = part.get("functionResponse")
                && let Some(id) = findings.check_call_id(result.get("id"), &place)
            {
                let name = text_of(result, "name");
                let is_same = names.iter().rev().find(|(of, _)| *of == id).is_none_or(|(_, called)| *called == name);
                findings.expect(is_same, HistoryRule::CallShape, &place, "has another name than its call");
                results.push((CallReference { message: at, place, id }, at.checked_sub(1)));
            }
        }
    }
    match_calls_to_results(findings, &calls, &results);
}
