//! The OpenAI chat dialect: `system`, `user`, `assistant` with `tool_calls`, `tool`. Reasoning is not sent back in it.

mod check;

use serde_json::{Value, json};

use super::{Called, Line, Prompt, Spoken, blank, lines};

pub use check::check;

/// The `messages` of a chat request.
#[must_use]
pub fn messages(prompt: &Prompt<'_>) -> Vec<Value> {
    let mut messages = Vec::new();
    if !blank(prompt.system) {
        messages.push(json!({"role": "system", "content": prompt.system}));
    }
    for line in lines(prompt, legal_id) {
        match line {
            Line::User(text) => messages.push(json!({"role": "user", "content": text})),
            Line::Assistant(spoken) => {
                messages.push(assistant(&spoken));
                messages.extend(spoken.calls.iter().map(result));
            }
        }
    }
    messages
}

fn assistant(spoken: &Spoken) -> Value {
    let texts: Vec<&str> = spoken.parts.iter().map(|part| part.text.as_str()).filter(|text| !blank(text)).collect();
    let text = texts.join("\n\n");
    if spoken.calls.is_empty() {
        return json!({"role": "assistant", "content": text});
    }
    let content = if text.is_empty() { Value::Null } else { Value::String(text) };
    let calls: Vec<Value> = spoken.calls.iter().map(call).collect();
    json!({"role": "assistant", "content": content, "tool_calls": calls})
}

fn call(call: &Called) -> Value {
    // Arguments are JSON inside a string here.
    let arguments = Value::Object(call.arguments.clone()).to_string();
    json!({"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": arguments}})
}

fn result(call: &Called) -> Value {
    json!({"role": "tool", "tool_call_id": call.id, "content": call.output})
}

/// The service refuses ids of more than 40 characters.
fn legal_id(id: &str) -> bool {
    (1..=40).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
}
