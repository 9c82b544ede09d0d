//! Questions that an MCP server asks the user while a call runs there (elicitation), and the text form of answers.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::word_enum::word_enum;

/// A question of an MCP server. It is answered as an approval: allow accepts it, deny declines it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerQuestion {
    /// The name of the server.
    pub server: String,
    /// The question, in the words of the server.
    pub message: String,
    /// The fields of the answer, in order; none for a question that is only accepted or declined.
    pub fields: Vec<QuestionField>,
}

/// One field of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuestionField {
    pub name: String,
    /// The label for people, if the server gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub kind: QuestionFieldKind,
    /// The values to choose from, for the kinds `choice` and `choices`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    pub required: bool,
    /// The value that the server proposes. It counts if the answer has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub default: Option<Value>,
}

word_enum! {
    /// The type of a field's value.
    QuestionFieldKind {
        /// A string.
        Text "text",
        /// Any number.
        Number "number",
        /// A whole number.
        Integer "integer",
        /// True or false.
        Boolean "boolean",
        /// One of the options.
        Choice "choice",
        /// Any number of the options.
        Choices "choices",
    }
}

impl ServerQuestion {
    /// The question in the form of a call's arguments, so that every client shows it.
    #[must_use]
    pub fn to_arguments(&self) -> Value {
        let fields = self.fields.iter().map(|field| (field.name.clone(), Value::String(field.describe())));
        let mut arguments = Map::new();
        arguments.insert("question".to_owned(), Value::String(self.message.clone()));
        if !self.fields.is_empty() {
            arguments.insert("answer".to_owned(), Value::Object(fields.collect()));
        }
        Value::Object(arguments)
    }

    /// How an answer is written behind a command, such as `name=TEXT age=INTEGER`; empty without fields.
    #[must_use]
    pub fn answer_form(&self) -> String {
        let form = |field: &QuestionField| format!("{}={}", field.name, field.kind.as_str().to_uppercase());
        self.fields.iter().map(form).collect::<Vec<_>>().join(" ")
    }
}

impl QuestionField {
    /// The kind, whether it is required, and the server's words, in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = match self.options.as_slice() {
            [] => self.kind.as_str().to_owned(),
            options => format!("{}: {}", self.kind.as_str(), options.join(" | ")),
        };
        text.push_str(if self.required { ", required" } else { ", optional" });
        if let Some(default) = &self.default {
            text.push_str(&format!(", proposed: {default}"));
        }
        for words in [&self.title, &self.description].into_iter().flatten() {
            text.push_str(&format!(" · {words}"));
        }
        text
    }
}

/// Parses `name=Ada Lovelace age=36`: each word with `=` begins a field, and words without one continue its value.
/// Returns `None` if the first word begins no field.
#[must_use]
pub fn parse_answer_fields(words: &str) -> Option<Map<String, Value>> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for word in words.split_whitespace() {
        match word.split_once('=').filter(|(name, _)| is_field_name(name)) {
            Some((name, value)) => fields.push((name.to_owned(), value.to_owned())),
            None => {
                let (_, value) = fields.last_mut()?;
                value.push(' ');
                value.push_str(word);
            }
        }
    }
    let fields = fields.into_iter().map(|(name, value)| (name, Value::String(value.trim().to_owned())));
    Some(fields.collect()).filter(|fields: &Map<String, Value>| !fields.is_empty())
}

fn is_field_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_without_a_name_continue_the_value_before() {
        let fields = parse_answer_fields("name=Ada  Lovelace age=36 formula=a").unwrap();
        assert_eq!(Value::Object(fields), json!({"name": "Ada Lovelace", "age": "36", "formula": "a"}));
        assert_eq!(parse_answer_fields("Ada age=36"), None);
        assert_eq!(parse_answer_fields(""), None);
    }

    #[test]
    fn a_question_is_shown_with_all_its_fields() {
        let field = QuestionField {
            name: "colour".to_owned(),
            title: Some("Colour".to_owned()),
            description: None,
            kind: QuestionFieldKind::Choice,
            options: vec!["red".to_owned(), "blue".to_owned()],
            required: true,
            default: Some(json!("red")),
        };
        let question =
            ServerQuestion { server: "paint".to_owned(), message: "Which one?".to_owned(), fields: vec![field] };
        let shown = json!({
            "question": "Which one?",
            "answer": {"colour": "choice: red | blue, required, proposed: \"red\" · Colour"},
        });
        assert_eq!(question.to_arguments(), shown);
        assert_eq!(question.answer_form(), "colour=CHOICE");
    }
}
