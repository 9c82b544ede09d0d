//! The object of a response as it begins: what the client asked for.

use quell_kernel::client_request::openai_responses::ResponsesRequest;
use serde_json::{Value, json};

use super::ids::ResponseIds;

/// The fields of a request that its response repeats, with the defaults of the API.
fn repeated_fields() -> [(&'static str, Value); 9] {
    [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("parallel_tool_calls", json!(true)),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("temperature", json!(1.0)),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_p", json!(1.0)),
    ]
}

/// A response that has just begun.
pub(super) fn new_response(ids: &ResponseIds, body: &Value, request: &ResponsesRequest, created_at: i64) -> Value {
    let mut response = json!({
        "id": ids.response(),
        "object": "response",
        "created_at": created_at,
        "completed_at": null,
        "status": "in_progress",
        "background": request.background,
        "error": null,
        "incomplete_details": null,
        "model": request.model,
        "output": [],
        "previous_response_id": request.previous,
        "conversation": request.conversation.as_ref().map(|id| json!({"id": id})),
        "store": request.store,
        "truncation": "disabled",
        "usage": null,
        "metadata": request.metadata,
    });
    for (name, default) in repeated_fields() {
        response[name] = body.get(name).filter(|value| !value.is_null()).cloned().unwrap_or(default);
    }
    response
}
