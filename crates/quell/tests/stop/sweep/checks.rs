//! The properties checked after every stop.

use super::*;

/// Threads of tokio's blocking pool stay for a while and belong to no run.
pub(super) const BLOCKING_POOL_ALLOWANCE: LeakAllowance =
    LeakAllowance { sockets: 0, other_descriptors: 0, threads: 64 };

const STOP_NOTE: &str = "[The request above was stopped on purpose by the user";

pub(super) async fn check_stop(
    case_run: &CaseRun<'_>,
    case: &SweepCase,
    answers: &SweepStopAnswers,
    watcher: &mut NoticeRecorder,
) {
    let test_engine = &case_run.sweep.test_engine;
    let view = test_engine.wait_ended(&case_run.run).await;
    check_event_order(case, &watcher.run_events(&case_run.run));
    let verdict = view.verdict.clone().unwrap();
    check_stop_answers(case_run, case, answers, &verdict);
    let receipt = view.receipt.as_ref().unwrap();
    check_receipt(case, &view, receipt);
    check_nothing_left(case_run).await;
    check_late_stop(case_run, &view).await;
    check_next_message(case_run, case).await;
    let events = watcher.run_events(&case_run.run);
    assert!(matches!(events.last().unwrap().kind, EventKind::Ended { .. }), "{}: after the end {events:#?}", case.name);
}

/// Sequence numbers rise by one from 1, with one `run.ending` and one `run.ended` as the last, and no deltas between
/// these.
pub(super) fn check_event_order(case: &SweepCase, events: &[Arc<RunEvent>]) {
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

/// The verdict is the one that the stop announced, and exactly one caller was told that its stop aborted the run.
fn check_stop_answers(case_run: &CaseRun<'_>, case: &SweepCase, answers: &SweepStopAnswers, verdict: &Verdict) {
    let winners = answers.callers_that_stopped(&case_run.run);
    let by = |caller: &Caller| Requester { principal: caller.principal.clone(), surface: caller.surface };
    let aborted = |caller| Verdict::Aborted { reason: StopReason::User, by: Some(by(caller)) };
    let expected = match (case.expected, winners.as_slice()) {
        (ExpectedOutcome::AbortedByThisStop, [winner]) => aborted(winner),
        (ExpectedOutcome::AbortedEarlier, []) => aborted(&alice()),
        (ExpectedOutcome::Completed, []) => Verdict::Completed,
        _ => panic!("{}: stopped by {winners:?}", case.name),
    };
    assert_eq!(*verdict, expected, "{}", case.name);
}

/// The receipt has no leftovers, and each resource has the time of its release.
fn check_receipt(case: &SweepCase, view: &RunView, receipt: &Receipt) {
    assert_eq!(view.state, "ended", "{}", case.name);
    assert_eq!(Some(&receipt.verdict), view.verdict.as_ref(), "{}", case.name);
    check_released(case, receipt);
    let result = view.result.as_ref().unwrap();
    if matches!(case.expected, ExpectedOutcome::Completed) {
        assert!(result.success && !result.cancelled, "{}: {result:?}", case.name);
        return;
    }
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User, "{}", case.name);
    let outcome = (result.success, result.cancelled, result.error.as_deref());
    assert_eq!(outcome, (false, true, Some("Execution paused")), "{}", case.name);
    if case.started {
        let ms = |at: &Option<quell_protocol::Instant>| at.as_ref().and_then(|at| at.ms).unwrap();
        let (requested, delivered) = (ms(&receipt.requested_at), ms(&receipt.delivered_at));
        let settled = receipt.settled_at.ms.unwrap();
        assert!(requested == 0.0 && requested <= delivered && delivered <= settled, "{}: {receipt:#?}", case.name);
    }
}

pub(super) fn check_released(case: &SweepCase, receipt: &Receipt) {
    assert!(receipt.leftovers.is_empty(), "{}: {receipt:#?}", case.name);
    assert_ne!(receipt.rung, Rung::Abandoned, "{}: {receipt:#?}", case.name);
    for row in &receipt.resources {
        let released = row.released_at.as_ref().unwrap_or_else(|| panic!("{}: {row:?} is held", case.name));
        assert!(released.at <= receipt.settled_at.at, "{}: {row:?} was released after the end", case.name);
    }
    assert_eq!(receipt.turn.recorded, case.started, "{}: {receipt:#?}", case.name);
}

/// The operating system and the engine's own lists agree that nothing of the run is alive.
pub(super) async fn check_nothing_left(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    leaks::wait_no_process_with_env(&format!("QUELL_RUN_ID={}", case_run.run), WAIT_TIMEOUT).await;
    case_run.mark.wait_gone(WAIT_TIMEOUT).await;
    case_run.sweep.black_hole.wait_for_connecting(0).await;
    test_engine.model.wait_for_connections(0).await;
    assert_eq!(test_engine.engine.count_model_requests(), 0);
    assert!(test_engine.engine.active_runs().is_empty(), "{:?}", test_engine.engine.active_runs());
    for row in test_engine.engine.list_agents() {
        assert_eq!((row.compute_status, row.active_runs), (ComputeStatus::Idle, Vec::new()));
    }
}

async fn check_late_stop(case_run: &CaseRun<'_>, view: &RunView) {
    let engine = &case_run.sweep.test_engine.engine;
    let late = stop_run(engine, &case_run.run, SweepStopMode::Forced);
    assert!(late.callers_that_stopped(&case_run.run).is_empty());
    let now = engine.find_run(&case_run.run).await.unwrap().unwrap();
    assert_eq!(without_amendments(&now), without_amendments(view));
}

/// The late result of a call may be added to the receipt at any time.
fn without_amendments(view: &RunView) -> RunView {
    let mut view = view.clone();
    view.receipt.iter_mut().for_each(|receipt| receipt.amendments.clear());
    view
}

/// The next message of the session is answered, on a valid history that tells the model about the stop.
async fn check_next_message(case_run: &CaseRun<'_>, case: &SweepCase) {
    let seen = send_next_message(case_run, case).await;
    let stopped = case.started && !matches!(case.expected, ExpectedOutcome::Completed);
    assert_eq!(seen.contains(STOP_NOTE), stopped, "{}: {seen}", case.name);
    assert_eq!(seen.contains(&case_run.text), case.started, "{}: {seen}", case.name);
    for text in case.visible_next {
        assert!(seen.contains(text), "{}: the model does not see {text:?} in {seen}", case.name);
    }
    for text in case.hidden_next {
        assert!(!seen.contains(text), "{}: the model sees {text:?} in {seen}", case.name);
    }
}

/// Sends the next message of the session, which must be answered on a valid history; returns what the model sees.
pub(super) async fn send_next_message(case_run: &CaseRun<'_>, case: &SweepCase) -> String {
    let test_engine = &case_run.sweep.test_engine;
    let marker = format!("next-{}", case_run.run);
    let next = test_engine.run_message(&case_run.session, &format!("and now? marker:{marker}")).await;
    assert_eq!(next.verdict, Some(Verdict::Completed), "{}", case.name);
    test_engine.model.assert_histories_valid();
    messages_as_text(test_engine.model.wait_for_marked_request(&marker).await.messages())
}
