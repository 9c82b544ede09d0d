//! Session lifecycle: creation, use, expiry, revival, cleanup, and regressions.

mod creation;
mod http;
mod lifecycle;
mod regressions;
mod session_settings;
mod simulated_day;
mod workdirs;

use std::future::ready;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use quell_engine::engine::{OpenSessionError, OpenSessionOutcome};
use quell_engine::hooks::{LifecycleHook, SessionStage, StageUndo, Veto};
use quell_protocol::SessionKey;
use quell_protocol::hook::{HookBody, HookEvent, SessionFacts};
use quell_protocol::session::{Secret, SessionRequest};
use quell_scope::clock::{Clock, SkippedTime};
use quell_test_support::mcp_servers::test_server_config;
use tokio::sync::Semaphore;

use crate::prelude::*;
use crate::test_engine::{background_call, list_files_call, skip_time};
use crate::test_server::{assert_fields, gated_response};

/// One second more than the default idle limit.
const PAST_IDLE_LIMIT: Duration = Duration::from_secs(1801);

/// A program that embeds the engine: it records hook events, adds stages to the creation of sessions, and fails as
/// configured.
#[derive(Default)]
struct RecordingProgram {
    events: Mutex<Vec<ProgramEvent>>,
    stage_names: Vec<&'static str>,
    /// What fails next, in any order: `begin a`, `undo a`, or `drop a`, which panics.
    failures: Mutex<Vec<String>>,
    veto: Mutex<Option<String>>,
    /// Each `begin` takes one permit, if set.
    begin_gate: Option<Arc<Semaphore>>,
    /// Each undo takes one permit, if set.
    undo_gate: Option<Arc<Semaphore>>,
    undo_count: AtomicUsize,
    alive_count: AtomicUsize,
    max_alive: AtomicUsize,
}

#[derive(Clone)]
enum ProgramEvent {
    /// An event and the key of its session, if it has one.
    Hook(HookEvent, String),
    /// What a stage did: `begin a`, `undo a`.
    Stage(String),
}

impl RecordingProgram {
    fn with_stages(names: &[&'static str]) -> Self {
        Self { stage_names: names.to_vec(), ..Self::default() }
    }

    fn gates(self, begin: Option<&Arc<Semaphore>>, undo: Option<&Arc<Semaphore>>) -> Self {
        Self { begin_gate: begin.cloned(), undo_gate: undo.cloned(), ..self }
    }

    fn record(&self, event: ProgramEvent) {
        self.events.lock().unwrap().push(event);
    }

    fn recorded(&self) -> Vec<ProgramEvent> {
        self.events.lock().unwrap().clone()
    }

    fn recorded_stages(&self) -> Vec<String> {
        let stage = |event| if let ProgramEvent::Stage(text) = event { Some(text) } else { None };
        self.recorded().into_iter().filter_map(stage).collect()
    }

    fn hook_events_of(&self, session: &str) -> Vec<HookEvent> {
        let of_session = |event| match event {
            ProgramEvent::Hook(event, key) if key == session => Some(event),
            _ => None,
        };
        self.recorded().into_iter().filter_map(of_session).collect()
    }

    /// The number of stages that have begun and are not undone.
    fn count_alive(&self) -> usize {
        self.alive_count.load(Ordering::SeqCst)
    }

    fn failing(self, steps: &[&str]) -> Self {
        Self { failures: Mutex::new(steps.iter().map(|step| String::from(*step)).collect()), ..self }
    }

    /// Uses up one failure of this step; false when none is left.
    fn fails(&self, step: &str, stage: &str) -> bool {
        let mut failures = self.failures.lock().unwrap();
        let found = failures.iter().position(|failure| *failure == format!("{step} {stage}"));
        found.map(|at| failures.swap_remove(at)).is_some()
    }
}

struct RecordingStage(Arc<RecordingProgram>, &'static str);

struct RecordingStageUndo(Arc<RecordingProgram>, &'static str);

impl SessionStage for RecordingStage {
    fn name(&self) -> &str {
        self.1
    }

    fn begin<'a>(&'a self, _facts: &'a SessionFacts) -> BoxFuture<'a, Result<Box<dyn StageUndo>, String>> {
        async move {
            if let Some(gate) = &self.0.begin_gate {
                gate.acquire().await.unwrap().forget();
            }
            if self.0.fails("begin", self.1) {
                return Err("out of order".to_owned());
            }
            self.0.record(ProgramEvent::Stage(format!("begin {}", self.1)));
            let alive = self.0.alive_count.fetch_add(1, Ordering::SeqCst) + 1;
            self.0.max_alive.fetch_max(alive, Ordering::SeqCst);
            Ok(Box::new(RecordingStageUndo(Arc::clone(&self.0), self.1)) as Box<dyn StageUndo>)
        }
        .boxed()
    }
}

impl Drop for RecordingStageUndo {
    fn drop(&mut self) {
        if self.0.fails("drop", self.1) {
            panic!("the drop of {} panics, as the test wants", self.1);
        }
    }
}

impl StageUndo for RecordingStageUndo {
    fn undo(&mut self) -> BoxFuture<'_, Result<(), String>> {
        async move {
            if self.0.fails("undo", self.1) {
                return Err("not possible now".to_owned());
            }
            self.0.undo_count.fetch_add(1, Ordering::SeqCst);
            if let Some(gate) = &self.0.undo_gate {
                gate.acquire().await.unwrap().forget();
            }
            self.0.record(ProgramEvent::Stage(format!("undo {}", self.1)));
            self.0.alive_count.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
        .boxed()
    }
}

/// The program as a lifecycle hook.
struct RecordingProgramHook(Arc<RecordingProgram>);

impl RecordingProgramHook {
    fn record(&self, body: &HookBody) -> BoxFuture<'static, ()> {
        let key = body.session.as_ref().map(|session| session.key.to_string()).unwrap_or_default();
        self.0.record(ProgramEvent::Hook(body.event, key));
        ready(()).boxed()
    }
}

impl LifecycleHook for RecordingProgramHook {
    fn name(&self) -> &str {
        "around"
    }

    fn on_create<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        let veto = self.0.veto.lock().unwrap().clone();
        self.record(body).map(|()| veto.map_or(Ok(()), |reason| Err(Veto::new(reason)))).boxed()
    }

    fn on_event<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.record(body)
    }

    fn stages(&self) -> Vec<Arc<dyn SessionStage>> {
        let stage = |name: &&'static str| Arc::new(RecordingStage(Arc::clone(&self.0), name)) as Arc<dyn SessionStage>;
        self.0.stage_names.iter().map(stage).collect()
    }
}

/// An engine embedded in a [`RecordingProgram`], with time that can be skipped.
struct SessionFixture {
    test_engine: TestEngine,
    program: Arc<RecordingProgram>,
    clock: &'static SkippedTime,
}

impl SessionFixture {
    async fn start() -> Self {
        Self::start_configured(|_| {}).await
    }

    async fn start_with(program: RecordingProgram, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let program = Arc::new(program);
        // `Clock` is `Copy` and needs a static reference; this leaks a few bytes per test.
        let time: &'static SkippedTime = Box::leak(Box::default());
        let hook = Arc::new(RecordingProgramHook(Arc::clone(&program)));
        let test_engine = TestEngine::start_with(ProcessLock::shared().await, |config| {
            config.clock = Clock::with_skipped_time(time);
            config.lifecycle_hooks.push(hook);
            change(config);
        })
        .await;
        test_engine.answer_by_marker();
        Self { test_engine, program, clock: time }
    }

    /// Starts with these stages, of which as many may begin as the semaphore has permits.
    async fn start_gated(stages: &[&'static str], permits: usize) -> (Self, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(permits));
        let program = RecordingProgram::with_stages(stages).gates(Some(&gate), None);
        (Self::start_with(program, |_| {}).await, gate)
    }

    /// Starts with one stage that is not undone before the semaphore gets permits.
    async fn start_undo_gated() -> (Self, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        let program = RecordingProgram::with_stages(&["a"]).gates(None, Some(&gate));
        (Self::start_with(program, |_| {}).await, gate)
    }

    /// Starts with one stage and this configuration.
    async fn start_configured(change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::start_with(RecordingProgram::with_stages(&["a"]), change).await
    }

    async fn open(&self, asked: SessionRequest) -> Result<(SessionKey, OpenSessionOutcome), OpenSessionError> {
        self.engine.open_session(&alice(), asked).await
    }

    async fn session_state(&self, session: &str) -> String {
        let row = self.engine.find_session(&parse_session_key(session)).await.unwrap();
        row.map_or("none".to_owned(), |row| row.state)
    }

    /// Starts a run whose answer never ends, and waits until its text arrives. The text has the marker `hang`.
    async fn start_hanging(&self, session: &str) -> RunId {
        self.script_marker("hang", [ScriptedResponse::silent_mid_stream("begun")]);
        let run = self.send(submission(session, "marker:hang")).await;
        self.wait_text(&run).await;
        run
    }

    /// Starts a run whose answer waits for the gate `gate`, which is also the marker of its text.
    async fn start_gated_run(&self, session: &str, gate: &str) -> RunId {
        self.script_marker(gate, [gated_response(gate)]);
        let run = self.send(submission(session, &format!("marker:{gate}"))).await;
        self.model.wait_for_marked_request(gate).await;
        run
    }

    async fn assert_completes(&self, run: &RunId) {
        assert_eq!(self.wait_ended(run).await.verdict.unwrap().as_str(), "completed");
    }

    async fn wait_waiting_callers(&self, count: usize) {
        let engine = self.engine.clone();
        leaks::wait_for_value("waiting callers", count, move || engine.count_session_waiters()).await;
    }

    async fn wait_hook_event(&self, session: &'static str, event: HookEvent) {
        let program = Arc::clone(&self.program);
        leaks::wait_for_true("the hook event", move || program.hook_events_of(session).contains(&event)).await;
    }

    async fn close(self) {
        self.test_engine.close().await;
    }

    /// Starts and lets the session `s` expire after its first message; waits until as many stages are left.
    async fn start_expired(program: RecordingProgram, left: usize) -> Self {
        let fixture = Self::start_with(program, |_| {}).await;
        fixture.run_message("s", "hello").await;
        fixture.advance_time(PAST_IDLE_LIMIT);
        fixture.wait_alive(left).await;
        fixture
    }

    /// Skips this much time, then starts a sweep of expired sessions.
    fn advance_time(&self, time: Duration) {
        self.clock.skip(time);
        self.engine.sweep_sessions();
    }

    /// Lets all idle sessions expire, and waits until nothing of them is left.
    async fn expire_all(&self) {
        self.advance_time(PAST_IDLE_LIMIT);
        self.wait_alive(0).await;
    }

    /// Waits until this many stages have begun and are not undone.
    async fn wait_alive(&self, count: usize) {
        let program = Arc::clone(&self.program);
        leaks::wait_for_value("stages alive", count, move || program.count_alive()).await;
    }
}

impl Deref for SessionFixture {
    type Target = TestEngine;

    fn deref(&self) -> &TestEngine {
        &self.test_engine
    }
}

/// A request for the session of a user's chat, on the scripted model.
pub(crate) fn session_request(user: &str, chat: &str) -> SessionRequest {
    serde_json::from_value(json!({"userId": user, "chatId": chat, "provider": "scripted"})).unwrap()
}
