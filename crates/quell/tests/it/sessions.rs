//! Live sessions: born once, used, expired, revived, cleaned up; and the defects of the origin, each by its symptom.

mod day;
mod defects;
mod http;
mod life;
mod own;
mod stages;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::EngineConfig;
use quell_engine::clock::{Clock, Skipped};
use quell_engine::hooks::{LifecycleHook, Stage, Undo, Veto};
use quell_protocol::hook::{HookBody, HookEvent, SessionFacts};
use quell_protocol::session::SessionRequest;
use quell_testkit::leaks;
use tokio::sync::Semaphore;

use crate::harness::{Claim, House, PATIENCE, key};

/// More than the idle limit of the defaults.
const LONG: Duration = Duration::from_secs(1801);

/// A program around the engine: it writes down what it hears, adds stages to the making of sessions, and fails where it is told.
#[derive(Default)]
struct Around {
    heard: Mutex<Vec<(HookEvent, String)>>,
    /// What the stages did: `begin a`, `undo a`.
    stages: Mutex<Vec<String>>,
    /// Stages by name, in order.
    names: Vec<&'static str>,
    /// How often the stage of this name fails to begin.
    fails: Mutex<Vec<(&'static str, usize)>>,
    /// How often the clean-up of the stage of this name fails.
    sticks: Mutex<Vec<(&'static str, usize)>>,
    /// How often what the stage of this name made panics when it is dropped.
    drops: Mutex<Vec<(&'static str, usize)>>,
    veto: Mutex<Option<String>>,
    /// Who begins a stage needs one; none when absent.
    gate: Option<Arc<Semaphore>>,
    /// As `gate`, for the clean-up of a stage.
    undo_gate: Option<Arc<Semaphore>>,
    alive: AtomicUsize,
    most: AtomicUsize,
}

impl Around {
    fn note(&self, what: &str, name: &str) {
        self.stages.lock().unwrap().push(format!("{what} {name}"));
    }

    fn noted(&self) -> Vec<String> {
        self.stages.lock().unwrap().clone()
    }

    fn heard_of(&self, session: &str) -> Vec<HookEvent> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|(_, key)| key == session).map(|(event, _)| *event).collect()
    }

    /// Sessions whose first stage is begun and not undone.
    fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }

    fn one_less(list: &Mutex<Vec<(&'static str, usize)>>, name: &str) -> bool {
        let mut list = list.lock().unwrap();
        let Some((_, left)) = list.iter_mut().find(|(stage, left)| *stage == name && *left > 0) else { return false };
        *left -= 1;
        true
    }
}

/// One of its stages, as the engine gets it.
struct Named(Arc<Around>, &'static str);

struct TakeBack(Arc<Around>, &'static str);

impl Stage for Named {
    fn name(&self) -> &str {
        self.1
    }

    fn begin<'a>(&'a self, _facts: &'a SessionFacts) -> BoxFuture<'a, Result<Box<dyn Undo>, String>> {
        async move {
            if let Some(gate) = &self.0.gate {
                gate.acquire().await.unwrap().forget();
            }
            if Around::one_less(&self.0.fails, self.1) {
                return Err("out of order".to_owned());
            }
            self.0.note("begin", self.1);
            let alive = self.0.alive.fetch_add(1, Ordering::SeqCst) + 1;
            self.0.most.fetch_max(alive, Ordering::SeqCst);
            Ok(Box::new(TakeBack(Arc::clone(&self.0), self.1)) as Box<dyn Undo>)
        }
        .boxed()
    }
}

impl Drop for TakeBack {
    fn drop(&mut self) {
        if Around::one_less(&self.0.drops, self.1) {
            panic!("the drop of {} panics, as the test wants", self.1);
        }
    }
}

impl Undo for TakeBack {
    fn undo(&mut self) -> BoxFuture<'_, Result<(), String>> {
        async move {
            if Around::one_less(&self.0.sticks, self.1) {
                return Err("it sticks".to_owned());
            }
            if let Some(gate) = &self.0.undo_gate {
                gate.acquire().await.unwrap().forget();
            }
            self.0.note("undo", self.1);
            self.0.alive.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
        .boxed()
    }
}

/// It as the engine's hook.
struct Ear(Arc<Around>);

impl Ear {
    fn hear(&self, body: &HookBody) {
        let key = body.session.as_ref().map(|session| session.key.to_string()).unwrap_or_default();
        self.0.heard.lock().unwrap().push((body.event, key));
    }
}

impl LifecycleHook for Ear {
    fn name(&self) -> &str {
        "around"
    }

    fn on_create<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        self.hear(body);
        let veto = self.0.veto.lock().unwrap().clone();
        async move { veto.map_or(Ok(()), |reason| Err(Veto::new(reason))) }.boxed()
    }

    fn on_activate<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.hear(body);
        async {}.boxed()
    }

    fn on_expire<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.hear(body);
        async {}.boxed()
    }

    fn on_terminate<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.hear(body);
        async {}.boxed()
    }

    fn stages(&self) -> Vec<Arc<dyn Stage>> {
        let stage = |name: &&'static str| Arc::new(Named(Arc::clone(&self.0), name)) as Arc<dyn Stage>;
        self.0.names.iter().map(stage).collect()
    }
}

/// A house with a program around it, and time that can be skipped.
struct Scene {
    house: House,
    around: Arc<Around>,
    time: &'static Skipped,
}

impl Scene {
    async fn open() -> Self {
        Self::with(Around { names: vec!["a"], ..Around::default() }, |_| {}).await
    }

    async fn with(around: Around, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let around = Arc::new(around);
        // A few bytes per test, so that a clock stays a value that is copied.
        let time: &'static Skipped = Box::leak(Box::default());
        let ear = Arc::new(Ear(Arc::clone(&around)));
        let house = House::with(Claim::shared().await, |config| {
            config.clock = Clock::skipping(time);
            config.lifecycle.push(ear);
            change(config);
        })
        .await;
        house.answer_by_marker();
        Self { house, around, time }
    }

    async fn state(&self, session: &str) -> String {
        self.house.engine.session(&key(session)).await.unwrap().map_or("none".to_owned(), |row| row.state)
    }

    /// Lets time pass and looks for what has expired.
    fn pass(&self, time: Duration) {
        self.time.skip(time);
        self.house.engine.sweep_sessions();
    }

    /// Waits until so many stages are alive.
    async fn alive(&self, count: usize) {
        let around = Arc::clone(&self.around);
        leaks::settled(PATIENCE, move || {
            let alive = around.alive();
            if alive == count { Ok(()) } else { Err(format!("{alive} stages are alive, not {count}")) }
        })
        .await;
    }
}

/// A request for the session of a user's chat, on the scripted model.
pub(crate) fn request(user: &str, chat: &str) -> SessionRequest {
    serde_json::from_value(serde_json::json!({"userId": user, "chatId": chat, "provider": "scripted"})).unwrap()
}
