//! Classifies a complete JSON value as a tool call, a tool result or ordinary JSON.
//!
//! A value counts as protocol only if it has *nothing but* protocol keys. A tool definition (`description`, a schema
//! under `parameters`) is not a call: people ask for definitions.

use serde_json::{Map, Value};

use super::SanitiserRules;
use super::json_scanner::{self, ARGUMENT_KEYS, NAME_KEYS, OUTPUT_KEYS};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JsonShape {
    /// JSON that belongs to the reply.
    Other,
    /// A call, or a list of calls.
    Call(ToolMatch),
    /// An API message with calls, or a call of type `function_call`; and the text of the message, if any.
    Message(ToolMatch, Option<String>),
    /// A tool result that names its call.
    ToolResult,
    /// A tool result if it follows a call directly, ordinary JSON elsewhere.
    BareOutput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolMatch {
    Known,
    Unknown,
}

/// Keys of a call, besides those of name and arguments.
const CALL_KEYS: &[&str] = &["type", "id", "call_id", "tool_call_id", "index"];
const MESSAGE_KEYS: &[&str] = &["role", "content", "tool_calls", "toolcalls", "function_call"];
/// Keys of a tool result, besides the output.
const RESULT_KEYS: &[&str] = &["tool_call_id", "role", "name", "tool", "id", "type", "status", "is_error"];
/// Keys of a bare output, besides the output itself.
const OUTPUT_ID_KEYS: &[&str] = &["id", "tool_call_id", "name", "tool"];

/// Classifies a value that [`json_scanner::scan_json_value`] found to be complete, in time linear in its length.
pub(super) fn classify_json(text: &str, scan: &json_scanner::JsonScan, rules: &SanitiserRules<'_>) -> JsonShape {
    if scan.has_foreign_keys {
        return JsonShape::Other;
    }
    super::work_counter::count_bytes(text.len());
    match serde_json::from_str(text) {
        Ok(Value::Array(items)) => match_call_list(&items, rules).map_or(JsonShape::Other, JsonShape::Call),
        Ok(Value::Object(object)) => classify_object(&object, rules),
        // The scanner accepts more than standard JSON.
        _ if scan.is_torn_protocol() => JsonShape::Call(ToolMatch::Known),
        _ => JsonShape::Other,
    }
}

fn classify_object(object: &Map<String, Value>, rules: &SanitiserRules<'_>) -> JsonShape {
    if let Some(tool) = match_call(object, rules) {
        let marked = object.get("type").and_then(Value::as_str).is_some_and(|kind| kind == "function_call");
        return if marked { JsonShape::Message(tool, None) } else { JsonShape::Call(tool) };
    }
    if let Some(tool) = match_calls_message(object, rules) {
        let content = object.get("content").and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        return JsonShape::Message(tool, content.map(str::to_owned));
    }
    let names_call = object.get("tool_call_id").and_then(Value::as_str).is_some_and(|id| !id.is_empty());
    let has_output = OUTPUT_KEYS.iter().any(|key| object.contains_key(*key));
    if names_call && has_output && !rules.tools.is_empty() && has_only_keys(object, &[RESULT_KEYS, OUTPUT_KEYS]) {
        return JsonShape::ToolResult;
    }
    let bare = object.contains_key("result") || object.contains_key("output");
    if bare && has_only_keys(object, &[OUTPUT_ID_KEYS, &["result", "output"]]) {
        JsonShape::BareOutput
    } else {
        JsonShape::Other
    }
}

fn match_calls_message(object: &Map<String, Value>, rules: &SanitiserRules<'_>) -> Option<ToolMatch> {
    if !has_only_keys(object, &[MESSAGE_KEYS]) {
        return None;
    }
    if let Some(one) = object.get("function_call") {
        return match_call(one.as_object()?, rules);
    }
    let list = object.get("tool_calls").or_else(|| object.get("toolcalls"))?;
    match_call_list(list.as_array()?, rules)
}

fn match_call_list(items: &[Value], rules: &SanitiserRules<'_>) -> Option<ToolMatch> {
    let mut tool = (!items.is_empty()).then_some(ToolMatch::Unknown)?;
    for item in items {
        if match_call(item.as_object()?, rules)? == ToolMatch::Known {
            tool = ToolMatch::Known;
        }
    }
    Some(tool)
}

fn match_call(object: &Map<String, Value>, rules: &SanitiserRules<'_>) -> Option<ToolMatch> {
    if let Some(inner) = object.get("function").and_then(Value::as_object) {
        return has_only_keys(object, &[CALL_KEYS, &["function"]]).then(|| match_flat_call(inner, rules)).flatten();
    }
    match_flat_call(object, rules)
}

fn match_flat_call(object: &Map<String, Value>, rules: &SanitiserRules<'_>) -> Option<ToolMatch> {
    let name = NAME_KEYS.iter().find_map(|key| object.get(*key)?.as_str())?;
    let arguments = ARGUMENT_KEYS.iter().find_map(|key| object.get(*key))?;
    if is_schema(arguments) || !has_only_keys(object, &[CALL_KEYS, NAME_KEYS, ARGUMENT_KEYS]) {
        return None;
    }
    Some(if rules.is_known_tool(name) { ToolMatch::Known } else { ToolMatch::Unknown })
}

/// Recognises a tool definition, which has a schema in the place of arguments.
fn is_schema(arguments: &Value) -> bool {
    arguments.get("properties").is_some_and(Value::is_object)
        && arguments.get("type").is_some_and(|kind| kind == "object")
}

fn has_only_keys(object: &Map<String, Value>, allowed: &[&[&str]]) -> bool {
    object.keys().all(|key| allowed.iter().any(|keys| keys.contains(&key.as_str())))
}
