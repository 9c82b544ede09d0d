//! Hooks of embedding programs, stages, and the queue of events.

mod messages;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use quell_kernel::StopTimeouts;
use quell_process::WardenExe;
use quell_protocol::{AgentId, Leftover, SessionKey};
use quell_scope::{PointProbe, Release};
use quell_store::memory::MemoryDatabase;
use tempfile::TempDir;
use tokio::time::Instant;

use super::*;

/// A long time on a paused clock: every wait in these tests is shorter.
const LONG_WAIT: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct ScriptedHook {
    /// The key of the session that the hook refuses.
    refused_key: Option<&'static str>,
    /// The keys of the sessions in which the hook panics and hangs.
    panicking_key: Option<&'static str>,
    hanging_key: Option<&'static str>,
    wanted_event: Option<HookEvent>,
    bodies: Mutex<Vec<HookBody>>,
}

impl ScriptedHook {
    fn session_keys(&self) -> Vec<String> {
        self.bodies.lock().unwrap().iter().map(|body| body.session.as_ref().unwrap().key.to_string()).collect()
    }

    async fn receive(&self, body: &HookBody) -> Result<(), Veto> {
        self.bodies.lock().unwrap().push(body.clone());
        let key = body.session.as_ref().map(|session| session.key.as_str());
        if key == self.hanging_key {
            pending::<()>().await;
        }
        assert!(key != self.panicking_key, "as the test wants");
        if key == self.refused_key { Err(Veto::new("not this one")) } else { Ok(()) }
    }
}

impl LifecycleHook for ScriptedHook {
    fn name(&self) -> &str {
        "scripted"
    }

    fn wants(&self, event: HookEvent) -> bool {
        self.wanted_event.is_none_or(|wanted| wanted == event)
    }

    fn on_create<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        self.receive(body).boxed()
    }

    fn on_event<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.receive(body).map(drop).boxed()
    }
}

struct HookFixture {
    hooks: Hooks,
    hook: Arc<ScriptedHook>,
    scope: Scope,
    _dir: TempDir,
}

fn fixture(script: ScriptedHook) -> HookFixture {
    fixture_with(script, HookSettings::default())
}

fn fixture_with(script: ScriptedHook, settings: HookSettings) -> HookFixture {
    let hook = Arc::new(script);
    let (hooks, scope, dir) = build_hooks(settings, vec![Arc::clone(&hook) as Arc<dyn LifecycleHook>]);
    HookFixture { hooks, hook, scope, _dir: dir }
}

/// Hooks that time out after a second, with the scope of a caller and their directory.
fn build_hooks(settings: HookSettings, lifecycle: Vec<Arc<dyn LifecycleHook>>) -> (Hooks, Scope, TempDir) {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::start());
    let hooks = Hooks::new(HookDeps {
        settings: HookSettings { timeout_ms: 1000, ..settings },
        lifecycle,
        wardens: Wardens::new(WardenExe::ThisProcess, StopTimeouts::default()).unwrap(),
        environment: Vec::new(),
        cwd: dir.path().to_owned(),
        store: MemoryDatabase::default().open(),
        clock,
    })
    .unwrap();
    (hooks, Scope::new(clock, PointProbe::default()), dir)
}

fn session_facts(key: &str) -> SessionFacts {
    SessionFacts {
        key: SessionKey::parse(key).unwrap(),
        agent: AgentId::parse("main").unwrap(),
        user_id: None,
        chat_id: None,
        provider: None,
        revived: None,
    }
}

fn trigger(event: HookEvent, key: &str) -> HookTrigger {
    HookTrigger::for_session(event, session_facts(key))
}

impl HookFixture {
    async fn call(&self, event: HookEvent, key: &str) -> Result<(), Veto> {
        self.hooks.ask_hooks(trigger(event, key), &self.scope).await.map_err(|why| why.into_failure().unwrap())
    }

    fn notify(&self, key: &str) {
        self.hooks.notify(trigger(HookEvent::Terminate, key));
    }

    async fn close_within(&self, gentle: Duration) -> Vec<(RunId, Leftover)> {
        let now = Instant::now();
        self.hooks.close();
        self.hooks.wait_closed(now + gentle, now + gentle + LONG_WAIT, now + gentle + 2 * LONG_WAIT).await
    }
}

#[tokio::test(start_paused = true)]
async fn code_that_refuses_panics_or_hangs_keeps_a_session_from_being_made_and_nothing_else() {
    let script = ScriptedHook {
        refused_key: Some("refused"),
        panicking_key: Some("panicking"),
        hanging_key: Some("hanging"),
        ..ScriptedHook::default()
    };
    let fixture = fixture(script);
    assert_eq!(fixture.call(HookEvent::Create, "fine").await, Ok(()));
    for (key, reason) in [
        ("refused", "not this one"),
        ("panicking", "the hook scripted panicked: as the test wants"),
        ("hanging", "the hook scripted took longer than 1s"),
    ] {
        assert_eq!(fixture.call(HookEvent::Create, key).await.unwrap_err().reason, reason);
        assert_eq!(fixture.call(HookEvent::Activate, key).await, Ok(()), "{key}");
    }
    let how: Vec<_> = fixture.scope.ledger().rows().iter().map(|row| (row.kind, row.release())).collect();
    assert_eq!(how, [(ResourceKind::Hook, Some(Release::Finished)); 7]);
}

#[tokio::test]
async fn a_cancel_drops_what_hangs() {
    let fixture = fixture(ScriptedHook { hanging_key: Some("s"), ..ScriptedHook::default() });
    let (hooks, scope) = (fixture.hooks.clone(), fixture.scope.clone());
    let asking = scope.clone().spawn(async move { hooks.ask_hooks(trigger(HookEvent::Create, "s"), &scope).await });
    while fixture.hook.bodies.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    fixture.scope.cancel();
    assert_eq!(asking.await.unwrap(), Err(Interrupted::Cancelled));
    fixture.scope.close().await;
    assert_eq!(fixture.scope.ledger().rows()[0].release(), Some(Release::Cancelled));
}

#[tokio::test]
async fn unwanted_events_call_no_hook_and_hold_nothing() {
    let fixture = fixture(ScriptedHook { wanted_event: Some(HookEvent::Create), ..ScriptedHook::default() });
    assert!(fixture.hooks.has_hooks_for(HookEvent::Create));
    let others: Vec<_> = HookEvent::ALL.into_iter().filter(|event| *event != HookEvent::Create).collect();
    assert!(others.iter().all(|event| !fixture.hooks.has_hooks_for(*event)));
    assert_eq!(fixture.call(HookEvent::Activate, "s").await, Ok(()));
    fixture.notify("s");
    fixture.hooks.notify_durably(trigger(HookEvent::RunEnd, "s")).await.unwrap();
    fixture.hooks.notify_and_wait(trigger(HookEvent::Expire, "s"), LONG_WAIT).await;
    assert!(fixture.hook.bodies.lock().unwrap().is_empty() && fixture.scope.ledger().rows().is_empty());
}

#[tokio::test(start_paused = true)]
async fn events_of_a_session_wait_for_each_other_and_those_of_others_do_not() {
    let fixture = fixture(ScriptedHook { hanging_key: Some("slow"), ..ScriptedHook::default() });
    for key in ["slow", "slow", "a", "b", "a"] {
        fixture.notify(key);
    }
    fixture.hooks.notify_and_wait(trigger(HookEvent::Terminate, "a"), LONG_WAIT).await;
    let count = |key: &str| fixture.hook.session_keys().iter().filter(|heard| *heard == key).count();
    assert_eq!((count("slow"), count("a"), count("b")), (1, 3, 1));
    let begun = Instant::now();
    fixture.hooks.notify_and_wait(trigger(HookEvent::Terminate, "slow"), LONG_WAIT).await;
    assert_eq!((count("slow"), begun.elapsed().as_secs()), (3, 3), "each had its second");
    assert_eq!(fixture.close_within(LONG_WAIT).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_events_is_cut_off_and_the_rest_is_told() {
    let fixture = fixture(ScriptedHook::default());
    // No task of the queue runs between these calls.
    for _ in 0..5000 {
        fixture.notify("s");
    }
    assert_eq!(fixture.close_within(LONG_WAIT).await, []);
    assert_eq!(fixture.hook.session_keys().len(), 1024);
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_what_is_at_work_until_its_time_and_then_drops_it() {
    let fixture = fixture(ScriptedHook { hanging_key: Some("s"), ..ScriptedHook::default() });
    fixture.notify("s");
    fixture.notify("s");
    let begun = Instant::now();
    assert_eq!(fixture.close_within(Duration::from_millis(300)).await, []);
    assert_eq!(begun.elapsed(), Duration::from_millis(300));
    assert_eq!(fixture.hook.session_keys(), ["s"], "the second one was overtaken by the end");
    fixture.notify("late");
    assert_eq!(fixture.hook.session_keys(), ["s"]);
}

#[tokio::test]
async fn a_kill_ends_all_of_it_at_once() {
    let fixture = fixture(ScriptedHook { hanging_key: Some("s"), ..ScriptedHook::default() });
    fixture.notify("s");
    while fixture.hook.bodies.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let begun = Instant::now();
    fixture.hooks.kill_all();
    assert_eq!(fixture.close_within(LONG_WAIT).await, []);
    assert!(begun.elapsed() < LONG_WAIT / 100, "it was not waited for: {:?}", begun.elapsed());
}

#[tokio::test]
async fn an_event_can_be_told_from_a_thread_that_knows_no_runtime() {
    let fixture = fixture(ScriptedHook::default());
    let hooks = fixture.hooks.clone();
    std::thread::spawn(move || hooks.notify(trigger(HookEvent::Terminate, "s"))).join().unwrap();
    assert_eq!(fixture.close_within(LONG_WAIT).await, []);
    assert_eq!(fixture.hook.session_keys(), ["s"]);
}

#[tokio::test]
async fn the_end_of_a_run_has_the_same_id_however_often_it_is_told() {
    let fixture = fixture(ScriptedHook::default());
    let run = RunFacts {
        run_id: RunId::parse("r1").unwrap(),
        agent: AgentId::parse("main").unwrap(),
        parent: None,
        principal: quell_protocol::Principal::parse("alice").unwrap(),
        surface: quell_protocol::Surface::Http,
        verdict: None,
        receipt: None,
    };
    let of = |event| fixture.hooks.create_job(HookTrigger::for_run(event, session_facts("s"), run.clone()));
    assert_eq!(of(HookEvent::RunEnd).body.id, of(HookEvent::RunEnd).body.id);
    assert_ne!(of(HookEvent::RunStart).body.id, of(HookEvent::RunStart).body.id);
    assert_ne!(of(HookEvent::RunEnd).process_run_id, of(HookEvent::RunEnd).process_run_id);
}

#[tokio::test]
async fn an_event_that_was_not_stored_is_not_sent_and_can_be_repeated() {
    let settings = HookSettings {
        on_terminate: "http://127.0.0.1:9/".into(),
        secret: Some("hush".to_owned().into()),
        ..HookSettings::default()
    };
    let fixture = fixture_with(ScriptedHook::default(), settings);
    let ended = trigger(HookEvent::Terminate, "s");
    fixture.hooks.notify_durably(ended.clone()).await.unwrap();
    fixture.hooks.0.store.clone().close().await;
    assert_eq!(fixture.hooks.notify_durably(ended.clone()).await, Err(StoreError::Closed));
    // Without its webhook, the event still reaches the other hooks.
    fixture.hooks.notify_and_wait(ended, LONG_WAIT).await;
    assert_eq!(fixture.hook.session_keys(), ["s", "s"]);
}

/// A stage whose begin and undo fail as often as `fails` says.
struct RentedStage {
    fails: u32,
    returned: Arc<AtomicU32>,
}

struct RentedLease {
    fails: u32,
    returned: Arc<AtomicU32>,
}

impl SessionStage for RentedStage {
    fn name(&self) -> &str {
        "rented"
    }

    fn begin<'a>(&'a self, facts: &'a SessionFacts) -> BoxFuture<'a, Result<Box<dyn StageUndo>, String>> {
        match facts.key.as_str() {
            "panicking" => panic!("before it waits"),
            "hanging" => pending().boxed(),
            "full" => async { Err("nothing to rent".to_owned()) }.boxed(),
            _ => {
                let lease = RentedLease { fails: self.fails, returned: Arc::clone(&self.returned) };
                async { Ok(Box::new(lease) as Box<dyn StageUndo>) }.boxed()
            }
        }
    }
}

impl StageUndo for RentedLease {
    fn undo(&mut self) -> BoxFuture<'_, Result<(), String>> {
        async {
            self.fails = self.fails.saturating_sub(1);
            match self.fails {
                2 => pending().await,
                1 => panic!("as the test wants"),
                0 => {
                    self.returned.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                _ => Err("the office is closed".to_owned()),
            }
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_stage_that_fails_says_so_and_what_it_made_is_taken_back_however_often_that_fails() {
    let returned = Arc::new(AtomicU32::new(0));
    let stage = RentedStage { fails: 4, returned: Arc::clone(&returned) };
    let limit = Duration::from_secs(2);
    for (key, words) in [
        ("full", "the stage \"rented\" failed: nothing to rent"),
        ("panicking", "the stage \"rented\" panicked: before it waits"),
        ("hanging", "the stage \"rented\" took longer than 2s"),
    ] {
        let facts = session_facts(key);
        let error = begin_stage(&stage, &facts, limit).await.err().unwrap();
        assert_eq!(error.to_string(), words);
    }
    let mut undo = begin_stage(&stage, &session_facts("s"), limit).await.unwrap();
    let mut problems = Vec::new();
    while let Err(error) = undo_stage("rented", undo.as_mut(), limit).await {
        problems.push(error.problem);
    }
    let expected = [
        HookCodeError::Failed("the office is closed".to_owned()),
        HookCodeError::TimedOut(limit),
        HookCodeError::Panicked("as the test wants".to_owned()),
    ];
    assert_eq!((problems.as_slice(), returned.load(Ordering::Relaxed)), (expected.as_slice(), 1));
}
