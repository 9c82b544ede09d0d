//! The OpenAI chat dialect: `system`, `user`, `assistant` with `tool_calls`, `tool`. Reasoning goes back with the
//! calls that it led to, to models that send it as `reasoning_content`: some of them refuse such a call without it, also in later
//! turns.

mod check;

use serde_json::{Value, json};

use super::{Called, Dialect, Line, Part, Prompt, Sight, blank, lines};
use crate::turn::{Message, Thinking};

pub use check::check;

/// The `messages` of a chat request.
#[must_use]
pub fn messages(prompt: &Prompt<'_>) -> Vec<Value> {
    let mut messages = Vec::new();
    if !blank(prompt.system) {
        messages.push(json!({"role": "system", "content": prompt.system}));
    }
    // Results of tools are text alone here: their pictures open the message of the user that follows.
    let mut shown: Vec<Value> = Vec::new();
    for line in lines(prompt, &Dialect { legal_id, takes }) {
        match line {
            Line::User(parts) if shown.is_empty() => {
                messages.push(json!({"role": "user", "content": heard(&parts, prompt.sight)}));
            }
            Line::User(parts) => {
                shown.extend(parts.iter().map(part));
                messages.extend(user(std::mem::take(&mut shown)));
            }
            Line::Assistant(said) => {
                messages.extend(user(std::mem::take(&mut shown)));
                messages.push(assistant(&said));
                messages.extend(said.calls().map(result));
                let mut pictures = said.calls().flat_map(|call| &call.pictures).map(part).peekable();
                if pictures.peek().is_some() {
                    shown.push(json!({"type": "text", "text": OF_TOOLS}));
                    shown.extend(pictures);
                }
            }
        }
    }
    messages.extend(user(shown));
    messages
}

/// Stands before the pictures of results, which are no words of the user.
const OF_TOOLS: &str = "[The pictures in the results of the tools above, in their order:]";

fn user(parts: Vec<Value>) -> Option<Value> {
    (!parts.is_empty()).then(|| json!({"role": "user", "content": parts}))
}

/// Servers of models that read text alone take nothing but text; a message to one that sees is always a list of parts, so that
/// it is the same before and after a picture is appended to it.
fn heard(parts: &[Part<'_>], sight: Sight<'_>) -> Value {
    match (sight, parts) {
        (Sight::Blind, [Part::Text(text)]) => json!(text),
        _ => parts.iter().map(part).collect(),
    }
}

fn part(part: &Part<'_>) -> Value {
    let url = match part {
        Part::Text(text) => return json!({"type": "text", "text": text}),
        Part::Picture(picture) => format!("data:{};base64,{}", picture.media_type(), picture.base64()),
        Part::Url(url) => url.clone(),
    };
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn assistant(said: &Message<Called<'_>>) -> Value {
    let text = said.text();
    let calls: Vec<Value> = said.calls().map(call).collect();
    if calls.is_empty() {
        return json!({"role": "assistant", "content": text});
    }
    let content = if text.is_empty() { Value::Null } else { Value::String(text) };
    let mut message = json!({"role": "assistant", "content": content, "tool_calls": calls});
    let reasoning: String = said.thinking().filter_map(open).collect();
    if !reasoning.is_empty() {
        message["reasoning_content"] = Value::String(reasoning);
    }
    message
}

fn takes(thinking: &Thinking) -> bool {
    open(thinking).is_some() && thinking.is_returnable()
}

fn open(thinking: &Thinking) -> Option<&str> {
    match thinking {
        Thinking::Open { text } => Some(text),
        Thinking::Shown { .. } | Thinking::Redacted { .. } => None,
    }
}

fn call(call: &Called<'_>) -> Value {
    // Arguments are JSON inside a string here.
    let arguments = Value::Object(call.arguments.clone()).to_string();
    json!({"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": arguments}})
}

fn result(call: &Called<'_>) -> Value {
    json!({"role": "tool", "tool_call_id": call.id, "content": call.output})
}

/// The service refuses ids of more than 40 characters.
fn legal_id(id: &str) -> bool {
    (1..=40).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
}
