//! The OpenAI chat dialect: `system`, `user`, `assistant` with `tool_calls`, `tool`. Reasoning is not sent back in it.

mod check;

use serde_json::{Value, json};

use super::{Called, Line, Prompt, blank, lines};
use crate::turn::Message;

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
            Line::Assistant(said) => {
                messages.push(assistant(&said));
                messages.extend(said.calls().map(result));
            }
        }
    }
    messages
}

fn assistant(said: &Message<Called>) -> Value {
    let text = said.text();
    let calls: Vec<Value> = said.calls().map(call).collect();
    if calls.is_empty() {
        return json!({"role": "assistant", "content": text});
    }
    let content = if text.is_empty() { Value::Null } else { Value::String(text) };
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
