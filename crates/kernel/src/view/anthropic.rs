//! The Anthropic messages dialect: strict alternation of `user` and `assistant`, content in blocks, results first in the user
//! message that follows their calls.

mod check;

use serde_json::{Value, json};

use super::{Called, Dialect, Line, Part, Prompt, blank, lines};
use crate::turn::{Block, Message, Thinking};

pub use check::check;

/// Asks for an answer where the last word is the model's own, which newer models refuse and older ones would continue.
const GO_ON: &str = "(continue)";

/// The parts of a messages request that come from turns.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The agent's prompt; empty when there is none, and then to be left out.
    pub system: String,
    /// The `messages`.
    pub messages: Vec<Value>,
}

/// What a messages request says.
#[must_use]
pub fn request(prompt: &Prompt<'_>) -> Request {
    let mut speech = Speech::default();
    for line in lines(prompt, &Dialect { legal_id, takes }) {
        match line {
            Line::User(parts) => speech.hear(&parts),
            Line::Assistant(said) => speech.say(&said),
        }
    }
    speech.close();
    let system = if blank(prompt.system) { String::new() } else { prompt.system.to_owned() };
    Request { system, messages: speech.messages }
}

/// Messages so far, and the results that wait to open the next user message.
#[derive(Default)]
struct Speech {
    messages: Vec<Value>,
    results: Vec<Value>,
    dangling: bool,
}

impl Speech {
    fn hear(&mut self, parts: &[Part<'_>]) {
        let mut content = std::mem::take(&mut self.results);
        content.extend(parts.iter().map(part));
        self.user(content);
    }

    fn say(&mut self, said: &Message<Called<'_>>) {
        if !self.results.is_empty() {
            let results = std::mem::take(&mut self.results);
            self.user(results);
        }
        let content: Vec<Value> = said.blocks.iter().filter_map(block).collect();
        self.messages.push(json!({"role": "assistant", "content": content}));
        self.results = said.calls().map(result).collect();
        self.dangling = true;
    }

    fn close(&mut self) {
        if !self.results.is_empty() {
            let results = std::mem::take(&mut self.results);
            self.user(results);
        }
        if self.dangling {
            self.hear(&[Part::Text(GO_ON.to_owned())]);
        }
    }

    fn user(&mut self, content: Vec<Value>) {
        self.messages.push(json!({"role": "user", "content": content}));
        self.dangling = false;
    }
}

fn part(part: &Part<'_>) -> Value {
    let source = match part {
        Part::Text(text) => return json!({"type": "text", "text": text}),
        Part::Picture(picture) => {
            json!({"type": "base64", "media_type": picture.media_type(), "data": picture.base64()})
        }
        Part::Url(url) => json!({"type": "url", "url": url}),
    };
    json!({"type": "image", "source": source})
}

fn takes(thinking: &Thinking) -> bool {
    match thinking {
        Thinking::Shown { .. } | Thinking::Redacted { .. } => thinking.is_returnable(),
        Thinking::Open { .. } => false,
    }
}

fn block(block: &Block<Called<'_>>) -> Option<Value> {
    Some(match block {
        Block::Thinking(Thinking::Shown { text, signature }) => {
            json!({"type": "thinking", "thinking": text, "signature": signature})
        }
        Block::Thinking(Thinking::Redacted { data }) => json!({"type": "redacted_thinking", "data": data}),
        Block::Thinking(Thinking::Open { .. }) => return None,
        Block::Text { text } => json!({"type": "text", "text": text}),
        Block::Call(called) => call(called),
    })
}

fn call(call: &Called<'_>) -> Value {
    json!({"type": "tool_use", "id": call.id, "name": call.tool, "input": call.arguments})
}

fn result(call: &Called<'_>) -> Value {
    let content = match call.pictures.as_slice() {
        [] => json!(call.output),
        pictures => {
            let text = json!({"type": "text", "text": call.output});
            std::iter::once(text).chain(pictures.iter().map(part)).collect()
        }
    };
    let mut block = json!({"type": "tool_result", "tool_use_id": call.id, "content": content});
    if call.failed {
        block["is_error"] = Value::Bool(true);
    }
    block
}

/// Letters, digits, `_` and `-`.
fn legal_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
