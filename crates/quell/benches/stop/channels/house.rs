//! An engine with the message flow and one network in memory, in which everybody may write and `root` is an operator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_engine::agent::{AgentConfig, Limits};
use quell_engine::clock::Clock;
use quell_engine::dispatch::{Retention, SessionSettings};
use quell_engine::hooks::HookSettings;
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_engine::memory::MemorySettings;
use quell_engine::proc::{WardenExe, base_environment};
use quell_engine::scope::Probe;
use quell_engine::tools::ToolSettings;
use quell_engine::{Engine, EngineConfig};
use quell_kernel::StopTimes;
use quell_kernel::expiry::ExpiryLimits;
use quell_protocol::AgentId;
use quell_surfaces::channels::config::ChannelConfig;
use quell_surfaces::channels::flow::Channels;
use quell_surfaces::channels::seam::{Heard, MessageId, Network, Place};
use quell_surfaces::channels::settings::{FlowSettings, LiveSettings};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::network::{Arrival, Memory, Told, What};

/// The channel.
pub(crate) const CHANNEL: &str = "memory";
/// Longest wait for anything. It decides only how late a broken bench fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is measured.
pub(crate) struct House {
    pub(crate) engine: Engine,
    pub(crate) wire: Wire,
    told: mpsc::UnboundedReceiver<Told>,
    channels: Channels,
    _dir: TempDir,
}

/// Where people write. Clones are the same.
#[derive(Clone)]
pub(crate) struct Wire(mpsc::UnboundedSender<Arrival>);

impl Wire {
    /// `sender` writes in a chat of their own. The id has to be new.
    pub(crate) fn say(&self, id: &str, sender: &str, text: &str) {
        let heard = Heard {
            id: id.to_owned(),
            message: MessageId(id.to_owned()),
            sender: sender.to_owned(),
            sender_name: None,
            place: Place { target: format!("chat-{sender}"), thread: None },
            scope_id: None,
            text: text.to_owned(),
            addressed: true,
            group: false,
            attachments: Vec::new(),
        };
        self.0.send(Arrival::Message(Box::new(heard))).unwrap();
    }

    /// The network hears on when all of this is in the database or refused.
    pub(crate) fn end_of_batch(&self) {
        self.0.send(Arrival::EndOfBatch).unwrap();
    }
}

impl House {
    /// With a model at this address, and room for so many runs at work.
    pub(crate) async fn open(base_url: String, in_flight_runs: usize) -> Self {
        // The second house finds it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::start(config(&dir, base_url, in_flight_runs)).await.unwrap();
        let (memory, letters, told) = Memory::new();
        let memory: Arc<dyn Network> = Arc::new(memory);
        let make = Arc::new(move |_: &str, _: &ChannelConfig| Ok(Arc::clone(&memory)));
        let channels = Channels::start_with(engine.clone(), LiveSettings::new(settings()), Arc::new(|| {}), make);
        let mut house = Self { engine, wire: Wire(letters), told, channels, _dir: dir };
        house.until("a listener", |what| matches!(what, What::Connected)).await;
        house
    }

    /// What happens next in the network.
    pub(crate) async fn next(&mut self) -> Told {
        timeout(PATIENCE, self.told.recv()).await.unwrap().unwrap()
    }

    /// What happens in the network, up to the first that is wanted.
    pub(crate) async fn until(&mut self, name: &str, wanted: impl Fn(&What) -> bool) -> Told {
        let search = async {
            loop {
                let told = self.told.recv().await.unwrap();
                if wanted(&told.what) {
                    return told;
                }
            }
        };
        timeout(PATIENCE, search).await.unwrap_or_else(|_| panic!("{name} did not come"))
    }

    /// When this text was sent to a person.
    pub(crate) async fn said_to(&mut self, sender: &str, part: &str) -> Instant {
        let target = format!("chat-{sender}");
        let is_it =
            |what: &What| matches!(what, What::Sent { place, text } if place.target == target && text.contains(part));
        self.until(part, is_it).await.at
    }

    /// Stops everything.
    pub(crate) async fn close(self) {
        let enough = tokio::time::sleep(Duration::from_secs(5));
        let (left, ()) = tokio::join!(self.engine.shut_down(), self.channels.shut_down(enough));
        assert!(left.is_empty(), "{left:?}");
    }
}

/// What its kind says does not matter: the network is the bench's.
fn settings() -> FlowSettings {
    let config = "kind = \"telegram\"\nallow = [\"*\"]\noperators = [\"root\"]";
    let config: ChannelConfig = toml::from_str(config).unwrap();
    FlowSettings { channels: BTreeMap::from([(CHANNEL.to_owned(), config)]), ..FlowSettings::default() }
}

fn config(dir: &TempDir, base_url: String, in_flight_runs: usize) -> EngineConfig {
    let agent = AgentConfig { model: "scripted/model".to_owned(), ..AgentConfig::default() };
    let provider = ProviderConfig { base_url: Some(base_url), ..ProviderConfig::new(ProviderKind::Openai) };
    EngineConfig {
        clock: Clock::start(),
        data_dir: dir.path().join("data"),
        work_dir: dir.path().join("work"),
        token_file: dir.path().join("data/token"),
        store_file: "quell.db".to_owned(),
        stop: StopTimes::default(),
        expiry: ExpiryLimits::default(),
        limits: Limits { in_flight_runs, ..Limits::default() },
        sessions: SessionSettings::default(),
        memory: MemorySettings::default(),
        retention: Retention::default(),
        agents: BTreeMap::from([(AgentId::parse("main").unwrap(), agent)]),
        providers: BTreeMap::from([("scripted".to_owned(), provider)]),
        mcp: BTreeMap::new(),
        hooks: HookSettings::default(),
        lifecycle: Vec::new(),
        tools: ToolSettings::default(),
        environment: base_environment(std::env::vars_os()),
        // No row of this bench starts a process.
        open_files: None,
        warden: WardenExe::Path("/bin/false".into()),
        probe: Probe::default(),
    }
}
