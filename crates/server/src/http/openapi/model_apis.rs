//! Schemas of the APIs of model providers. Their own documents are the reference; these say what Quell needs.

use serde_json::{Map, Value, json};

use super::openai_requests::{
    chat_request, conversation_items, conversation_metadata, conversation_request, responses_request,
};

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
