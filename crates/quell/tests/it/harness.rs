//! A house for one test: an engine in this process, a scripted model behind real HTTP, a database file in a directory of its
//! own. It also knows who asks and what was seen, and decides nothing.

mod data_dir;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_engine::access::Origin;
use quell_engine::agent::{AgentConfig, Limits};
use quell_engine::cell::Progress;
use quell_engine::clock::Clock;
use quell_engine::dispatch::{
    Caller, Notice, Retention, SessionSettings, Stop, StopText, Submission, SubmitError, Submitted, Subscription,
};
use quell_engine::hooks::HookSettings;
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_engine::memory::MemorySettings;
use quell_engine::proc::{WardenExe, base_environment};
use quell_engine::scope::{Point, Probe};
use quell_engine::tools::{FetchSettings, ToolSettings};
use quell_engine::{Engine, EngineConfig};
use quell_kernel::expiry::ExpiryLimits;
use quell_kernel::registry::{StopAsk, StopScope};
use quell_kernel::{Push, StopTimes};
use quell_protocol::api::{ComputeStatus, Grants, OnBusy, RunView, Scope, SendAnswer};
use quell_protocol::{AgentId, EventKind, Principal, ResourceKind, RunEvent, RunId, SessionKey, StopReason, Surface};
use quell_protocol::{Receipt, Verdict};
use quell_testkit::{Behaviour, ScriptedModel, leaks};
use serde_json::Value;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, watch};

pub(crate) use data_dir::{DataDir, work_of};

/// How long anything may take on a busy machine. It decides only how late a failing test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Descriptors, children and the duty of a sub-reaper belong to the whole process, and plain `cargo test` runs all tests in one.
static PROCESS: RwLock<()> = RwLock::const_new(());

/// A test's claim on the process.
#[derive(Debug)]
pub(crate) enum Claim {
    /// Others may run beside it.
    Shared { _guard: RwLockReadGuard<'static, ()> },
    /// It counts what the process holds, or kills wardens: no other test runs.
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

impl Claim {
    pub(crate) async fn shared() -> Self {
        Self::Shared { _guard: PROCESS.read().await }
    }

    pub(crate) async fn alone() -> Self {
        Self::Alone { _guard: PROCESS.write().await }
    }
}

/// The engine with everything around it.
pub(crate) struct House {
    pub(crate) engine: Engine,
    pub(crate) model: Arc<ScriptedModel>,
    pub(crate) trap: Trap,
    pub(crate) dir: Ground,
    scripts: Scripts,
    _claim: Claim,
}

/// The directory of a house.
pub(crate) enum Ground {
    /// Gone with the house.
    Own(DataDir),
    /// Stays.
    Lent(PathBuf),
}

impl Ground {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Own(dir) => dir.path(),
            Self::Lent(path) => path,
        }
    }
}

/// Answers of the model by the last marker of the request.
type Scripts = Arc<Mutex<HashMap<String, VecDeque<Behaviour>>>>;

impl House {
    /// A house with the defaults, beside others.
    pub(crate) async fn shared() -> Self {
        Self::with(Claim::shared().await, |_| {}).await
    }

    /// A house with the defaults, while no other test runs.
    pub(crate) async fn alone() -> Self {
        Self::with(Claim::alone().await, |_| {}).await
    }

    /// A house whose configuration is changed before it starts.
    pub(crate) async fn with(claim: Claim, change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::on(Ground::Own(DataDir::new()), claim, change).await
    }

    /// A house on this ground, where another one may have stood.
    pub(crate) async fn on(dir: Ground, claim: Claim, change: impl FnOnce(&mut EngineConfig)) -> Self {
        // Whoever comes first installs it; one is as good as another.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let model = Arc::new(ScriptedModel::start().await);
        let trap = Trap::default();
        let mut config = config(dir.path(), &model.base_url(), trap.probe());
        change(&mut config);
        let engine = Engine::start(config).await.unwrap();
        Self { engine, model, trap, dir, scripts: Scripts::default(), _claim: claim }
    }

    /// From now on the model answers by the last marker of the request, where its script is used up: with what
    /// [`House::script`] gave that marker, else with a word.
    pub(crate) fn answer_by_marker(&self) {
        let scripts = Arc::clone(&self.scripts);
        self.model.by_prompt(move |_, request| {
            let marker = request.markers.last().cloned().unwrap_or_default();
            let scripted = scripts.lock().unwrap().get_mut(&marker).and_then(VecDeque::pop_front);
            scripted.unwrap_or_else(|| Behaviour::text("That is done."))
        });
    }

    /// What the model answers to requests whose last marker is this, in order.
    pub(crate) fn script(&self, marker: &str, answers: impl IntoIterator<Item = Behaviour>) {
        self.scripts.lock().unwrap().insert(marker.to_owned(), answers.into_iter().collect());
    }

    /// Where the tools of agent `main` work.
    pub(crate) fn workdir(&self) -> PathBuf {
        work_of(self.dir.path()).join("main")
    }

    /// Sends a message that is expected to become a new run.
    pub(crate) async fn send(&self, message: Submission) -> RunId {
        self.answer(message).await.run_id
    }

    /// Sends a message that is expected to be taken.
    pub(crate) async fn answer(&self, message: Submission) -> SendAnswer {
        match self.engine.submit(&alice(), message).await.unwrap() {
            Submitted::New(answer) => answer,
            other => panic!("not a new message: {other:?}"),
        }
    }

    /// Sends a message and says why it was refused.
    pub(crate) async fn refusal(&self, message: Submission) -> SubmitError {
        self.engine.submit(&alice(), message).await.unwrap_err()
    }

    /// Sends a message and waits for its end.
    pub(crate) async fn ask(&self, session: &str, text: &str) -> RunView {
        let run = self.send(message(session, text)).await;
        self.ended(&run).await
    }

    /// Sends a message and waits until its run is over; what it left in the background keeps it in memory.
    pub(crate) async fn ask_and_wait(&self, session: &str, text: &str) -> RunView {
        let run = self.send(message(session, text)).await;
        let Some(cell) = self.engine.live(&run) else { panic!("run {run} is over already") };
        cell.reached(Progress::Ended).await;
        cell.view()
    }

    /// Waits for the end of a run and for its last entry in the database.
    pub(crate) async fn ended(&self, run: &RunId) -> RunView {
        let engine = self.engine.clone();
        let id = run.clone();
        leaks::settled(PATIENCE, move || match engine.live(&id) {
            Some(cell) => Err(format!("{:?} in memory: {:?}", cell.id(), cell.view())),
            None => Ok(()),
        })
        .await;
        self.engine.run(run).await.unwrap().unwrap()
    }

    /// Stops a run as its owner, gently.
    pub(crate) fn stop(&self, run: &RunId) -> Stop {
        self.engine.stop(&alice(), &of_run(run), &ask(Push::Gentle))
    }

    /// Stops a session as its owner, with its queue.
    pub(crate) fn stop_session(&self, session: &str) -> Stop {
        let scope = StopScope::whole_session(key(session));
        self.engine.stop(&alice(), &scope, &ask(Push::Gentle))
    }

    /// Waits until the run holds something of this kind.
    pub(crate) async fn holds(&self, run: &RunId, kind: ResourceKind) {
        let (engine, run) = (self.engine.clone(), run.clone());
        leaks::settled(PATIENCE, move || {
            let rows = engine.live(&run).map(|cell| cell.scope.ledger().rows()).unwrap_or_default();
            let held = rows.iter().any(|row| row.kind == kind && row.released.is_none());
            if held { Ok(()) } else { Err(format!("run {run} holds no {kind:?}: {rows:?}")) }
        })
        .await;
    }

    /// Waits until text of the model has come through to the run, not only left the model.
    pub(crate) async fn text_came(&self, run: &RunId) {
        let Some(cell) = self.engine.live(run) else { panic!("run {run} is over") };
        let mut follower = cell.follow(0);
        while let Some(event) = follower.next().await {
            if matches!(event.kind, EventKind::TextDelta { .. }) {
                return;
            }
        }
        panic!("run {run} ended without text");
    }

    /// Waits until a command of the run has printed this.
    pub(crate) async fn printed(&self, run: &RunId, text: &str) {
        let Some(cell) = self.engine.live(run) else { panic!("run {run} is over") };
        // The follower begins at the beginning, so nothing is missed.
        let mut follower = cell.follow(0);
        while let Some(event) = follower.next().await {
            if matches!(&event.kind, EventKind::ToolOutput { text: printed, .. } if printed.contains(text)) {
                return;
            }
        }
        panic!("run {run} ended and its command had not said {text:?}");
    }

    /// What the agent `main` is doing.
    pub(crate) fn status(&self) -> ComputeStatus {
        self.engine.agent(&agent("main")).unwrap().compute_status
    }

    /// Waits until the agent `main` does this.
    pub(crate) async fn status_is(&self, wanted: ComputeStatus) {
        let engine = self.engine.clone();
        leaks::settled(PATIENCE, move || {
            let status = engine.agent(&agent("main")).unwrap().compute_status;
            if status == wanted { Ok(()) } else { Err(format!("the agent is {status:?}, not {wanted:?}")) }
        })
        .await;
    }

    /// The messages that the model got last.
    pub(crate) fn last_messages(&self) -> Vec<Value> {
        self.model.seen().last().map(|request| request.messages().to_vec()).unwrap_or_default()
    }

    /// Closes the engine; nothing may be left.
    pub(crate) async fn close(self) {
        let left = self.engine.shut_down().await;
        assert!(left.is_empty(), "left at shutdown: {left:?}");
        self.model.assert_histories_valid();
    }
}

/// A function that tests put at a point of a run's work.
#[derive(Clone, Default)]
pub(crate) struct Trap(Arc<Set>);

struct Set {
    armed: Mutex<Option<Armed>>,
    sprung: watch::Sender<Option<Point>>,
}

impl Default for Set {
    fn default() -> Self {
        Self { armed: Mutex::new(None), sprung: watch::Sender::new(None) }
    }
}

struct Armed {
    point: Point,
    /// How often the point is passed before.
    passes: u32,
    spring: Box<dyn FnOnce() + Send>,
}

impl Trap {
    /// Does `spring` on the run's own task when the point is reached for the `nth` time from now, from 1.
    pub(crate) fn arm(&self, point: Point, nth: u32, spring: impl FnOnce() + Send + 'static) {
        self.0.sprung.send_replace(None);
        let armed = Armed { point, passes: nth - 1, spring: Box::new(spring) };
        *self.0.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some(armed);
    }

    /// Waits until the armed point was reached.
    pub(crate) async fn sprung(&self) -> Point {
        let mut sprung = self.0.sprung.subscribe();
        let waiting = sprung.wait_for(Option::is_some);
        let found = tokio::time::timeout(PATIENCE, waiting).await;
        found.expect("the point was not reached").unwrap().unwrap()
    }

    fn probe(&self) -> Probe {
        let set = Arc::clone(&self.0);
        Probe::new(move |point| set.reached(point))
    }
}

impl Set {
    fn reached(&self, point: Point) {
        let mut slot = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(armed) = slot.as_mut().filter(|armed| armed.point == point) else { return };
        if armed.passes > 0 {
            armed.passes -= 1;
            return;
        }
        let Some(armed) = slot.take() else { return };
        drop(slot);
        (armed.spring)();
        self.sprung.send_replace(Some(point));
    }
}

/// What every door would have seen: all notices since its making.
pub(crate) struct Watcher {
    subscription: Subscription,
    seen: Vec<Notice>,
}

impl Watcher {
    pub(crate) fn of(engine: &Engine) -> Self {
        Self { subscription: engine.subscribe(), seen: Vec::new() }
    }

    /// Waits until the run has ended.
    pub(crate) async fn until_ended(&mut self, run: &RunId) {
        let terminal = |event: &RunEvent| matches!(event.kind, EventKind::Ended { .. });
        self.until(run, "end", terminal).await;
    }

    /// Waits for an event of a run.
    pub(crate) async fn until(&mut self, run: &RunId, what: &str, wanted: impl Fn(&RunEvent) -> bool) {
        let fits = |notice: &Notice| matches!(notice, Notice::Run(event) if event.run_id == *run && wanted(event));
        if self.seen.iter().any(fits) {
            return;
        }
        loop {
            let notice = tokio::time::timeout(PATIENCE, self.subscription.next()).await;
            let Ok(notice) = notice else { panic!("{what} of run {run} did not come; seen: {:#?}", self.seen) };
            self.seen.push(notice.unwrap());
            if self.seen.last().is_some_and(fits) {
                return;
            }
        }
    }

    /// Everything so far, what waits to be read included.
    pub(crate) fn seen(&mut self) -> &[Notice] {
        while let Some(notice) = self.subscription.take().unwrap() {
            self.seen.push(notice);
        }
        &self.seen
    }

    /// All events of a run so far.
    pub(crate) fn events(&mut self, run: &RunId) -> Vec<Arc<RunEvent>> {
        let of_run = |notice: &Notice| match notice {
            Notice::Run(event) if event.run_id == *run => Some(Arc::clone(event)),
            _ => None,
        };
        self.seen().iter().filter_map(of_run).collect()
    }
}

/// A person at the HTTP API, who owns what tests send and may do all that needs no admin.
pub(crate) fn alice() -> Caller {
    Caller {
        principal: principal("alice"),
        scope: Scope::Write,
        grants: Grants::ALL,
        surface: Surface::Http,
        origin: Origin::inside(),
    }
}

/// Another person there.
pub(crate) fn bob() -> Caller {
    Caller { principal: principal("bob"), ..alice() }
}

/// An admin at the gateway's WebSocket.
pub(crate) fn root() -> Caller {
    Caller { principal: principal("root"), scope: Scope::Admin, surface: Surface::Ws, ..alice() }
}

pub(crate) fn principal(name: &str) -> Principal {
    Principal::parse(name).unwrap()
}

pub(crate) fn key(session: &str) -> SessionKey {
    SessionKey::parse(session).unwrap()
}

pub(crate) fn agent(id: &str) -> AgentId {
    AgentId::parse(id).unwrap()
}

pub(crate) fn run_id(id: &str) -> RunId {
    RunId::parse(id).unwrap()
}

/// A message to agent `main`, as a program's door hands it in.
pub(crate) fn message(session: &str, text: &str) -> Submission {
    Submission {
        session: key(session),
        text: text.to_owned(),
        agent: Some(agent("main")),
        idempotency_key: None,
        on_busy: OnBusy::Queue,
        timeout: None,
        stop_text: StopText::Literal,
        errand: None,
    }
}

/// As [`message`], with a run id chosen beforehand.
pub(crate) fn message_as(run: &RunId, session: &str, text: &str) -> Submission {
    Submission { idempotency_key: Some(run.clone()), ..message(session, text) }
}

pub(crate) fn of_run(run: &RunId) -> StopScope {
    StopScope::Run { id: run.clone(), session: None }
}

pub(crate) fn ask(push: Push) -> StopAsk {
    StopAsk { push, reason: StopReason::User, surface: Surface::Http }
}

/// The receipt that an ended run must have.
pub(crate) fn receipt(view: &RunView) -> &Receipt {
    view.receipt.as_ref().unwrap_or_else(|| panic!("no receipt: {view:?}"))
}

/// The reason for which a run was aborted; anything else fails the test.
pub(crate) fn abort_reason(verdict: Option<&Verdict>) -> StopReason {
    match verdict {
        Some(Verdict::Aborted { reason, .. }) => reason.clone(),
        other => panic!("not aborted: {other:?}"),
    }
}

/// All text of a request's messages, for looking something up in it.
pub(crate) fn flat(messages: &[Value]) -> String {
    messages.iter().map(|message| format!("{message}\n")).collect()
}

/// Copies a data directory as it is, with its database, so that another engine can start on it.
pub(crate) fn copy_of(data: &Path) -> DataDir {
    let copy = DataDir::new();
    for entry in std::fs::read_dir(data).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

/// An engine's configuration with one agent `main` on the scripted model.
pub(crate) fn config(data: &Path, base_url: &str, probe: Probe) -> EngineConfig {
    let model = AgentConfig { model: "scripted/model".to_owned(), ..AgentConfig::default() };
    EngineConfig {
        clock: Clock::start(),
        data_dir: data.to_path_buf(),
        work_dir: work_of(data),
        token_file: data.join("token"),
        store_file: "quell.db".to_owned(),
        stop: StopTimes::default(),
        expiry: ExpiryLimits::default(),
        limits: Limits::default(),
        sessions: SessionSettings::default(),
        memory: MemorySettings::default(),
        retention: Retention::default(),
        agents: BTreeMap::from([(agent("main"), model)]),
        providers: BTreeMap::from([("scripted".to_owned(), provider(base_url))]),
        mcp: BTreeMap::new(),
        hooks: HookSettings::default(),
        lifecycle: Vec::new(),
        tools: ToolSettings {
            fetch: FetchSettings { allow_private: true, ..FetchSettings::default() },
            ..ToolSettings::default()
        },
        environment: base_environment(std::env::vars_os()),
        open_files: None,
        warden: WardenExe::Path(env!("CARGO_BIN_EXE_quell").into()),
        probe,
    }
}

pub(crate) fn provider(base_url: &str) -> ProviderConfig {
    ProviderConfig { base_url: Some(base_url.to_owned()), ..ProviderConfig::new(ProviderKind::Openai) }
}
