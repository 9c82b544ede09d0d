//! What is demanded after every stop, written once.

use std::sync::Arc;

use quell_engine::dispatch::Caller;
use quell_protocol::api::{ComputeStatus, RunView};
use quell_protocol::{By, EventKind, Receipt, RunEvent, Rung, StopReason, Verdict};
use quell_testkit::leaks::{self, Allowance};

use super::cases::{Case, Ruling};
use super::scene::Scene;
use super::strike::{Mode, Struck, strike};
use crate::harness::{PATIENCE, Watcher, abort_reason, alice, flat};

/// Threads of tokio's pool for blocking work stay for a while; they are no run's.
pub(super) const POOLS: Allowance = Allowance { sockets: 0, others: 0, threads: 64 };

/// What the model is told of a request that a person stopped.
const NOTE: &str = "[The request above was stopped on purpose by the user";

/// The figures of a proven stop.
#[derive(Debug)]
pub(super) struct Proven {
    pub(super) verdict: &'static str,
    pub(super) rung: Rung,
    pub(super) settled_ms: Option<f64>,
    pub(super) released_ms: Option<f64>,
}

/// Demands everything.
pub(super) async fn of(scene: &Scene<'_>, case: &Case, struck: &Struck, watcher: &mut Watcher) -> Proven {
    let house = &scene.site.house;
    let view = house.ended(&scene.run).await;
    one_ending_one_end(case, &watcher.events(&scene.run));
    let verdict = view.verdict.clone().unwrap();
    the_answers_match(scene, case, struck, &verdict);
    let receipt = view.receipt.as_ref().unwrap();
    all_is_back(case, &view, receipt);
    nothing_is_left(scene).await;
    a_late_stop_changes_nothing(scene, &view).await;
    the_next_message_works(scene, case).await;
    let events = watcher.events(&scene.run);
    assert!(matches!(events.last().unwrap().kind, EventKind::Ended { .. }), "{}: after the end {events:#?}", case.name);
    let released = receipt.resources.iter().filter_map(|row| row.released_at.as_ref()?.ms).reduce(f64::max);
    Proven { verdict: verdict.word(), rung: receipt.rung, settled_ms: receipt.settled_at.ms, released_ms: released }
}

/// Rising numbers without a hole, one `run.ending`, one `run.ended` as the last, no delta and no start between.
fn one_ending_one_end(case: &Case, events: &[Arc<RunEvent>]) {
    let names: Vec<&str> = events.iter().map(|event| event.name()).collect();
    let seqs: Vec<u64> = events.iter().map(|event| event.seq).collect();
    let rising: Vec<u64> = (1..=seqs.len() as u64).collect();
    assert_eq!(seqs, rising, "{}: {names:?}", case.name);
    let count = |wanted: &str| names.iter().filter(|name| **name == wanted).count();
    assert_eq!((count("run.ending"), count("run.ended")), (1, 1), "{}: {names:?}", case.name);
    assert_eq!(names.last(), Some(&"run.ended"), "{}: {names:?}", case.name);
    assert_eq!(count("run.started"), usize::from(case.started), "{}: {names:?}", case.name);
    let after = names.iter().skip_while(|name| **name != "run.ending").skip(1);
    let allowed = ["tool.output", "tool.ended", "approval.resolved", "run.ended"];
    let strays: Vec<_> = after.filter(|name| !allowed.contains(name)).collect();
    assert!(strays.is_empty(), "{}: after run.ending came {strays:?}", case.name);
}

/// The verdict is the one that the stop announced, and exactly one caller was told that it was theirs.
fn the_answers_match(scene: &Scene<'_>, case: &Case, struck: &Struck, verdict: &Verdict) {
    let winners = struck.winners(&scene.run);
    let by = |caller: &Caller| By { principal: caller.principal.clone(), surface: caller.surface };
    match case.ruling {
        Ruling::ByTheStop => {
            let [winner] = winners.as_slice() else { panic!("{}: {} callers stopped it", case.name, winners.len()) };
            let expected = Verdict::Aborted { reason: StopReason::User, by: Some(by(winner)) };
            assert_eq!(*verdict, expected, "{}", case.name);
        }
        Ruling::ByAliceBefore => {
            assert!(winners.is_empty(), "{}: {winners:?}", case.name);
            let expected = Verdict::Aborted { reason: StopReason::User, by: Some(by(&alice())) };
            assert_eq!(*verdict, expected, "{}", case.name);
        }
        Ruling::Completed => {
            assert!(winners.is_empty(), "{}: {winners:?}", case.name);
            assert_eq!(*verdict, Verdict::Completed, "{}", case.name);
        }
    }
}

/// The receipt names nothing as left, and every resource with the time at which it came back.
fn all_is_back(case: &Case, view: &RunView, receipt: &Receipt) {
    assert_eq!(view.state, "ended", "{}", case.name);
    assert_eq!(Some(&receipt.verdict), view.verdict.as_ref(), "{}", case.name);
    assert!(receipt.leftovers.is_empty(), "{}: {receipt:#?}", case.name);
    assert_ne!(receipt.rung, Rung::Abandoned, "{}: {receipt:#?}", case.name);
    for row in &receipt.resources {
        let released = row.released_at.as_ref().unwrap_or_else(|| panic!("{}: {row:?} is held", case.name));
        assert!(released.at <= receipt.settled_at.at, "{}: {row:?} came back after the end", case.name);
    }
    assert_eq!(receipt.turn.recorded, case.started, "{}: {receipt:#?}", case.name);
    let result = view.result.as_ref().unwrap();
    if matches!(case.ruling, Ruling::Completed) {
        assert!(result.success && !result.cancelled, "{}: {result:?}", case.name);
        return;
    }
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User, "{}", case.name);
    let said = (result.success, result.cancelled, result.error.as_deref());
    assert_eq!(said, (false, true, Some("Execution paused")), "{}", case.name);
    if case.started {
        let ms = |at: &Option<quell_protocol::Instant>| at.as_ref().and_then(|at| at.ms).unwrap();
        let (requested, delivered) = (ms(&receipt.requested_at), ms(&receipt.delivered_at));
        let settled = receipt.settled_at.ms.unwrap();
        assert!(requested == 0.0 && requested <= delivered && delivered <= settled, "{}: {receipt:#?}", case.name);
    }
}

/// The operating system and the engine's own lists agree that nothing of the run is alive.
async fn nothing_is_left(scene: &Scene<'_>) {
    let house = &scene.site.house;
    leaks::no_process_with(&format!("QUELL_RUN_ID={}", scene.run), PATIENCE).await;
    scene.mark.gone(PATIENCE).await;
    scene.site.hole.connecting(0).await;
    house.model.connections(0).await;
    assert_eq!(house.engine.model_requests(), 0);
    assert!(house.engine.active_runs().is_empty(), "{:?}", house.engine.active_runs());
    for row in house.engine.agents() {
        assert_eq!((row.compute_status, row.active_runs), (ComputeStatus::Idle, Vec::new()));
    }
}

async fn a_late_stop_changes_nothing(scene: &Scene<'_>, view: &RunView) {
    let engine = &scene.site.house.engine;
    let late = strike(engine, &scene.run, Mode::Forced);
    assert!(late.winners(&scene.run).is_empty());
    assert_eq!(engine.run(&scene.run).await.unwrap().as_ref(), Some(view));
}

/// The next message of the session is answered, on a history that the model server finds valid and that tells the truth.
async fn the_next_message_works(scene: &Scene<'_>, case: &Case) {
    let house = &scene.site.house;
    let marker = format!("next-{}", scene.run);
    let next = house.ask(&scene.session, &format!("and now? marker:{marker}")).await;
    assert_eq!(next.verdict, Some(Verdict::Completed), "{}", case.name);
    house.model.assert_histories_valid();
    let seen = flat(house.model.marked(&marker).await.messages());
    let stopped = case.started && !matches!(case.ruling, Ruling::Completed);
    assert_eq!(seen.contains(NOTE), stopped, "{}: {seen}", case.name);
    assert_eq!(seen.contains(&scene.text), case.started, "{}: {seen}", case.name);
    for text in case.seen {
        assert!(seen.contains(text), "{}: the model does not see {text:?} in {seen}", case.name);
    }
    for text in case.unseen {
        assert!(!seen.contains(text), "{}: the model sees {text:?} in {seen}", case.name);
    }
}
