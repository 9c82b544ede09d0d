//! Reads the fields of a request body, with errors that name the field.

use serde_json::{Map, Value};

use super::{ClientRequestProblem, RequestProblemKind};
use crate::turn::is_blank;

/// A value of the body, with its path.
#[derive(Debug, Clone)]
pub(super) struct RequestField<'a> {
    pub value: &'a Value,
    /// As `messages[2].content`; empty for the body itself.
    pub path: String,
}

/// An object of the body, with its path.
#[derive(Debug, Clone)]
pub(super) struct RequestObject<'a> {
    fields: &'a Map<String, Value>,
    path: String,
}

/// What a format does with a field of an object.
#[derive(Debug, Clone, Copy)]
pub(super) enum FieldRule {
    /// The parser reads it.
    Read,
    /// It does not change the answer, so any value is accepted and ignored.
    Ignored,
    /// Only a value that changes nothing is accepted. The text says which.
    Only(fn(&Value) -> bool, &'static str),
    /// It cannot be passed to every provider. The text says what to do.
    Refused(&'static str),
}

/// The fields of an object, by name. A field that is not in the table does not exist in the format.
pub(super) type FieldTable = [(&'static str, FieldRule)];

impl<'a> RequestField<'a> {
    pub(super) fn body(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    pub(super) fn problem(&self, kind: RequestProblemKind, message: impl Into<String>) -> ClientRequestProblem {
        ClientRequestProblem::new(kind, self.path.clone(), message)
    }

    pub(super) fn invalid(&self, message: impl Into<String>) -> ClientRequestProblem {
        self.problem(RequestProblemKind::Invalid, message)
    }

    pub(super) fn unsupported(&self, message: impl Into<String>) -> ClientRequestProblem {
        self.problem(RequestProblemKind::Unsupported, message)
    }

    fn expected(&self, what: &str) -> ClientRequestProblem {
        self.invalid(format!("expected {what}, but got {}", type_name(self.value)))
    }

    pub(super) fn object(&self) -> Result<RequestObject<'a>, ClientRequestProblem> {
        match self.value {
            Value::Object(fields) => Ok(RequestObject { fields, path: self.path.clone() }),
            _ => Err(self.expected("an object")),
        }
    }

    pub(super) fn items(&self) -> Result<impl Iterator<Item = RequestField<'a>> + use<'a>, ClientRequestProblem> {
        self.items_of("an array")
    }

    /// The items of a field that may also be a text, which the caller has taken.
    pub(super) fn items_unless_text(
        &self,
    ) -> Result<impl Iterator<Item = RequestField<'a>> + use<'a>, ClientRequestProblem> {
        self.items_of("a string or an array")
    }

    fn items_of(&self, what: &str) -> Result<impl Iterator<Item = RequestField<'a>> + use<'a>, ClientRequestProblem> {
        let Value::Array(items) = self.value else { return Err(self.expected(what)) };
        let path = self.path.clone();
        Ok(items.iter().enumerate().map(move |(at, value)| RequestField { value, path: format!("{path}[{at}]") }))
    }

    pub(super) fn string(&self) -> Result<&'a str, ClientRequestProblem> {
        self.value.as_str().ok_or_else(|| self.expected("a string"))
    }

    pub(super) fn boolean(&self) -> Result<bool, ClientRequestProblem> {
        self.value.as_bool().ok_or_else(|| self.expected("a boolean"))
    }

    /// The strings of an array, none of them blank.
    pub(super) fn nonblank_strings(&self) -> Result<Vec<String>, ClientRequestProblem> {
        let text = |item: RequestField<'_>| match item.string()? {
            text if is_blank(text) => Err(item.invalid("must contain a character that is not blank")),
            text => Ok(text.to_owned()),
        };
        self.items()?.map(text).collect()
    }

    /// A number from `least` to `most`.
    pub(super) fn number(&self, least: f64, most: f64) -> Result<f64, ClientRequestProblem> {
        let number = self.value.as_f64().ok_or_else(|| self.expected("a number"))?;
        if (least..=most).contains(&number) {
            Ok(number)
        } else {
            Err(self.invalid(format!("must be from {least} to {most}")))
        }
    }

    /// A whole number of at least `least`.
    pub(super) fn count(&self, least: u32) -> Result<u32, ClientRequestProblem> {
        let number = self.value.as_u64().ok_or_else(|| self.expected("a positive integer"))?;
        match u32::try_from(number) {
            Ok(number) if number >= least => Ok(number),
            Ok(_) => Err(self.invalid(format!("must be at least {least}"))),
            Err(_) => Err(self.invalid(format!("must be at most {}", u32::MAX))),
        }
    }
}

impl<'a> RequestObject<'a> {
    /// The field, unless it is absent or null.
    pub(super) fn optional(&self, name: &str) -> Option<RequestField<'a>> {
        let value = self.fields.get(name).filter(|value| !value.is_null())?;
        Some(RequestField { value, path: self.path_of(name) })
    }

    pub(super) fn required(&self, name: &str) -> Result<RequestField<'a>, ClientRequestProblem> {
        self.optional(name).ok_or_else(|| {
            ClientRequestProblem::new(RequestProblemKind::Missing, self.path_of(name), "this field is required")
        })
    }

    /// The string of the required field `type`.
    pub(super) fn type_name(&self) -> Result<&'a str, ClientRequestProblem> {
        self.required("type")?.string()
    }

    /// Checks which fields are set. A null counts as absent.
    pub(super) fn check_fields(&self, table: &FieldTable) -> Result<(), ClientRequestProblem> {
        for (name, value) in self.fields.iter().filter(|(_, value)| !value.is_null()) {
            let problem = |kind, message: String| ClientRequestProblem::new(kind, self.path_of(name), message);
            match table.iter().find(|(known, _)| known == name).map(|(_, rule)| rule) {
                Some(FieldRule::Read | FieldRule::Ignored) => {}
                Some(FieldRule::Only(is_accepted, _)) if is_accepted(value) => {}
                Some(FieldRule::Only(_, accepted)) => {
                    let message = format!("no other value than {accepted} is supported; leave the field out");
                    return Err(problem(RequestProblemKind::Unsupported, message));
                }
                Some(FieldRule::Refused(advice)) => {
                    return Err(problem(RequestProblemKind::Unsupported, format!("not supported; {advice}")));
                }
                None => {
                    let message = "there is no such field; leave it out".to_owned();
                    return Err(problem(RequestProblemKind::UnknownField, message));
                }
            }
        }
        Ok(())
    }

    fn path_of(&self, name: &str) -> String {
        join_path(&self.path, name)
    }
}

fn join_path(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
