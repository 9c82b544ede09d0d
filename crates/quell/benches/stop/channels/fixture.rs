//! An engine with channels on the in-memory network. Everybody may write, and `root` is an operator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_channels::config::ChannelConfig;
use quell_channels::flow::Channels;
use quell_channels::network::{ChatAddress, InboundMessage, MessageId, Network};
use quell_channels::settings::{FlowSettings, LiveSettings};
use quell_engine::agent::{AgentConfig, Limits};
use quell_engine::{Engine, EngineConfig};
use quell_llm::{ProviderConfig, ProviderKind};
use quell_process::{WardenExe, base_environment};
use quell_protocol::AgentId;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::memory_network::{MemoryNetwork, NetworkEvent, NetworkEventKind, NetworkInput};

pub(crate) const CHANNEL: &str = "memory";
/// Longest wait for anything. It only decides how late a broken bench fails.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// Engine, channels and network under measurement.
pub(crate) struct ChannelsFixture {
    pub(crate) engine: Engine,
    pub(crate) writer: ChatWriter,
    events: mpsc::UnboundedReceiver<NetworkEvent>,
    channels: Channels,
    _dir: TempDir,
}

/// Writes messages into the network. Clones write into the same network.
#[derive(Clone)]
pub(crate) struct ChatWriter(mpsc::UnboundedSender<NetworkInput>);

impl ChatWriter {
    /// Writes a message of `sender` in a chat of their own. The id must be new.
    pub(crate) fn write_message(&self, id: &str, sender: &str, text: &str) {
        let message = InboundMessage {
            id: id.to_owned(),
            message_id: MessageId(id.to_owned()),
            sender: sender.to_owned(),
            sender_name: None,
            address: ChatAddress { target: format!("chat-{sender}"), thread: None },
            scope_id: None,
            text: text.to_owned(),
            is_addressed: true,
            is_group: false,
            attachments: Vec::new(),
        };
        self.0.send(NetworkInput::Message(Box::new(message))).unwrap();
    }

    /// The network delivers more only when all messages so far are in the database or refused.
    pub(crate) fn end_of_batch(&self) {
        self.0.send(NetworkInput::EndOfBatch).unwrap();
    }
}

impl ChannelsFixture {
    /// Starts with the model at this address, and room for this many runs in flight.
    pub(crate) async fn open(base_url: String, in_flight_runs: usize) -> Self {
        // Fails for the second fixture, because it is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::start(engine_config(&dir, base_url, in_flight_runs)).await.unwrap();
        let (memory, inputs, events) = MemoryNetwork::new();
        let memory: Arc<dyn Network> = Arc::new(memory);
        let make = Arc::new(move |_: &str, _: &ChannelConfig| Ok(Arc::clone(&memory)));
        let channels =
            Channels::start_with_factory(engine.clone(), LiveSettings::new(flow_settings()), Arc::new(|| {}), make);
        let mut fixture = Self { engine, writer: ChatWriter(inputs), events, channels, _dir: dir };
        fixture.wait_for("a listener", |kind| matches!(kind, NetworkEventKind::Connected)).await;
        fixture
    }

    /// Returns the next event of the network.
    pub(crate) async fn next_event(&mut self) -> NetworkEvent {
        timeout(WAIT_LIMIT, self.events.recv()).await.unwrap().unwrap()
    }

    /// Skips events of the network up to the first that is wanted.
    pub(crate) async fn wait_for(&mut self, name: &str, wanted: impl Fn(&NetworkEventKind) -> bool) -> NetworkEvent {
        let search = async {
            loop {
                let event = self.events.recv().await.unwrap();
                if wanted(&event.kind) {
                    return event;
                }
            }
        };
        timeout(WAIT_LIMIT, search).await.unwrap_or_else(|_| panic!("{name} did not come"))
    }

    /// Returns when this text was sent to a sender.
    pub(crate) async fn wait_for_text_to(&mut self, sender: &str, part: &str) -> Instant {
        let target = format!("chat-{sender}");
        let is_wanted = |kind: &NetworkEventKind| matches!(kind, NetworkEventKind::Sent { place, text } if place.target == target && text.contains(part));
        self.wait_for(part, is_wanted).await.at
    }

    /// Shuts down engine and channels.
    pub(crate) async fn close(self) {
        let deadline = tokio::time::sleep(Duration::from_secs(5));
        let (left, ()) = tokio::join!(self.engine.shut_down(), self.channels.shut_down(deadline));
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The `kind` does not matter, because the factory returns the bench's network.
fn flow_settings() -> FlowSettings {
    let config = "kind = \"telegram\"\nallow = [\"*\"]\noperators = [\"root\"]";
    let config: ChannelConfig = toml::from_str(config).unwrap();
    FlowSettings { channels: BTreeMap::from([(CHANNEL.to_owned(), config)]), ..FlowSettings::default() }
}

fn engine_config(dir: &TempDir, base_url: String, in_flight_runs: usize) -> EngineConfig {
    let agent = AgentConfig { model: "scripted/model".into(), ..AgentConfig::default() };
    let provider = ProviderConfig { base_url: Some(base_url), ..ProviderConfig::new(ProviderKind::OPENAI) };
    EngineConfig {
        limits: Limits { in_flight_runs, ..Limits::default() },
        agents: BTreeMap::from([(AgentId::parse("main").unwrap(), agent)]),
        providers: BTreeMap::from([("scripted".to_owned(), provider)]),
        environment: base_environment(std::env::vars_os()),
        // No figure of this bench starts a process.
        ..EngineConfig::new(dir.path().join("data"), WardenExe::Path("/bin/false".into()))
    }
}
