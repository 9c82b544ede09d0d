//! Fixture for flow tests: a real engine, a scripted model over HTTP, and a fake network that a test can block, break
//! and inspect.

mod approval_buttons;
mod commands;
mod fake_network;
mod files;
mod languages;
mod operations;
mod ordering;
mod replies;
mod stale_replies;
mod stops;
mod voice;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_engine::agent::{AgentConfig, Limits};
use quell_engine::engine::{Caller, Retention, RunWork, SessionSettings, StopTextMode, Submission};
use quell_engine::hooks::HookSettings;
use quell_engine::memory::MemorySettings;
use quell_engine::{Engine, EngineConfig};
use quell_kernel::expiry::ExpiryLimits;
use quell_kernel::registry::StopRequest;
use quell_kernel::{StopLevel, StopTimeouts};
use quell_llm::{ProviderConfig, ProviderKind};
use quell_process::{WardenExe, base_environment};
use quell_protocol::api::{AccessLevel, OnBusy};
use quell_protocol::{AgentId, SessionKey, StopReason, Surface};
use quell_scope::PointProbe;
use quell_scope::clock::Clock;
use quell_testkit::ScriptedModel;
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_tools::ToolSettings;
use tempfile::TempDir;

use self::fake_network::FakeNetwork;
use super::Channels;
use crate::config::ChannelConfig;
use crate::network::Network;
use crate::settings::{FlowSettings, LiveSettings};

/// Timeout of every wait, long enough for a busy machine. It decides only how late a failing test fails.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// An engine with one channel on a fake network. The channel is named `paper`, everybody may write, and `root` is an
/// operator.
struct FlowFixture {
    engine: Engine,
    model: ScriptedModel,
    network: Arc<FakeNetwork>,
    channels: Channels,
    live_settings: LiveSettings,
    dir: TempDir,
}

impl FlowFixture {
    async fn start() -> Self {
        Self::start_with("", |_| {}).await
    }

    /// Starts with more keys of the channel and a changed configuration of the engine.
    async fn start_with(keys: &str, change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::start_with_data((tempfile::tempdir().unwrap(), FakeNetwork::new()), keys, change).await
    }

    /// Starts with an existing data directory and network.
    async fn start_with_data(
        (dir, network): (TempDir, FakeNetwork),
        keys: &str,
        change: impl FnOnce(&mut EngineConfig),
    ) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let model = ScriptedModel::start().await;
        let mut config = engine_config(&dir, &model);
        change(&mut config);
        let engine = Engine::start(config).await.unwrap();
        let live_settings = LiveSettings::new(flow_settings(keys));
        let network = Arc::new(network);
        let shared = Arc::clone(&network);
        let factory = Arc::new(move |_: &str, _: &ChannelConfig| Ok(Arc::clone(&shared) as Arc<dyn Network>));
        let channels = Channels::start_with_factory(engine.clone(), live_settings.clone(), Arc::new(|| {}), factory);
        network.wait_for_connection().await;
        Self { engine, model, network, channels, live_settings, dir }
    }

    /// Asks the model and waits for its answer in the chat.
    async fn ask(&self, sender: &str, text: &str, answer: &str) {
        self.model.script(ScriptedResponse::text(answer));
        self.network.receive_text(sender, text);
        self.network.wait_for_text(answer).await;
    }

    /// Starts a run of `ann`, the first one, whose model writes a word and then nothing more.
    async fn start_silent_run(&self, text: &str, word: &str) {
        self.model.script(ScriptedResponse::silent_mid_stream(word));
        self.network.receive_text("ann", text);
        self.model.request_at(0).wait_streaming().await;
    }

    async fn wait_for_active_runs(&self, count: usize) {
        while self.engine.active_runs().len() < count {
            tokio::task::yield_now().await;
        }
    }

    /// Shuts everything down and returns the data directory.
    async fn shut_down(self) -> TempDir {
        self.network.end_hanging_calls();
        self.shut_down_within(Duration::from_secs(5)).await
    }

    /// Like [`Self::shut_down`]; calls that hang do so until this time is over.
    async fn shut_down_within(self, time: Duration) -> TempDir {
        let deadline = tokio::time::sleep(time);
        let (left, ()) = tokio::join!(self.engine.shut_down(), self.channels.shut_down(deadline));
        assert!(left.is_empty(), "{left:?}");
        self.dir
    }
}

/// A model step that calls a tool when the gate opens.
fn gated_tool_call(gate: &str) -> ScriptedStream {
    ScriptedStream::new().wait_for_gate(gate).tool_call("c1", "recall", &serde_json::json!({"query": "x"}))
}

/// An administrator outside of any chat.
fn page_admin() -> Caller {
    super::channel_caller("page", "admin", AccessLevel::Admin)
}

fn page_stop_request() -> StopRequest {
    StopRequest { level: StopLevel::Gentle, reason: StopReason::User, surface: Surface::Page }
}

/// A request for a session that does not come from a chat.
fn page_submission(session: &str, text: &str) -> Submission {
    Submission {
        session: SessionKey::parse(session).unwrap(),
        text: text.to_owned(),
        work: RunWork::default(),
        agent: None,
        idempotency_key: None,
        on_busy: OnBusy::Queue,
        timeout: None,
        stop_text_mode: StopTextMode::Literal,
        channel_origin: None,
    }
}

/// Settings with the channel `paper`. Its `kind` does not matter: the test makes the network.
fn flow_settings(keys: &str) -> FlowSettings {
    let text = format!("kind = \"matrix\"\nallow = [\"*\"]\noperators = [\"root\"]\n{keys}");
    let config: ChannelConfig = toml::from_str(&text).unwrap();
    FlowSettings { channels: BTreeMap::from([("paper".to_owned(), config)]), ..FlowSettings::default() }
}

fn engine_config(dir: &TempDir, model: &ScriptedModel) -> EngineConfig {
    let agent = AgentConfig { model: "scripted/model".into(), ..AgentConfig::default() };
    let provider = ProviderConfig {
        base_url: Some(model.base_url()),
        max_retries: 0,
        ..ProviderConfig::new(ProviderKind::OPENAI)
    };
    EngineConfig {
        clock: Clock::start(),
        data_dir: dir.path().join("data"),
        work_dir: dir.path().join("work"),
        token_file: dir.path().join("data/token"),
        store: quell_store::StoreLocation::Sqlite { file: "quell.db".to_owned() },
        cluster: quell_engine::engine::NodeSettings::default(),
        stop_timeouts: StopTimeouts::default(),
        expiry: ExpiryLimits::default(),
        approvals: quell_engine::engine::ApprovalSettings::default(),
        limits: Limits::default(),
        sessions: SessionSettings::default(),
        memory: MemorySettings::default(),
        schedules: quell_engine::schedules::ScheduleSettings::default(),
        retention: Retention::default(),
        agents: BTreeMap::from([(AgentId::parse("main").unwrap(), agent)]),
        providers: BTreeMap::from([("scripted".to_owned(), provider)]),
        mcp: BTreeMap::new(),
        hooks: HookSettings::default(),
        lifecycle_hooks: Vec::new(),
        tools: ToolSettings::default(),
        environment: base_environment(std::env::vars_os()),
        open_files_limit: None,
        // No test of this crate starts a process.
        warden_exe: WardenExe::Path("/bin/false".into()),
        probe: PointProbe::default(),
    }
}
