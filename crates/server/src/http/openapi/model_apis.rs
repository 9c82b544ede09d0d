//! Schemas of the APIs of model providers. Their own documents are the reference; these say what Quell needs.

use serde_json::{Map, Value, json};

/// The schemas by name.
pub(super) fn model_api_schemas() -> Map<String, Value> {
    let schemas = [
        ("OpenAiError", openai_error()),
        ("ChatRequest", chat_request()),
        ("ChatCompletion", chat_completion()),
        ("ResponsesRequest", responses_request()),
        ("ResponseObject", response_object()),
        ("ConversationRequest", conversation_request()),
        ("ConversationItems", conversation_items()),
        ("ConversationMetadata", conversation_metadata()),
    ];
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

fn openai_error() -> Value {
    json!({
        "type": "object", "required": ["error"], "description": "An error in the form of OpenAI's API.",
        "properties": {"error": {
            "type": "object", "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"}, "type": {"type": "string"}, "code": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "the field of the request that is wrong"},
            },
        }},
    })
}

fn chat_request() -> Value {
    json!({
        "type": "object", "required": ["model", "messages"],
        "description": "A request of OpenAI's chat completions. A field that the API does not have is refused.",
        "properties": {
            "model": {"type": "string", "description": "`agent/ID` or `PROVIDER/MODEL`"},
            "messages": {"type": "array", "minItems": 1, "items": {
                "type": "object", "required": ["role"],
                "properties": {"role": {"enum": ["system", "developer", "user", "assistant", "tool"]}},
            }},
            "stream": {"type": ["boolean", "null"]},
            "tools": {"type": ["array", "null"], "items": {"type": "object"}},
            "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
            "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
            "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1},
        },
    })
}

fn chat_completion() -> Value {
    json!({
        "type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": {"type": "integer"},
            "model": {"type": "string"}, "choices": {"type": "array", "minItems": 1, "items": {"type": "object"}},
            "usage": {"type": "object"},
        },
    })
}

fn responses_request() -> Value {
    json!({
        "type": "object", "required": ["model", "input"],
        "description": "A request of OpenAI's Responses API. A field that the API does not have is refused.",
        "properties": {
            "model": {"type": "string", "description": "`agent/ID` or `PROVIDER/MODEL`"},
            "input": {"anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "object"}},
            ]},
            "instructions": {"type": ["string", "null"]},
            "stream": {"type": ["boolean", "null"]},
            "background": {"type": ["boolean", "null"]},
            "store": {"type": ["boolean", "null"]},
            "previous_response_id": {"type": ["string", "null"]},
            "tools": {"type": ["array", "null"], "items": {"type": "object"}},
            "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
            "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
            "max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
        },
    })
}

fn response_object() -> Value {
    json!({
        "type": "object", "required": ["id", "object", "created_at", "status", "model", "output"],
        "properties": {
            "id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"},
            "status": {"enum": ["in_progress", "completed", "failed", "incomplete", "cancelled"]},
            "model": {"type": "string"}, "output": {"type": "array", "items": {"type": "object"}},
        },
    })
}

fn conversation_request() -> Value {
    json!({
        "type": "object",
        "properties": {
            "items": {"type": ["array", "null"], "items": {"type": "object"}},
            "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        },
    })
}

fn conversation_items() -> Value {
    let items = json!({"type": "array", "minItems": 1, "items": {"type": "object"}});
    json!({"type": "object", "required": ["items"], "properties": {"items": items}})
}

fn conversation_metadata() -> Value {
    let metadata = json!({"type": "object", "additionalProperties": {"type": "string"}});
    json!({"type": "object", "required": ["metadata"], "properties": {"metadata": metadata}})
}
