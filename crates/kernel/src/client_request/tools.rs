//! The tools of a client, with the checks that all formats share.

use std::sync::Arc;

use super::fields::RequestField;
use super::{AnswerOptions, ClientRequestProblem};
use crate::ToolSpec;

/// The longest name of a tool that every provider accepts.
const MAX_NAME_CHARS: usize = 64;

/// A tool as the client describes it.
pub(super) struct ClientTool<'a> {
    pub name: RequestField<'a>,
    pub description: String,
    /// The JSON schema of the arguments; without one, the tool has none.
    pub parameters: Option<RequestField<'a>>,
    pub is_strict: bool,
}

impl AnswerOptions {
    pub(super) fn add_tool(&mut self, tool: ClientTool<'_>) -> Result<(), ClientRequestProblem> {
        let name = tool.name.string()?;
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.chars().all(is_legal) {
            return Err(tool.name.invalid("a name has 1 to 64 letters, digits, `_` and `-`"));
        }
        if self.tools.iter().any(|before| before.name == name) {
            return Err(tool.name.invalid("tool names must be unique"));
        }
        let parameters = match &tool.parameters {
            Some(schema) => {
                schema.object()?;
                schema.value.clone()
            }
            None => serde_json::json!({"type": "object", "properties": {}}),
        };
        if tool.is_strict {
            self.strict_tools.push(name.to_owned());
        }
        let parameters = Arc::new(parameters);
        self.tools.push(ToolSpec { name: name.to_owned(), description: tool.description, parameters });
        Ok(())
    }

    /// The name of a tool that the client describes.
    pub(super) fn known_tool(&self, name: &RequestField<'_>) -> Result<String, ClientRequestProblem> {
        let wanted = name.string()?;
        if self.tools.iter().any(|tool| tool.name == wanted) {
            Ok(wanted.to_owned())
        } else {
            Err(name.invalid("no tool in `tools` has this name"))
        }
    }
}
