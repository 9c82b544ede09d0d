//! Resources and prompts of MCP servers, for people, and the text form of the commands that ask for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::AgentId;
use crate::question::parse_answer_fields;

/// The longest name of a server in a command.
const MAX_SERVER_CHARS: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpListKind {
    Resources,
    Prompts,
}

/// What a person wants to have as the text of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpContentRequest {
    /// The resource with this URI.
    Resource(String),
    /// A prompt with its arguments filled in.
    Prompt { name: String, arguments: BTreeMap<String, String> },
}

/// A command for a message that is built from what a server gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpContentCommand {
    pub server: String,
    pub request: McpContentRequest,
    /// What the person writes below it.
    pub text: String,
}

impl McpContentCommand {
    /// Parses the words behind `/prompt`: `SERVER NAME ARGUMENT=VALUE`, with as many arguments as the prompt has.
    #[must_use]
    pub fn parse_prompt(words: &str) -> Option<Self> {
        let (server, name, rest) = split_target(words)?;
        let fields = if rest.is_empty() { serde_json::Map::new() } else { parse_answer_fields(rest)? };
        let arguments = fields.into_iter().map(|(name, value)| match value {
            serde_json::Value::String(text) => (name, text),
            other => (name, other.to_string()),
        });
        let request = McpContentRequest::Prompt { name, arguments: arguments.collect() };
        Some(Self { server, request, text: String::new() })
    }

    /// Parses the words behind `/resource`: `SERVER URI TEXT`.
    #[must_use]
    pub fn parse_resource(words: &str) -> Option<Self> {
        let (server, uri, text) = split_target(words)?;
        Some(Self { server, request: McpContentRequest::Resource(uri), text: text.to_owned() })
    }
}

/// A server, the name of what it has, and the rest.
fn split_target(words: &str) -> Option<(String, String, &str)> {
    let (server, rest) = words.trim().split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let is_plain = |word: &str| !word.starts_with('-') && !word.contains(char::is_control);
    let is_valid = is_plain(server) && is_plain(name) && server.chars().nth(MAX_SERVER_CHARS).is_none();
    is_valid.then(|| (server.to_owned(), name.to_owned(), rest.trim()))
}

/// A resource or a prompt in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpListedItem {
    /// The name of the server.
    pub server: String,
    /// The URI of a resource, or the name of a prompt.
    pub id: String,
    /// What the server says about it.
    pub description: String,
    /// The arguments of a prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<McpPromptArgument>,
}

impl McpListedItem {
    /// The name with the arguments as a command takes them: `review topic= [depth=]`.
    #[must_use]
    pub fn command_form(&self) -> String {
        let arguments = self.arguments.iter().map(|argument| match argument.required {
            true => format!(" {}=", argument.name),
            false => format!(" [{}=]", argument.name),
        });
        format!("{}{}", self.id, arguments.collect::<String>())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpPromptArgument {
    pub name: String,
    pub required: bool,
}

/// The resources or the prompts of the servers that an agent may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpList {
    pub items: Vec<McpListedItem>,
    /// The servers that could not be asked.
    pub unavailable: Vec<McpUnavailableServer>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpUnavailableServer {
    pub server: String,
    /// Why, and what to do about it.
    pub problem: String,
}

/// The body of `POST /api/mcp/{server}/prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct McpPromptRequest {
    pub name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, String>,
    /// The agent as which the server is asked; the default agent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
}

/// The body of `POST /api/mcp/{server}/resource`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct McpResourceRequest {
    pub uri: String,
    /// The agent as which the server is asked; the default agent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
}

/// A resource, or a prompt with its arguments filled in, as the text of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpContent {
    pub text: String,
}
