//! Open the transport to a server, initialize the MCP session and list the tools.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_scope::Scope;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientResult, ElicitResult, ElicitationAction, ElicitationCapability, ErrorCode,
    ErrorData, FormElicitationCapability, Implementation, PaginatedRequestParams, RootsCapabilities,
    ServerNotification, ServerRequest, Tool,
};
use rmcp::service::{NotificationContext, Peer, RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{RoleClient, ServiceError, ServiceExt};
use secrecy::ExposeSecret;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::ServerPool;
use super::config::ServerLocation;
use super::connect_problem::ConnectProblem;
use super::http_connection::ScopedHttpClient;
use super::instance::ServerInstance;
use super::line_limit::{LineLimitReader, MAX_MESSAGE_BYTES};
use super::message_monitor::MessageMonitor;
use super::oauth::{ConnectionTokens, TokenRefresher, TokenSource};
use super::ordered_transport::OrderedTransport;
use super::roots::list_roots;
use super::server_process::ServerProcess;
use super::server_transport::{ServerConnection, ServerTransport};

/// The maximum number of tools of one server.
const MAX_TOOLS: usize = 1000;

/// The side of a server that is ended with it: its process, or its HTTP client.
pub(super) enum InstanceBackend {
    Process(ServerProcess),
    Http(ScopedHttpClient),
}

/// The transport to a server.
pub(super) enum ConnectTarget {
    Pipes(LineLimitReader<Receiver>, Sender),
    Http(Arc<str>, ScopedHttpClient),
}

/// A connection after its handshake.
pub(super) type RunningMcpClient = RunningService<RoleClient, McpClientHandler>;

/// Opens the transport of a server. A process runs from here until it is told to end.
pub(super) fn open_backend(
    pool: &ServerPool,
    instance: &Arc<ServerInstance>,
    scope: &Scope,
) -> Result<(InstanceBackend, ConnectTarget), String> {
    match instance.server.config.location() {
        Ok(ServerLocation::Url(url)) => {
            let client = instance.server.http_client.clone().ok_or("it has no HTTP client")?;
            let http = ScopedHttpClient::new(client, scope);
            Ok((InstanceBackend::Http(http.clone()), ConnectTarget::Http(url.as_str().into(), http)))
        }
        Ok(ServerLocation::Command(command)) => {
            let (process, (stdout, stdin)) = ServerProcess::start(pool, instance, scope, command)?;
            Ok((InstanceBackend::Process(process), ConnectTarget::Pipes(LineLimitReader::new(stdout, instance), stdin)))
        }
        Err((_, problem)) => Err(problem),
    }
}

/// Performs the handshake and lists the tools.
pub(super) async fn initialize_and_list_tools(
    instance: &ServerInstance,
    target: ConnectTarget,
    monitor: &Arc<MessageMonitor>,
    refresher: &TokenRefresher,
) -> Result<(RunningMcpClient, Vec<Tool>), ConnectProblem> {
    let server = &instance.server;
    let connection = match target {
        ConnectTarget::Pipes(stdout, stdin) => {
            let inner = AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(MAX_MESSAGE_BYTES);
            ServerConnection::Pipes(OrderedTransport::new(inner))
        }
        ConnectTarget::Http(url, http) => {
            if let Some(file) = &server.token_file {
                let source = TokenSource { url: Arc::clone(&url), file: file.clone(), config: server.config.clone() };
                // waits: within the start timeout, in a `select!` of the supervisor; so do all waits of this file.
                http.set_tokens(ConnectionTokens::open(source, refresher.clone()).await?);
            }
            let mut config = StreamableHttpClientTransportConfig::with_uri(url);
            config.max_sse_event_size = MAX_MESSAGE_BYTES;
            config.custom_headers = server.config.header_list()?.into_iter().collect();
            config.auth_header = server.config.api_key.as_ref().map(|key| key.expose_secret().to_owned());
            ServerConnection::Http(StreamableHttpClientTransport::with_client(http, config))
        }
    };
    let transport = ServerTransport { connection, monitor: Arc::clone(monitor) };
    let handler = McpClientHandler {
        server: server.name.clone(),
        monitor: Arc::clone(monitor),
        root: instance.root().map(Path::to_owned),
    };
    // waits: within the start timeout, in the supervisor.
    let client = handler
        .serve(transport)
        .await
        .map_err(|error| ConnectProblem::from_initialize_error(&error, &server.config))?;
    // waits: within the same time.
    let tools =
        list_tools(client.peer()).await.map_err(|error| ConnectProblem::from_list_error(&error, &server.config))?;
    Ok((client, tools))
}

/// All tools of a server, up to `MAX_TOOLS`.
pub(super) async fn list_tools(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, ServiceError> {
    let has_tools = peer.peer_info().is_none_or(|info| info.capabilities.tools.is_some());
    let (mut tools, mut cursor) = (Vec::new(), None);
    while has_tools && tools.len() < MAX_TOOLS {
        // waits: within the start timeout, in the supervisor.
        let page = peer.list_tools(Some(PaginatedRequestParams::default().with_cursor(cursor))).await?;
        tools.extend(page.tools);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    tools.truncate(MAX_TOOLS);
    Ok(tools)
}

/// The client's side of the protocol. Quell offers servers questions to the user, and programs the workdir as their
/// root; it offers no sampling.
#[derive(Debug)]
pub(super) struct McpClientHandler {
    server: String,
    monitor: Arc<MessageMonitor>,
    root: Option<PathBuf>,
}

impl rmcp::Service<RoleClient> for McpClientHandler {
    async fn handle_request(
        &self,
        request: ServerRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        match request {
            ServerRequest::PingRequest(_) => Ok(ClientResult::empty(())),
            // It may belong to a call that was stopped, and not to the one that is at work now.
            ServerRequest::ElicitRequest(_) if self.monitor.has_cancelled_call() => {
                tracing::info!(
                    server = self.server,
                    "a question of an MCP server was cancelled: a stopped call is not over"
                );
                Ok(ClientResult::ElicitResult(ElicitResult::new(ElicitationAction::Cancel)))
            }
            ServerRequest::ElicitRequest(request) => {
                // waits: in a task of the connection, until the question is answered or withdrawn; no run waits here.
                let answer = tokio::select! {
                    biased;
                    () = context.ct.cancelled() => ElicitResult::new(ElicitationAction::Cancel),
                    answer = self.monitor.askable_calls.ask(&self.server, request.params) => answer,
                };
                Ok(ClientResult::ElicitResult(answer))
            }
            ServerRequest::ListRootsRequest(_) if let Some(root) = &self.root => Ok(list_roots(root)),
            _ => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "this client does not offer that to servers", None)),
        }
    }

    async fn handle_notification(
        &self,
        _: ServerNotification,
        _: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        // The message monitor has handled the relevant ones.
        Ok(())
    }

    fn get_info(&self) -> ClientConfig {
        let quell = Implementation::new("quell", env!("CARGO_PKG_VERSION"));
        let questions = ElicitationCapability::default().with_form(FormElicitationCapability::default());
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(questions);
        capabilities.roots = self.root.as_ref().map(|_| RootsCapabilities::default());
        ClientConfig::new(capabilities, quell)
    }
}
