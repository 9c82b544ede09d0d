//! The flow with a real engine, a scripted model behind real HTTP, and a network on paper that a test can hold up, cut and read.

mod commands;
mod files;
mod leaves;
mod operate;
mod order;
mod paper;
mod reply;
mod stops;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
use quell_testkit::ScriptedModel;
use tempfile::TempDir;

use self::paper::Paper;
use super::Channels;
use crate::channels::config::ChannelConfig;
use crate::channels::seam::Network;
use crate::channels::settings::{FlowSettings, LiveSettings};

/// How long anything may take on a busy machine. It decides only how late a failing test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine with one channel on paper, named `paper`, in which everybody may write and `root` is an operator.
struct House {
    engine: Engine,
    model: ScriptedModel,
    paper: Arc<Paper>,
    channels: Channels,
    live: LiveSettings,
    dir: TempDir,
}

impl House {
    async fn open() -> Self {
        Self::with("", |_| {}).await
    }

    /// With more keys of the channel, and a changed configuration of the engine.
    async fn with(keys: &str, change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::on((tempfile::tempdir().unwrap(), Paper::new()), keys, change).await
    }

    /// With data and a paper that are there already.
    async fn on((dir, paper): (TempDir, Paper), keys: &str, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let model = ScriptedModel::start().await;
        let mut config = config(&dir, &model);
        change(&mut config);
        let engine = Engine::start(config).await.unwrap();
        let live = LiveSettings::new(settings(keys));
        let paper = Arc::new(paper);
        let made = Arc::clone(&paper);
        let make = Arc::new(move |_: &str, _: &ChannelConfig| Ok(Arc::clone(&made) as Arc<dyn Network>));
        let channels = Channels::start_with(engine.clone(), live.clone(), Arc::new(|| {}), make);
        paper.connected().await;
        Self { engine, model, paper, channels, live, dir }
    }

    /// Stops everything, within its limits. Answers the data.
    async fn close(self) -> TempDir {
        let enough = tokio::time::sleep(Duration::from_secs(5));
        let (left, ()) = tokio::join!(self.engine.shut_down(), self.channels.shut_down(enough));
        assert!(left.is_empty(), "{left:?}");
        self.dir
    }
}

/// The settings of a channel on paper. What its kind says does not matter: the network is made by the test.
fn settings(keys: &str) -> FlowSettings {
    let text = format!("kind = \"matrix\"\nallow = [\"*\"]\noperators = [\"root\"]\n{keys}");
    let config: ChannelConfig = toml::from_str(&text).unwrap();
    FlowSettings { channels: BTreeMap::from([("paper".to_owned(), config)]), ..FlowSettings::default() }
}

fn config(dir: &TempDir, model: &ScriptedModel) -> EngineConfig {
    let agent = AgentConfig { model: "scripted/model".to_owned(), ..AgentConfig::default() };
    let provider = ProviderConfig {
        base_url: Some(model.base_url()),
        max_retries: 0,
        ..ProviderConfig::new(ProviderKind::Openai)
    };
    EngineConfig {
        clock: Clock::start(),
        data_dir: dir.path().join("data"),
        work_dir: dir.path().join("work"),
        token_file: dir.path().join("data/token"),
        store_file: "quell.db".to_owned(),
        stop: StopTimes::default(),
        expiry: ExpiryLimits::default(),
        limits: Limits::default(),
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
        open_files: None,
        // No test of this crate starts a process.
        warden: WardenExe::Path("/bin/false".into()),
        probe: Probe::default(),
    }
}
