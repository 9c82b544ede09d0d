//! Messages of a client: the text and the files for the agent, and the answer to an approval.

use quell_protocol::api::SendAttachment;
use quell_protocol::approval::{ApprovalAnswer, Decision};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::errors::{A2aError, A2aErrorKind};

/// Texts that answer an approval; the card and the documentation name them.
pub(super) const ALLOWING_TEXTS: [&str; 3] = ["allow", "approve", "yes"];
pub(super) const DENYING_TEXTS: [&str; 3] = ["deny", "reject", "no"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct A2aMessage {
    message_id: String,
    role: String,
    #[serde(default)]
    parts: Vec<Map<String, Value>>,
    context_id: Option<String>,
    task_id: Option<String>,
}

/// What a message has for an agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MessageContent {
    pub(super) text: String,
    pub(super) files: Vec<SendAttachment>,
}

impl A2aMessage {
    /// Checks what the protocol requires of each message.
    pub(super) fn check(&self) -> Result<(), A2aError> {
        if self.message_id.is_empty() {
            return Err(A2aError::invalid("message.messageId", "`messageId` is empty; give each message a new one"));
        }
        if self.role != "ROLE_USER" {
            let text = format!("`role` is {:?}; messages of a client have ROLE_USER", self.role);
            return Err(A2aError::invalid("message.role", text));
        }
        if self.parts.is_empty() {
            return Err(A2aError::invalid("message.parts", "`parts` is empty; a message has at least one part"));
        }
        Ok(())
    }

    /// An empty text stands for none, as in all JSON of protocol buffers.
    pub(super) fn task(&self) -> Option<&str> {
        self.task_id.as_deref().filter(|task| !task.is_empty())
    }

    pub(super) fn context(&self) -> Option<&str> {
        self.context_id.as_deref().filter(|context| !context.is_empty())
    }

    /// Text parts as they are, data parts as JSON, and files by their bytes.
    pub(super) fn content(&self) -> Result<MessageContent, A2aError> {
        let mut content = MessageContent::default();
        let mut texts = Vec::new();
        for part in &self.parts {
            if let Some(text) = part.get("text") {
                texts.push(text_of(text)?.to_owned());
            } else if let Some(data) = part.get("data") {
                texts.push(data.to_string());
            } else if let Some(raw) = part.get("raw") {
                content.files.push(file_of(part, raw)?);
            } else if part.contains_key("url") {
                let text = "files by `url` are not fetched; send their bytes in `raw`, or the address as text";
                return Err(A2aError::new(A2aErrorKind::ContentTypeNotSupported, text));
            } else {
                return Err(A2aError::invalid("message.parts", "each part has one of `text`, `data`, `raw` and `url`"));
            }
        }
        content.text = texts.join("\n\n");
        Ok(content)
    }

    /// The answer to an approval: data with a `decision`, or one of the texts for it; and the approval that the data
    /// name.
    pub(super) fn approval_answer(&self) -> Result<(Option<String>, ApprovalAnswer), A2aError> {
        if let Some(data) = self.decision_data() {
            let mut data = data.clone();
            let named = data.as_object_mut().and_then(|fields| fields.remove("approval"));
            let named = match named {
                Some(Value::String(id)) => Some(id),
                Some(_) => return Err(A2aError::invalid("message.parts", "`approval` must be a text")),
                None => None,
            };
            let answer = serde_json::from_value(data)
                .map_err(|error| A2aError::invalid("message.parts", format!("the answer to the approval: {error}")))?;
            return Ok((named, answer));
        }
        let [part] = self.parts.as_slice() else { return Err(unclear_answer()) };
        let Some(text) = part.get("text").and_then(Value::as_str) else { return Err(unclear_answer()) };
        let word = text.trim().trim_end_matches(['.', '!']).to_lowercase();
        if ALLOWING_TEXTS.contains(&word.as_str()) {
            Ok((None, Decision::Allow.into()))
        } else if DENYING_TEXTS.contains(&word.as_str()) {
            Ok((None, Decision::Deny.into()))
        } else {
            Err(unclear_answer())
        }
    }

    /// The data of a part that can only be the answer to an approval.
    pub(super) fn decision_data(&self) -> Option<&Value> {
        let [part] = self.parts.as_slice() else { return None };
        part.get("data").filter(|data| data.get("decision").is_some())
    }
}

fn unclear_answer() -> A2aError {
    let text = format!(
        "the task waits for an approval: answer with one text part, {} to allow it or {} to deny it, or with one data part \
         {{\"decision\": \"allow\"}}",
        ALLOWING_TEXTS.join(", "),
        DENYING_TEXTS.join(", ")
    );
    A2aError::invalid("message.parts", text)
}

fn text_of(value: &Value) -> Result<&str, A2aError> {
    value.as_str().ok_or_else(|| A2aError::invalid("message.parts", "`text` of a part must be a text"))
}

fn file_of(part: &Map<String, Value>, raw: &Value) -> Result<SendAttachment, A2aError> {
    let Some(content) = raw.as_str() else {
        return Err(A2aError::invalid("message.parts", "`raw` of a part must be base64"));
    };
    let given = |name: &str| part.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    Ok(SendAttachment { name: given("filename"), media_type: given("mediaType"), content: content.to_owned() })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn message(parts: Value) -> A2aMessage {
        serde_json::from_value(json!({"messageId": "m", "role": "ROLE_USER", "parts": parts})).unwrap()
    }

    #[test]
    fn text_data_and_files_are_read() {
        let content = message(json!([
            {"text": "look"},
            {"data": {"a": 1}},
            {"raw": "aGk=", "filename": "a.txt", "mediaType": "text/plain"},
        ]))
        .content()
        .unwrap();
        assert_eq!(content.text, "look\n\n{\"a\":1}");
        let file = SendAttachment {
            name: Some("a.txt".into()),
            media_type: Some("text/plain".into()),
            content: "aGk=".into(),
        };
        assert_eq!(content.files, [file]);
    }

    #[rstest]
    #[case(json!([{"url": "https://x"}]), A2aErrorKind::ContentTypeNotSupported)]
    #[case(json!([{"other": 1}]), A2aErrorKind::InvalidParams)]
    #[case(json!([{"text": 1}]), A2aErrorKind::InvalidParams)]
    #[case(json!([{"raw": 1}]), A2aErrorKind::InvalidParams)]
    fn other_parts_are_refused(#[case] parts: Value, #[case] expected: A2aErrorKind) {
        let refused = message(parts).content().unwrap_err();
        assert!(matches!(refused, A2aError::Protocol { kind, .. } if kind == expected), "{refused:?}");
    }

    #[test]
    fn a_message_needs_an_id_a_role_and_parts() {
        for fields in [
            json!({"messageId": "", "role": "ROLE_USER", "parts": [{"text": "x"}]}),
            json!({"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}),
            json!({"messageId": "m", "role": "ROLE_USER"}),
        ] {
            assert!(serde_json::from_value::<A2aMessage>(fields.clone()).unwrap().check().is_err(), "{fields}");
        }
        assert!(message(json!([{"text": "x"}])).check().is_ok());
    }

    #[rstest]
    #[case(json!([{"text": " Allow. "}]), Some(Decision::Allow))]
    #[case(json!([{"text": "YES!"}]), Some(Decision::Allow))]
    #[case(json!([{"text": "no"}]), Some(Decision::Deny))]
    #[case(json!([{"data": {"decision": "deny", "reason": "too much"}}]), Some(Decision::Deny))]
    #[case(json!([{"text": "perhaps"}]), None)]
    #[case(json!([{"text": "allow"}, {"text": "deny"}]), None)]
    #[case(json!([{"data": {"decision": "maybe"}}]), None)]
    fn an_approval_is_answered_by_one_clear_part(#[case] parts: Value, #[case] expected: Option<Decision>) {
        let answer = message(parts).approval_answer();
        assert_eq!(answer.ok().map(|(_, answer)| answer.decision), expected);
    }
}
