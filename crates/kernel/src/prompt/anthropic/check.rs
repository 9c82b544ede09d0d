//! Validates messages against the strict rules of the Anthropic Messages API.
//!
//! It shares no code with the renderer, so that one mistake cannot hide in both.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::prompt::DialectViolation;

pub(crate) fn check_messages(messages: &[Value]) -> Result<(), DialectViolation> {
    let mut checker = AnthropicChecker::default();
    for (at, message) in messages.iter().enumerate() {
        checker.check_message(at, message).map_err(|rule| DialectViolation { at, rule })?;
    }
    let at = messages.len();
    match (messages.len() % 2, messages.is_empty()) {
        (_, true) => Err(DialectViolation { at, rule: "there is no message" }),
        // Sides alternate and the user begins, so an odd number ends with the user. That message answers every call.
        (1, _) => Ok(()),
        _ => Err(DialectViolation { at, rule: "the last message is the model's own" }),
    }
}

type AnthropicCheckResult = Result<(), &'static str>;

/// State that the messages so far require of the next one.
#[derive(Default)]
struct AnthropicChecker {
    /// Calls of the previous message that still have no result.
    open_calls: Vec<String>,
    ids: HashSet<String>,
}

impl AnthropicChecker {
    fn check_message(&mut self, at: usize, message: &Value) -> AnthropicCheckResult {
        let fields = message.as_object().ok_or("is not an object")?;
        check_known_fields(fields, &["role", "content"])?;
        let role = fields.get("role").and_then(Value::as_str).ok_or("has no role")?;
        let blocks = fields.get("content").and_then(Value::as_array).ok_or("has content that is no list of blocks")?;
        if blocks.is_empty() {
            return Err("is empty");
        }
        let expected = if at.is_multiple_of(2) { "user" } else { "assistant" };
        if role != expected {
            return Err("breaks the alternation of user and assistant");
        }
        if role == "user" { self.check_user(blocks) } else { self.check_assistant(blocks) }
    }

    fn check_user(&mut self, blocks: &[Value]) -> AnthropicCheckResult {
        let mut has_content = false;
        for block in blocks {
            match block_type(block)? {
                "tool_result" if has_content => return Err("has a result after text"),
                "tool_result" => self.check_result(block)?,
                "text" => {
                    check_text(block)?;
                    has_content = true;
                }
                "image" => {
                    check_image(block)?;
                    has_content = true;
                }
                _ => return Err("has a block that a user cannot say"),
            }
        }
        if self.open_calls.is_empty() { Ok(()) } else { Err("leaves a call without its result") }
    }

    fn check_result(&mut self, block: &Value) -> AnthropicCheckResult {
        check_known_fields(block_object(block)?, &["type", "tool_use_id", "content", "is_error"])?;
        let id = block.get("tool_use_id").and_then(Value::as_str).ok_or("has a result that names no call")?;
        let place =
            self.open_calls.iter().position(|open| open == id).ok_or("answers no call of the message before")?;
        self.open_calls.remove(place);
        match block.get("content") {
            Some(Value::String(text)) if text.trim().is_empty() => return Err("has an empty result"),
            Some(Value::Array(parts)) if parts.is_empty() => return Err("has an empty result"),
            Some(Value::String(_)) => {}
            Some(Value::Array(parts)) => parts.iter().try_for_each(|part| match block_type(part)? {
                "text" => check_text(part),
                "image" => check_image(part),
                _ => Err("has a result with a block that is neither text nor a picture"),
            })?,
            _ => return Err("has a result without text"),
        }
        match block.get("is_error") {
            None | Some(Value::Bool(_)) => Ok(()),
            Some(_) => Err("has an is_error that is neither true nor false"),
        }
    }

    fn check_assistant(&mut self, blocks: &[Value]) -> AnthropicCheckResult {
        let mut last = "";
        for block in blocks {
            let next = block_type(block)?;
            match next {
                "text" => check_text(block)?,
                "thinking" => check_thinking(block)?,
                "redacted_thinking" => check_redacted(block)?,
                "tool_use" => self.check_call(block)?,
                _ => return Err("has a block that a model cannot say"),
            }
            last = next;
        }
        if matches!(last, "thinking" | "redacted_thinking") { Err("ends with reasoning") } else { Ok(()) }
    }

    fn check_call(&mut self, block: &Value) -> AnthropicCheckResult {
        check_known_fields(block_object(block)?, &["type", "id", "name", "input"])?;
        let id = block.get("id").and_then(Value::as_str).ok_or("has a call without an id")?;
        if !is_identifier(id, 64) {
            return Err("has a call with an illegal id");
        }
        if !self.ids.insert(id.to_owned()) {
            return Err("has a call whose id was used before");
        }
        let name = block.get("name").and_then(Value::as_str).ok_or("has a call without a name")?;
        if !is_identifier(name, 64) {
            return Err("has a call with an illegal name");
        }
        if !block.get("input").is_some_and(Value::is_object) {
            return Err("has a call whose input is no object");
        }
        self.open_calls.push(id.to_owned());
        Ok(())
    }
}

fn block_type(block: &Value) -> Result<&str, &'static str> {
    block.get("type").and_then(Value::as_str).ok_or("has a block without a type")
}

fn check_text(block: &Value) -> AnthropicCheckResult {
    check_known_fields(block_object(block)?, &["type", "text"])?;
    let text = block.get("text").and_then(Value::as_str).ok_or("has a text block without text")?;
    if text.trim().is_empty() { Err("has an empty text block") } else { Ok(()) }
}

fn check_image(block: &Value) -> AnthropicCheckResult {
    check_known_fields(block_object(block)?, &["type", "source"])?;
    let source = block.get("source").and_then(Value::as_object).ok_or("has a picture without a source")?;
    let field = |name: &str| source.get(name).and_then(Value::as_str).unwrap_or_default();
    match field("type") {
        "base64" => {
            check_known_fields(source, &["type", "media_type", "data"])?;
            if !matches!(field("media_type"), "image/png" | "image/jpeg" | "image/gif" | "image/webp") {
                return Err("has a picture of a kind that is not taken");
            }
            let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
            let data = field("data");
            let encoded = !data.is_empty() && data.len().is_multiple_of(4) && data.chars().all(legal);
            if encoded { Ok(()) } else { Err("has a picture whose data is no base64") }
        }
        "url" => {
            check_known_fields(source, &["type", "url"])?;
            if field("url").starts_with("https://") { Ok(()) } else { Err("has a picture whose URL is not secure") }
        }
        _ => Err("has a picture from an unknown source"),
    }
}

fn check_thinking(block: &Value) -> AnthropicCheckResult {
    check_known_fields(block_object(block)?, &["type", "thinking", "signature"])?;
    if !block.get("thinking").is_some_and(Value::is_string) {
        return Err("has reasoning without its text");
    }
    match block.get("signature").and_then(Value::as_str) {
        Some(signature) if !signature.trim().is_empty() => Ok(()),
        Some(_) | None => Err("has reasoning without a signature"),
    }
}

fn check_redacted(block: &Value) -> AnthropicCheckResult {
    check_known_fields(block_object(block)?, &["type", "data"])?;
    match block.get("data").and_then(Value::as_str) {
        Some(data) if !data.trim().is_empty() => Ok(()),
        Some(_) | None => Err("has redacted reasoning without its data"),
    }
}

fn is_identifier(text: &str, max_length: usize) -> bool {
    let legal = |c| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-');
    !text.is_empty() && text.len() <= max_length && text.chars().all(legal)
}

fn block_object(block: &Value) -> Result<&Map<String, Value>, &'static str> {
    block.as_object().ok_or("has a block that is not an object")
}

fn check_known_fields(fields: &Map<String, Value>, known: &[&str]) -> AnthropicCheckResult {
    if fields.keys().all(|key| known.contains(&key.as_str())) { Ok(()) } else { Err("has an unknown field") }
}

#[cfg(test)]
mod tests;
