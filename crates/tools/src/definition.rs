//! Define a tool by the type of its arguments: the description for the model, the JSON schema, and the parser that
//! explains errors to the model.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use quell_kernel::ToolSpec;
use quell_kernel::call_batch::CallConcurrency;
use quell_kernel::escalation::ESCALATE_ARGUMENT;
use quell_protocol::sandbox::SandboxMode;
use quell_protocol::{AgentId, ResourceKind};

use crate::sandbox_note;
use crate::text::quoted;

/// The arguments of a tool. The doc comments of their fields are part of the schema that models read.
pub trait ToolArguments: DeserializeOwned + JsonSchema + Send + 'static {
    const NAME: &'static str;
    /// The description of the tool for the model.
    const ABOUT: &'static str;
    /// An example of valid arguments, as JSON.
    const EXAMPLE: &'static str;
    /// The kind of resource that a call holds. Receipts show it for a call that ended with the daemon.
    const RESOURCE_KIND: ResourceKind = ResourceKind::Task;
    /// Whether the mode of the agent's sandbox holds its calls back, so that a call may ask to run outside.
    const IS_SANDBOXED: bool = false;
    /// Whether a call may run beside others of the same message.
    const CONCURRENCY: CallConcurrency = CallConcurrency::Exclusive;

    /// The description for the model of this agent; `None` if the agent is not offered the tool.
    fn spec_for(_: &AgentFacts<'_>) -> Option<ToolSpec> {
        Some(tool_spec::<Self>())
    }
}

/// The facts of an agent that descriptions of tools mention.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentFacts<'a> {
    /// Timeout of a foreground command whose call gives none, in seconds.
    pub shell_timeout_s: u64,
    /// The sandbox of its commands, if it is known.
    pub sandbox: Option<SandboxMode>,
    /// Whether its calls may ask to run outside of the sandbox.
    pub may_escalate: bool,
    /// The agents to which it may delegate work.
    pub delegates: &'a [Delegate<'a>],
}

/// An agent to which another one may delegate work.
#[derive(Debug, Clone, Copy)]
pub struct Delegate<'a> {
    pub id: &'a AgentId,
    pub role: Option<&'a str>,
}

/// What is known of a tool without a call.
#[derive(Debug, Clone, Copy)]
pub struct ToolDefinition<'t> {
    pub name: &'t str,
    /// The kind of resource that a call holds.
    pub resource_kind: ResourceKind,
    /// Whether a call may ask to run outside of the sandbox.
    pub is_sandboxed: bool,
    /// Whether a call may run beside others of the same message.
    pub concurrency: CallConcurrency,
    /// The description for the model of an agent; `None` if the agent is not offered the tool.
    pub spec_for: fn(&AgentFacts<'_>) -> Option<ToolSpec>,
    /// Whether a call could begin with these arguments. The error is for the model. `Ok` if only the tool itself can tell,
    /// as for those of MCP servers.
    pub check_arguments: fn(&Value) -> Result<(), String>,
}

impl ToolDefinition<'static> {
    pub const fn of<T: ToolArguments>() -> Self {
        Self {
            name: T::NAME,
            resource_kind: T::RESOURCE_KIND,
            is_sandboxed: T::IS_SANDBOXED,
            concurrency: T::CONCURRENCY,
            spec_for: T::spec_for,
            check_arguments: |arguments| parse_arguments::<T>(arguments).map(drop),
        }
    }

    /// The description for the model of an agent, with the argument by which a call asks to run outside of the sandbox
    /// if the agent may ask.
    pub fn offered_spec(&self, agent: &AgentFacts<'_>) -> Option<ToolSpec> {
        let spec = (self.spec_for)(agent)?;
        Some(if self.is_sandboxed && agent.may_escalate { with_escalation(spec) } else { spec })
    }
}

/// Adds the argument by which a call asks to run outside of the sandbox. The engine takes it out of a call before the
/// tool sees it.
fn with_escalation(spec: ToolSpec) -> ToolSpec {
    let mut parameters = Value::clone(&spec.parameters);
    if let Some(properties) = parameters.get_mut("properties").and_then(Value::as_object_mut) {
        let property = json!({"type": "string", "description": sandbox_note::ESCALATE_DESCRIPTION});
        properties.insert(ESCALATE_ARGUMENT.to_owned(), property);
    }
    ToolSpec { parameters: parameters.into(), ..spec }
}

/// The description of a tool that is the same for all agents.
pub fn tool_spec<T: ToolArguments>() -> ToolSpec {
    ToolSpec { name: T::NAME.into(), description: T::ABOUT.into(), parameters: parameter_schema::<T>().into() }
}

/// Parses arguments. The error names the wrong field, what is expected there, and an example of a valid call.
pub fn parse_arguments<T: ToolArguments>(given: &Value) -> Result<T, String> {
    let empty = Value::Object(Map::new());
    let given = if given.is_null() { &empty } else { given };
    let problem = match check_against_schema(&parameter_schema::<T>(), given) {
        Err(problem) => problem,
        Ok(()) => match T::deserialize(given) {
            Ok(arguments) => return Ok(arguments),
            Err(error) => error.to_string(),
        },
    };
    Err(format!(
        "Bad arguments for {}: {problem}. Nothing was done. A right call looks like this: {}",
        T::NAME,
        T::EXAMPLE
    ))
}

/// The schema in the simple form that every provider accepts: no references, no titles, optional instead of nullable.
fn parameter_schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.meta_schema = None;
        s.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    schema.remove("description");
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().filter_map(Value::as_object_mut).for_each(simplify_property);
    }
    Schema::to_value(schema)
}

fn simplify_property(property: &mut Map<String, Value>) {
    property.remove("format");
    property.remove("default");
    let first = property.get("type").and_then(|kind| kind.get(0)).cloned();
    if let Some(kind) = first {
        property.insert("type".into(), kind);
    }
}

fn check_against_schema(schema: &Value, given: &Value) -> Result<(), String> {
    let Value::Object(given) = given else {
        return Err(format!("expected an object, got {}", describe_value(given)));
    };
    let properties = schema.get("properties").and_then(Value::as_object);
    let names = || {
        let mut names: Vec<String> = properties.into_iter().flatten().map(|(name, _)| format!("`{name}`")).collect();
        names.sort_unstable();
        names.join(", ")
    };
    let is_required =
        |name: &str| schema.get("required").and_then(Value::as_array).is_some_and(|all| all.iter().any(|n| n == name));
    for (name, value) in given {
        let Some(property) = properties.and_then(|p| p.get(name)) else {
            return Err(format!("there is no field {}; the fields are {}", quoted(name), names()));
        };
        if value.is_null() && !is_required(name) {
            continue;
        }
        check_type(property, value)
            .map_err(|wanted| format!("field `{name}`: expected {wanted}, got {}", describe_value(value)))?;
    }
    match properties.into_iter().flatten().find(|(name, _)| is_required(name) && !given.contains_key(*name)) {
        Some((name, property)) => {
            let about = property.get("description").and_then(Value::as_str).unwrap_or_default();
            Err(format!("field `{name}` is missing: {}", about.trim_end_matches('.')))
        }
        None => Ok(()),
    }
}

fn check_type(property: &Value, value: &Value) -> Result<(), &'static str> {
    match property.get("type").and_then(Value::as_str) {
        Some("string") if !value.is_string() => Err("a text"),
        Some("boolean") if !value.is_boolean() => Err("true or false"),
        Some("array") if !value.is_array() => Err("a list"),
        Some("integer") if !value.is_u64() => Err("a whole number, not negative"),
        _ => Ok(()),
    }
}

fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("the text {}", quoted(text)),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct TestArguments {
        /// Which file.
        path: String,
        /// How many.
        limit: Option<u64>,
        /// Whether all.
        all: Option<bool>,
    }

    impl ToolArguments for TestArguments {
        const NAME: &'static str = "probe";
        const ABOUT: &'static str = "Tests.";
        const EXAMPLE: &'static str = r#"{"path": "a"}"#;
    }

    #[test]
    fn schemas_are_plain() {
        assert_eq!(
            *tool_spec::<TestArguments>().parameters,
            json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Which file."},
                    "limit": {"type": "integer", "description": "How many.", "minimum": 0},
                    "all": {"type": "boolean", "description": "Whether all."},
                },
                "required": ["path"],
                "additionalProperties": false,
            })
        );
    }

    #[rstest]
    #[case(json!({}), "field `path` is missing: Which file")]
    #[case(json!(null), "field `path` is missing")]
    #[case(json!([]), "expected an object, got a list")]
    #[case(json!("{}"), "expected an object, got the text")]
    #[case(json!({"path": 5}), "field `path`: expected a text, got 5")]
    #[case(json!({"path": null}), "field `path`: expected a text, got null")]
    #[case(json!({"path": "a", "limit": -1}), "field `limit`: expected a whole number, not negative, got -1")]
    #[case(json!({"path": "a", "limit": "9"}), "field `limit`: expected a whole number, not negative, got the text \"9\"")]
    #[case(json!({"path": "a", "all": {}}), "field `all`: expected true or false, got an object")]
    #[case(json!({"path": "a", "pth\n": 1}), "there is no field \"pth\\n\"; the fields are `all`, `limit`, `path`")]
    fn bad_arguments_are_explained(#[case] given: Value, #[case] wanted: &str) {
        let problem = parse_arguments::<TestArguments>(&given).unwrap_err();
        assert!(problem.contains(wanted), "{problem}");
        assert!(problem.ends_with(r#"{"path": "a"}"#), "{problem}");
    }

    #[test]
    fn optional_fields_may_be_null() {
        let given = json!({"path": "a", "limit": null, "all": true});
        assert_eq!(parse_arguments(&given), Ok(TestArguments { path: "a".into(), limit: None, all: Some(true) }));
    }
}
