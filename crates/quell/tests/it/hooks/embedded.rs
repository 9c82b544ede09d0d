//! Hooks and session stages of a program that embeds the engine.

use std::sync::Mutex;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::hooks::{LifecycleHook, SessionStage, StageUndo, Veto};
use quell_protocol::hook::{HookBody, SessionFacts};

use crate::prelude::*;

type SharedHookLog = Arc<Mutex<Vec<String>>>;

/// Records every event, and refuses the session `unwanted`.
struct RecordingHook(SharedHookLog);

impl RecordingHook {
    fn record(&self, body: &HookBody) -> BoxFuture<'static, ()> {
        self.0.lock().unwrap().push(body.event.to_string());
        std::future::ready(()).boxed()
    }
}

impl LifecycleHook for RecordingHook {
    fn name(&self) -> &str {
        "diary"
    }

    fn on_create<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        let wanted = body.session.as_ref().unwrap().key.as_str() != "unwanted";
        let answer = if wanted { Ok(()) } else { Err(Veto::new("nobody wants it")) };
        self.record(body).map(|()| answer).boxed()
    }

    fn on_activate<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.record(body)
    }

    fn on_terminate<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.record(body)
    }

    fn on_run_start<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.record(body)
    }

    fn on_run_end<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.record(body)
    }

    fn on_start<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.record(body)
    }

    fn on_shutdown<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.record(body)
    }

    fn stages(&self) -> Vec<Arc<dyn SessionStage>> {
        ["first", "second"]
            .map(|name| Arc::new(RecordingHookStage { name, log: Arc::clone(&self.0) }) as Arc<dyn SessionStage>)
            .to_vec()
    }
}

/// A stage that fails in the session `full`, if it is the second one.
struct RecordingHookStage {
    name: &'static str,
    log: SharedHookLog,
}

struct RecordingHookUndo(String, SharedHookLog);

impl SessionStage for RecordingHookStage {
    fn name(&self) -> &str {
        self.name
    }

    fn begin<'a>(&'a self, facts: &'a SessionFacts) -> BoxFuture<'a, Result<Box<dyn StageUndo>, String>> {
        async move {
            if facts.key.as_str() == "full" && self.name == "second" {
                return Err("no room".to_owned());
            }
            self.log.lock().unwrap().push(format!("{} begins", self.name));
            Ok(Box::new(RecordingHookUndo(self.name.to_owned(), Arc::clone(&self.log))) as Box<dyn StageUndo>)
        }
        .boxed()
    }
}

impl StageUndo for RecordingHookUndo {
    fn undo(&mut self) -> BoxFuture<'_, Result<(), String>> {
        self.1.lock().unwrap().push(format!("{} ends", self.0));
        std::future::ready(Ok(())).boxed()
    }
}

async fn start_engine() -> (TestEngine, SharedHookLog) {
    let log = SharedHookLog::default();
    let diary = Arc::new(RecordingHook(Arc::clone(&log)));
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| config.lifecycle_hooks.push(diary)).await;
    (test, log)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_life_of_a_session_is_told_in_its_order() {
    let (test, log) = start_engine().await;
    test.model.script(ScriptedResponse::text("here"));
    assert_eq!(test.run_message("s", "hello").await.verdict, Some(Verdict::Completed));
    test.close().await;
    let log = log.lock().unwrap().clone();
    // The daemon's own events are not ordered against those of the session.
    let of_the_session: Vec<&str> =
        log.iter().map(String::as_str).filter(|event| !matches!(*event, "on_start" | "on_shutdown")).collect();
    let expected = [
        "on_create",
        "first begins",
        "second begins",
        "on_activate",
        "on_run_start",
        "on_run_end",
        "on_terminate",
        "second ends",
        "first ends",
    ];
    assert_eq!(of_the_session, expected);
    for event in ["on_start", "on_shutdown"] {
        assert_eq!(log.iter().filter(|entry| *entry == event).count(), 1, "{log:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_refused_or_cannot_be_made_leaves_nothing_and_its_run_says_why() {
    let (test, log) = start_engine().await;
    for (session, says) in [("unwanted", "nobody wants it"), ("full", "no room")] {
        let view = test.run_message(session, "hello").await;
        let Some(Verdict::Failed { message, .. }) = &view.verdict else { panic!("{view:#?}") };
        assert!(message.contains(says), "{message}");
    }
    let entries = log.lock().unwrap().clone();
    assert!(test.model.recorded_requests().is_empty(), "the model was called");
    for stage in ["first begins", "first ends"] {
        assert_eq!(entries.iter().filter(|line| *line == stage).count(), 1, "{entries:?}");
    }
    assert!(!entries.iter().any(|line| line.starts_with("second") || line == "on_activate"), "{entries:?}");
    test.close().await;
}
