//! Schemas of Anthropic's Messages API. Its own document is the reference; these say what Quell
//! reads of a request and answers.

use serde_json::{Map, Value, json};

use super::schema_parts::{any_of, closed_object, nullable, only, open_object, parts_of, tool_name, with_ignored};

/// The schemas by name.
pub(super) fn anthropic_schemas() -> Map<String, Value> {
    let schemas = [
        ("AnthropicError", error()),
        ("MessagesRequest", messages_request()),
        ("CountTokensRequest", count_tokens_request()),
        ("AnthropicMessage", message()),
        ("TokenCount", open_object(&["input_tokens"], json!({"input_tokens": {"type": "integer", "minimum": 0}}))),
    ];
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

fn error() -> Value {
    let inner = open_object(&["type", "message"], json!({"type": {"type": "string"}, "message": {"type": "string"}}));
    let properties = json!({"type": {"const": "error"}, "error": inner, "request_id": {"type": "string"}});
    open_object(&["type", "error", "request_id"], properties)
}

fn messages_request() -> Value {
    let max_tokens = json!({"type": "integer", "minimum": 1, "maximum": u32::MAX});
    request(&["model", "max_tokens", "messages"], &max_tokens)
}

fn count_tokens_request() -> Value {
    request(&["model", "messages"], &json!({}))
}

fn request(required: &[&str], max_tokens: &Value) -> Value {
    let choice = json!({
        "type": {"enum": ["auto", "any", "none", "tool"]}, "name": nullable("string"),
        "disable_parallel_tool_use": nullable("boolean"),
    });
    let format = json!({"type": {"const": "json_schema"}, "schema": {"type": "object"}});
    let config = json!({
        "effort": {"enum": ["low", "medium", "high", "xhigh", "max", null]},
        "format": optional(closed_object(&["type", "schema"], format)),
    });
    let properties = json!({
        "model": {"type": "string", "description": "`agent/ID` or `PROVIDER/MODEL`"},
        "max_tokens": max_tokens,
        "messages": {"type": "array", "minItems": 1, "items": any_of(&request_messages())},
        "system": optional(parts_of(&[text_block()])),
        "stream": nullable("boolean"),
        "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "stop_sequences": {"type": ["array", "null"], "items": filled_text()},
        "tools": {"type": ["array", "null"], "items": tool()},
        "tool_choice": optional(closed_object(&["type"], choice)),
        "thinking": optional(any_of(&thinking_modes())),
        "output_config": optional(closed_object(&[], config)),
        "speed": only(json!("standard")),
    });
    let others = ["metadata", "cache_control", "service_tier", "user_profile_id", "workspace_id"];
    let mut request = closed_object(required, with_ignored(properties, &others));
    request["description"] = json!(
        "A request of Anthropic's Messages API. A field that the API does not have is refused, unless it is null."
    );
    request
}

fn request_messages() -> [Value; 3] {
    let message = |role: &str, content: Value| {
        closed_object(&["role", "content"], json!({"role": {"const": role}, "content": content}))
    };
    let string = || json!({"type": "string"});
    let result = json!({
        "type": {"const": "tool_result"}, "tool_use_id": string(), "is_error": nullable("boolean"),
        "content": optional(parts_of(&[text_block(), image_block()])),
    });
    let result = closed_object(&["type", "tool_use_id"], with_ignored(result, &["cache_control"]));
    let call = json!({
        "type": {"const": "tool_use"}, "id": string(), "name": string(), "input": {"type": "object"},
        "caller": optional(open_object(&["type"], json!({"type": {"const": "direct"}}))),
    });
    let call = closed_object(&["type", "id", "name", "input"], with_ignored(call, &["cache_control"]));
    let thinking = json!({"type": {"const": "thinking"}, "thinking": string(), "signature": filled_text()});
    let redacted = json!({"type": {"const": "redacted_thinking"}, "data": string()});
    let answer = [
        text_block(),
        call,
        closed_object(&["type", "thinking", "signature"], thinking),
        closed_object(&["type", "data"], redacted),
    ];
    let blocks = json!({"type": "array", "minItems": 1, "items": any_of(&[text_block(), image_block(), result])});
    [
        message("user", any_of(&[filled_text(), blocks])),
        message("assistant", parts_of(&answer)),
        message("system", parts_of(&[text_block()])),
    ]
}

fn text_block() -> Value {
    let fields = json!({
        "type": {"const": "text"}, "text": filled_text(), "citations": {"type": ["array", "null"], "maxItems": 0},
    });
    closed_object(&["type", "text"], with_ignored(fields, &["cache_control"]))
}

fn image_block() -> Value {
    let media_types = ["image/png", "image/jpeg", "image/gif", "image/webp"];
    let bytes = json!({"type": {"const": "base64"}, "media_type": {"enum": media_types}, "data": {"type": "string"}});
    let url = json!({"type": {"const": "url"}, "url": {"type": "string", "pattern": "^https://"}});
    let sources =
        any_of(&[closed_object(&["type", "media_type", "data"], bytes), closed_object(&["type", "url"], url)]);
    let fields = json!({"type": {"const": "image"}, "source": sources});
    closed_object(&["type", "source"], with_ignored(fields, &["cache_control"]))
}

fn tool() -> Value {
    let fields = json!({
        "type": only(json!("custom")), "name": tool_name(), "description": nullable("string"),
        "input_schema": open_object(&["type"], json!({"type": {}})),
        "strict": nullable("boolean"), "defer_loading": only(json!(false)), "allowed_callers": only(json!(["direct"])),
        "input_examples": {"type": ["array", "null"], "maxItems": 0},
    });
    let fields = with_ignored(fields, &["cache_control", "eager_input_streaming"]);
    closed_object(&["name", "input_schema"], fields)
}

fn thinking_modes() -> [Value; 2] {
    let mode = |fields: Value| {
        let mut fields = fields;
        fields["display"] = only(json!("summarized"));
        fields
    };
    let tokens = json!({"type": "integer", "minimum": 1024, "maximum": u32::MAX});
    let enabled = mode(json!({"type": {"const": "enabled"}, "budget_tokens": tokens}));
    let other = mode(json!({"type": {"enum": ["disabled", "adaptive"]}, "budget_tokens": {}}));
    [closed_object(&["type", "budget_tokens"], enabled), closed_object(&["type"], other)]
}

/// Text with a character that is not blank.
fn filled_text() -> Value {
    json!({"type": "string", "pattern": "\\S"})
}

fn optional(schema: Value) -> Value {
    any_of(&[json!({"type": "null"}), schema])
}

fn message() -> Value {
    let block =
        open_object(&["type"], json!({"type": {"enum": ["text", "thinking", "redacted_thinking", "tool_use"]}}));
    let reasons = ["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"];
    let properties = json!({
        "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
        "model": {"type": "string"}, "content": {"type": "array", "items": block}, "stop_reason": {"enum": reasons},
        "stop_sequence": {"type": ["string", "null"]}, "usage": {"type": "object"},
    });
    open_object(&["id", "type", "role", "model", "content", "stop_reason", "usage"], properties)
}
