//! Schemas of Anthropic's Messages API. Its own document is the reference; these say what Quell needs.

use serde_json::{Map, Value, json};

/// The schemas by name.
pub(super) fn anthropic_schemas() -> Map<String, Value> {
    let schemas = [
        ("AnthropicError", error()),
        ("MessagesRequest", request(&["model", "max_tokens", "messages"])),
        ("CountTokensRequest", request(&["model", "messages"])),
        ("AnthropicMessage", message()),
        ("TokenCount", object(&["input_tokens"], json!({"input_tokens": {"type": "integer", "minimum": 0}}))),
    ];
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

fn error() -> Value {
    let inner = object(&["type", "message"], json!({"type": {"type": "string"}, "message": {"type": "string"}}));
    let properties = json!({"type": {"const": "error"}, "error": inner, "request_id": {"type": "string"}});
    object(&["type", "error", "request_id"], properties)
}

fn request(required: &[&str]) -> Value {
    let block = object(&["type"], json!({"type": {"type": "string"}}));
    let content = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": block}]});
    let role = json!({"enum": ["user", "assistant", "system"]});
    let message = object(&["role", "content"], json!({"role": role, "content": content}));
    let properties = json!({
        "model": {"type": "string", "description": "`agent/ID` or `PROVIDER/MODEL`"},
        "max_tokens": {"type": "integer", "minimum": 1},
        "messages": {"type": "array", "minItems": 1, "items": message},
        "system": {"type": ["string", "null"]},
        "stream": {"type": ["boolean", "null"]},
        "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "stop_sequences": {"type": ["array", "null"], "items": {"type": "string"}},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}},
    });
    object(required, properties)
}

fn message() -> Value {
    let block = object(&["type"], json!({"type": {"enum": ["text", "thinking", "redacted_thinking", "tool_use"]}}));
    let reasons = ["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"];
    let properties = json!({
        "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
        "model": {"type": "string"}, "content": {"type": "array", "items": block}, "stop_reason": {"enum": reasons},
        "stop_sequence": {"type": ["string", "null"]}, "usage": {"type": "object"},
    });
    object(&["id", "type", "role", "model", "content", "stop_reason", "usage"], properties)
}
