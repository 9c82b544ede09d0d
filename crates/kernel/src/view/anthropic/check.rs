//! The strict rules of the Anthropic messages dialect, read off a finished list of messages. Written from the rules alone: it
//! shares no code with the renderer, so that one mistake cannot hide in both.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::view::Violation;

/// Checks a list of messages, as the body of a request that asks for the next one.
///
/// # Errors
/// The first [`Violation`].
pub fn check(messages: &[Value]) -> Result<(), Violation> {
    let mut reader = Reader::default();
    for (at, message) in messages.iter().enumerate() {
        reader.read(at, message).map_err(|rule| Violation { at, rule })?;
    }
    let at = messages.len();
    match (messages.len() % 2, messages.is_empty()) {
        (_, true) => Err(Violation { at, rule: "there is no message" }),
        // Sides alternate from the user on, so an odd number ends with the user, who also has answered every call by then.
        (1, _) => Ok(()),
        _ => Err(Violation { at, rule: "the last word is the model's own" }),
    }
}

type Verdict = Result<(), &'static str>;

/// What the messages so far demand of the next one.
#[derive(Default)]
struct Reader {
    /// Calls of the message before, which wait for their results.
    open: Vec<String>,
    /// Every id of the list.
    ids: HashSet<String>,
}

impl Reader {
    fn read(&mut self, at: usize, message: &Value) -> Verdict {
        let fields = message.as_object().ok_or("is not an object")?;
        only(fields, &["role", "content"])?;
        let role = fields.get("role").and_then(Value::as_str).ok_or("has no role")?;
        let blocks = fields.get("content").and_then(Value::as_array).ok_or("has content that is no list of blocks")?;
        if blocks.is_empty() {
            return Err("is empty");
        }
        let due = if at.is_multiple_of(2) { "user" } else { "assistant" };
        if role != due {
            return Err("breaks the alternation of user and assistant");
        }
        if role == "user" { self.user(blocks) } else { self.assistant(blocks) }
    }

    fn user(&mut self, blocks: &[Value]) -> Verdict {
        let mut said = false;
        for block in blocks {
            match kind(block)? {
                "tool_result" if said => return Err("has a result after text"),
                "tool_result" => self.result(block)?,
                "text" => {
                    text(block)?;
                    said = true;
                }
                "image" => {
                    picture(block)?;
                    said = true;
                }
                _ => return Err("has a block that a user cannot say"),
            }
        }
        if self.open.is_empty() { Ok(()) } else { Err("leaves a call without its result") }
    }

    fn result(&mut self, block: &Value) -> Verdict {
        only(object(block)?, &["type", "tool_use_id", "content", "is_error"])?;
        let id = block.get("tool_use_id").and_then(Value::as_str).ok_or("has a result that names no call")?;
        let place = self.open.iter().position(|open| open == id).ok_or("answers no call of the message before")?;
        self.open.remove(place);
        match block.get("content") {
            Some(Value::String(text)) if text.trim().is_empty() => return Err("has an empty result"),
            Some(Value::Array(parts)) if parts.is_empty() => return Err("has an empty result"),
            Some(Value::String(_)) => {}
            Some(Value::Array(parts)) => parts.iter().try_for_each(|part| match kind(part)? {
                "text" => text(part),
                "image" => picture(part),
                _ => Err("has a result with a block that is neither text nor a picture"),
            })?,
            _ => return Err("has a result without text"),
        }
        match block.get("is_error") {
            None | Some(Value::Bool(_)) => Ok(()),
            Some(_) => Err("has an is_error that is neither true nor false"),
        }
    }

    fn assistant(&mut self, blocks: &[Value]) -> Verdict {
        let mut last = "";
        for block in blocks {
            let next = kind(block)?;
            match next {
                "text" => text(block)?,
                "thinking" => thinking(block)?,
                "redacted_thinking" => redacted(block)?,
                "tool_use" => self.call(block)?,
                _ => return Err("has a block that a model cannot say"),
            }
            last = next;
        }
        if matches!(last, "thinking" | "redacted_thinking") { Err("ends with reasoning") } else { Ok(()) }
    }

    fn call(&mut self, block: &Value) -> Verdict {
        only(object(block)?, &["type", "id", "name", "input"])?;
        let id = block.get("id").and_then(Value::as_str).ok_or("has a call without an id")?;
        if !word(id, 64) {
            return Err("has a call with an illegal id");
        }
        if !self.ids.insert(id.to_owned()) {
            return Err("has a call whose id was used before");
        }
        let name = block.get("name").and_then(Value::as_str).ok_or("has a call without a name")?;
        if !word(name, 64) {
            return Err("has a call with an illegal name");
        }
        if !block.get("input").is_some_and(Value::is_object) {
            return Err("has a call whose input is no object");
        }
        self.open.push(id.to_owned());
        Ok(())
    }
}

fn kind(block: &Value) -> Result<&str, &'static str> {
    block.get("type").and_then(Value::as_str).ok_or("has a block without a type")
}

fn text(block: &Value) -> Verdict {
    only(object(block)?, &["type", "text"])?;
    let said = block.get("text").and_then(Value::as_str).ok_or("has a text block without text")?;
    if said.trim().is_empty() { Err("has an empty text block") } else { Ok(()) }
}

fn picture(block: &Value) -> Verdict {
    only(object(block)?, &["type", "source"])?;
    let source = block.get("source").and_then(Value::as_object).ok_or("has a picture without a source")?;
    let field = |name: &str| source.get(name).and_then(Value::as_str).unwrap_or_default();
    match field("type") {
        "base64" => {
            only(source, &["type", "media_type", "data"])?;
            if !matches!(field("media_type"), "image/png" | "image/jpeg" | "image/gif" | "image/webp") {
                return Err("has a picture of a kind that is not taken");
            }
            let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
            let data = field("data");
            let encoded = !data.is_empty() && data.len().is_multiple_of(4) && data.chars().all(legal);
            if encoded { Ok(()) } else { Err("has a picture whose data is no base64") }
        }
        "url" => {
            only(source, &["type", "url"])?;
            if field("url").starts_with("https://") { Ok(()) } else { Err("has a picture whose URL is not secure") }
        }
        _ => Err("has a picture from an unknown source"),
    }
}

fn thinking(block: &Value) -> Verdict {
    only(object(block)?, &["type", "thinking", "signature"])?;
    if !block.get("thinking").is_some_and(Value::is_string) {
        return Err("has reasoning without its text");
    }
    match block.get("signature").and_then(Value::as_str) {
        Some(signature) if !signature.trim().is_empty() => Ok(()),
        Some(_) | None => Err("has reasoning without a signature"),
    }
}

fn redacted(block: &Value) -> Verdict {
    only(object(block)?, &["type", "data"])?;
    match block.get("data").and_then(Value::as_str) {
        Some(data) if !data.trim().is_empty() => Ok(()),
        Some(_) | None => Err("has redacted reasoning without its data"),
    }
}

fn word(text: &str, most: usize) -> bool {
    let legal = |c| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-');
    !text.is_empty() && text.len() <= most && text.chars().all(legal)
}

fn object(block: &Value) -> Result<&Map<String, Value>, &'static str> {
    block.as_object().ok_or("has a block that is not an object")
}

fn only(fields: &Map<String, Value>, known: &[&str]) -> Verdict {
    if fields.keys().all(|key| known.contains(&key.as_str())) { Ok(()) } else { Err("has an unknown field") }
}

#[cfg(test)]
mod tests;
