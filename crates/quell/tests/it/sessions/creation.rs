//! Session creation: one creator, stages undone in reverse order, failures shared by all waiters, stops.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use quell_engine::engine::{OpenSessionError, OpenSessionOutcome};
use quell_engine::live_run::RunProgress;
use quell_protocol::Verdict;
use quell_protocol::hook::HookEvent;
use quell_testkit::leaks;
use tokio::sync::Semaphore;

use super::{PAST_IDLE_LIMIT, RecordingProgram, SessionFixture, session_request};
use crate::test_engine::{alice, parse_session_key, submission};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_at_once_make_one_session() {
    let gate = Arc::new(Semaphore::new(0));
    let program = RecordingProgram::with_stages(&["a"]).begin_gate(&gate);
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    let callers: Vec<_> = (0..1000)
        .map(|_| {
            let engine = fixture.test_engine.engine.clone();
            async move { engine.open_session(&alice(), session_request("u", "c")).await }
        })
        .collect();
    let (opened, ()) = tokio::join!(join_all(callers), async {
        let engine = fixture.test_engine.engine.clone();
        leaks::wait_for_value("waiting callers", 999, move || engine.count_session_waiters()).await;
        gate.add_permits(1);
    });
    let created = opened.iter().filter(|opened| matches!(opened, Ok((_, OpenSessionOutcome::Created)))).count();
    let known = opened.iter().filter(|opened| matches!(opened, Ok((_, OpenSessionOutcome::Unchanged)))).count();
    assert_eq!((created, known), (1, 999));
    assert_eq!(fixture.program.recorded_stages(), ["begin a"]);
    let creates =
        fixture.program.hook_events_of("u:c:scripted").into_iter().filter(|event| *event == HookEvent::Create);
    assert_eq!(creates.count(), 1);
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_stage_releases_the_earlier_ones_in_reverse_and_everybody_gets_the_same_error() {
    let gate = Arc::new(Semaphore::new(0));
    let program = RecordingProgram {
        stage_names: vec!["a", "b", "c", "d"],
        begin_failures: vec![("d", 1)].into(),
        begin_gate: Some(Arc::clone(&gate)),
        ..RecordingProgram::default()
    };
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    let open = || {
        let engine = fixture.test_engine.engine.clone();
        async move { engine.open_session(&alice(), session_request("u", "c")).await }
    };
    let waiting = async {
        // All others wait for the creator before its first stage may begin.
        let engine = fixture.test_engine.engine.clone();
        leaks::wait_for_value("waiting callers", 19, move || engine.count_session_waiters()).await;
        gate.add_permits(1000);
    };
    let (opened, ()) = tokio::join!(join_all((0..20).map(|_| open())), waiting);
    let errors: Vec<String> =
        opened.iter().filter_map(|opened| opened.as_ref().err().map(ToString::to_string)).collect();
    assert!(errors.iter().all(|error| error.contains("\"d\" failed: out of order")), "{errors:?}");
    assert_eq!(errors.len(), 20, "some waiter got something else: {opened:?}");
    fixture.wait_alive(0).await;
    assert_eq!(
        fixture.program.recorded_stages()[..6],
        ["begin a", "begin b", "begin c", "undo c", "undo b", "undo a"].map(str::to_owned)
    );
    assert_eq!(fixture.session_state("u:c:scripted").await, "none", "a session that was not made left a trace");
    // The next call tries again.
    assert_eq!(open().await.unwrap().1, OpenSessionOutcome::Created);
    assert_eq!(fixture.program.count_alive(), 4);
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_veto_leaves_no_session_and_fails_a_run_with_its_reason() {
    let fixture = SessionFixture::start().await;
    *fixture.program.veto.lock().unwrap() = Some("not on a Saturday".to_owned());
    let refused = fixture.test_engine.engine.open_session(&alice(), session_request("u", "c")).await.unwrap_err();
    assert_eq!(refused, OpenSessionError::Refused("not on a Saturday".to_owned()));
    assert_eq!(fixture.session_state("u:c:scripted").await, "none");
    let run = fixture.test_engine.run_message("s", "hello").await;
    let Some(Verdict::Failed { code, message }) = &run.verdict else { panic!("{run:#?}") };
    assert_eq!(code, "session_refused");
    assert!(message.contains("not on a Saturday"), "{message}");
    assert_eq!((fixture.program.count_alive(), fixture.test_engine.model.request_count()), (0, 0));
    *fixture.program.veto.lock().unwrap() = None;
    assert_eq!(fixture.test_engine.run_message("s", "hello").await.verdict.unwrap().as_str(), "completed");
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_the_making_and_the_next_one_makes_it() {
    let gate = Arc::new(Semaphore::new(1));
    let program = RecordingProgram::with_stages(&["a", "b"]).begin_gate(&gate);
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    let run = fixture.test_engine.send(submission("s", "hello")).await;
    let program = Arc::clone(&fixture.program);
    leaks::wait_for_true("the first stage has begun", move || program.recorded_stages() == ["begin a"]).await;
    let second = fixture.test_engine.send(submission("s", "and then")).await;
    let stop = fixture.test_engine.stop(&run);
    stop.wait_settled().await;
    fixture.wait_alive(0).await;
    assert_eq!(fixture.program.recorded_stages(), ["begin a", "undo a"]);
    // The second run creates the session.
    gate.add_permits(2);
    assert_eq!(fixture.test_engine.wait_ended(&second).await.verdict.unwrap().as_str(), "completed");
    assert_eq!(fixture.program.count_alive(), 2);
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_takes_over_a_creation_whose_run_was_stopped() {
    let gate = Arc::new(Semaphore::new(0));
    let program = RecordingProgram::with_stages(&["a"]).begin_gate(&gate);
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    let run = fixture.test_engine.send(submission("u:c:scripted", "hello")).await;
    let (program, engine) = (Arc::clone(&fixture.program), fixture.test_engine.engine.clone());
    leaks::wait_for_true("the creation has begun", move || {
        program.hook_events_of("u:c:scripted").contains(&HookEvent::Create)
    })
    .await;
    let waiter = async { engine.open_session(&alice(), session_request("u", "c")).await };
    let stopper = async {
        fixture.test_engine.stop(&run).wait_settled().await;
        gate.add_permits(1);
    };
    let (opened, ()) = tokio::join!(waiter, stopper);
    assert!(opened.is_ok(), "{opened:?}");
    assert_eq!((fixture.program.count_alive(), fixture.program.max_alive.load(Ordering::SeqCst)), (1, 1));
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_fails_keeps_no_other_from_being_done_and_is_tried_again() {
    let program =
        RecordingProgram { undo_failures: vec![("b", 1)].into(), ..RecordingProgram::with_stages(&["a", "b", "c"]) };
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    fixture.test_engine.run_message("s", "hello").await;
    fixture.advance_time(PAST_IDLE_LIMIT);
    fixture.wait_alive(1).await;
    assert_eq!(fixture.program.recorded_stages()[3..], ["undo c", "undo a"].map(str::to_owned));
    // The session is gone: its next message creates it anew, while the failed undo is still pending.
    fixture.test_engine.run_message("s", "again").await;
    assert_eq!(fixture.program.count_alive(), 4);
    fixture.test_engine.engine.sweep_sessions();
    fixture.wait_alive(3).await;
    assert_eq!(fixture.program.recorded_stages().iter().filter(|event| *event == "undo b").count(), 1);
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_failed_before_is_tried_a_last_time_at_the_shutdown() {
    let program =
        RecordingProgram { undo_failures: vec![("b", 1)].into(), ..RecordingProgram::with_stages(&["a", "b"]) };
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    fixture.test_engine.run_message("s", "hello").await;
    fixture.advance_time(PAST_IDLE_LIMIT);
    fixture.wait_alive(1).await;
    let engine = fixture.test_engine.engine.clone();
    leaks::wait_for_value("clean-up steps left", 1, move || engine.count_pending_cleanups()).await;
    let program = Arc::clone(&fixture.program);
    fixture.test_engine.close().await;
    assert_eq!(program.count_alive(), 0, "the failed undo step was not retried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_the_drop_of_a_stage_bars_nobody_from_its_session() {
    let program = RecordingProgram { drop_panics: vec![("b", 1)].into(), ..RecordingProgram::with_stages(&["a", "b"]) };
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    fixture.test_engine.run_message("s", "hello").await;
    fixture.advance_time(PAST_IDLE_LIMIT);
    let run = fixture.test_engine.run_message("s", "again").await;
    assert_eq!(run.verdict.unwrap().as_str(), "completed");
    let events = fixture.program.recorded_stages();
    assert!(events.contains(&"undo a".to_owned()), "the panic has skipped a step: {events:?}");
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_deleted_while_it_is_made_is_cleaned_up() {
    let gate = Arc::new(Semaphore::new(0));
    let program = RecordingProgram::with_stages(&["a"]).begin_gate(&gate);
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    let run = fixture.test_engine.send(submission("s", "hello")).await;
    let program = Arc::clone(&fixture.program);
    leaks::wait_for_true("the creation has begun", move || program.hook_events_of("s").contains(&HookEvent::Create))
        .await;
    let ask = crate::test_engine::stop_ask(quell_kernel::StopLevel::Gentle);
    assert!(fixture.test_engine.engine.delete_session(&alice(), &parse_session_key("s"), &ask).await.unwrap());
    gate.add_permits(10);
    fixture.wait_alive(0).await;
    let gone =
        fixture.test_engine.engine.live_run(&run).is_none_or(|live_run| live_run.progress() == RunProgress::Ended);
    assert!(gone);
    assert_eq!(fixture.session_state("s").await, "none");
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_during_a_deletion_gets_a_new_session() {
    let gate = Arc::new(Semaphore::new(0));
    let program = RecordingProgram::with_stages(&["a"]).begin_gate(&gate);
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    let mut asked = session_request("u", "c");
    asked.instruction = Some("Speak like a pirate.".to_owned());
    let open = |asked| {
        let engine = fixture.test_engine.engine.clone();
        async move { engine.open_session(&alice(), asked).await }
    };
    let delete = async {
        let (program, engine) = (Arc::clone(&fixture.program), fixture.test_engine.engine.clone());
        leaks::wait_for_value("hook events", 1, move || program.hook_events_of("u:c:scripted").len()).await;
        let ask = crate::test_engine::stop_ask(quell_kernel::StopLevel::Gentle);
        let opener = async {
            // The deletion waits for the creator of the session: let it continue.
            let waiting = engine.clone();
            leaks::wait_for_value("waiting callers", 1, move || waiting.count_session_waiters()).await;
            gate.add_permits(10);
        };
        let (alice, key) = (alice(), parse_session_key("u:c:scripted"));
        tokio::join!(engine.delete_session(&alice, &key, &ask), opener).0
    };
    let (opened, deleted) = tokio::join!(open(asked), delete);
    assert_eq!(opened.unwrap().1, OpenSessionOutcome::Created);
    assert!(deleted.unwrap(), "the deleted session is still stored");
    assert_eq!(fixture.program.recorded_stages(), ["begin a", "undo a", "begin a"]);
    assert_eq!((fixture.session_state("u:c:scripted").await.as_str(), fixture.program.count_alive()), ("ready", 1));
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_waits_until_what_was_known_of_the_deleted_one_is_gone() {
    let undo_gate = Arc::new(Semaphore::new(0));
    let program = RecordingProgram::with_stages(&["a"]).undo_gate(&undo_gate);
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    let mut asked = session_request("u", "c");
    asked.instruction = Some("Speak like a pirate.".to_owned());
    fixture.test_engine.engine.open_session(&alice(), asked).await.unwrap();
    let engine = &fixture.test_engine.engine;
    let ask = crate::test_engine::stop_ask(quell_kernel::StopLevel::Gentle);
    // Two deletions at the same time, and one caller who opens the session meanwhile.
    let delete = || async { engine.delete_session(&alice(), &parse_session_key("u:c:scripted"), &ask).await.unwrap() };
    let open = async {
        let engine = engine.clone();
        leaks::wait_for_value("live sessions", 0, move || engine.count_live_sessions()).await;
        let alice = alice();
        tokio::join!(fixture.test_engine.engine.open_session(&alice, session_request("u", "c")), async {
            let engine = fixture.test_engine.engine.clone();
            leaks::wait_for_value("waiting callers", 3, move || engine.count_session_waiters()).await;
            undo_gate.add_permits(10);
        })
        .0
    };
    let (one, other, opened) = tokio::join!(delete(), delete(), open);
    assert!(one != other, "one of them has deleted it");
    assert_eq!(opened.unwrap().1, OpenSessionOutcome::Created);
    let shown = engine.session_view(&parse_session_key("u:c:scripted")).await.unwrap().unwrap();
    assert!(!shown.config.unwrap().instruction.value.contains("pirate"), "the successor has the old instruction");
    fixture.test_engine.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_being_made_at_the_shutdown_is_given_back_before_its_end() {
    let (gate, undo_gate) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(0)));
    let program = RecordingProgram::with_stages(&["a", "b"]).begin_gate(&gate).undo_gate(&undo_gate);
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    let (engine, program) = (fixture.test_engine.engine.clone(), Arc::clone(&fixture.program));
    let opening = async move { engine.open_session(&alice(), session_request("u", "c")).await };
    let closing = async {
        fixture.wait_alive(1).await;
        let down = fixture.test_engine.engine.shut_down();
        let recorder = Arc::clone(&program);
        let undone = async {
            // The undo has begun and takes longer than the grace that other tasks of the engine get.
            tokio::time::sleep(std::time::Duration::from_millis(800)).await;
            assert_eq!(recorder.recorded_stages(), ["begin a"]);
            undo_gate.add_permits(1);
        };
        tokio::join!(down, undone).0
    };
    let (opened, left) = tokio::join!(opening, closing);
    assert_eq!(opened.unwrap_err(), OpenSessionError::Closing);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(
        (program.recorded_stages(), program.count_alive()),
        (vec!["begin a".to_owned(), "undo a".to_owned()], 0)
    );
}
