//! Beginning to speak to a server: its pipes or its URL, the handshake, the list of its tools.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientResult, ErrorCode, ErrorData, Implementation, PaginatedRequestParams,
    ServerNotification, ServerRequest, Tool,
};
use rmcp::service::{ClientInitializeError, NotificationContext, Peer, RequestContext, RunningService};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, Transport};
use rmcp::{RoleClient, ServiceError, ServiceExt};
use secrecy::ExposeSecret;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::House;
use super::config::Reach;
use super::measure::Measured;
use super::process::Process;
use super::server::Server;
use super::site::Site;
use super::slot::Slot;
use super::trouble::Trouble;
use super::turns::InTurn;
use super::wire::{Tapped, Wire};
use crate::scope::Scope;

/// The longest message that is taken from a server.
pub(super) const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// Tools that are taken from one server.
const MAX_TOOLS: usize = 1000;

/// What a server is from here, and is ended by.
pub(super) enum FarEnd {
    Process(Process),
    Site(Site),
}

/// How a server is spoken to.
pub(super) enum Dial {
    Pipes(Measured<Receiver>, Sender),
    Url(Arc<str>, Site),
}

/// A connection after its handshake.
pub(super) type Dialogue = RunningService<RoleClient, Client>;

/// What is needed to speak to a server. A process goes on from here until it is told.
pub(super) fn open(house: &House, slot: &Arc<Slot>, scope: &Scope) -> Result<(FarEnd, Dial), String> {
    match slot.server.config.reach() {
        Ok(Reach::Url(url)) => {
            let client = slot.server.client.clone().ok_or("it has no HTTP client")?;
            let site = Site::new(client, scope);
            Ok((FarEnd::Site(site.clone()), Dial::Url(url.as_str().into(), site)))
        }
        Ok(Reach::Command(command)) => {
            let (process, (stdout, stdin)) = Process::start(house, slot, scope, command)?;
            Ok((FarEnd::Process(process), Dial::Pipes(Measured::new(stdout, slot), stdin)))
        }
        Err((_, problem)) => Err(problem),
    }
}

/// Shakes hands and asks for the tools.
pub(super) async fn greet(server: &Server, dial: Dial, wire: &Arc<Wire>) -> Result<(Dialogue, Vec<Tool>), Trouble> {
    let greeted = match dial {
        Dial::Pipes(stdout, stdin) => {
            let inner = AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(MAX_MESSAGE);
            // waits: within the start time, as one arm beside the orders, in `keep`; so do all waits of this file.
            shake_hands(InTurn::new(inner), wire).await
        }
        Dial::Url(url, site) => {
            let mut config = StreamableHttpClientTransportConfig::with_uri(url);
            config.max_sse_event_size = MAX_MESSAGE;
            config.custom_headers = server.config.headers_map()?.into_iter().collect();
            config.auth_header = server.config.api_key.as_ref().map(|key| key.expose_secret().to_owned());
            // waits: as above, in `keep`.
            shake_hands(StreamableHttpClientTransport::with_client(site, config), wire).await
        }
    };
    let dialogue = greeted.map_err(|error| Trouble::of_handshake(&error, &server.config))?;
    let tools = list(dialogue.peer()).await.map_err(|error| Trouble::of_list(&error, &server.config))?;
    Ok((dialogue, tools))
}

fn shake_hands<T>(inner: T, wire: &Arc<Wire>) -> BoxFuture<'static, Result<Dialogue, ClientInitializeError>>
where
    T: Transport<RoleClient> + 'static,
{
    let tapped = Tapped { inner, wire: Arc::clone(wire) };
    // waits: as `greet` does, whose part it is.
    async move { Client.serve(tapped).await }.boxed()
}

/// All tools of a server, within a bound.
pub(super) async fn list(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, ServiceError> {
    let offers = peer.peer_info().is_none_or(|info| info.capabilities.tools.is_some());
    let (mut tools, mut cursor) = (Vec::new(), None);
    while offers && tools.len() < MAX_TOOLS {
        // waits: within the start time, in `keep`.
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

/// What Quell is for a server: a client that offers nothing, neither models nor people nor directories.
#[derive(Debug)]
pub(super) struct Client;

impl rmcp::Service<RoleClient> for Client {
    async fn handle_request(
        &self,
        request: ServerRequest,
        _: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        match request {
            ServerRequest::PingRequest(_) => Ok(ClientResult::empty(())),
            _ => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "this client offers nothing to servers", None)),
        }
    }

    async fn handle_notification(
        &self,
        _: ServerNotification,
        _: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        // What matters was seen on the wire.
        Ok(())
    }

    fn get_info(&self) -> ClientConfig {
        let quell = Implementation::new("quell", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), quell)
    }
}
