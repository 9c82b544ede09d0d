//! What a whole JSON value is: a call, a list of calls, a tool's answer, or the reply's own JSON.
//!
//! A value counts as protocol only if it has *nothing but* the keys of protocol. A tool's definition (`description`, a schema
//! under `parameters`) is not a call, and people ask for definitions.

use serde_json::{Map, Value};

use super::Rules;
use super::json::{self, ARGUMENT_KEYS, NAME_KEYS, OUTPUT_KEYS};

/// What a whole JSON value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shape {
    /// The reply's own JSON.
    Other,
    /// A call, or a list of calls.
    Call(Tool),
    /// A message that holds calls, as an API would give it, or a call marked as one; and what it says besides.
    Message(Tool, Option<String>),
    /// What a tool gave back.
    Answer,
    /// What reads like a tool's answer right behind a call, and like anything elsewhere.
    Output,
}

/// Whether a call names a tool that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    /// It does.
    Known,
    /// It does not.
    Unknown,
}

/// Keys of a call, besides those of its name and its arguments.
const CALL_KEYS: &[&str] = &["type", "id", "call_id", "tool_call_id", "index"];
/// Keys of a message that holds calls.
const MESSAGE_KEYS: &[&str] = &["role", "content", "tool_calls", "toolcalls", "function_call"];
/// Keys of a tool's answer, besides the output.
const ANSWER_KEYS: &[&str] = &["tool_call_id", "role", "name", "tool", "id", "type", "status", "is_error"];
/// Keys of what follows an imitated call, besides the output.
const OUTPUT_SIDE_KEYS: &[&str] = &["id", "tool_call_id", "name", "tool"];

/// What the value that [`json::read`] found to be complete is. Linear in its length.
pub(super) fn shape(text: &str, seen: &json::Value, rules: &Rules<'_>) -> Shape {
    if seen.foreign {
        return Shape::Other;
    }
    super::work::count(text.len());
    match serde_json::from_str(text) {
        Ok(Value::Array(items)) => all_calls(&items, rules).map_or(Shape::Other, Shape::Call),
        Ok(Value::Object(object)) => object_shape(&object, rules),
        // The reader takes more than the standard does.
        _ if seen.is_torn_protocol() => Shape::Call(Tool::Known),
        _ => Shape::Other,
    }
}

fn object_shape(object: &Map<String, Value>, rules: &Rules<'_>) -> Shape {
    if let Some(tool) = call(object, rules) {
        let marked = object.get("type").and_then(Value::as_str).is_some_and(|kind| kind == "function_call");
        return if marked { Shape::Message(tool, None) } else { Shape::Call(tool) };
    }
    if let Some(tool) = message(object, rules) {
        let content = object.get("content").and_then(Value::as_str).filter(|said| !said.trim().is_empty());
        return Shape::Message(tool, content.map(str::to_owned));
    }
    let answered = object.get("tool_call_id").and_then(Value::as_str).is_some_and(|id| !id.is_empty());
    let has_output = OUTPUT_KEYS.iter().any(|key| object.contains_key(*key));
    if answered && has_output && !rules.tools.is_empty() && has_only(object, &[ANSWER_KEYS, OUTPUT_KEYS]) {
        return Shape::Answer;
    }
    let bare = object.contains_key("result") || object.contains_key("output");
    if bare && has_only(object, &[OUTPUT_SIDE_KEYS, &["result", "output"]]) { Shape::Output } else { Shape::Other }
}

fn message(object: &Map<String, Value>, rules: &Rules<'_>) -> Option<Tool> {
    if !has_only(object, &[MESSAGE_KEYS]) {
        return None;
    }
    if let Some(one) = object.get("function_call") {
        return call(one.as_object()?, rules);
    }
    let list = object.get("tool_calls").or_else(|| object.get("toolcalls"))?;
    all_calls(list.as_array()?, rules)
}

fn all_calls(items: &[Value], rules: &Rules<'_>) -> Option<Tool> {
    let mut tool = (!items.is_empty()).then_some(Tool::Unknown)?;
    for item in items {
        if call(item.as_object()?, rules)? == Tool::Known {
            tool = Tool::Known;
        }
    }
    Some(tool)
}

fn call(object: &Map<String, Value>, rules: &Rules<'_>) -> Option<Tool> {
    if let Some(inner) = object.get("function").and_then(Value::as_object) {
        return has_only(object, &[CALL_KEYS, &["function"]]).then(|| flat_call(inner, rules)).flatten();
    }
    flat_call(object, rules)
}

fn flat_call(object: &Map<String, Value>, rules: &Rules<'_>) -> Option<Tool> {
    let name = NAME_KEYS.iter().find_map(|key| object.get(*key)?.as_str())?;
    let arguments = ARGUMENT_KEYS.iter().find_map(|key| object.get(*key))?;
    if is_schema(arguments) || !has_only(object, &[CALL_KEYS, NAME_KEYS, ARGUMENT_KEYS]) {
        return None;
    }
    Some(if rules.knows(name) { Tool::Known } else { Tool::Unknown })
}

/// A definition has a schema where a call has arguments.
fn is_schema(arguments: &Value) -> bool {
    arguments.get("properties").is_some_and(Value::is_object)
        && arguments.get("type").is_some_and(|kind| kind == "object")
}

fn has_only(object: &Map<String, Value>, allowed: &[&[&str]]) -> bool {
    object.keys().all(|key| allowed.iter().any(|keys| keys.contains(&key.as_str())))
}
