//! Validates contents against the strict rules of the Gemini API.
//!
//! It shares no code with the renderer, so that one mistake cannot hide in both.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::prompt::DialectViolation;

pub(crate) fn check_contents(contents: &[Value]) -> Result<(), DialectViolation> {
    let mut checker = GeminiChecker::default();
    for (at, content) in contents.iter().enumerate() {
        checker.check_content(content).map_err(|rule| DialectViolation { at, rule })?;
    }
    let at = contents.len();
    checker.check_end().map_err(|rule| DialectViolation { at, rule })
}

type GeminiCheckResult = Result<(), &'static str>;

/// State that the contents so far require of the next one.
#[derive(Default)]
struct GeminiChecker {
    last_role: Option<String>,
    /// Ids and names of calls without a result.
    open_calls: Vec<(String, String)>,
    ids: HashSet<String>,
}

impl GeminiChecker {
    fn check_content(&mut self, content: &Value) -> GeminiCheckResult {
        let fields = content.as_object().ok_or("is not an object")?;
        check_known_fields(fields, &["role", "parts"])?;
        let role = text(fields, "role").ok_or("has no role")?;
        let parts = fields.get("parts").and_then(Value::as_array).ok_or("has no list of parts")?;
        if parts.is_empty() {
            return Err("has no part");
        }
        match (role, self.last_role.replace(role.to_owned()).as_deref()) {
            ("model", None) => return Err("begins the conversation with the model"),
            (role, Some(before)) if role == before => return Err("follows another content of its role"),
            _ => {}
        }
        match role {
            "user" => self.check_user(parts),
            "model" => parts.iter().try_for_each(|part| self.check_model_part(part)),
            _ => Err("has an unknown role"),
        }
    }

    fn check_end(&self) -> GeminiCheckResult {
        match self.last_role.as_deref() {
            None => Err("there is no content"),
            Some("user") => Ok(()),
            Some(_) => Err("the last content is the model's"),
        }
    }

    fn check_user(&mut self, parts: &[Value]) -> GeminiCheckResult {
        let mut results_are_over = false;
        for part in parts {
            let fields = part.as_object().ok_or("has a part that is not an object")?;
            let (kind, value) = single_field(fields)?;
            match kind {
                "functionResponse" if results_are_over => return Err("has a result behind another part"),
                "functionResponse" => self.check_result(value)?,
                "text" => check_text(value)?,
                "inlineData" => check_inline_data(value)?,
                "fileData" => {
                    let url = value.get("fileUri").and_then(Value::as_str).unwrap_or_default();
                    url.starts_with("https://").then_some(()).ok_or("has a file without its URL")?;
                }
                _ => return Err("has a part that a user cannot say"),
            }
            results_are_over = kind != "functionResponse";
        }
        if self.open_calls.is_empty() { Ok(()) } else { Err("stands where a result is due") }
    }

    fn check_model_part(&mut self, part: &Value) -> GeminiCheckResult {
        let mut fields = part.as_object().ok_or("has a part that is not an object")?.clone();
        if let Some(signature) = fields.remove("thoughtSignature")
            && signature.as_str().is_none_or(|signature| signature.trim().is_empty())
        {
            return Err("has an empty signature");
        }
        match single_field(&fields)? {
            ("text", value) => check_text(value),
            ("functionCall", value) => self.check_call(value),
            // A search of the provider and its result.
            ("toolCall" | "toolResponse", value) => match value["id"].as_str() {
                Some(id) if !id.is_empty() => Ok(()),
                _ => Err("has a search without an id"),
            },
            _ => Err("has a part that a model cannot say"),
        }
    }

    fn check_call(&mut self, call: &Value) -> GeminiCheckResult {
        let fields = call.as_object().ok_or("has a call that is not an object")?;
        check_known_fields(fields, &["id", "name", "args"])?;
        let id = text(fields, "id").filter(|id| !id.trim().is_empty()).ok_or("has a call without an id")?;
        if !self.ids.insert(id.to_owned()) {
            return Err("has a call whose id was used before");
        }
        let name = text(fields, "name").ok_or("has a call without a name")?;
        let legal = name.chars().all(|c| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-'));
        if name.is_empty() || name.len() > 64 || !legal {
            return Err("has a call with an illegal name");
        }
        if !fields.get("args").is_some_and(Value::is_object) {
            return Err("has arguments that are no object");
        }
        self.open_calls.push((id.to_owned(), name.to_owned()));
        Ok(())
    }

    fn check_result(&mut self, result: &Value) -> GeminiCheckResult {
        let fields = result.as_object().ok_or("has a result that is not an object")?;
        check_known_fields(fields, &["id", "name", "response"])?;
        let response = fields.get("response").and_then(Value::as_object).ok_or("has a result without a response")?;
        if response.values().any(|value| value.as_str().is_none_or(|text| text.trim().is_empty())) {
            return Err("has empty text");
        }
        let named =
            |(id, name): &(String, String)| Some(&**id) == text(fields, "id") && Some(&**name) == text(fields, "name");
        let place = self.open_calls.iter().position(named).ok_or("answers no open call")?;
        self.open_calls.remove(place);
        Ok(())
    }
}

fn single_field(fields: &Map<String, Value>) -> Result<(&str, &Value), &'static str> {
    let mut all = fields.iter();
    match (all.next(), all.next()) {
        (Some((name, value)), None) => Ok((name, value)),
        _ => Err("has a part with no content or with several"),
    }
}

fn check_text(value: &Value) -> GeminiCheckResult {
    let said = value.as_str().ok_or("has a part without its text")?;
    if said.trim().is_empty() { Err("has an empty part") } else { Ok(()) }
}

fn check_inline_data(value: &Value) -> GeminiCheckResult {
    let fields = value.as_object().ok_or("has data that is not an object")?;
    check_known_fields(fields, &["mimeType", "data"])?;
    let known = ["image/png", "image/jpeg", "image/webp", "image/gif"];
    if !text(fields, "mimeType").is_some_and(|kind| known.contains(&kind)) {
        return Err("has a picture of an unknown type");
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    match text(fields, "data") {
        Some(data) if !data.is_empty() && data.len().is_multiple_of(4) && data.chars().all(legal) => Ok(()),
        _ => Err("has a picture whose data is no base64"),
    }
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str)
}

fn check_known_fields(fields: &Map<String, Value>, known: &[&str]) -> GeminiCheckResult {
    if fields.keys().all(|key| known.contains(&key.as_str())) { Ok(()) } else { Err("has an unknown field") }
}

#[cfg(test)]
mod tests;
