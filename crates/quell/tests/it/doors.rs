//! A house with open doors: an engine in this process, served on a free port, in front of a scripted model.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use quell_engine::agent::{AgentConfig, Limits};
use quell_engine::clock::Clock;
use quell_engine::dispatch::{EngineConfig, Retention, SessionSettings};
use quell_engine::hooks::HookSettings;
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_engine::memory::MemorySettings;
use quell_engine::proc::{WardenExe, base_environment};
use quell_engine::scope::Probe;
use quell_engine::{Engine, tools::ToolSettings};
use quell_kernel::StopTimes;
use quell_kernel::expiry::ExpiryLimits;
use quell_protocol::AgentId;
use quell_surfaces::serve::Listeners;
use quell_surfaces::{Door, DoorSettings};
use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Answer, Api};
use quell_testkit::model::{Behaviour, Stream};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Claim, DataDir, work_of};

/// What a house is built from; tests change it before it opens.
pub(crate) struct Plan {
    pub(crate) engine: EngineConfig,
    pub(crate) doors: DoorSettings,
}

/// An engine behind open doors.
pub(crate) struct House {
    pub(crate) model: ScriptedModel,
    pub(crate) engine: Engine,
    pub(crate) door: Door,
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
    pub(crate) http: Api,
    data: DataDir,
    claim: Claim,
}

impl House {
    /// With default settings.
    pub(crate) async fn open() -> Self {
        Self::with(|_| {}).await
    }

    /// With changed settings.
    pub(crate) async fn with(change: impl FnOnce(&mut Plan)) -> Self {
        let claim = Claim::shared().await;
        let model = ScriptedModel::start().await;
        let data = DataDir::new();
        let mut plan = plan(&model, data.path().to_path_buf());
        change(&mut plan);
        Self::build(model, data, plan, claim).await
    }

    /// Whose runs may start processes.
    pub(crate) async fn with_processes() -> Self {
        Self::with(|plan| {
            plan.engine.warden = WardenExe::Path(env!("CARGO_BIN_EXE_quell").into());
            plan.engine.environment = base_environment(std::env::vars_os());
        })
        .await
    }

    /// The same house after its daemon has ended and a new one has come.
    pub(crate) async fn reopen(self) -> Self {
        self.engine.shut_down().await;
        let Self { model, data, claim, .. } = self;
        let plan = plan(&model, data.path().to_path_buf());
        Self::build(model, data, plan, claim).await
    }

    /// As [`House::reopen`], with a changed configuration.
    pub(crate) async fn reopen_with(self, change: impl FnOnce(&mut Plan)) -> Self {
        self.engine.shut_down().await;
        let Self { model, data, claim, .. } = self;
        let mut plan = plan(&model, data.path().to_path_buf());
        change(&mut plan);
        Self::build(model, data, plan, claim).await
    }

    async fn build(model: ScriptedModel, data: DataDir, plan: Plan, claim: Claim) -> Self {
        // Engines are built in the roof, which installs the TLS provider; here the test client does.
        drop(quell_testkit::daemon::client());
        let engine = Engine::start(plan.engine).await.unwrap();
        let door = Door::new(engine.clone(), plan.doors, None);
        let address = serve(door.clone()).await;
        let token = std::fs::read_to_string(data.path().join("token")).unwrap().trim().to_owned();
        let http = Api::new(&format!("http://{address}"), &token);
        Self { model, engine, door, address, token, http, data, claim }
    }

    /// Makes a token and answers its secret.
    pub(crate) async fn token(&self, name: &str, scope: &str) -> String {
        let made = self.http.post("/api/tokens", &json!({"name": name, "scope": scope})).await.expect_status(201);
        made["token"].as_str().unwrap().to_owned()
    }

    /// The HTTP door with a new token of this scope.
    pub(crate) async fn api(&self, name: &str, scope: &str) -> Api {
        self.http.with_token(&self.token(name, scope).await)
    }

    /// Sends a text and answers the id of its run.
    pub(crate) async fn send(&self, session: &str, text: &str) -> String {
        let answer = self.post_run(session, &json!({"text": text})).await.expect_status(202);
        answer["runId"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn post_run(&self, session: &str, body: &Value) -> Answer {
        self.http.post(&format!("/api/sessions/{}/runs", escape(session)), body).await
    }

    /// Starts a run whose model streams `begun` and is silent then; waits until the run shows it.
    pub(crate) async fn streaming_run(&self, session: &str) -> String {
        let index = self.model.seen().len();
        self.model.script(Behaviour::silent_mid_stream("begun"));
        let run = self.send(session, "go on for ever").await;
        self.model.request(index).resting().await;
        self.http.events(&run, 0).await.until("text.delta").await;
        run
    }

    /// A run that is over.
    pub(crate) async fn finished_run(&self, session: &str) -> String {
        self.model.script(Behaviour::text("done"));
        let run = self.send(session, "say done").await;
        self.ended(&run).await;
        run
    }

    /// Waits for the end of a run and answers its view.
    pub(crate) async fn ended(&self, run: &str) -> Value {
        self.http.events(run, 0).await.until("run.ended").await;
        self.http.get(&format!("/api/runs/{run}")).await.expect_status(200)
    }

    /// Waits until a run is in the database only. A run's end is stored after it is announced, by a task of the engine.
    pub(crate) async fn forgotten(&self, run: &str) {
        self.ended(run).await;
        let id = quell_protocol::RunId::parse(run).unwrap();
        let gone = async {
            while self.engine.live(&id).is_some() {
                // The registry has no event for forgetting; nobody but a test asks.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone).await.expect("the run is forgotten in time");
    }
}

/// Serves a door on a free port until the test's runtime ends.
pub(crate) async fn serve(door: Door) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listeners = Listeners { tcp: listener, local: None };
    #[expect(clippy::disallowed_methods, reason = "the test's own server, which ends with its runtime")]
    tokio::spawn(quell_surfaces::serve(listeners, door, std::future::pending()));
    address
}

fn plan(model: &ScriptedModel, data_dir: PathBuf) -> Plan {
    let mut provider = ProviderConfig::new(ProviderKind::Openai);
    provider.base_url = Some(model.base_url());
    let agent = |tools: &[&str]| AgentConfig {
        model: "scripted/model".to_owned(),
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        ..AgentConfig::default()
    };
    let id = |name: &str| AgentId::parse(name).unwrap();
    let child = AgentConfig { parent: Some(id("main")), role: Some("writer".to_owned()), ..agent(&[]) };
    let agents = BTreeMap::from([(id("main"), agent(&["*"])), (id("team/writer"), child)]);
    let engine = EngineConfig {
        clock: Clock::start(),
        token_file: data_dir.join("token"),
        work_dir: work_of(&data_dir),
        data_dir,
        store_file: "quell.db".to_owned(),
        stop: StopTimes::default(),
        expiry: ExpiryLimits::default(),
        limits: Limits::default(),
        sessions: SessionSettings::default(),
        memory: MemorySettings::default(),
        retention: Retention::default(),
        agents,
        providers: BTreeMap::from([("scripted".to_owned(), provider)]),
        mcp: BTreeMap::new(),
        hooks: HookSettings::default(),
        lifecycle: Vec::new(),
        tools: ToolSettings::default(),
        environment: Vec::new(),
        // Runs of most of these tests start no processes.
        open_files: None,
        warden: WardenExe::Path("/bin/true".into()),
        probe: Probe::default(),
    };
    Plan { engine, doors: DoorSettings::default() }
}

/// Everything but letters and digits as `%XX`.
pub(crate) fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// A stream that shows `begun` and goes on when the gate of this name opens.
pub(crate) fn gated(gate: &str) -> Behaviour {
    Stream::new().text("begun").wait_for(gate).text(" and done").into()
}

/// Fails unless the answer is a problem with this code and status, spelt as rows B4 and the interfaces page want it.
#[track_caller]
pub(crate) fn assert_problem(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{:#}", answer.body);
    assert_eq!(answer.content_type, "application/problem+json");
    assert_eq!(answer.code(), Some(code), "{:#}", answer.body);
    assert_eq!(answer.body["error"], code);
    assert_eq!(answer.body["status"], status);
    assert!(answer.body["title"].is_string() && answer.body["detail"].is_string(), "{:#}", answer.body);
}

/// A request with text as its body.
pub(crate) async fn send_text(api: &Api, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    let request = api.request(method, path).header("content-type", "application/json").body(body);
    api.send(request).await
}
