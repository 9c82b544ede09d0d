//! Test support: an engine in this process with a scripted model behind real HTTP and a temporary database, plus
//! callers and recorded notices.

mod data_dir;
mod observations;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_engine::access::RequestOrigin;
use quell_engine::agent::{AgentConfig, Limits};
use quell_engine::engine::{
    Caller, EngineNotice, Retention, SessionSettings, StopResult, StopTextMode, Submission, SubmitError, SubmitOutcome,
    Subscription,
};
use quell_engine::hooks::HookSettings;
use quell_engine::live_run::{RunProgress, RunWork};
use quell_engine::memory::MemorySettings;
use quell_engine::{Engine, EngineConfig};
use quell_kernel::expiry::ExpiryLimits;
use quell_kernel::registry::{StopRequest, StopScope};
use quell_kernel::{StopLevel, StopTimeouts};
use quell_llm::{ProviderConfig, ProviderKind};
use quell_process::{WardenExe, base_environment};
use quell_protocol::api::{AccessLevel, ComputeStatus, Grants, OnBusy, RunView, SendAnswer};
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{AgentId, EventKind, Principal, ResourceKind, RunEvent, RunId, SessionKey, StopReason, Surface};
use quell_protocol::{Receipt, Verdict};
use quell_scope::clock::Clock;
use quell_scope::{Point, PointProbe};
use quell_store::test_support::OtherProgram;
use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::model::ModelRequestHandle;
use quell_testkit::{ScriptedModel, ScriptedResponse, leaks};
use quell_tools::{FetchSettings, ToolSettings};
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, watch};

use crate::test_daemon::quell_exe;
use crate::test_store::TestDatabase;

pub use data_dir::{TestDataDir, work_dir_beside};
pub use observations::{failure_of, reasoning_mark, without_cache_marks};
pub use quell_testkit::WAIT_TIMEOUT;

/// Descriptors, child processes and the role of sub-reaper belong to the whole process. Plain `cargo test` runs all
/// tests in one process.
static PROCESS_LOCK: RwLock<()> = RwLock::const_new(());

/// A test's lock on the process, shared or exclusive.
#[derive(Debug)]
pub enum ProcessLock {
    /// Other tests may run at the same time.
    Shared { _guard: RwLockReadGuard<'static, ()> },
    /// No other test runs: this one counts what the process holds, or kills wardens.
    Exclusive { _guard: RwLockWriteGuard<'static, ()> },
}

impl ProcessLock {
    pub async fn shared() -> Self {
        Self::Shared { _guard: PROCESS_LOCK.read().await }
    }

    pub async fn exclusive() -> Self {
        Self::Exclusive { _guard: PROCESS_LOCK.write().await }
    }
}

/// An engine with everything that it needs.
pub struct TestEngine {
    pub engine: Engine,
    pub model: Arc<ScriptedModel>,
    pub point_hook: PointHook,
    pub test_dir: TestDir,
    pub database: TestDatabase,
    scripts: ResponsesByMarker,
    _process_lock: ProcessLock,
}

pub enum TestDir {
    /// Deleted with the engine.
    Temporary(TestDataDir),
    /// Kept.
    Borrowed(PathBuf),
}

impl TestDir {
    pub fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Borrowed(path) => path,
        }
    }
}

/// Answers of a model by the last marker of the request, in order.
#[derive(Clone, Default)]
pub struct ResponsesByMarker(Arc<Mutex<HashMap<String, VecDeque<ScriptedResponse>>>>);

impl ResponsesByMarker {
    /// From now on, once its general script is used up, the model answers with these; else with a short text.
    pub fn install(&self, model: &ScriptedModel) {
        let scripts = self.clone();
        model.respond_by_prompt(move |_, request| {
            let marker = request.markers.last().cloned().unwrap_or_default();
            let scripted = scripts.0.lock().unwrap().get_mut(&marker).and_then(VecDeque::pop_front);
            scripted.unwrap_or_else(|| ScriptedResponse::text("That is done."))
        });
    }

    /// Sets the answers to requests whose last marker is this, in order.
    pub fn script(&self, marker: &str, answers: impl IntoIterator<Item = ScriptedResponse>) {
        self.0.lock().unwrap().insert(marker.to_owned(), answers.into_iter().collect());
    }
}

impl TestEngine {
    /// Starts with the default configuration, beside other tests.
    pub async fn start_shared() -> Self {
        Self::start_with(ProcessLock::shared().await, |_| {}).await
    }

    /// Starts with the default configuration, while no other test runs.
    pub async fn start_exclusive() -> Self {
        Self::start_with(ProcessLock::exclusive().await, |_| {}).await
    }

    pub async fn start_with(process_lock: ProcessLock, change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::start_in(TestDir::Temporary(TestDataDir::new()), process_lock, change).await
    }

    /// Starts in this directory, which may hold the data of an earlier engine.
    pub async fn start_in(dir: TestDir, process_lock: ProcessLock, change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::start_on_database(dir, TestDatabase::sqlite(), process_lock, change).await
    }

    /// Starts in this directory and on this database, which may hold the data of an earlier engine.
    pub async fn start_on_database(
        dir: TestDir,
        database: TestDatabase,
        process_lock: ProcessLock,
        change: impl FnOnce(&mut EngineConfig),
    ) -> Self {
        // Fails when another test has installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let model = Arc::new(ScriptedModel::start().await);
        let point_hook = PointHook::default();
        let mut config = engine_config(dir.path(), &model.base_url(), point_hook.probe());
        database.configure(&mut config);
        change(&mut config);
        let engine = Engine::start(config).await.unwrap();
        Self {
            engine,
            model,
            point_hook,
            test_dir: dir,
            database,
            scripts: ResponsesByMarker::default(),
            _process_lock: process_lock,
        }
    }

    /// From now on, once the general script is used up, the model answers by the last marker of the request: as given
    /// to [`TestEngine::script_marker`], else with a short text.
    pub fn answer_by_marker(&self) {
        self.scripts.install(&self.model);
    }

    /// Sets the answers to requests whose last marker is this, in order.
    pub fn script_marker(&self, marker: &str, answers: impl IntoIterator<Item = ScriptedResponse>) {
        self.scripts.script(marker, answers);
    }

    /// Connects to its database as another program.
    pub fn connect_to_database(&self) -> OtherProgram {
        self.database.connect(self.test_dir.path())
    }

    /// The work directory of the agent `main`.
    pub fn workdir(&self) -> PathBuf {
        work_dir_beside(self.test_dir.path()).join("main")
    }

    /// Sends a message that must become a new run.
    pub async fn send(&self, message: Submission) -> RunId {
        self.send_for_answer(message).await.run_id
    }

    /// Sends a message that must be accepted.
    pub async fn send_for_answer(&self, message: Submission) -> SendAnswer {
        match self.engine.submit(&alice(), message).await.unwrap() {
            SubmitOutcome::Accepted(answer) => answer,
            other => panic!("not a new message: {other:?}"),
        }
    }

    /// Sends a message that must be refused; returns the error.
    pub async fn expect_refusal(&self, message: Submission) -> SubmitError {
        self.engine.submit(&alice(), message).await.unwrap_err()
    }

    /// Sends a message and waits until its run has left the memory.
    pub async fn run_message(&self, session: &str, text: &str) -> RunView {
        let run = self.send(submission(session, text)).await;
        self.wait_ended(&run).await
    }

    /// Sends a message and waits until its run has ended. Use this where background work keeps the run in memory.
    pub async fn run_message_in_memory(&self, session: &str, text: &str) -> RunView {
        let run = self.send(submission(session, text)).await;
        let Some(live_run) = self.engine.live_run(&run) else { panic!("run {run} has ended already") };
        live_run.wait_for_progress(RunProgress::Ended).await;
        live_run.view()
    }

    /// Waits until a run has ended and left the memory; returns its view from the database.
    pub async fn wait_ended(&self, run: &RunId) -> RunView {
        let engine = self.engine.clone();
        let id = run.clone();
        leaks::wait_until(WAIT_TIMEOUT, move || match engine.live_run(&id) {
            Some(live_run) => Err(format!("{:?} in memory: {:?}", live_run.id(), live_run.view())),
            None => Ok(()),
        })
        .await;
        self.engine.find_run(run).await.unwrap().unwrap()
    }

    /// Stops a run gently, as Alice, its owner.
    pub fn stop(&self, run: &RunId) -> StopResult {
        self.engine.stop(&alice(), &run_stop_scope(run), &stop_ask(StopLevel::Gentle))
    }

    /// Stops a run gently and waits until it has left the memory.
    pub async fn stop_and_wait(&self, run: &RunId) -> RunView {
        self.stop(run);
        self.wait_ended(run).await
    }

    /// Checks that nothing has stopped a run.
    pub fn assert_running(&self, run: &RunId) {
        assert_eq!(self.engine.live_run(run).unwrap().verdict(), None);
    }

    /// The active runs of a session, in order.
    pub fn active_runs_of(&self, session: &str) -> Vec<RunId> {
        self.engine.active_run_ids_of_session(&parse_session_key(session))
    }

    /// Checks that a session still works: its next message is answered.
    pub async fn assert_next_message_works(&self, session: &str) {
        let next = self.run_message(session, "and now? marker:next").await;
        assert_eq!(next.verdict, Some(Verdict::Completed), "{next:#?}");
    }

    /// Deletes a session as Alice, after a gentle stop; true if it existed.
    pub async fn delete_session(&self, session: &str) -> bool {
        let (alice, key, ask) = (alice(), parse_session_key(session), stop_ask(StopLevel::Gentle));
        self.engine.delete_session(&alice, &key, &ask).await.unwrap()
    }

    /// Stops a session gently with its queue, as Alice, its owner.
    pub fn stop_session(&self, session: &str) -> StopResult {
        let scope = StopScope::whole_session(parse_session_key(session));
        self.engine.stop(&alice(), &scope, &stop_ask(StopLevel::Gentle))
    }

    pub async fn wait_resource_held(&self, run: &RunId, kind: ResourceKind) {
        self.wait_held(run, kind, "").await;
    }

    /// Waits until the run holds a resource of this kind whose label begins so.
    pub async fn wait_held(&self, run: &RunId, kind: ResourceKind, label: &str) {
        let label = label.to_owned();
        let (engine, run) = (self.engine.clone(), run.clone());
        leaks::wait_until(WAIT_TIMEOUT, move || {
            let rows = engine.live_run(&run).map(|live_run| live_run.scope.ledger().rows()).unwrap_or_default();
            let held = rows.iter().any(|row| row.kind == kind && row.is_held() && row.label.starts_with(&label));
            if held { Ok(()) } else { Err(format!("run {run} holds no {kind:?} {label:?}: {rows:?}")) }
        })
        .await;
    }

    /// Waits until a call of this run waits for a person, and returns the row of the list. The ledger holds an approval
    /// before it is listed.
    pub async fn wait_approval_of(&self, run: &RunId) -> ApprovalRow {
        let (engine, id) = (self.engine.clone(), run.clone());
        let find = move || engine.pending_approvals().into_iter().find(|row| row.run_id == id);
        let probe = find.clone();
        leaks::wait_until(WAIT_TIMEOUT, move || probe().map(drop).ok_or_else(|| "no call waits".to_owned())).await;
        find().unwrap_or_else(|| panic!("the approval of {run} was settled meanwhile"))
    }

    /// Waits until the run has received text, not only until the model has sent it.
    pub async fn wait_text(&self, run: &RunId) {
        self.follow_until(run, "text", |event| matches!(event.kind, EventKind::TextDelta { .. })).await;
    }

    /// Waits until a command of the run has printed this text.
    pub async fn wait_printed(&self, run: &RunId, text: &str) {
        let has_text = |event: &RunEvent| matches!(&event.kind, EventKind::ToolOutput { text: printed, .. } if printed.contains(text));
        self.follow_until(run, &format!("output {text:?}"), has_text).await;
    }

    /// Follows a run from its first event to a wanted one; `what` names it in the failure.
    pub async fn follow_until(&self, run: &RunId, what: &str, wanted: impl Fn(&RunEvent) -> bool) {
        let Some(live_run) = self.engine.live_run(run) else { panic!("run {run} is over") };
        let mut follower = live_run.follow(0);
        while let Some(event) = follower.next().await {
            if wanted(&event) {
                return;
            }
        }
        panic!("run {run} ended without {what}");
    }

    /// The compute status of the agent `main`.
    pub fn agent_status(&self) -> ComputeStatus {
        self.engine.find_agent(&parse_agent_id("main")).unwrap().compute_status
    }

    /// Waits until the agent `main` has this compute status.
    pub async fn wait_agent_status(&self, wanted: ComputeStatus) {
        let engine = self.engine.clone();
        leaks::wait_until(WAIT_TIMEOUT, move || {
            let status = engine.find_agent(&parse_agent_id("main")).unwrap().compute_status;
            if status == wanted { Ok(()) } else { Err(format!("the agent is {status:?}, not {wanted:?}")) }
        })
        .await;
    }

    pub fn last_messages(&self) -> Vec<Value> {
        self.model.recorded_requests().last().map(|request| request.messages().to_vec()).unwrap_or_default()
    }

    /// Shuts the engine down and checks that nothing is left and all histories were valid.
    pub async fn close(self) {
        let left = self.engine.shut_down().await;
        assert!(left.is_empty(), "left at shutdown: {left:?}");
        self.model.assert_histories_valid();
    }
}

/// Runs a function once at a cancellation point of a run.
#[derive(Clone, Default)]
pub struct PointHook(Arc<PointHookState>);

struct PointHookState {
    armed: Mutex<Option<ArmedPointHook>>,
    fired: watch::Sender<Option<Point>>,
}

impl Default for PointHookState {
    fn default() -> Self {
        Self { armed: Mutex::new(None), fired: watch::Sender::new(None) }
    }
}

struct ArmedPointHook {
    point: Point,
    /// How many times the point is passed before.
    skips: u32,
    action: Box<dyn FnOnce() + Send>,
}

impl PointHook {
    /// Calls `action` on the run's own task when the point is reached for the `nth` time from now, counted from 1.
    pub fn arm(&self, point: Point, nth: u32, action: impl FnOnce() + Send + 'static) {
        self.0.fired.send_replace(None);
        let armed = ArmedPointHook { point, skips: nth - 1, action: Box::new(action) };
        *self.0.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some(armed);
    }

    /// Waits until the action has run; returns its point.
    pub async fn wait_fired(&self) -> Point {
        let mut fired = self.0.fired.subscribe();
        let waiting = fired.wait_for(Option::is_some);
        let found = tokio::time::timeout(WAIT_TIMEOUT, waiting).await;
        found.expect("the point was not reached").unwrap().unwrap()
    }

    fn probe(&self) -> PointProbe {
        let set = Arc::clone(&self.0);
        PointProbe::new(move |point| set.on_point(point))
    }
}

impl PointHookState {
    fn on_point(&self, point: Point) {
        let mut slot = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(armed) = slot.as_mut().filter(|armed| armed.point == point) else { return };
        if armed.skips > 0 {
            armed.skips -= 1;
            return;
        }
        let Some(armed) = slot.take() else { return };
        drop(slot);
        (armed.action)();
        self.fired.send_replace(Some(point));
    }
}

/// Records all notices of the engine since [`NoticeRecorder::subscribe`], as each transport would get them.
pub struct NoticeRecorder {
    subscription: Subscription,
    notices: Vec<EngineNotice>,
}

impl NoticeRecorder {
    pub fn subscribe(engine: &Engine) -> Self {
        Self { subscription: engine.subscribe(), notices: Vec::new() }
    }

    /// Waits for the event `run.ended` of the run.
    pub async fn wait_ended(&mut self, run: &RunId) {
        let terminal = |event: &RunEvent| matches!(event.kind, EventKind::Ended { .. });
        self.wait_event(run, "end", terminal).await;
    }

    /// Waits for an event of a run; `what` names it in the failure.
    pub async fn wait_event(&mut self, run: &RunId, what: &str, wanted: impl Fn(&RunEvent) -> bool) {
        let fits =
            |notice: &EngineNotice| matches!(notice, EngineNotice::Run(event) if event.run_id == *run && wanted(event));
        if self.notices.iter().any(fits) {
            return;
        }
        loop {
            let notice = tokio::time::timeout(WAIT_TIMEOUT, self.subscription.next()).await;
            let Ok(notice) = notice else { panic!("{what} of run {run} did not come; seen: {:#?}", self.notices) };
            self.notices.push(notice.unwrap());
            if self.notices.last().is_some_and(fits) {
                return;
            }
        }
    }

    /// All notices so far, including those that wait to be read.
    pub fn read_notices(&mut self) -> &[EngineNotice] {
        while let Some(notice) = self.subscription.try_next().unwrap() {
            self.notices.push(notice);
        }
        &self.notices
    }

    /// All events of a run so far, in order.
    pub fn run_events(&mut self, run: &RunId) -> Vec<Arc<RunEvent>> {
        let of_run = |notice: &EngineNotice| match notice {
            EngineNotice::Run(event) if event.run_id == *run => Some(Arc::clone(event)),
            _ => None,
        };
        self.read_notices().iter().filter_map(of_run).collect()
    }
}

/// Waits until `wanted` finds a request among those that the model has received.
pub async fn wait_for_request(
    model: &ScriptedModel,
    wanted: impl Fn(&[ModelRequestHandle]) -> Option<ModelRequestHandle>,
) -> ModelRequestHandle {
    loop {
        let seen = model.recorded_requests();
        match wanted(&seen) {
            Some(request) => return request,
            None => drop(model.wait_for_requests(seen.len() + 1).await),
        }
    }
}

/// Waits for the request that summarises the turn with this marker: it shows that turn, with more than two messages, and
/// nothing newer.
pub async fn wait_summary_request(model: &ScriptedModel, marker: &str) -> ModelRequestHandle {
    let is_summary = |request: &&ModelRequestHandle| request.markers == [marker] && request.messages().len() > 2;
    wait_for_request(model, |seen| seen.iter().rev().find(is_summary).cloned()).await
}

/// Lets this much time pass at once for a runtime with one thread, that of `#[tokio::test]` without a flavour.
pub async fn skip_time(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// The owner of the test's runs, over HTTP, with all rights except those of an admin and over the runs of others.
pub fn alice() -> Caller {
    Caller {
        principal: parse_principal("alice"),
        scope: AccessLevel::Write,
        grants: Grants { stop_all: false, ..Grants::ALL },
        key: quell_kernel::api_key::ApiKey::default(),
        verified_person: false,
        surface: Surface::Http,
        origin: RequestOrigin::internal(),
    }
}

pub fn bob() -> Caller {
    Caller { principal: parse_principal("bob"), ..alice() }
}

pub fn root() -> Caller {
    Caller { principal: parse_principal("root"), scope: AccessLevel::Admin, surface: Surface::Ws, ..alice() }
}

pub fn parse_principal(name: &str) -> Principal {
    Principal::parse(name).unwrap()
}

pub fn parse_session_key(session: &str) -> SessionKey {
    SessionKey::parse(session).unwrap()
}

pub fn parse_agent_id(id: &str) -> AgentId {
    AgentId::parse(id).unwrap()
}

pub fn parse_run_id(id: &str) -> RunId {
    RunId::parse(id).unwrap()
}

/// A message to the agent `main`, as a transport submits it.
pub fn submission(session: &str, text: &str) -> Submission {
    Submission {
        session: parse_session_key(session),
        text: text.to_owned(),
        work: RunWork::default(),
        agent: Some(parse_agent_id("main")),
        idempotency_key: None,
        on_busy: OnBusy::Queue,
        timeout: None,
        stop_text_mode: StopTextMode::Literal,
        channel_origin: None,
    }
}

/// Like [`submission`], with a given run id.
pub fn submission_as(run: &RunId, session: &str, text: &str) -> Submission {
    Submission { idempotency_key: Some(run.clone()), ..submission(session, text) }
}

pub fn run_stop_scope(run: &RunId) -> StopScope {
    StopScope::run(run.clone())
}

pub fn stop_ask(level: StopLevel) -> StopRequest {
    StopRequest { level, reason: StopReason::User, surface: Surface::Http }
}

pub fn receipt_of(view: &RunView) -> &Receipt {
    view.receipt.as_ref().unwrap_or_else(|| panic!("no receipt: {view:?}"))
}

/// The abort reason of a verdict; any other verdict fails the test.
pub fn abort_reason(verdict: Option<&Verdict>) -> StopReason {
    match verdict {
        Some(Verdict::Aborted { reason, .. }) => reason.clone(),
        other => panic!("not aborted: {other:?}"),
    }
}

/// A call of the tool `shell`.
pub fn shell_call(command: impl AsRef<str>) -> ScriptedResponse {
    ScriptedResponse::tool_call("c1", "shell", &json!({"command": command.as_ref()}))
}

/// A call of the tool `shell` that leaves its command running.
pub fn background_call(command: impl AsRef<str>) -> ScriptedResponse {
    ScriptedResponse::tool_call("c1", "shell", &json!({"command": command.as_ref(), "background": true}))
}

pub fn endless_tokens() -> ScriptedResponse {
    ScriptedResponse::tokens_forever(Duration::from_millis(2))
}

/// A call of a tool that needs no process.
pub fn list_files_call() -> ScriptedResponse {
    ScriptedResponse::tool_call("c1", "list_files", &json!({"path": "."}))
}

/// All messages of a request as text, to search in.
pub fn messages_as_text(messages: &[Value]) -> String {
    messages.iter().map(|message| format!("{message}\n")).collect()
}

/// Copies the files of a data directory, including the database, so that another engine can start on the copy.
pub fn copy_data_dir(data: &Path) -> TestDataDir {
    let copy = TestDataDir::new();
    for entry in std::fs::read_dir(data).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

/// An engine configuration with one agent `main` on the scripted model.
pub fn engine_config(data: &Path, base_url: &str, probe: PointProbe) -> EngineConfig {
    let model = AgentConfig { model: "scripted/model".into(), ..AgentConfig::default() };
    EngineConfig {
        cluster: quell_engine::engine::NodeSettings::default(),
        clock: Clock::start(),
        data_dir: data.to_path_buf(),
        work_dir: work_dir_beside(data),
        token_file: data.join("token"),
        store: quell_store::StoreLocation::Sqlite { file: "quell.db".to_owned() },
        stop_timeouts: StopTimeouts::default(),
        expiry: ExpiryLimits::default(),
        limits: Limits::default(),
        approvals: quell_engine::engine::ApprovalSettings::default(),
        sessions: SessionSettings::default(),
        memory: MemorySettings::default(),
        schedules: quell_engine::schedules::ScheduleSettings::default(),
        retention: Retention::default(),
        agents: BTreeMap::from([(parse_agent_id("main"), model)]),
        providers: BTreeMap::from([("scripted".to_owned(), provider_config(base_url))]),
        mcp: BTreeMap::new(),
        hooks: HookSettings::default(),
        lifecycle_hooks: Vec::new(),
        tools: ToolSettings {
            fetch: FetchSettings { allow_private: true, ..FetchSettings::default() },
            ..ToolSettings::default()
        },
        environment: base_environment(std::env::vars_os()),
        open_files_limit: None,
        warden_exe: WardenExe::Path(quell_exe().into()),
        probe,
    }
}

pub fn provider_config(base_url: &str) -> ProviderConfig {
    ProviderConfig { base_url: Some(base_url.to_owned()), ..ProviderConfig::new(ProviderKind::OPENAI) }
}

/// The text of a user's message without the line that tells its time.
pub fn without_time(text: &str) -> String {
    text.split("\n\n").filter(|paragraph| !paragraph.starts_with("[Sent ")).collect::<Vec<_>>().join("\n\n")
}

/// Adds a provider and an agent of each dialect, all named after its `kind`. The agents think where the dialect has it.
pub fn add_dialect_agents(config: &mut EngineConfig) {
    let base_url = config.providers["scripted"].base_url.clone();
    let main = config.agents[&parse_agent_id("main")].clone();
    for kind in ModelDialect::ALL.map(ModelDialect::kind) {
        let provider_kind = ProviderKind::all().find(|known| known.name() == kind).unwrap();
        let api_key = Some("sk-test".to_owned().into());
        let provider = ProviderConfig { base_url: base_url.clone(), api_key, ..ProviderConfig::new(provider_kind) };
        config.providers.insert(kind.to_owned(), provider);
        let thinking_tokens = (provider_kind != ProviderKind::OPENAI).then_some(2048);
        let agent = AgentConfig { model: format!("{kind}/m").into(), thinking_tokens, ..main.clone() };
        config.agents.insert(parse_agent_id(kind), agent);
    }
}

/// Adds the provider `anthropic`: the scripted model in the Anthropic dialect.
pub fn add_anthropic_provider(config: &mut EngineConfig) {
    let base_url = config.providers["scripted"].base_url.clone();
    let api_key = Some("sk-ant".to_owned().into());
    let provider = ProviderConfig { base_url, api_key, ..ProviderConfig::new(ProviderKind::ANTHROPIC) };
    config.providers.insert("anthropic".to_owned(), provider);
}
