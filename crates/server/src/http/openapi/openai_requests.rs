//! Schemas of the requests of OpenAI's APIs, as their parsers in the kernel read them.
//!
//! The parsers also check what no schema says, for example that each call of a tool has its output.

use serde_json::{Value, json};

use super::schema_parts::{any_of, closed_object, nullable, only, open_object, parts_of, tool_name, with_ignored};

/// A request of Chat Completions.
pub(super) fn chat_request() -> Value {
    let format = any_of(&[
        json!({"type": "null"}),
        open_object(&["type"], json!({"type": {"enum": ["text", "json_object"]}})),
        open_object(&["type", "json_schema"], json!({"type": {"const": "json_schema"}, "json_schema": json_schema()})),
    ]);
    let options = closed_object(&[], json!({"include_usage": nullable("boolean"), "include_obfuscation": {}}));
    let tool = json!({"type": {"const": "function"}, "function": closed_object(&["name"], function_fields())});
    let choice =
        json!({"type": {"const": "function"}, "function": open_object(&["name"], json!({"name": tool_name()}))});
    let read = json!({
        "model": model(),
        "messages": {"type": "array", "minItems": 1, "items": any_of(&chat_messages())},
        "stream": nullable("boolean"),
        "stream_options": any_of(&[json!({"type": "null"}), options]),
        "tools": {"type": ["array", "null"], "items": closed_object(&["type", "function"], tool)},
        "tool_choice": any_of(&[tool_choice_word(), open_object(&["type", "function"], choice)]),
        "parallel_tool_calls": nullable("boolean"),
        "temperature": temperature(), "top_p": top_p(),
        "max_tokens": token_limit(), "max_completion_tokens": token_limit(),
        "stop": any_of(&[nullable("string"), json!({"type": "array", "items": {"type": "string"}, "maxItems": 4})]),
        "response_format": format,
        "reasoning_effort": effort(),
        "n": only(json!(1)), "frequency_penalty": only(json!(0)), "presence_penalty": only(json!(0)),
        "logprobs": only(json!(false)), "top_logprobs": only(json!(0)), "verbosity": only(json!("medium")),
        "modalities": only(json!(["text"])), "logit_bias": {"type": ["object", "null"], "maxProperties": 0},
    });
    let others = ["user", "store", "service_tier", "safety_identifier", "metadata"];
    let cache = ["prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"];
    let mut request = closed_object(&["model", "messages"], with_ignored(read, &[&others[..], &cache].concat()));
    request["description"] = json!(
        "A request of OpenAI's chat completions. A field that the API does not have is refused, unless it is null."
    );
    request
}

fn chat_messages() -> [Value; 5] {
    let text = || open_object(&["type", "text"], json!({"type": {"const": "text"}, "text": {"type": "string"}}));
    let refusal =
        open_object(&["type", "refusal"], json!({"type": {"const": "refusal"}, "refusal": {"type": "string"}}));
    let url = closed_object(&["url"], json!({"url": image_url(), "detail": only(json!("auto"))}));
    let image = open_object(&["type", "image_url"], json!({"type": {"const": "image_url"}, "image_url": url}));
    let function =
        open_object(&["name", "arguments"], json!({"name": {"type": "string"}, "arguments": {"type": "string"}}));
    let call = json!({"id": {"type": "string"}, "type": {"const": "function"}, "function": function});
    let call = open_object(&["id", "type", "function"], call);
    let speaks = json!({
        "role": {"const": "assistant"}, "content": parts_of(&[text(), refusal]), "refusal": nullable("string"),
        "reasoning_content": nullable("string"), "annotations": {},
        "tool_calls": {"type": ["array", "null"], "items": call},
    });
    let calls = json!({
        "role": {"const": "assistant"}, "content": {"type": "null"}, "refusal": {"type": "null"}, "annotations": {},
        "reasoning_content": nullable("string"), "tool_calls": {"type": "array", "minItems": 1, "items": call},
    });
    let mut user_content = parts_of(&[text(), image]);
    user_content["anyOf"][1]["minItems"] = json!(1);
    let instructions = json!({"role": {"enum": ["system", "developer"]}, "content": parts_of(&[text()])});
    let result = json!({
        "role": {"const": "tool"}, "content": parts_of(&[text()]), "tool_call_id": {"type": "string"},
    });
    [
        closed_object(&["role", "content"], instructions),
        closed_object(&["role", "content"], json!({"role": {"const": "user"}, "content": user_content})),
        closed_object(&["role", "content"], speaks),
        closed_object(&["role", "tool_calls"], calls),
        closed_object(&["role", "content", "tool_call_id"], with_ignored(result, &["name"])),
    ]
}

/// A request of the Responses API.
pub(super) fn responses_request() -> Value {
    let mut tool = function_fields();
    tool["type"] = json!({"const": "function"});
    tool["defer_loading"] = only(json!(false));
    let choice = open_object(&["type", "name"], json!({"type": {"const": "function"}, "name": tool_name()}));
    let mut format = json_schema();
    format["required"] = json!(["type", "name", "schema"]);
    format["properties"]["type"] = json!({"const": "json_schema"});
    let format = any_of(&[
        json!({"type": "null"}),
        open_object(&["type"], json!({"type": {"enum": ["text", "json_object"]}})),
        format,
    ]);
    let reasoning = closed_object(&[], json!({"effort": effort(), "summary": {}, "generate_summary": {}}));
    let text = closed_object(&[], json!({"format": format, "verbosity": only(json!("medium"))}));
    let conversation = open_object(&["id"], json!({"id": {"type": "string"}}));
    let read = json!({
        "model": model(),
        "input": any_of(&[
            json!({"type": "string"}),
            json!({"type": "array", "minItems": 1, "items": any_of(&[any_of(&response_items()), item_reference()])}),
        ]),
        "instructions": nullable("string"), "include": {"type": ["array", "null"], "items": {"enum": INCLUDES}},
        "stream": nullable("boolean"), "background": nullable("boolean"), "store": nullable("boolean"),
        "previous_response_id": nullable("string"), "conversation": any_of(&[nullable("string"), conversation]),
        "metadata": metadata(),
        "tools": {"type": ["array", "null"], "items": closed_object(&["type", "name"], tool)},
        "tool_choice": any_of(&[tool_choice_word(), choice]), "parallel_tool_calls": nullable("boolean"),
        "temperature": temperature(), "top_p": top_p(), "max_output_tokens": token_limit(),
        "reasoning": any_of(&[json!({"type": "null"}), reasoning]), "text": any_of(&[json!({"type": "null"}), text]),
        "top_logprobs": only(json!(0)), "truncation": only(json!("disabled")),
    });
    let others = ["user", "service_tier", "safety_identifier", "stream_options"];
    let cache = ["prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"];
    let mut request = closed_object(&["model", "input"], with_ignored(read, &[&others[..], &cache].concat()));
    request["description"] =
        json!("A request of OpenAI's Responses API. A field that the API does not have is refused, unless it is null.");
    request
}

/// The parts of a response that may be asked for. Those of built-in tools never occur.
const INCLUDES: [&str; 7] = [
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
];

fn response_items() -> Vec<Value> {
    let text_types = ["input_text", "output_text", "text"];
    let text = || open_object(&["type", "text"], json!({"type": {"enum": text_types}, "text": {"type": "string"}}));
    let image = || {
        let fields = json!({"type": {"const": "input_image"}, "image_url": image_url(), "detail": only(json!("auto"))});
        closed_object(&["type", "image_url"], fields)
    };
    let refusal =
        open_object(&["type", "refusal"], json!({"type": {"const": "refusal"}, "refusal": {"type": "string"}}));
    let message = |roles: &[&str], content: Value| {
        let fields = json!({"type": only(json!("message")), "role": {"enum": roles}, "content": content});
        open_object(&["role", "content"], fields)
    };
    let string = || json!({"type": "string"});
    let call = json!({
        "type": {"const": "function_call"}, "call_id": string(), "name": string(), "arguments": string(),
    });
    let output = json!({
        "type": {"const": "function_call_output"}, "call_id": string(), "output": parts_of(&[text(), image()]),
    });
    let summary = open_object(&["text"], json!({"text": string()}));
    let reasoning = json!({
        "type": {"const": "reasoning"}, "id": {}, "encrypted_content": nullable("string"),
        "summary": {"type": ["array", "null"], "items": summary},
    });
    vec![
        message(&["user"], parts_of(&[text(), image()])),
        message(&["system", "developer"], parts_of(&[text()])),
        message(&["assistant"], parts_of(&[text(), refusal])),
        open_object(&["type", "call_id", "name", "arguments"], call),
        open_object(&["type", "call_id", "output"], output),
        open_object(&["type"], reasoning),
    ]
}

/// A stored item, which the request names by its id.
fn item_reference() -> Value {
    open_object(&["id"], json!({"type": only(json!("item_reference")), "id": {"type": "string"}}))
}

/// The items with which a conversation begins.
pub(super) fn conversation_request() -> Value {
    let items = json!({"type": ["array", "null"], "items": any_of(&response_items()), "minItems": 1});
    closed_object(&[], json!({"items": items, "metadata": metadata()}))
}

/// Items that are added to a conversation.
pub(super) fn conversation_items() -> Value {
    closed_object(&["items"], json!({"items": {"type": "array", "items": any_of(&response_items()), "minItems": 1}}))
}

pub(super) fn conversation_metadata() -> Value {
    closed_object(&["metadata"], json!({"metadata": metadata()}))
}

fn metadata() -> Value {
    json!({
        "type": ["object", "null"], "maxProperties": 16, "propertyNames": {"maxLength": 64},
        "additionalProperties": {"type": "string", "maxLength": 512},
    })
}

fn model() -> Value {
    json!({"type": "string", "description": "`agent/ID` or `PROVIDER/MODEL`"})
}

fn image_url() -> Value {
    json!({"type": "string", "description": "a data URL of a PNG, JPEG, GIF or WebP image, or an https URL"})
}

fn temperature() -> Value {
    json!({"type": ["number", "null"], "minimum": 0, "maximum": 2})
}

fn top_p() -> Value {
    json!({"type": ["number", "null"], "minimum": 0, "maximum": 1})
}

fn token_limit() -> Value {
    json!({"type": ["integer", "null"], "minimum": 1, "maximum": u32::MAX})
}

fn effort() -> Value {
    json!({"enum": ["none", "minimal", "low", "medium", "high", "xhigh", null]})
}

fn tool_choice_word() -> Value {
    json!({"enum": ["auto", "none", "required", null]})
}

fn function_fields() -> Value {
    json!({
        "name": tool_name(), "description": nullable("string"), "parameters": nullable("object"),
        "strict": nullable("boolean"),
    })
}

fn json_schema() -> Value {
    let fields = json!({
        "name": {"type": "string"}, "description": nullable("string"), "schema": {"type": "object"},
        "strict": nullable("boolean"),
    });
    open_object(&["name", "schema"], fields)
}
