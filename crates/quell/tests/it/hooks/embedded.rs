//! Hooks of a program that embeds the engine: a session's whole life as they see it, and the stages that they add to it.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::hooks::{LifecycleHook, Stage, Undo, Veto};
use quell_protocol::Verdict;
use quell_protocol::hook::{HookBody, SessionFacts};
use quell_testkit::Behaviour;

use crate::harness::{Claim, House};

type Log = Arc<Mutex<Vec<String>>>;

/// Writes down all that it hears, and refuses the session `unwanted`.
struct Diary(Log);

impl Diary {
    fn note(&self, body: &HookBody) -> BoxFuture<'static, ()> {
        self.0.lock().unwrap().push(body.event.to_string());
        std::future::ready(()).boxed()
    }
}

impl LifecycleHook for Diary {
    fn name(&self) -> &str {
        "diary"
    }

    fn on_create<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        let wanted = body.session.as_ref().unwrap().key.as_str() != "unwanted";
        let answer = if wanted { Ok(()) } else { Err(Veto::new("nobody wants it")) };
        self.note(body).map(|()| answer).boxed()
    }

    fn on_activate<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.note(body)
    }

    fn on_terminate<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.note(body)
    }

    fn on_run_start<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.note(body)
    }

    fn on_run_end<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.note(body)
    }

    fn on_start<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.note(body)
    }

    fn on_shutdown<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.note(body)
    }

    fn stages(&self) -> Vec<Arc<dyn Stage>> {
        ["first", "second"].map(|name| Arc::new(Room { name, log: Arc::clone(&self.0) }) as Arc<dyn Stage>).to_vec()
    }
}

/// A stage that cannot begin in the session `full`, where it is the second.
struct Room {
    name: &'static str,
    log: Log,
}

struct Key(String, Log);

impl Stage for Room {
    fn name(&self) -> &str {
        self.name
    }

    fn begin<'a>(&'a self, facts: &'a SessionFacts) -> BoxFuture<'a, Result<Box<dyn Undo>, String>> {
        async move {
            if facts.key.as_str() == "full" && self.name == "second" {
                return Err("no room".to_owned());
            }
            self.log.lock().unwrap().push(format!("{} begins", self.name));
            Ok(Box::new(Key(self.name.to_owned(), Arc::clone(&self.log))) as Box<dyn Undo>)
        }
        .boxed()
    }
}

impl Undo for Key {
    fn undo(&mut self) -> BoxFuture<'_, Result<(), String>> {
        self.1.lock().unwrap().push(format!("{} ends", self.0));
        std::future::ready(Ok(())).boxed()
    }
}

async fn house() -> (House, Log) {
    let log = Log::default();
    let diary = Arc::new(Diary(Arc::clone(&log)));
    let house = House::with(Claim::shared().await, |config| config.lifecycle.push(diary)).await;
    (house, log)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_life_of_a_session_is_told_in_its_order() {
    let (house, log) = house().await;
    house.model.script(Behaviour::text("here"));
    assert_eq!(house.ask("s", "hello").await.verdict, Some(Verdict::Completed));
    house.close().await;
    let log = log.lock().unwrap().clone();
    // The daemon's own events wait for nobody's, so that they may stand anywhere among them.
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
        assert_eq!(log.iter().filter(|told| *told == event).count(), 1, "{log:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_refused_or_cannot_be_made_leaves_nothing_and_its_run_says_why() {
    let (house, log) = house().await;
    for (session, says) in [("unwanted", "nobody wants it"), ("full", "no room")] {
        let view = house.ask(session, "hello").await;
        let Some(Verdict::Failed { message, .. }) = &view.verdict else { panic!("{view:#?}") };
        assert!(message.contains(says), "{message}");
    }
    let told = log.lock().unwrap().clone();
    assert!(house.model.seen().is_empty(), "the model was asked");
    for stage in ["first begins", "first ends"] {
        assert_eq!(told.iter().filter(|line| *line == stage).count(), 1, "{told:?}");
    }
    assert!(!told.iter().any(|line| line.starts_with("second") || line == "on_activate"), "{told:?}");
    house.close().await;
}
