//! Hooks of embedding programs, stages, and the queue of events that nobody waits for.

mod messages;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use quell_kernel::StopTimes;
use quell_protocol::{AgentId, SessionKey};
use tempfile::TempDir;

use super::*;
use crate::proc::WardenExe;
use crate::scope::Probe;

/// How long things may take on a paused clock: every wait in these tests is shorter.
const LONG: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Scripted {
    /// The session that it refuses, by its key.
    refuses: Option<&'static str>,
    /// The session in which it panics, and the one in which it hangs.
    panics: Option<&'static str>,
    hangs: Option<&'static str>,
    wants: Option<HookEvent>,
    heard: Mutex<Vec<HookBody>>,
}

impl Scripted {
    fn keys(&self) -> Vec<String> {
        self.heard.lock().unwrap().iter().map(|body| body.session.as_ref().unwrap().key.to_string()).collect()
    }

    async fn hear(&self, body: &HookBody) -> Result<(), Veto> {
        self.heard.lock().unwrap().push(body.clone());
        let key = body.session.as_ref().map(|session| session.key.as_str());
        if key == self.hangs {
            pending::<()>().await;
        }
        assert!(key != self.panics, "as the test wants");
        if key == self.refuses { Err(Veto::new("not this one")) } else { Ok(()) }
    }
}

impl LifecycleHook for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn wants(&self, event: HookEvent) -> bool {
        self.wants.is_none_or(|wanted| wanted == event)
    }

    fn on_create<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        self.hear(body).boxed()
    }

    fn on_activate<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.hear(body).map(drop).boxed()
    }

    fn on_terminate<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, ()> {
        self.hear(body).map(drop).boxed()
    }
}

struct Bench {
    hooks: Hooks,
    hook: Arc<Scripted>,
    scope: Scope,
    _dir: TempDir,
}

fn bench(script: Scripted) -> Bench {
    bench_with(script, HookSettings::default())
}

fn bench_with(script: Scripted, settings: HookSettings) -> Bench {
    let (dir, hook, clock) = (tempfile::tempdir().unwrap(), Arc::new(script), Clock::start());
    let hooks = Hooks::new(HookGround {
        settings: HookSettings { timeout_ms: 1000, ..settings },
        lifecycle: vec![Arc::clone(&hook) as Arc<dyn LifecycleHook>],
        wardens: Wardens::new(WardenExe::ThisProcess, StopTimes::default()).unwrap(),
        environment: Vec::new(),
        cwd: dir.path().to_owned(),
        store: Store::open(dir.path(), "quell.db").unwrap(),
        clock,
    })
    .unwrap();
    Bench { hooks, hook, scope: Scope::new(clock, Probe::default()), _dir: dir }
}

fn facts(key: &str) -> SessionFacts {
    SessionFacts {
        key: SessionKey::parse(key).unwrap(),
        agent: AgentId::parse("main").unwrap(),
        user_id: None,
        chat_id: None,
        provider: None,
        revived: None,
    }
}

fn happening(event: HookEvent, key: &str) -> Happening {
    Happening::of_session(event, facts(key))
}

impl Bench {
    async fn ask(&self, event: HookEvent, key: &str) -> Result<(), Veto> {
        self.hooks.ask(happening(event, key), &self.scope).await.unwrap()
    }

    fn tell(&self, key: &str) {
        self.hooks.tell(happening(HookEvent::Terminate, key));
    }

    async fn closed(&self, gentle: Duration) -> Vec<(RunId, Leftover)> {
        let now = Instant::now();
        self.hooks.close();
        self.hooks.closed(now + gentle, now + gentle + LONG, now + gentle + 2 * LONG).await
    }
}

#[tokio::test(start_paused = true)]
async fn code_that_refuses_panics_or_hangs_keeps_a_session_from_being_made_and_nothing_else() {
    let script =
        Scripted { refuses: Some("refused"), panics: Some("panicking"), hangs: Some("hanging"), ..Scripted::default() };
    let bench = bench(script);
    assert_eq!(bench.ask(HookEvent::Create, "fine").await, Ok(()));
    for (key, reason) in [
        ("refused", "not this one"),
        ("panicking", "the hook scripted panicked: as the test wants"),
        ("hanging", "the hook scripted took longer than 1s"),
    ] {
        assert_eq!(bench.ask(HookEvent::Create, key).await.unwrap_err().reason, reason);
        assert_eq!(bench.ask(HookEvent::Activate, key).await, Ok(()), "{key}");
    }
    let how: Vec<_> = bench.scope.ledger().rows().iter().map(|row| (row.kind, row.how)).collect();
    assert_eq!(how, [(ResourceKind::Hook, "finished"); 7]);
}

#[tokio::test]
async fn a_cancel_drops_what_hangs() {
    let bench = bench(Scripted { hangs: Some("s"), ..Scripted::default() });
    let (hooks, scope) = (bench.hooks.clone(), bench.scope.clone());
    let asking = scope.clone().spawn(async move { hooks.ask(happening(HookEvent::Create, "s"), &scope).await });
    while bench.hook.heard.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    bench.scope.cancel();
    assert_eq!(asking.await.unwrap(), Err(Cancelled));
    bench.scope.close().await;
    assert_eq!(bench.scope.ledger().rows()[0].how, "cancelled");
}

#[tokio::test]
async fn what_nobody_wants_is_not_asked_and_not_held() {
    let bench = bench(Scripted { wants: Some(HookEvent::Create), ..Scripted::default() });
    assert!(bench.hooks.has(HookEvent::Create));
    let others: Vec<_> = HookEvent::ALL.into_iter().filter(|event| *event != HookEvent::Create).collect();
    assert!(others.iter().all(|event| !bench.hooks.has(*event)));
    assert_eq!(bench.ask(HookEvent::Activate, "s").await, Ok(()));
    bench.tell("s");
    bench.hooks.record(happening(HookEvent::RunEnd, "s")).await.unwrap();
    bench.hooks.tell_and_wait(happening(HookEvent::Expire, "s"), LONG).await;
    assert!(bench.hook.heard.lock().unwrap().is_empty() && bench.scope.ledger().rows().is_empty());
}

#[tokio::test(start_paused = true)]
async fn events_of_a_session_wait_for_each_other_and_those_of_others_do_not() {
    let bench = bench(Scripted { hangs: Some("slow"), ..Scripted::default() });
    for key in ["slow", "slow", "a", "b", "a"] {
        bench.tell(key);
    }
    bench.hooks.tell_and_wait(happening(HookEvent::Terminate, "a"), LONG).await;
    let count = |key: &str| bench.hook.keys().iter().filter(|heard| *heard == key).count();
    assert_eq!((count("slow"), count("a"), count("b")), (1, 3, 1));
    let begun = Instant::now();
    bench.hooks.tell_and_wait(happening(HookEvent::Terminate, "slow"), LONG).await;
    assert_eq!((count("slow"), begun.elapsed().as_secs()), (3, 3), "each had its second");
    assert_eq!(bench.closed(LONG).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_events_is_cut_off_and_the_rest_is_told() {
    let bench = bench(Scripted::default());
    // Told in one breath: no task of the queue runs between.
    for _ in 0..5000 {
        bench.tell("s");
    }
    assert_eq!(bench.closed(LONG).await, []);
    assert_eq!(bench.hook.keys().len(), 1024);
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_what_is_at_work_until_its_time_and_then_drops_it() {
    let bench = bench(Scripted { hangs: Some("s"), ..Scripted::default() });
    bench.tell("s");
    bench.tell("s");
    let begun = Instant::now();
    assert_eq!(bench.closed(Duration::from_millis(300)).await, []);
    assert_eq!(begun.elapsed(), Duration::from_millis(300));
    assert_eq!(bench.hook.keys(), ["s"], "the second one was overtaken by the end");
    bench.tell("late");
    assert_eq!(bench.hook.keys(), ["s"]);
}

#[tokio::test]
async fn a_kill_ends_all_of_it_at_once() {
    let bench = bench(Scripted { hangs: Some("s"), ..Scripted::default() });
    bench.tell("s");
    while bench.hook.heard.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let begun = Instant::now();
    bench.hooks.kill();
    assert_eq!(bench.closed(LONG).await, []);
    assert!(begun.elapsed() < LONG / 100, "it was not waited for: {:?}", begun.elapsed());
}

#[tokio::test]
async fn an_event_can_be_told_from_a_thread_that_knows_no_runtime() {
    let bench = bench(Scripted::default());
    let hooks = bench.hooks.clone();
    std::thread::spawn(move || hooks.tell(happening(HookEvent::Terminate, "s"))).join().unwrap();
    assert_eq!(bench.closed(LONG).await, []);
    assert_eq!(bench.hook.keys(), ["s"]);
}

#[tokio::test]
async fn the_end_of_a_run_has_the_same_id_however_often_it_is_told() {
    let bench = bench(Scripted::default());
    let run = RunFacts {
        run_id: RunId::parse("r1").unwrap(),
        agent: AgentId::parse("main").unwrap(),
        parent: None,
        principal: quell_protocol::Principal::parse("alice").unwrap(),
        surface: quell_protocol::Surface::Http,
        verdict: None,
        receipt: None,
    };
    let of = |event| bench.hooks.errand(Happening::of_run(event, facts("s"), run.clone()));
    assert_eq!(of(HookEvent::RunEnd).body.id, of(HookEvent::RunEnd).body.id);
    assert_ne!(of(HookEvent::RunStart).body.id, of(HookEvent::RunStart).body.id);
    assert_ne!(of(HookEvent::RunEnd).mark, of(HookEvent::RunEnd).mark);
}

#[tokio::test]
async fn what_could_not_be_stored_is_told_to_nobody_and_can_be_told_again() {
    let settings = HookSettings {
        on_terminate: "http://127.0.0.1:9/".into(),
        secret: Some("hush".to_owned().into()),
        ..HookSettings::default()
    };
    let bench = bench_with(Scripted::default(), settings);
    let ended = happening(HookEvent::Terminate, "s");
    bench.hooks.record(ended.clone()).await.unwrap();
    bench.hooks.0.store.clone().close().await;
    assert_eq!(bench.hooks.record(ended.clone()).await, Err(StoreError::Closed));
    // Who cannot be told by webhook any more is told all the same.
    bench.hooks.tell_and_wait(ended, LONG).await;
    assert_eq!(bench.hook.keys(), ["s", "s"]);
}

/// A stage whose begin and whose taking back fail as often as it says.
struct Rented {
    fails: u32,
    returned: Arc<AtomicU32>,
}

struct Lease {
    fails: u32,
    returned: Arc<AtomicU32>,
}

impl Stage for Rented {
    fn name(&self) -> &str {
        "rented"
    }

    fn begin<'a>(&'a self, facts: &'a SessionFacts) -> BoxFuture<'a, Result<Box<dyn Undo>, String>> {
        match facts.key.as_str() {
            "panicking" => panic!("before it waits"),
            "hanging" => pending().boxed(),
            "full" => async { Err("nothing to rent".to_owned()) }.boxed(),
            _ => {
                let lease = Lease { fails: self.fails, returned: Arc::clone(&self.returned) };
                async { Ok(Box::new(lease) as Box<dyn Undo>) }.boxed()
            }
        }
    }
}

impl Undo for Lease {
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
    let stage = Rented { fails: 4, returned: Arc::clone(&returned) };
    let limit = Duration::from_secs(2);
    for (key, words) in [
        ("full", "the stage \"rented\" failed: nothing to rent"),
        ("panicking", "the stage \"rented\" panicked: before it waits"),
        ("hanging", "the stage \"rented\" took longer than 2s"),
    ] {
        let facts = facts(key);
        let error = begin_stage(&stage, &facts, limit).await.err().unwrap();
        assert_eq!(error.to_string(), words);
    }
    let mut undo = begin_stage(&stage, &facts("s"), limit).await.unwrap();
    let mut problems = Vec::new();
    while let Err(error) = undo_stage("rented", undo.as_mut(), limit).await {
        problems.push(error.problem);
    }
    let expected = [
        Problem::Failed("the office is closed".to_owned()),
        Problem::TookTooLong(limit),
        Problem::Panicked("as the test wants".to_owned()),
    ];
    assert_eq!((problems.as_slice(), returned.load(Ordering::Relaxed)), (expected.as_slice(), 1));
}
