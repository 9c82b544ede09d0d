//! What all doors share: the engine, who may come in, and how many may stay.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use metrics_exporter_prometheus::PrometheusHandle;
use quell_engine::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attempts::Attempts;
use crate::budget::ByteBudget;
use crate::channels::flow::Channels;
use crate::http::name_of;
use crate::page::Pressed;

/// Bytes of one body or frame that no budget counts: what is small always gets in.
pub(crate) const UNCOUNTED: usize = 8 * 1024;
/// Values that one body or frame may hold: each takes many times the bytes that it is written with.
pub(crate) const MOST_VALUES: usize = 100_000;
/// Bytes that all bodies and frames of callers with a token may hold together, besides what is not counted.
const INTAKE: usize = 128 * 1024 * 1024;
/// The same for those who have shown no token yet.
const UNPROVEN_INTAKE: usize = 16 * 1024 * 1024;
/// Bytes that may wait for all slow WebSocket clients together.
const WAITING: usize = 256 * 1024 * 1024;
/// Requests of all WebSocket clients that may be worked on at the same time.
const CALLS: usize = 16 * 1024;

/// `[server]` of the configuration, as far as the doors care.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DoorSettings {
    /// Web origins besides its own that may talk to the daemon, such as `https://quell.example.org`.
    pub allowed_origins: Vec<String>,
    /// Names besides its own by which the daemon may be addressed, such as `quell.example.org` behind a proxy.
    pub allowed_hosts: Vec<String>,
    /// Streams (SSE and WebSocket) open at the same time. Other requests, stops among them, are not counted.
    pub max_connections: usize,
    /// Connections of one peer address that have shown no valid token yet; the newest gets in, and the oldest is closed.
    pub max_unauthenticated_per_peer: usize,
}

impl Default for DoorSettings {
    fn default() -> Self {
        Self {
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_connections: 10_000,
            max_unauthenticated_per_peer: 256,
        }
    }
}

/// The doors of one daemon. Clones are the same.
#[derive(Clone)]
pub struct Door(Arc<Inner>);

struct Inner {
    engine: Engine,
    settings: DoorSettings,
    own_names: Vec<String>,
    metrics: Option<PrometheusHandle>,
    streams: AtomicUsize,
    importing: AtomicBool,
    budgets: Budgets,
    attempts: Attempts,
    pressed: Pressed,
    channels: OnceLock<Channels>,
}

/// What all connections together may hold in memory.
struct Budgets {
    intake: ByteBudget,
    unproven_intake: ByteBudget,
    waiting: ByteBudget,
    calls: ByteBudget,
}

impl Budgets {
    /// `largest` is the largest body that is taken: two of them fit in any case.
    fn new(largest: usize) -> Self {
        Self {
            intake: ByteBudget::new(INTAKE.max(largest.saturating_mul(2))),
            unproven_intake: ByteBudget::new(UNPROVEN_INTAKE),
            waiting: ByteBudget::new(WAITING),
            calls: ByteBudget::new(CALLS),
        }
    }
}

impl Door {
    /// Doors to an engine. `metrics` renders `/metrics`; without it that route says so.
    #[must_use]
    pub fn new(engine: Engine, settings: DoorSettings, metrics: Option<PrometheusHandle>) -> Self {
        let own_names = own_names(&settings);
        let budgets = Budgets::new(engine.config().limits.request_body_bytes);
        Self(Arc::new(Inner {
            engine,
            settings,
            own_names,
            metrics,
            streams: AtomicUsize::new(0),
            importing: AtomicBool::new(false),
            budgets,
            attempts: Attempts::default(),
            pressed: Pressed::default(),
            channels: OnceLock::new(),
        }))
    }

    /// From now on the doors know of the chat networks. The first ones stay.
    pub fn know_channels(&self, channels: Channels) {
        let _ = self.0.channels.set(channels);
    }

    /// The chat networks.
    pub(crate) fn channels(&self) -> Option<&Channels> {
        self.0.channels.get()
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &DoorSettings {
        &self.0.settings
    }

    /// The names besides addresses and `localhost` by which the daemon may be addressed, in small letters.
    pub(crate) fn own_names(&self) -> &[String] {
        &self.0.own_names
    }

    pub(crate) fn metrics(&self) -> Option<&PrometheusHandle> {
        self.0.metrics.as_ref()
    }

    /// The page's files, compressed.
    pub(crate) fn pressed(&self) -> &Pressed {
        &self.0.pressed
    }

    /// Bad tokens of late.
    pub(crate) fn attempts(&self) -> &Attempts {
        &self.0.attempts
    }

    /// Bytes of bodies and frames that are being received from callers with a token.
    pub(crate) fn intake(&self) -> &ByteBudget {
        &self.0.budgets.intake
    }

    /// Bytes that are being received from those who have shown no token yet.
    pub(crate) fn unproven_intake(&self) -> &ByteBudget {
        &self.0.budgets.unproven_intake
    }

    /// Bytes that wait for slow WebSocket clients.
    pub(crate) fn waiting(&self) -> &ByteBudget {
        &self.0.budgets.waiting
    }

    /// Requests of WebSocket clients that are worked on; each takes one.
    pub(crate) fn calls(&self) -> &ByteBudget {
        &self.0.budgets.calls
    }

    /// Takes a place among the streams; `None` when all are taken.
    #[must_use]
    pub fn take_stream(&self) -> Option<StreamPlace> {
        let most = self.0.settings.max_connections;
        let more = |taken: usize| (taken < most).then_some(taken + 1);
        self.0.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(StreamPlace(self.clone()))
    }

    /// Takes the one place for an import, which is held in memory as it comes in; `None` while another has it.
    pub(crate) fn take_import(&self) -> Option<ImportPlace> {
        let taken = self.0.importing.swap(true, Ordering::AcqRel);
        (!taken).then(|| ImportPlace(self.clone()))
    }

    /// Streams open now.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.0.streams.load(Ordering::Acquire)
    }

    /// Whether a browser at `origin` may talk to the daemon that it reached as `host`.
    #[must_use]
    pub fn origin_allowed(&self, origin: &str, host: Option<&str>) -> bool {
        let own = origin.split_once("://").map(|(_, authority)| authority);
        let same = own.is_some() && own == host;
        same || self.0.settings.allowed_origins.iter().any(|allowed| allowed.trim_end_matches('/') == origin)
    }
}

/// Why this can be no entry of `allowed_hosts`.
#[must_use]
pub fn host_problem(entry: &str) -> Option<String> {
    let text = format!(
        "{entry:?} is no host name; write it as in \"quell.example.org\", without scheme, path or wildcard. An IP address needs no entry"
    );
    name_of(entry).is_none().then_some(text)
}

/// The machine's own name, those that are configured, and those of the web origins that may come.
fn own_names(settings: &DoorSettings) -> Vec<String> {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let of_origins = settings.allowed_origins.iter().filter_map(|origin| {
        let (_, authority) = origin.split_once("://")?;
        Some(authority.trim_end_matches('/').to_owned())
    });
    let all = settings.allowed_hosts.iter().cloned().chain(of_origins).chain([machine]);
    all.filter_map(|name| name_of(&name)).collect()
}

/// A place among the streams, given back when dropped.
#[derive(Debug)]
pub struct StreamPlace(Door);

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.0.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The place for an import, given back when dropped.
#[derive(Debug)]
pub(crate) struct ImportPlace(Door);

impl Drop for ImportPlace {
    fn drop(&mut self) {
        self.0.0.importing.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Door")
    }
}
