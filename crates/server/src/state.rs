//! State shared by all request functions: engine, settings, metrics, budgets.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quell_engine::Engine;
use quell_kernel::rate_limit::RateLimit;
use quell_protocol::Principal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::auth_failures::AuthFailures;
use crate::budget::Budget;
use crate::gzip_cache::GzipCache;
use crate::host_name::normalize_host;
use crate::mcp_server::McpSessionTable;
use crate::metrics_registry::MetricsRegistry;
use crate::openai::LiveResponses;
use crate::request_limits::RequestLimits;
use quell_channels::flow::Channels;

/// Maximum number of JSON values in one body or frame: each takes many times its encoded size in memory.
pub(crate) const MAX_JSON_VALUES: usize = 100_000;
/// Bytes that all bodies and frames of callers with a token may hold together, beyond [`UNBUDGETED_BYTES`](crate::budget::UNBUDGETED_BYTES) each.
const RECEIVE_BUDGET_BYTES: usize = 128 * 1024 * 1024;
/// Same as [`RECEIVE_BUDGET_BYTES`], for callers that have not shown a token yet.
const UNAUTHENTICATED_RECEIVE_BUDGET_BYTES: usize = 16 * 1024 * 1024;
/// Bytes that may wait to be sent to slow WebSocket clients, of all clients together.
const SEND_BUDGET_BYTES: usize = 256 * 1024 * 1024;
/// Requests of all WebSocket clients that may be pending at the same time.
const MAX_PENDING_CALLS: usize = 16 * 1024;

/// `[server]`. The binary binds `listen` and reads `token_file`; the server uses the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// The address to listen on.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// The file of the admin token; by default `token` in the data directory.
    pub token_file: Option<PathBuf>,
    /// Web origins, besides its own, that may call the daemon.
    pub allowed_origins: Vec<String>,
    /// Host names, besides its own, by which the daemon may be addressed.
    pub allowed_hosts: Vec<String>,
    /// Streams (SSE and WebSocket) that can be open at the same time.
    pub max_connections: usize,
    /// Connections of one peer address without a valid token, at most; beyond that the oldest is closed.
    pub max_unauthenticated_per_peer: usize,
    /// Requests of one principal in a minute, over HTTP and WebSocket together; 0 for no limit. As many may come at
    /// once. Stops and the hold are not counted.
    pub requests_per_minute: u32,
    /// Requests with a bad token from one address in a minute; further ones are told to wait. A stop is never told so.
    pub bad_tokens_per_minute: u32,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7171)),
            token_file: None,
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_connections: 10_000,
            max_unauthenticated_per_peer: 256,
            requests_per_minute: 600_000,
            bad_tokens_per_minute: 100,
        }
    }
}

/// Shared state of one daemon's server. Clones share their state.
#[derive(Clone)]
pub struct ServerState(Arc<ServerStateInner>);

struct ServerStateInner {
    engine: Engine,
    settings: ServerSettings,
    own_hosts: Vec<String>,
    metrics: Option<MetricsRegistry>,
    budgets: ServerBudgets,
    auth_failures: AuthFailures,
    request_limits: RequestLimits,
    gzip_cache: GzipCache,
    channels: OnceLock<Channels>,
    mcp_sessions: McpSessionTable,
    live_responses: LiveResponses,
}

/// What all connections together may hold.
pub(crate) struct ServerBudgets {
    /// Bytes of bodies and frames that are being received from callers with a token.
    pub(crate) receive: Budget,
    /// Bytes of bodies and frames that are being received from callers without a token.
    pub(crate) unauthenticated_receive: Budget,
    /// Bytes of frames that wait for slow WebSocket clients.
    pub(crate) send: Budget,
    /// Pending requests of WebSocket clients.
    pub(crate) pending_calls: Budget,
    /// Open streams: `max_connections`.
    pub(crate) streams: Budget,
    /// One import, because it is held in memory while it is received.
    pub(crate) imports: Budget,
}

impl ServerState {
    /// Creates the state. `metrics` renders `/metrics`; without it, that route answers that there are none.
    pub fn new(engine: Engine, settings: ServerSettings, metrics: Option<MetricsRegistry>) -> Self {
        let own_hosts = collect_own_hosts(&settings);
        // Two of the largest bodies fit in any case.
        let receive = RECEIVE_BUDGET_BYTES.max(engine.config().limits.request_body_bytes.saturating_mul(2));
        let auth_failures = AuthFailures::new(settings.bad_tokens_per_minute);
        let request_limits = RequestLimits::new(RateLimit::from_setting(settings.requests_per_minute));
        let budgets = ServerBudgets {
            receive: Budget::new(receive),
            unauthenticated_receive: Budget::new(UNAUTHENTICATED_RECEIVE_BUDGET_BYTES),
            send: Budget::new(SEND_BUDGET_BYTES),
            pending_calls: Budget::new(MAX_PENDING_CALLS),
            streams: Budget::new(settings.max_connections),
            imports: Budget::new(1),
        };
        Self(Arc::new(ServerStateInner {
            engine,
            settings,
            own_hosts,
            metrics,
            budgets,
            auth_failures,
            request_limits,
            gzip_cache: GzipCache::default(),
            channels: OnceLock::new(),
            mcp_sessions: McpSessionTable::default(),
            live_responses: LiveResponses::default(),
        }))
    }

    /// Sets the chat channels. Only the first call has an effect.
    pub fn set_channels(&self, channels: Channels) {
        let _ = self.0.channels.set(channels);
    }

    pub(crate) fn channels(&self) -> Option<&Channels> {
        self.0.channels.get()
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub fn settings(&self) -> &ServerSettings {
        &self.0.settings
    }

    /// Host names of the daemon besides IP addresses and `localhost`, in lower case.
    pub(crate) fn own_hosts(&self) -> &[String] {
        &self.0.own_hosts
    }

    pub(crate) fn metrics(&self) -> Option<&MetricsRegistry> {
        self.0.metrics.as_ref()
    }

    pub(crate) fn mcp_sessions(&self) -> &McpSessionTable {
        &self.0.mcp_sessions
    }

    pub(crate) fn gzip_cache(&self) -> &GzipCache {
        &self.0.gzip_cache
    }

    pub(crate) fn auth_failures(&self) -> &AuthFailures {
        &self.0.auth_failures
    }

    /// Counts a request of this principal. The error is the time after which the next one is admitted.
    pub(crate) fn count_request(&self, principal: &Principal) -> Result<(), Duration> {
        self.0.request_limits.count_request(principal, self.0.engine.clock().now())
    }

    /// The background responses of the Responses API that are being made.
    pub(crate) fn live_responses(&self) -> &LiveResponses {
        &self.0.live_responses
    }

    pub(crate) fn budgets(&self) -> &ServerBudgets {
        &self.0.budgets
    }

    pub fn stream_count(&self) -> usize {
        self.0.settings.max_connections - self.0.budgets.streams.available()
    }

    /// Whether a browser page of `origin` may send requests to the daemon under the name `host`.
    pub fn is_origin_allowed(&self, origin: &str, host: Option<&str>) -> bool {
        let own = origin.split_once("://").map(|(_, authority)| authority);
        let is_same_origin = own.is_some() && own == host;
        is_same_origin || self.0.settings.allowed_origins.iter().any(|allowed| allowed.trim_end_matches('/') == origin)
    }
}

/// Collects the machine's own name, the configured names, and the hosts of the allowed origins.
fn collect_own_hosts(settings: &ServerSettings) -> Vec<String> {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let of_origins = settings.allowed_origins.iter().filter_map(|origin| {
        let (_, authority) = origin.split_once("://")?;
        Some(authority.trim_end_matches('/').to_owned())
    });
    let all = settings.allowed_hosts.iter().cloned().chain(of_origins).chain([machine]);
    all.filter_map(|name| normalize_host(&name)).collect()
}

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerState")
    }
}
