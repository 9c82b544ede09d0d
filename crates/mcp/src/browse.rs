//! Show the resources and prompts of servers to a person: list them, and read one as the text of a message.
//!
//! It starts a server as a call does, and ends it if its answer is not waited for. No run is part of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quell_protocol::display_text::one_line;
use quell_protocol::mcp::{
    McpContentRequest, McpList, McpListKind, McpListedItem, McpPromptArgument, McpUnavailableServer,
};
use quell_protocol::{AgentId, BadId, Principal, RunId, SessionKey};
use rmcp::model::{
    GetPromptRequestParams, PaginatedRequestParams, Prompt, PromptMessage, ReadResourceRequestParams, Resource, Role,
};
use rmcp::service::Peer;
use rmcp::{RoleClient, ServiceError};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::client::{McpClient, McpClientOptions};
use super::instance::{InstanceEnd, InstanceLease, McpConnection, ServerInstance};
use super::result::{block_text, resource_text, truncate_with_note};
use super::server::McpServer;
use super::{Mcp, ServerPool};

/// How long a server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of resources or prompts of one server.
const MAX_ITEMS: usize = 1000;
/// The maximum number of pages that a server is asked for.
const MAX_PAGES: usize = 100;
/// An item with a longer URI or name is left out.
const MAX_ID_CHARS: usize = 2000;
/// The maximum number of characters of a description; a longer one is cut.
const MAX_DESCRIPTION_CHARS: usize = 1000;
/// The maximum number of arguments of a prompt that are listed.
const MAX_ARGUMENTS: usize = 100;
/// The maximum size of a content; a longer one is cut with a note.
const MAX_CONTENT_BYTES: usize = 256 * 1024;
/// How long the servers of a command may take to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a person wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpBrowseRequest {
    List(McpListKind),
    Content(McpContentRequest),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpBrowseAnswer {
    Items(Vec<McpListedItem>),
    Text(String),
}

/// Why a person does not get what they asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum McpBrowseError {
    #[error("there is no MCP server {name:?} here; there are: {}", list_names(.known))]
    UnknownServer { name: String, known: Vec<String> },
    #[error("the MCP server {server} is not available: {problem}")]
    Unavailable { server: String, problem: String },
    #[error("the MCP server {server} refused it: {problem}")]
    Refused { server: String, problem: String },
    #[error("it was stopped, as everything was; ask again")]
    Stopped,
}

/// The stops of everything since its creation, which end a person's request. Clones see the same ones.
#[derive(Debug, Clone)]
pub struct BrowseStops(watch::Receiver<u64>);

impl BrowseStops {
    pub(super) fn new(stops: watch::Receiver<u64>) -> Self {
        Self(stops)
    }
}

fn list_names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Starts a configured server in `workdir`, asks it, and ends all servers of `mcp`.
///
/// # Errors
/// [`McpBrowseError`]: why the server could not be asked, or what it refused.
///
/// # Cancel safety
/// If it is dropped, the server runs until the end of this process; its warden ends it then.
pub async fn browse(
    mcp: &Mcp,
    server: &str,
    workdir: &Path,
    request: McpBrowseRequest,
) -> Result<McpBrowseAnswer, McpBrowseError> {
    let options = person_options(workdir)
        .map_err(|bad| McpBrowseError::Unavailable { server: server.to_owned(), problem: bad.to_string() })?;
    // waits: for a person's command; no run waits here.
    let answer = mcp.client_for_run(options).browse(server, request, mcp.watch_browse_stops()).await;
    mcp.close();
    let force_at = Instant::now() + CLOSE_TIMEOUT;
    // waits: at most twice `CLOSE_TIMEOUT`.
    mcp.wait_closed(force_at, force_at + CLOSE_TIMEOUT).await;
    answer
}

/// The options of a command that a person gives on the machine of the daemon.
pub(super) fn person_options(workdir: &Path) -> Result<McpClientOptions, BadId> {
    Ok(McpClientOptions {
        run: RunId::parse("command")?,
        session: SessionKey::parse("command")?,
        principal: Principal::parse("command")?,
        agent: AgentId::parse("command")?,
        workdir: workdir.to_path_buf(),
        sandbox: None,
        network: None,
        allowed_servers: None,
        endpoint: None,
        allowed_tools: vec!["*".to_owned()],
    })
}

impl McpClient {
    /// The names of the servers that the agent may use.
    pub fn server_names(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| server.name.as_str())
    }

    /// The resources or prompts of all servers that the agent may use. The servers are asked at once.
    ///
    /// # Errors
    /// [`McpBrowseError::Stopped`]. A server that cannot be asked is named in the list.
    ///
    /// # Cancel safety
    /// As [`McpClient::browse`].
    pub async fn list_for_person(&self, kind: McpListKind, stops: &BrowseStops) -> Result<McpList, McpBrowseError> {
        let servers: Vec<&str> = self.server_names().collect();
        let ask = |server| self.browse(server, McpBrowseRequest::List(kind), stops.clone());
        // waits: for a person's request, which a stop of everything ends in `browse`.
        let answers = join_all(servers.iter().copied().map(ask)).await;
        let mut list = McpList::default();
        for (server, answer) in servers.into_iter().zip(answers) {
            match answer {
                Ok(McpBrowseAnswer::Items(items)) => list.items.extend(items),
                Ok(McpBrowseAnswer::Text(_)) => {}
                Err(McpBrowseError::Stopped) => return Err(McpBrowseError::Stopped),
                Err(McpBrowseError::Unavailable { problem, .. } | McpBrowseError::Refused { problem, .. }) => {
                    list.unavailable.push(McpUnavailableServer { server: server.to_owned(), problem });
                }
                Err(error @ McpBrowseError::UnknownServer { .. }) => return Err(error),
            }
        }
        Ok(list)
    }

    /// Starts a server if it does not run, and asks it. No server is started after one of `stops`.
    ///
    /// # Errors
    /// [`McpBrowseError`]: why the server could not be asked, or what it refused.
    ///
    /// # Cancel safety
    /// Safe: a server whose answer is not waited for is ended, unless others use it.
    pub async fn browse(
        &self,
        server: &str,
        request: McpBrowseRequest,
        stops: BrowseStops,
    ) -> Result<McpBrowseAnswer, McpBrowseError> {
        let Some(server) = self.servers.iter().find(|known| known.name == server) else {
            let known = self.server_names().map(str::to_owned).collect();
            return Err(McpBrowseError::UnknownServer { name: server.to_owned(), known });
        };
        let unavailable = |problem: String| McpBrowseError::Unavailable { server: server.name.clone(), problem };
        let BrowseStops(mut stops) = stops;
        if stops.has_changed().unwrap_or(true) {
            return Err(McpBrowseError::Stopped);
        }
        let lease = self.pool.acquire(server, &self.options).map_err(unavailable)?;
        let instance = Arc::clone(lease.instance());
        let mut lease = BrowseLease { pool: &self.pool, lease: Some(lease), is_answered: false };
        // waits: for a person's request; a stop of everything and the end of the daemon end it. No run waits here.
        let answer = tokio::select! {
            biased;
            _ = stops.changed() => Err(McpBrowseError::Stopped),
            answer = timeout(ANSWER_TIMEOUT, start_and_ask(&instance, server, request)) => answer.unwrap_or_else(|_| {
                Err(unavailable(format!("it did not answer within {} s", ANSWER_TIMEOUT.as_secs())))
            }),
            () = instance.wait_closing() => Err(unavailable("it is being closed; try again".to_owned())),
        };
        lease.is_answered = matches!(answer, Ok(_) | Err(McpBrowseError::Refused { .. }));
        answer
    }
}

/// The lease of a person's request. A server at work for nobody is ended with it.
struct BrowseLease<'p> {
    pool: &'p ServerPool,
    /// `None` once it is given back.
    lease: Option<InstanceLease>,
    is_answered: bool,
}

impl Drop for BrowseLease<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take().filter(|_| !self.is_answered) {
            self.pool.release_and_end_unused(lease, "a person did not wait for its answer");
        }
    }
}

async fn start_and_ask(
    instance: &ServerInstance,
    server: &McpServer,
    request: McpBrowseRequest,
) -> Result<McpBrowseAnswer, McpBrowseError> {
    let name = || server.name.clone();
    // waits: in the `select!` of `browse`.
    let connection = instance.wait_started().await;
    let connection =
        connection.map_err(|end| McpBrowseError::Unavailable { server: name(), problem: start_problem(&end) })?;
    // waits: in the `select!` of `browse`.
    ask(&connection, server, request).await.map_err(|error| match error {
        ServiceError::McpError(refusal) => {
            McpBrowseError::Refused { server: name(), problem: one_line(&refusal.message, MAX_DESCRIPTION_CHARS) }
        }
        ServiceError::TransportClosed => {
            McpBrowseError::Unavailable { server: name(), problem: "its connection ended".to_owned() }
        }
        _ => McpBrowseError::Unavailable { server: name(), problem: "it gave no valid answer".to_owned() },
    })
}

fn start_problem(end: &InstanceEnd) -> String {
    end.remedy.as_ref().map_or_else(|| end.cause.clone(), |remedy| format!("{}; {remedy}", end.cause))
}

async fn ask(
    connection: &McpConnection,
    server: &McpServer,
    request: McpBrowseRequest,
) -> Result<McpBrowseAnswer, ServiceError> {
    let peer = &connection.peer;
    let text = match request {
        // waits: in the `select!` of `browse`, as all waits of this function.
        McpBrowseRequest::List(kind) => return list_items(connection, server, kind).await.map(McpBrowseAnswer::Items),
        McpBrowseRequest::Content(McpContentRequest::Resource(uri)) => {
            // waits: as above, in `browse`.
            let read = peer.read_resource(ReadResourceRequestParams::new(uri)).await?;
            read.contents.iter().map(resource_text).collect::<Vec<_>>().join("\n")
        }
        McpBrowseRequest::Content(McpContentRequest::Prompt { name, arguments }) => {
            let arguments = arguments.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
            let request = GetPromptRequestParams::new(name).with_arguments(arguments);
            // waits: as above, in `browse`.
            prompt_text(&peer.get_prompt(request).await?.messages)
        }
    };
    Ok(McpBrowseAnswer::Text(truncate_with_note(text, MAX_CONTENT_BYTES)))
}

async fn list_items(
    connection: &McpConnection,
    server: &McpServer,
    kind: McpListKind,
) -> Result<Vec<McpListedItem>, ServiceError> {
    let peer = &connection.peer;
    let is_offered = peer.peer_info().is_none_or(|info| match kind {
        McpListKind::Resources => info.capabilities.resources.is_some(),
        McpListKind::Prompts => info.capabilities.prompts.is_some(),
    });
    if !is_offered {
        return Ok(Vec::new());
    }
    // waits: in the `select!` of `browse`.
    collect_pages(|cursor| list_page(peer, server, kind, cursor)).await
}

/// The valid items of the pages, up to the limits.
async fn collect_pages<F>(mut next_page: impl FnMut(Option<String>) -> F) -> Result<Vec<McpListedItem>, ServiceError>
where
    F: Future<Output = Result<ItemPage, ServiceError>>,
{
    let (mut items, mut cursor) = (Vec::new(), None);
    for _ in 0..MAX_PAGES {
        // waits: in the `select!` of `browse`.
        let page = next_page(cursor).await?;
        let valid = page.items.into_iter().filter(|item| item.id.chars().nth(MAX_ID_CHARS).is_none());
        items.extend(valid.take(MAX_ITEMS - items.len()));
        cursor = page.next_cursor;
        if cursor.is_none() || items.len() == MAX_ITEMS {
            break;
        }
    }
    Ok(items)
}

/// A page of a list, and where the next one begins.
struct ItemPage {
    items: Vec<McpListedItem>,
    next_cursor: Option<String>,
}

async fn list_page(
    peer: &Peer<RoleClient>,
    server: &McpServer,
    kind: McpListKind,
    cursor: Option<String>,
) -> Result<ItemPage, ServiceError> {
    let page = Some(PaginatedRequestParams::default().with_cursor(cursor));
    Ok(match kind {
        McpListKind::Resources => {
            // waits: in the `select!` of `browse`.
            let page = peer.list_resources(page).await?;
            let items = page.resources.into_iter().map(|resource| resource_item(server, resource)).collect();
            ItemPage { items, next_cursor: page.next_cursor }
        }
        McpListKind::Prompts => {
            // waits: in the `select!` of `browse`.
            let page = peer.list_prompts(page).await?;
            let items = page.prompts.into_iter().map(|prompt| prompt_item(server, prompt)).collect();
            ItemPage { items, next_cursor: page.next_cursor }
        }
    })
}

fn resource_item(server: &McpServer, resource: Resource) -> McpListedItem {
    let Resource { uri, name, title, description, .. } = resource;
    let description = one_line(&description.or(title).unwrap_or(name), MAX_DESCRIPTION_CHARS);
    McpListedItem { server: server.name.clone(), id: uri, description, arguments: Vec::new() }
}

fn prompt_item(server: &McpServer, prompt: Prompt) -> McpListedItem {
    let arguments =
        prompt.arguments.unwrap_or_default().into_iter().take(MAX_ARGUMENTS).map(|argument| McpPromptArgument {
            name: one_line(&argument.name, MAX_DESCRIPTION_CHARS),
            required: argument.required == Some(true),
        });
    let description = one_line(&prompt.description.or(prompt.title).unwrap_or_default(), MAX_DESCRIPTION_CHARS);
    McpListedItem { server: server.name.clone(), id: prompt.name, description, arguments: arguments.collect() }
}

/// The messages of a prompt as one message of the user; roles are named only where one is not the user's.
fn prompt_text(messages: &[PromptMessage]) -> String {
    let is_mixed = messages.iter().any(|message| message.role != Role::User);
    let texts = messages.iter().map(|message| {
        let text = block_text(&message.content);
        match (is_mixed, &message.role) {
            (false, _) => text,
            (true, Role::User) => format!("user: {text}"),
            (true, _) => format!("assistant: {text}"),
        }
    });
    texts.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_prompt_is_one_text_and_names_roles_only_if_there_are_two() {
        let message = |role: &str, text: &str| json!({"role": role, "content": {"type": "text", "text": text}});
        let text = |messages: Value| prompt_text(&serde_json::from_value::<Vec<PromptMessage>>(messages).unwrap());
        assert_eq!(text(json!([message("user", "Look."), message("user", "Say.")])), "Look.\n\nSay.");
        let mixed = json!([message("user", "Hello."), message("assistant", "Yes?")]);
        assert_eq!(text(mixed), "user: Hello.\n\nassistant: Yes?");
    }

    #[tokio::test]
    async fn overlong_items_are_not_collected_and_pages_end() {
        let item = |id: String| McpListedItem {
            server: "far".to_owned(),
            id,
            description: String::new(),
            arguments: Vec::new(),
        };
        let mut asked = 0;
        let pages = collect_pages(|_| {
            asked += 1;
            let items = vec![item("x".repeat(MAX_ID_CHARS + 1)), item(format!("note-{asked}"))];
            async { Ok(ItemPage { items, next_cursor: Some("more".to_owned()) }) }
        });
        let listed = pages.await.unwrap();
        assert!(listed.iter().all(|item| item.id.starts_with("note-")));
        assert_eq!((listed.len(), asked), (MAX_PAGES, MAX_PAGES));
        let full = || async {
            Ok(ItemPage { items: vec![item("note".to_owned()); 700], next_cursor: Some("more".to_owned()) })
        };
        assert_eq!(collect_pages(|_| full()).await.unwrap().len(), MAX_ITEMS);
    }
}
