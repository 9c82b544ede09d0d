//! Validates messages against the strict rules of the OpenAI chat API.
//!
//! It shares no code with the renderer, so that one mistake cannot hide in both.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::prompt::DialectViolation;

pub(crate) fn check_messages(messages: &[Value]) -> Result<(), DialectViolation> {
    let mut checker = OpenAiChecker::default();
    for (at, message) in messages.iter().enumerate() {
        checker.check_message(at, message).map_err(|rule| DialectViolation { at, rule })?;
    }
    let at = messages.len();
    checker.check_end().map_err(|rule| DialectViolation { at, rule })
}

type OpenAiCheckResult = Result<(), &'static str>;

/// State that the messages so far require of the next one.
#[derive(Default)]
struct OpenAiChecker {
    /// Role of the previous message; `system` does not count.
    last_role: Option<&'static str>,
    open_calls: Vec<String>,
    ids: HashSet<String>,
}

impl OpenAiChecker {
    fn check_message(&mut self, at: usize, message: &Value) -> OpenAiCheckResult {
        let fields = message.as_object().ok_or("is not an object")?;
        let role = fields.get("role").and_then(Value::as_str).ok_or("has no role")?;
        if role != "tool" && !self.open_calls.is_empty() {
            return Err("stands where a result is due");
        }
        match role {
            "system" => check_system(at, fields),
            "user" => self.check_user(fields),
            "assistant" => self.check_assistant(fields),
            "tool" => self.check_tool(fields),
            _ => Err("has an unknown role"),
        }
    }

    fn check_end(&self) -> OpenAiCheckResult {
        if !self.open_calls.is_empty() {
            return Err("a result is missing at the end");
        }
        match self.last_role {
            None => Err("there is no message"),
            Some(_) => Ok(()),
        }
    }

    fn check_user(&mut self, fields: &Map<String, Value>) -> OpenAiCheckResult {
        check_known_fields(fields, &["role", "content"])?;
        match fields.get("content").and_then(Value::as_array) {
            Some(parts) => check_user_parts(parts)?,
            None => check_text(fields)?,
        }
        if self.last_role.replace("user") == Some("user") {
            return Err("follows another user message");
        }
        Ok(())
    }

    fn check_assistant(&mut self, fields: &Map<String, Value>) -> OpenAiCheckResult {
        check_known_fields(fields, &["role", "content", "tool_calls", "reasoning_content"])?;
        match self.last_role.replace("assistant") {
            None => return Err("begins the conversation with the model"),
            Some("assistant") => return Err("follows another assistant message"),
            Some(_) => {}
        }
        let reasoning = fields.get("reasoning_content");
        if reasoning.is_some_and(|reasoning| reasoning.as_str().is_none_or(|text| text.trim().is_empty())) {
            return Err("has reasoning that is no text or empty");
        }
        let Some(calls) = fields.get("tool_calls") else {
            return if reasoning.is_some() { Err("has reasoning that led to no call") } else { check_text(fields) };
        };
        if fields.get("content").is_some_and(|content| !content.is_null()) {
            check_text(fields)?;
        }
        let calls = calls.as_array().ok_or("has tool_calls that are no list")?;
        if calls.is_empty() {
            return Err("has an empty list of calls");
        }
        calls.iter().try_for_each(|call| self.check_call(call))
    }

    fn check_call(&mut self, call: &Value) -> OpenAiCheckResult {
        if call.get("type").and_then(Value::as_str) != Some("function") {
            return Err("has a call that is no function");
        }
        let id = call.get("id").and_then(Value::as_str).ok_or("has a call without an id")?;
        if id.trim().is_empty() || id.chars().count() > 40 {
            return Err("has a call whose id is empty or too long");
        }
        if !self.ids.insert(id.to_owned()) {
            return Err("has a call whose id was used before");
        }
        let function = call.get("function").ok_or("has a call without a function")?;
        let name = function.get("name").and_then(Value::as_str).ok_or("has a call without a name")?;
        let legal = name.chars().all(|c| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-'));
        if name.is_empty() || name.len() > 64 || !legal {
            return Err("has a call with an illegal name");
        }
        let arguments = function.get("arguments").and_then(Value::as_str).ok_or("has arguments that are no string")?;
        let parsed: Value = serde_json::from_str(arguments).map_err(|_| "has arguments that are no JSON")?;
        if !parsed.is_object() {
            return Err("has arguments that are no object");
        }
        self.open_calls.push(id.to_owned());
        Ok(())
    }

    fn check_tool(&mut self, fields: &Map<String, Value>) -> OpenAiCheckResult {
        check_known_fields(fields, &["role", "content", "tool_call_id"])?;
        check_text(fields)?;
        let id = fields.get("tool_call_id").and_then(Value::as_str).ok_or("names no call")?;
        let place = self.open_calls.iter().position(|open| open == id).ok_or("answers no open call")?;
        self.open_calls.remove(place);
        self.last_role = Some("tool");
        Ok(())
    }
}

fn check_system(at: usize, fields: &Map<String, Value>) -> OpenAiCheckResult {
    check_known_fields(fields, &["role", "content"])?;
    if at != 0 {
        return Err("is a system message that is not the first");
    }
    check_text(fields)
}

/// Checks a user message in parts: text and images.
fn check_user_parts(parts: &[Value]) -> OpenAiCheckResult {
    if parts.is_empty() {
        return Err("has no part");
    }
    parts.iter().try_for_each(|part| {
        let fields = part.as_object().ok_or("has a part that is not an object")?;
        match fields.get("type").and_then(Value::as_str) {
            Some("text") => {
                check_known_fields(fields, &["type", "text"])?;
                let text = fields.get("text").and_then(Value::as_str).ok_or("has a part without its text")?;
                if text.trim().is_empty() { Err("has an empty part") } else { Ok(()) }
            }
            Some("image_url") => {
                check_known_fields(fields, &["type", "image_url"])?;
                check_image(part.pointer("/image_url/url").and_then(Value::as_str).unwrap_or_default())
            }
            _ => Err("has a part that a user cannot say"),
        }
    })
}

fn check_image(url: &str) -> OpenAiCheckResult {
    let data = ["png", "jpeg", "gif", "webp"]
        .iter()
        .find_map(|kind| url.strip_prefix("data:image/")?.strip_prefix(kind)?.strip_prefix(";base64,"));
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    match data {
        Some(data) if !data.is_empty() && data.len().is_multiple_of(4) && data.chars().all(legal) => Ok(()),
        Some(_) => Err("has a picture whose data is no base64"),
        None if url.starts_with("https://") => Ok(()),
        None => Err("has a picture that is neither data nor a URL"),
    }
}

fn check_text(fields: &Map<String, Value>) -> OpenAiCheckResult {
    let content = fields.get("content").and_then(Value::as_str).ok_or("has no text")?;
    if content.trim().is_empty() { Err("has empty text") } else { Ok(()) }
}

fn check_known_fields(fields: &Map<String, Value>, known: &[&str]) -> OpenAiCheckResult {
    if fields.keys().all(|key| known.contains(&key.as_str())) { Ok(()) } else { Err("has an unknown field") }
}

#[cfg(test)]
mod tests;
