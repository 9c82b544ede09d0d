//! State shared by all request functions: engine, settings, metrics, memory budgets, stream permits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use metrics_exporter_prometheus::PrometheusHandle;
use quell_engine::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::auth_failures::AuthFailures;
use crate::budget::ByteBudget;
use crate::gzip_cache::GzipCache;
use crate::host_name::normalize_host;
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

/// `[server]` of the configuration, as far as the server uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// Web origins besides the daemon's own that may send requests, such as `https://quell.example.org`.
    pub allowed_origins: Vec<String>,
    /// Host names besides the daemon's own that requests may use, such as `quell.example.org` behind a proxy.
    pub allowed_hosts: Vec<String>,
    /// Maximum number of open streams (SSE and WebSocket). Other requests, stops among them, are not counted.
    pub max_connections: usize,
    /// Maximum number of connections of one peer address without a valid token. A new one gets in, and the oldest is
    /// closed.
    pub max_unauthenticated_per_peer: usize,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_connections: 10_000,
            max_unauthenticated_per_peer: 256,
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
    metrics: Option<PrometheusHandle>,
    open_streams: AtomicUsize,
    import_running: AtomicBool,
    budgets: MemoryBudgets,
    auth_failures: AuthFailures,
    gzip_cache: GzipCache,
    channels: OnceLock<Channels>,
}

/// Memory that all connections together may hold.
struct MemoryBudgets {
    receive: ByteBudget,
    unauthenticated_receive: ByteBudget,
    send: ByteBudget,
    pending_calls: ByteBudget,
}

impl MemoryBudgets {
    /// `max_body` is the body limit in bytes: the receive budget fits two such bodies in any case.
    fn new(max_body: usize) -> Self {
        Self {
            receive: ByteBudget::new(RECEIVE_BUDGET_BYTES.max(max_body.saturating_mul(2))),
            unauthenticated_receive: ByteBudget::new(UNAUTHENTICATED_RECEIVE_BUDGET_BYTES),
            send: ByteBudget::new(SEND_BUDGET_BYTES),
            pending_calls: ByteBudget::new(MAX_PENDING_CALLS),
        }
    }
}

impl ServerState {
    /// Creates the state. `metrics` renders `/metrics`; without it, that route answers that there are none.
    pub fn new(engine: Engine, settings: ServerSettings, metrics: Option<PrometheusHandle>) -> Self {
        let own_hosts = collect_own_hosts(&settings);
        let budgets = MemoryBudgets::new(engine.config().limits.request_body_bytes);
        Self(Arc::new(ServerStateInner {
            engine,
            settings,
            own_hosts,
            metrics,
            open_streams: AtomicUsize::new(0),
            import_running: AtomicBool::new(false),
            budgets,
            auth_failures: AuthFailures::default(),
            gzip_cache: GzipCache::default(),
            channels: OnceLock::new(),
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

    pub(crate) fn metrics(&self) -> Option<&PrometheusHandle> {
        self.0.metrics.as_ref()
    }

    pub(crate) fn gzip_cache(&self) -> &GzipCache {
        &self.0.gzip_cache
    }

    pub(crate) fn auth_failures(&self) -> &AuthFailures {
        &self.0.auth_failures
    }

    /// Budget for bodies and frames that are being received from callers with a token.
    pub(crate) fn receive_budget(&self) -> &ByteBudget {
        &self.0.budgets.receive
    }

    /// Budget for bodies and frames that are being received from callers without a token.
    pub(crate) fn unauthenticated_receive_budget(&self) -> &ByteBudget {
        &self.0.budgets.unauthenticated_receive
    }

    /// Budget for frames that wait for slow WebSocket clients.
    pub(crate) fn send_budget(&self) -> &ByteBudget {
        &self.0.budgets.send
    }

    /// Budget for pending requests of WebSocket clients; each takes one.
    pub(crate) fn pending_call_budget(&self) -> &ByteBudget {
        &self.0.budgets.pending_calls
    }

    /// Acquires a stream permit; `None` when `max_connections` streams are open.
    #[must_use]
    pub fn acquire_stream(&self) -> Option<StreamPermit> {
        let max_streams = self.0.settings.max_connections;
        let increment = |open: usize| (open < max_streams).then_some(open + 1);
        self.0.open_streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, increment).ok()?;
        Some(StreamPermit(self.clone()))
    }

    /// Acquires the single import permit, because an import is held in memory while it is received; `None` while
    /// another import runs.
    pub(crate) fn acquire_import(&self) -> Option<ImportPermit> {
        let was_running = self.0.import_running.swap(true, Ordering::AcqRel);
        (!was_running).then(|| ImportPermit(self.clone()))
    }

    pub fn stream_count(&self) -> usize {
        self.0.open_streams.load(Ordering::Acquire)
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

/// Permit for one stream; returned when dropped.
#[derive(Debug)]
pub struct StreamPermit(ServerState);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.0.open_streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Permit for the import; returned when dropped.
#[derive(Debug)]
pub(crate) struct ImportPermit(ServerState);

impl Drop for ImportPermit {
    fn drop(&mut self) {
        self.0.0.import_running.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerState")
    }
}
