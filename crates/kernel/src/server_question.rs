//! Check the answer of a person to a question of an MCP server: every value has the type that the server asked for.

use quell_protocol::question::{QuestionField, QuestionFieldKind, ServerQuestion};
use serde_json::{Map, Number, Value};

/// What is wrong with the fields of an answer. Nothing is answered then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuestionProblem {
    #[error("the call asks no question; leave `fields` out")]
    NoQuestion,
    #[error("a question is declined without fields")]
    DeclinedWithFields,
    #[error("an answer to a question is for this question alone; leave `scope` and `pattern` out")]
    WithScope,
    #[error("the question has no field {name:?}; it has: {known}")]
    UnknownField { name: String, known: String },
    #[error("the answer needs the field {name:?} ({kind}); write {form}")]
    Missing { name: String, kind: String, form: String },
    #[error("the field {name:?} must be: {kind}")]
    WrongValue { name: String, kind: String },
}

/// The fields of an accepted answer, in the types of the question. Text is converted, as from a chat.
///
/// # Errors
/// [`QuestionProblem`] names the first field that does not fit.
pub fn check_question_answer(
    question: &ServerQuestion,
    given: Option<&Map<String, Value>>,
) -> Result<Map<String, Value>, QuestionProblem> {
    let empty = Map::new();
    let given = given.unwrap_or(&empty);
    if let Some(name) = given.keys().find(|name| question.fields.iter().all(|field| field.name != **name)) {
        let known = match question.fields.as_slice() {
            [] => "none".to_owned(),
            fields => fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", "),
        };
        return Err(QuestionProblem::UnknownField { name: name.clone(), known });
    }
    let mut answer = Map::new();
    for field in &question.fields {
        let name = field.name.clone();
        match given.get(&field.name).filter(|value| !is_blank(value, field.kind)) {
            Some(value) => {
                let kind = || field.describe();
                let value = convert_value(field, value)
                    .ok_or_else(|| QuestionProblem::WrongValue { name: name.clone(), kind: kind() })?;
                answer.insert(name, value);
            }
            None => match &field.default {
                Some(default) => drop(answer.insert(name, default.clone())),
                None if field.required => {
                    let (kind, form) = (field.describe(), question.answer_form());
                    return Err(QuestionProblem::Missing { name, kind, form });
                }
                None => {}
            },
        }
    }
    Ok(answer)
}

/// True for what a form sends for a field that nobody filled in.
fn is_blank(value: &Value, kind: QuestionFieldKind) -> bool {
    value.is_null() || (value == "" && kind != QuestionFieldKind::Text)
}

fn convert_value(field: &QuestionField, value: &Value) -> Option<Value> {
    let is_option = |text: &str| field.options.iter().any(|option| option == text);
    match (field.kind, value) {
        (QuestionFieldKind::Text, Value::String(_)) | (QuestionFieldKind::Boolean, Value::Bool(_)) => {
            Some(value.clone())
        }
        (QuestionFieldKind::Number, Value::Number(_)) => Some(value.clone()),
        (QuestionFieldKind::Number, Value::String(text)) => {
            let whole = text.trim().parse::<i64>().ok().map(Number::from);
            whole.or_else(|| text.trim().parse().ok().and_then(Number::from_f64)).map(Value::Number)
        }
        (QuestionFieldKind::Integer, Value::Number(number)) => number.as_i64().map(Value::from),
        (QuestionFieldKind::Integer, Value::String(text)) => text.trim().parse::<i64>().ok().map(Value::from),
        (QuestionFieldKind::Boolean, Value::String(text)) => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "y" | "1" => Some(Value::Bool(true)),
            "false" | "no" | "n" | "0" => Some(Value::Bool(false)),
            _ => None,
        },
        (QuestionFieldKind::Choice, Value::String(text)) => is_option(text).then(|| value.clone()),
        (QuestionFieldKind::Choices, Value::String(text)) => {
            let chosen: Vec<&str> = text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
            chosen.iter().all(|text| is_option(text)).then(|| Value::from(chosen))
        }
        (QuestionFieldKind::Choices, Value::Array(chosen)) => {
            chosen.iter().all(|option| option.as_str().is_some_and(is_option)).then(|| value.clone())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(name: &str, kind: QuestionFieldKind) -> QuestionField {
        let options = vec!["red".to_owned(), "blue".to_owned()];
        let options = if name.starts_with("colour") { options } else { Vec::new() };
        QuestionField {
            name: name.to_owned(),
            title: None,
            description: None,
            kind,
            options,
            required: true,
            default: None,
        }
    }

    fn question() -> ServerQuestion {
        let optional = QuestionField { required: false, ..field("note", QuestionFieldKind::Text) };
        let proposed = QuestionField { default: Some(json!(3)), ..field("count", QuestionFieldKind::Integer) };
        let fields = vec![
            field("name", QuestionFieldKind::Text),
            field("size", QuestionFieldKind::Number),
            field("sure", QuestionFieldKind::Boolean),
            field("colour", QuestionFieldKind::Choice),
            field("colours", QuestionFieldKind::Choices),
            optional,
            proposed,
        ];
        ServerQuestion { server: "s".to_owned(), message: "m".to_owned(), fields }
    }

    fn check(answer: &Value) -> Result<Value, QuestionProblem> {
        check_question_answer(&question(), answer.as_object()).map(Value::Object)
    }

    fn with(name: &str, value: Value) -> Value {
        let mut answer =
            json!({"name": "Ada", "size": "1.5", "sure": "yes", "colour": "red", "colours": "red, blue", "note": null});
        answer[name] = value;
        answer
    }

    #[test]
    fn text_is_converted_to_the_types_of_the_question() {
        let typed =
            json!({"name": "Ada", "size": 1.5, "sure": true, "colour": "red", "colours": ["red", "blue"], "count": 3});
        assert_eq!(check(&with("note", Value::Null)), Ok(typed.clone()));
        assert_eq!(check(&typed), Ok(typed));
        assert_eq!(check(&with("count", json!("4"))).unwrap()["count"], 4);
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_by_name() {
        for (name, value) in [
            ("name", json!(1)),
            ("size", json!("big")),
            ("sure", json!("perhaps")),
            ("colour", json!("green")),
            ("colours", json!(["red", "green"])),
            ("count", json!(1.5)),
        ] {
            let problem = check(&with(name, value)).unwrap_err();
            assert!(matches!(&problem, QuestionProblem::WrongValue { name: wrong, .. } if wrong == name), "{problem}");
        }
    }

    #[test]
    fn a_missing_and_an_unknown_field_are_named() {
        let problem = check_question_answer(&question(), None).unwrap_err();
        assert!(
            problem.to_string().contains("the field \"name\" (text, required); write name=TEXT size="),
            "{problem}"
        );
        let problem = check(&with("nmae", json!("Ada"))).unwrap_err();
        assert!(problem.to_string().contains("no field \"nmae\"; it has: name, size"), "{problem}");
    }
}
