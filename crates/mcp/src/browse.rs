//! Show the resources and prompts of a configured server to a person: start the server, ask it, end it.

use std::path::Path;
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{GetPromptRequestParams, JsonObject, Prompt, ReadResourceRequestParams, Resource, Role};
use tokio::time::timeout;

use super::Mcp;
use super::instance::McpConnection;
use super::probe::{McpServerHealth, with_server};
use super::result::{block_text, resource_text};

/// How long a server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What a person wants to see.
#[derive(Debug, Clone, PartialEq)]
pub enum McpBrowseRequest {
    /// The list of resources.
    Resources,
    /// The content of the resource with this URI.
    Resource(String),
    /// The list of prompts.
    Prompts,
    /// A prompt with its arguments filled in.
    Prompt { name: String, arguments: JsonObject },
}

/// A resource or a prompt in a list.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct McpListedItem {
    /// The URI of a resource, or the name of a prompt.
    pub id: String,
    /// What the server says about it.
    pub description: String,
    /// The names of the arguments of a prompt; optional ones end with `?`.
    pub arguments: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpBrowseAnswer {
    Items(Vec<McpListedItem>),
    /// A content, as text.
    Text(String),
}

/// Starts a configured server in `workdir`, asks it, and ends it.
///
/// # Errors
/// Why the server could not be asked, or what it refused.
///
/// # Cancel safety
/// As [`super::probe()`].
pub async fn browse(
    mcp: &Mcp,
    server: &str,
    workdir: &Path,
    request: McpBrowseRequest,
) -> Result<McpBrowseAnswer, McpServerHealth> {
    let ask = async |connection: &McpConnection| {
        // waits: for a person's command, within `ANSWER_TIMEOUT`; no run waits here.
        match timeout(ANSWER_TIMEOUT, ask(connection, request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(refusal(&error)),
            Err(_) => Err(format!("it did not answer within {} s", ANSWER_TIMEOUT.as_secs())),
        }
    };
    // waits: for a person's command; no run waits here.
    let asked = with_server(mcp, server, workdir, ask).await?;
    asked.map_err(McpServerHealth::unavailable)
}

async fn ask(connection: &McpConnection, request: McpBrowseRequest) -> Result<McpBrowseAnswer, ServiceError> {
    let peer = &connection.peer;
    Ok(match request {
        McpBrowseRequest::Resources => {
            // waits: within `ANSWER_TIMEOUT`, in `browse`.
            McpBrowseAnswer::Items(peer.list_all_resources().await?.into_iter().map(resource_item).collect())
        }
        McpBrowseRequest::Prompts => {
            // waits: within `ANSWER_TIMEOUT`, in `browse`.
            McpBrowseAnswer::Items(peer.list_all_prompts().await?.into_iter().map(prompt_item).collect())
        }
        McpBrowseRequest::Resource(uri) => {
            // waits: within `ANSWER_TIMEOUT`, in `browse`.
            let read = peer.read_resource(ReadResourceRequestParams::new(uri)).await?;
            McpBrowseAnswer::Text(read.contents.iter().map(resource_text).collect::<Vec<_>>().join("\n"))
        }
        McpBrowseRequest::Prompt { name, arguments } => {
            let request = GetPromptRequestParams::new(name).with_arguments(arguments);
            // waits: within `ANSWER_TIMEOUT`, in `browse`.
            let messages = peer.get_prompt(request).await?.messages;
            let lines = messages.iter().map(|message| {
                let role = if message.role == Role::User { "user" } else { "assistant" };
                format!("{role}: {}", block_text(&message.content))
            });
            McpBrowseAnswer::Text(lines.collect::<Vec<_>>().join("\n\n"))
        }
    })
}

fn resource_item(resource: Resource) -> McpListedItem {
    let Resource { uri, name, title, description, .. } = resource;
    McpListedItem { id: uri, description: description.or(title).unwrap_or(name), arguments: Vec::new() }
}

fn prompt_item(prompt: Prompt) -> McpListedItem {
    let arguments = prompt.arguments.unwrap_or_default().into_iter();
    let arguments = arguments
        .map(|argument| format!("{}{}", argument.name, if argument.required == Some(true) { "" } else { "?" }));
    McpListedItem {
        id: prompt.name,
        description: prompt.description.or(prompt.title).unwrap_or_default(),
        arguments: arguments.collect(),
    }
}

/// A clause that begins with "it".
fn refusal(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(refusal) => {
            format!("it refused: {}", quell_protocol::display_text::one_line(&refusal.message, 300))
        }
        ServiceError::TransportClosed => "its connection ended".to_owned(),
        _ => "it gave no valid answer".to_owned(),
    }
}
