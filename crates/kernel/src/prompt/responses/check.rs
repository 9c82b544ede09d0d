//! Validates input items against the strict rules of the Responses API.
//!
//! It shares no code with the renderer, so that one mistake cannot hide in both.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::prompt::DialectViolation;

pub(crate) fn check_items(items: &[Value]) -> Result<(), DialectViolation> {
    let mut checker = ResponsesChecker::default();
    for (at, item) in items.iter().enumerate() {
        checker.check_item(item).map_err(|rule| DialectViolation { at, rule })?;
    }
    let at = items.len();
    checker.check_end().map_err(|rule| DialectViolation { at, rule })
}

type ResponsesCheckResult = Result<(), &'static str>;

/// State that the items so far require of the next one.
#[derive(Default)]
struct ResponsesChecker {
    last: Option<LastItem>,
    open_calls: Vec<String>,
    call_ids: HashSet<String>,
    reasoning_ids: HashSet<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LastItem {
    User,
    Text,
    Reasoning,
    Search,
    Call,
    Result,
}

impl ResponsesChecker {
    fn check_item(&mut self, item: &Value) -> ResponsesCheckResult {
        let fields = item.as_object().ok_or("is not an object")?;
        let kind = text(fields, "type").ok_or("has no type")?;
        let misses_results = !self.open_calls.is_empty();
        let item = match (kind, text(fields, "role")) {
            ("message", Some("user")) => {
                check_known_fields(fields, &["type", "role", "content"])?;
                check_parts(fields.get("content"), &["input_text", "input_image"])?;
                LastItem::User
            }
            ("message", Some("assistant")) => {
                check_known_fields(fields, &["type", "role", "content"])?;
                check_parts(fields.get("content"), &["output_text"])?;
                LastItem::Text
            }
            ("reasoning", None) => self.check_reasoning(fields)?,
            ("web_search_call", None) => self.check_search(fields)?,
            ("function_call", None) => self.check_call(fields)?,
            ("function_call_output", None) => self.check_result(fields)?,
            _ => return Err("is of an unknown type or role"),
        };
        self.check_place(item, misses_results)?;
        self.last = Some(item);
        Ok(())
    }

    fn check_place(&self, item: LastItem, misses_results: bool) -> ResponsesCheckResult {
        let of_model = matches!(item, LastItem::Text | LastItem::Reasoning | LastItem::Search | LastItem::Call);
        if self.last.is_none() && item != LastItem::User {
            return Err("begins the conversation without the user");
        }
        if self.last == Some(LastItem::User) && item == LastItem::User {
            return Err("follows another user message");
        }
        if matches!(self.last, Some(LastItem::Reasoning | LastItem::Search)) && !of_model {
            return Err("stands where the item that reasoning led to is due");
        }
        // Items of one answer are not divided by results, so calls are open until the last of them.
        let after_results = self.last == Some(LastItem::Result);
        if misses_results && (item == LastItem::User || after_results && of_model) {
            return Err("stands where a result is due");
        }
        Ok(())
    }

    fn check_end(&self) -> ResponsesCheckResult {
        match self.last {
            _ if !self.open_calls.is_empty() => Err("a result is missing at the end"),
            None => Err("there is no item"),
            Some(LastItem::Search) => Err("the last item is a search that led to nothing"),
            Some(LastItem::Reasoning) => Err("the last item is reasoning that led to nothing"),
            Some(_) => Ok(()),
        }
    }

    fn check_reasoning(&mut self, fields: &Map<String, Value>) -> Result<LastItem, &'static str> {
        check_known_fields(fields, &["type", "id", "summary", "encrypted_content"])?;
        let id = text(fields, "id").filter(|id| !id.is_empty()).ok_or("has reasoning without an id")?;
        text(fields, "encrypted_content").filter(|data| !data.is_empty()).ok_or("has reasoning without its content")?;
        let summary = fields.get("summary").and_then(Value::as_array).ok_or("has reasoning without a summary")?;
        if !summary.iter().all(|part| part["type"] == "summary_text" && part["text"].is_string()) {
            return Err("has a summary that is no text");
        }
        if self.reasoning_ids.insert(id.to_owned()) { Ok(LastItem::Reasoning) } else { Err("has reasoning twice") }
    }

    fn check_search(&mut self, fields: &Map<String, Value>) -> Result<LastItem, &'static str> {
        check_known_fields(fields, &["type", "id", "status", "action"])?;
        let id = text(fields, "id").filter(|id| !id.is_empty()).ok_or("has a search without an id")?;
        if self.reasoning_ids.insert(id.to_owned()) { Ok(LastItem::Search) } else { Err("has a search twice") }
    }

    fn check_call(&mut self, fields: &Map<String, Value>) -> Result<LastItem, &'static str> {
        check_known_fields(fields, &["type", "call_id", "name", "arguments"])?;
        let id = text(fields, "call_id").ok_or("has a call without an id")?;
        if id.trim().is_empty() || id.chars().count() > 64 {
            return Err("has a call whose id is empty or too long");
        }
        if !self.call_ids.insert(id.to_owned()) {
            return Err("has a call whose id was used before");
        }
        let name = text(fields, "name").ok_or("has a call without a name")?;
        let legal = name.chars().all(|c| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-'));
        if name.is_empty() || name.len() > 64 || !legal {
            return Err("has a call with an illegal name");
        }
        let arguments = text(fields, "arguments").ok_or("has arguments that are no string")?;
        let parsed: Value = serde_json::from_str(arguments).map_err(|_| "has arguments that are no JSON")?;
        if !parsed.is_object() {
            return Err("has arguments that are no object");
        }
        self.open_calls.push(id.to_owned());
        Ok(LastItem::Call)
    }

    fn check_result(&mut self, fields: &Map<String, Value>) -> Result<LastItem, &'static str> {
        check_known_fields(fields, &["type", "call_id", "output"])?;
        match fields.get("output") {
            Some(Value::String(output)) if output.trim().is_empty() => return Err("has empty text"),
            Some(Value::String(_)) => {}
            parts => check_parts(parts, &["input_text", "input_image"])?,
        }
        let id = text(fields, "call_id").ok_or("names no call")?;
        let place = self.open_calls.iter().position(|open| open == id).ok_or("answers no open call")?;
        self.open_calls.remove(place);
        Ok(LastItem::Result)
    }
}

fn check_parts(content: Option<&Value>, kinds: &[&str]) -> ResponsesCheckResult {
    let parts = content.and_then(Value::as_array).filter(|parts| !parts.is_empty()).ok_or("has no part")?;
    parts.iter().try_for_each(|part| {
        let fields = part.as_object().ok_or("has a part that is not an object")?;
        let kind = text(fields, "type").filter(|kind| kinds.contains(kind)).ok_or("has a part of another role")?;
        if kind == "input_image" {
            check_known_fields(fields, &["type", "image_url", "detail"])?;
            return check_image(text(fields, "image_url").unwrap_or_default());
        }
        check_known_fields(fields, &["type", "text", "annotations"])?;
        let said = text(fields, "text").ok_or("has a part without its text")?;
        if said.trim().is_empty() { Err("has an empty part") } else { Ok(()) }
    })
}

fn check_image(url: &str) -> ResponsesCheckResult {
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

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str)
}

fn check_known_fields(fields: &Map<String, Value>, known: &[&str]) -> ResponsesCheckResult {
    if fields.keys().all(|key| known.contains(&key.as_str())) { Ok(()) } else { Err("has an unknown field") }
}

#[cfg(test)]
mod tests;
