//! Session creation: one creator, stages undone in reverse order, failures shared by all waiters, stops.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_at_once_make_one_session() {
    let (fixture, gate) = SessionFixture::start_gated(&["a"], 0).await;
    let callers = (0..1000).map(|_| fixture.open(session_request("u", "c")));
    let (opened, ()) = tokio::join!(join_all(callers), async {
        fixture.wait_waiting_callers(999).await;
        gate.add_permits(1);
    });
    let created = opened.iter().filter(|opened| matches!(opened, Ok((_, OpenSessionOutcome::Created)))).count();
    let known = opened.iter().filter(|opened| matches!(opened, Ok((_, OpenSessionOutcome::Unchanged)))).count();
    assert_eq!((created, known), (1, 999));
    assert_eq!(fixture.program.recorded_stages(), ["begin a"]);
    let events = fixture.program.hook_events_of("u:c:scripted");
    assert_eq!(events.iter().filter(|event| **event == HookEvent::Create).count(), 1);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_stage_releases_the_earlier_ones_in_reverse_and_everybody_gets_the_same_error() {
    let gate = Arc::new(Semaphore::new(0));
    let program = RecordingProgram::with_stages(&["a", "b", "c", "d"]).failing(&["begin d"; 2]);
    let fixture = SessionFixture::start_with(program.gates(Some(&gate), None), |_| {}).await;
    let open = || fixture.open(session_request("u", "c"));
    let waiting = async {
        // All others wait for the creator before its first stage may begin.
        fixture.wait_waiting_callers(19).await;
        gate.add_permits(1000);
    };
    let (opened, ()) = tokio::join!(join_all((0..20).map(|_| open())), waiting);
    let why = "\"d\" failed: out of order";
    let fails =
        |opened: &Result<_, OpenSessionError>| opened.as_ref().is_err_and(|error| error.to_string().contains(why));
    assert!(opened.iter().all(fails), "{opened:?}");
    fixture.wait_alive(0).await;
    let stages = ["begin a", "begin b", "begin c", "undo c", "undo b", "undo a"].map(str::to_owned);
    assert_eq!(fixture.program.recorded_stages()[..6], stages);
    assert_eq!(fixture.session_state("u:c:scripted").await, "none", "a session that was not made left a trace");
    // A run fails with the same reason, and no hook takes the session for a ready one.
    let run = fixture.run_message("s", "hello").await;
    assert!(failure_of(&run).1.contains(why), "{run:#?}");
    assert!(!fixture.program.hook_events_of("s").contains(&HookEvent::Activate));
    fixture.wait_alive(0).await;
    // The next call tries again.
    assert_eq!(open().await.unwrap().1, OpenSessionOutcome::Created);
    assert_eq!(fixture.program.count_alive(), 4);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_veto_leaves_no_session_and_fails_a_run_with_its_reason() {
    let fixture = SessionFixture::start().await;
    *fixture.program.veto.lock().unwrap() = Some("not on a Saturday".to_owned());
    let refused = fixture.open(session_request("u", "c")).await.unwrap_err();
    assert_eq!(refused, OpenSessionError::Refused("not on a Saturday".to_owned()));
    assert_eq!(fixture.session_state("u:c:scripted").await, "none");
    let run = fixture.run_message("s", "hello").await;
    let (code, message) = failure_of(&run);
    assert!(code == "session_refused" && message.contains("not on a Saturday"), "{run:#?}");
    assert_eq!((fixture.program.count_alive(), fixture.model.request_count()), (0, 0));
    *fixture.program.veto.lock().unwrap() = None;
    assert_eq!(fixture.run_message("s", "hello").await.verdict.unwrap().as_str(), "completed");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_the_making_and_the_next_one_makes_it() {
    let (fixture, gate) = SessionFixture::start_gated(&["a", "b"], 1).await;
    let run = fixture.send(submission("s", "hello")).await;
    let program = Arc::clone(&fixture.program);
    leaks::wait_for_true("the first stage has begun", move || program.recorded_stages() == ["begin a"]).await;
    let second = fixture.send(submission("s", "and then")).await;
    let stop = fixture.stop(&run);
    stop.wait_settled().await;
    fixture.wait_alive(0).await;
    assert_eq!(fixture.program.recorded_stages(), ["begin a", "undo a"]);
    // The second run creates the session.
    gate.add_permits(2);
    fixture.assert_completes(&second).await;
    assert_eq!(fixture.program.count_alive(), 2);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_takes_over_a_creation_whose_run_was_stopped() {
    let (fixture, gate) = SessionFixture::start_gated(&["a"], 0).await;
    let run = fixture.send(submission("u:c:scripted", "hello")).await;
    fixture.wait_hook_event("u:c:scripted", HookEvent::Create).await;
    let stopper = async {
        fixture.stop(&run).wait_settled().await;
        gate.add_permits(1);
    };
    let (opened, ()) = tokio::join!(fixture.open(session_request("u", "c")), stopper);
    assert!(opened.is_ok(), "{opened:?}");
    assert_eq!((fixture.program.count_alive(), fixture.program.max_alive.load(Ordering::SeqCst)), (1, 1));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_fails_keeps_no_other_from_being_done_and_is_tried_again() {
    let program = RecordingProgram::with_stages(&["a", "b", "c"]).failing(&["undo b"]);
    let fixture = SessionFixture::start_expired(program, 1).await;
    assert_eq!(fixture.program.recorded_stages()[3..], ["undo c", "undo a"].map(str::to_owned));
    // The session is gone: its next message creates it anew, while the failed undo is still pending.
    fixture.run_message("s", "again").await;
    assert_eq!(fixture.program.count_alive(), 4);
    fixture.engine.sweep_sessions();
    fixture.wait_alive(3).await;
    assert_eq!(fixture.program.recorded_stages().iter().filter(|event| *event == "undo b").count(), 1);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_failed_before_is_tried_a_last_time_at_the_shutdown() {
    let program = RecordingProgram::with_stages(&["a", "b"]).failing(&["undo b"]);
    let fixture = SessionFixture::start_expired(program, 1).await;
    let engine = fixture.engine.clone();
    leaks::wait_for_value("clean-up steps left", 1, move || engine.count_pending_cleanups()).await;
    let program = Arc::clone(&fixture.program);
    fixture.close().await;
    assert_eq!(program.count_alive(), 0, "the failed undo step was not retried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_the_drop_of_a_stage_bars_nobody_from_its_session() {
    let program = RecordingProgram::with_stages(&["a", "b"]).failing(&["drop b"]);
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    fixture.run_message("s", "hello").await;
    fixture.advance_time(PAST_IDLE_LIMIT);
    let run = fixture.run_message("s", "again").await;
    assert_eq!(run.verdict.unwrap().as_str(), "completed");
    let events = fixture.program.recorded_stages();
    assert!(events.contains(&"undo a".to_owned()), "the panic has skipped a step: {events:?}");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_deleted_while_it_is_made_is_cleaned_up() {
    let (fixture, gate) = SessionFixture::start_gated(&["a"], 0).await;
    let run = fixture.send(submission("s", "hello")).await;
    fixture.wait_hook_event("s", HookEvent::Create).await;
    assert!(fixture.delete_session("s").await);
    gate.add_permits(10);
    fixture.wait_alive(0).await;
    assert!(fixture.engine.live_run(&run).is_none_or(|live_run| live_run.progress() == RunProgress::Ended));
    assert_eq!(fixture.session_state("s").await, "none");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_during_a_deletion_gets_a_new_session() {
    let (fixture, gate) = SessionFixture::start_gated(&["a"], 0).await;
    let mut asked = session_request("u", "c");
    asked.instruction = Some("Speak like a pirate.".to_owned());
    let delete = async {
        fixture.wait_hook_event("u:c:scripted", HookEvent::Create).await;
        let opener = async {
            // The deletion waits for the creator of the session: let it continue.
            fixture.wait_waiting_callers(1).await;
            gate.add_permits(10);
        };
        tokio::join!(fixture.delete_session("u:c:scripted"), opener).0
    };
    let (opened, deleted) = tokio::join!(fixture.open(asked), delete);
    assert_eq!(opened.unwrap().1, OpenSessionOutcome::Created);
    assert!(deleted, "the deleted session is still stored");
    assert_eq!(fixture.program.recorded_stages(), ["begin a", "undo a", "begin a"]);
    assert_eq!((fixture.session_state("u:c:scripted").await.as_str(), fixture.program.count_alive()), ("ready", 1));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_waits_until_what_was_known_of_the_deleted_one_is_gone() {
    let (fixture, undo_gate) = SessionFixture::start_undo_gated().await;
    let mut asked = session_request("u", "c");
    asked.instruction = Some("Speak like a pirate.".to_owned());
    fixture.open(asked).await.unwrap();
    // Two deletions at the same time, and one caller who opens the session meanwhile.
    let delete = || fixture.delete_session("u:c:scripted");
    let open = async {
        let engine = fixture.engine.clone();
        leaks::wait_for_value("live sessions", 0, move || engine.count_live_sessions()).await;
        let release = async {
            fixture.wait_waiting_callers(3).await;
            undo_gate.add_permits(10);
        };
        tokio::join!(fixture.open(session_request("u", "c")), release).0
    };
    let (one, other, opened) = tokio::join!(delete(), delete(), open);
    assert!(one != other, "one of them has deleted it");
    assert_eq!(opened.unwrap().1, OpenSessionOutcome::Created);
    let shown = fixture.engine.session_view(&parse_session_key("u:c:scripted")).await.unwrap().unwrap();
    assert!(!shown.config.unwrap().instruction.value.contains("pirate"), "the successor has the old instruction");
    fixture.close().await;
}

#[tokio::test]
async fn a_session_that_is_being_made_at_the_shutdown_is_given_back_before_its_end() {
    let (gate, undo_gate) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(0)));
    let program = RecordingProgram::with_stages(&["a", "b"]).gates(Some(&gate), Some(&undo_gate));
    let fixture = SessionFixture::start_with(program, |_| {}).await;
    let closing = async {
        fixture.wait_alive(1).await;
        let undone = async {
            let program = Arc::clone(&fixture.program);
            leaks::wait_for_value("begun undos", 1, move || program.undo_count.load(Ordering::SeqCst)).await;
            // The undo takes longer than the grace that other tasks of the engine get.
            skip_time(Duration::from_millis(800)).await;
            assert_eq!(fixture.program.recorded_stages(), ["begin a"]);
            undo_gate.add_permits(1);
        };
        tokio::join!(fixture.engine.shut_down(), undone).0
    };
    let (opened, left) = tokio::join!(fixture.open(session_request("u", "c")), closing);
    assert_eq!(opened.unwrap_err(), OpenSessionError::Closing);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fixture.program.recorded_stages(), ["begin a", "undo a"]);
    assert_eq!(fixture.program.count_alive(), 0);
}
