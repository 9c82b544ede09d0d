//! Test support: an engine in this process, served over HTTP and WebSocket on a free port, with a scripted model.

use std::net::SocketAddr;
use std::path::Path;

use quell_engine::Engine;
use quell_engine::agent::AgentConfig;
use quell_engine::engine::EngineConfig;
use quell_process::{WardenExe, base_environment};
use quell_scope::PointProbe;
use quell_server::serve::Listeners;
use quell_server::{ServerSettings, ServerState};
use quell_testkit::daemon::{TestApiClient, TestApiResponse};
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::{ScriptedModel, leaks};
use quell_tools::ToolSettings;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::test_daemon::quell_exe;
use crate::test_engine::{ProcessLock, TestDataDir, engine_config, parse_agent_id, parse_run_id};

pub use quell_testkit::daemon::percent_encode;

/// The configuration of a test server; tests change it before the start.
pub struct TestServerConfig {
    pub engine: EngineConfig,
    pub server: ServerSettings,
}

impl TestServerConfig {
    /// The agent `team/writer` asks a person before it lists files.
    pub fn ask_in_sub_agent(&mut self) {
        let writer = self.engine.agents.get_mut(&parse_agent_id("team/writer")).unwrap();
        writer.tools = vec!["list_files".to_owned()];
        writer.approvals.insert("list_files".to_owned(), quell_kernel::approval::ApprovalPolicy::Ask);
    }
}

/// An engine that is served over HTTP and WebSocket.
pub struct TestServer {
    pub model: ScriptedModel,
    pub engine: Engine,
    pub state: ServerState,
    pub address: SocketAddr,
    pub token: String,
    pub http: TestApiClient,
    data: TestDataDir,
    process_lock: ProcessLock,
}

impl TestServer {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts with a run in the session `s` as [`TestServer::start_streaming_run`] does; returns the run, too.
    pub async fn start_streaming() -> (Self, String) {
        let server = Self::start().await;
        let run = server.start_streaming_run("s").await;
        (server, run)
    }

    pub async fn start_with(change: impl FnOnce(&mut TestServerConfig)) -> Self {
        let process_lock = ProcessLock::shared().await;
        let model = ScriptedModel::start().await;
        let data = TestDataDir::new();
        Self::build(model, data, change, process_lock).await
    }

    /// Starts a server whose agent `team/writer` asks a person before it lists files.
    pub async fn start_with_asking_sub_agent() -> Self {
        Self::start_with(TestServerConfig::ask_in_sub_agent).await
    }

    /// Starts a server whose runs may start processes.
    pub async fn start_with_processes() -> Self {
        Self::start_with(|config| {
            config.engine.warden_exe = WardenExe::Path(quell_exe().into());
            config.engine.environment = base_environment(std::env::vars_os());
        })
        .await
    }

    /// Shuts the engine down and starts a new one on the same data and model.
    pub async fn restart(self) -> Self {
        self.restart_with(|_| {}).await
    }

    /// Like [`TestServer::restart`], with a changed configuration.
    pub async fn restart_with(self, change: impl FnOnce(&mut TestServerConfig)) -> Self {
        self.engine.shut_down().await;
        let Self { model, data, process_lock, .. } = self;
        Self::build(model, data, change, process_lock).await
    }

    async fn build(
        model: ScriptedModel,
        data: TestDataDir,
        change: impl FnOnce(&mut TestServerConfig),
        process_lock: ProcessLock,
    ) -> Self {
        let mut config = default_config(&model, data.path());
        change(&mut config);
        // The binary installs the TLS provider; here the test client does.
        drop(quell_testkit::daemon::http_client());
        let engine = Engine::start(config.engine).await.unwrap();
        let state = ServerState::new(engine.clone(), config.server, None);
        let address = serve(state.clone()).await;
        let token = std::fs::read_to_string(data.path().join("token")).unwrap().trim().to_owned();
        let http = TestApiClient::new(&format!("http://{address}"), &token);
        Self { model, engine, state, address, token, http, data, process_lock }
    }

    /// Creates a token; returns its secret.
    pub fn data_dir(&self) -> &Path {
        self.data.path()
    }

    pub async fn create_token(&self, name: &str, scope: &str) -> String {
        let made = self.http.post("/api/tokens", &json!({"name": name, "scope": scope})).await.expect_status(201);
        made["token"].as_str().unwrap().to_owned()
    }

    pub async fn api_with_new_token(&self, name: &str, scope: &str) -> TestApiClient {
        self.http.with_token(&self.create_token(name, scope).await)
    }

    /// Sends a text; returns the id of its run.
    pub async fn send_message(&self, session: &str, text: &str) -> String {
        self.http.send_message(session, text).await
    }

    /// Sends the head of a request with this exact path, which a client library would normalise.
    pub async fn open_request(&self, method: &str, path: &str, headers: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        self.write_head(&mut socket, method, path, headers).await;
        socket
    }

    /// Writes the head of a request with the token and these headers.
    pub async fn write_head(&self, socket: &mut TcpStream, method: &str, path: &str, headers: &str) {
        let (address, token) = (self.address, &self.token);
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n");
        let head = format!("{head}content-type: application/json\r\n{headers}\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
    }

    pub async fn post_run(&self, session: &str, body: &Value) -> TestApiResponse {
        self.http.post_run(session, body).await
    }

    /// Starts a run whose model streams `begun` and then stays silent; waits until the run shows the text.
    pub async fn start_streaming_run(&self, session: &str) -> String {
        let index = self.model.recorded_requests().len();
        self.model.script(ScriptedResponse::silent_mid_stream("begun"));
        let run = self.send_message(session, "go on for ever").await;
        self.model.request_at(index).wait_paused().await;
        self.http.run_events(&run, 0).await.wait_for("text.delta").await;
        run
    }

    /// Runs a message to its end; returns the id of the run.
    pub async fn run_to_end(&self, session: &str) -> String {
        let view = self.run_scripted(session, "say done", ScriptedResponse::text("done")).await;
        view["runId"].as_str().unwrap().to_owned()
    }

    /// Sends a text that the model answers in this way, and waits for the end of the run; returns its view.
    pub async fn run_scripted(&self, session: &str, text: &str, answer: impl Into<ScriptedResponse>) -> Value {
        self.model.script(answer);
        let run = self.send_message(session, text).await;
        self.wait_ended(&run).await
    }

    /// Checks that nothing has stopped a run.
    pub async fn assert_running(&self, run: &str) {
        let view = self.http.run_view(run).await;
        assert_eq!(view["state"], "running", "the run was stopped: {view:#}");
    }

    pub async fn wait_ended(&self, run: &str) -> Value {
        self.http.wait_ended(run).await
    }

    /// Waits until a run is only in the database. The engine stores a run in a task of its own, after it announces the
    /// end.
    pub async fn wait_forgotten(&self, run: &str) {
        self.wait_ended(run).await;
        let id = parse_run_id(run);
        let engine = self.engine.clone();
        leaks::wait_for_true("the run has left the memory", move || engine.live_run(&id).is_none()).await;
    }
}

/// Serves on a free port until the test's runtime ends.
pub async fn serve(state: ServerState) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listeners = Listeners { tcp: listener, local: None };
    #[expect(clippy::disallowed_methods, reason = "the test's own server, which ends with its runtime")]
    tokio::spawn(quell_server::serve(listeners, state, std::future::pending()));
    address
}

/// One agent `main` with every tool and its child `team/writer` without tools. Runs of most of these tests start no
/// processes, so there is no warden.
fn default_config(model: &ScriptedModel, data_dir: &Path) -> TestServerConfig {
    let mut engine = engine_config(data_dir, &model.base_url(), PointProbe::default());
    let (parent, role) = (Some(parse_agent_id("main")), Some("writer".to_owned()));
    let child = AgentConfig { parent, role, tools: Vec::new(), ..engine.agents[&parse_agent_id("main")].clone() };
    engine.agents.insert(parse_agent_id("team/writer"), child);
    engine.tools = ToolSettings::default();
    engine.environment = Vec::new();
    engine.warden_exe = WardenExe::Path("/bin/true".into());
    TestServerConfig { engine, server: ServerSettings::default() }
}

/// A stream that shows `begun` and continues when the gate of this name opens.
pub fn gated_response(gate: &str) -> ScriptedResponse {
    ScriptedStream::new().text("begun").wait_for_gate(gate).text(" and done").into()
}

/// Fails unless the answer is a problem document with this status and code, in the form of row B4.
#[track_caller]
pub fn assert_problem(answer: &TestApiResponse, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{:#}", answer.body);
    assert_eq!(answer.content_type, "application/problem+json");
    assert_eq!(answer.problem_code(), Some(code), "{:#}", answer.body);
    assert_eq!(answer.body["error"], code);
    assert_eq!(answer.body["status"], status);
    assert!(answer.body["title"].is_string() && answer.body["detail"].is_string(), "{:#}", answer.body);
}

/// Fails unless `actual` has all fields of `expected`, in depth and with these values; it may have others. A field that
/// is expected to be null may be missing.
#[track_caller]
pub fn assert_fields(actual: &Value, expected: &Value) {
    assert!(has_fields(actual, expected), "expected {expected:#}\nin {actual:#}");
}

/// Like [`assert_fields`], for a failure with words of its own.
pub fn has_fields(actual: &Value, expected: &Value) -> bool {
    match expected {
        Value::Object(fields) => fields.iter().all(|(name, value)| has_fields(&actual[name], value)),
        other => actual == other,
    }
}

/// Sends a request with this text as its body.
pub async fn send_text(
    api: &TestApiClient,
    method: Method,
    path: &str,
    body: impl Into<reqwest::Body>,
) -> TestApiResponse {
    let request = api.request(method, path).header("content-type", "application/json").body(body);
    api.send(request).await
}
