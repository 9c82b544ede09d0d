//! Parts of the schemas of requests of the model APIs.

use serde_json::{Value, json};

/// An object without other fields. A null counts as absent.
pub(super) fn closed_object(required: &[&str], properties: Value) -> Value {
    let mut schema = open_object(required, properties);
    schema["additionalProperties"] = json!({"type": "null"});
    schema
}

/// An object whose other fields are ignored.
pub(super) fn open_object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

/// Properties with further ones that are accepted with any value and ignored.
pub(super) fn with_ignored(mut properties: Value, names: &[&str]) -> Value {
    for name in names {
        properties[name] = json!({});
    }
    properties
}

pub(super) fn nullable(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

/// A field that may only have the value that changes nothing.
pub(super) fn only(value: Value) -> Value {
    json!({"enum": [value, null]})
}

pub(super) fn any_of(schemas: &[Value]) -> Value {
    json!({"anyOf": schemas})
}

/// A text, or a list of parts of these kinds.
pub(super) fn parts_of(kinds: &[Value]) -> Value {
    any_of(&[json!({"type": "string"}), json!({"type": "array", "items": any_of(kinds)})])
}

pub(super) fn tool_name() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"})
}
