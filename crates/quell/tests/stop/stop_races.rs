//! Other races of docs/races.md: late, early and concurrent stops.

use std::sync::Barrier;

use quell_kernel::approval::ApprovalPolicy;
use quell_protocol::approval::Decision;

use crate::prelude::*;
use crate::test_engine::{background_call, endless_tokens, shell_call};

const ROUNDS: usize = 50;

async fn start_streaming_run(test: &TestEngine, session: &str) -> RunId {
    test.model.script(endless_tokens());
    let run = test.send(submission(session, "go on")).await;
    test.wait_text(&run).await;
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_stop_of_the_run_before_leaves_the_one_at_work_alone() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedResponse::text("one"));
    let before = test.run_message("s", "first").await;
    let stopped = start_streaming_run(&test, "s").await;
    test.stop_and_wait(&stopped).await;
    let now = start_streaming_run(&test, "s").await;
    for late in [&before.run_id, &stopped] {
        let stop = test.engine.stop(&alice(), &run_stop_scope(late), &stop_ask(StopLevel::Forced));
        assert!(!stop.stopped_anything(), "{stop:?}");
    }
    test.assert_running(&now);
    assert_eq!(test.engine.find_run(&before.run_id).await.unwrap().unwrap().verdict, Some(Verdict::Completed));
    test.stop_and_wait(&now).await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_message_starts_when_the_last_process_of_the_stopped_run_is_dead() {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    test.model.script(shell_call(commands::signal_ignoring_setsid_child(&marker)));
    let run = test.send(submission("s", "run it")).await;
    marker.wait_for_count(2).await;
    test.wait_printed(&run, "deaf").await;
    let watched = Arc::new(marker);
    let survivors = Arc::new(std::sync::Mutex::new(None));
    let (marker, seen) = (Arc::clone(&watched), Arc::clone(&survivors));
    test.point_hook.arm(Point::LoadHistory, 1, move || *seen.lock().unwrap() = Some(marker.marked_processes()));
    assert!(test.stop(&run).stopped_anything());
    test.model.script(ScriptedResponse::text("fine"));
    test.assert_next_message_works("s").await;
    let alive = survivors.lock().unwrap().take();
    assert_eq!(alive, Some(Vec::new()), "processes of the stopped run were alive beside the next run");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_for_a_place_is_stopped_at_once_and_takes_none() {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| config.limits.in_flight_runs = 1).await;
    let working = start_streaming_run(&test, "one").await;
    let waiting = test.send(submission("two", "wait")).await;
    let stop = test.stop(&waiting);
    assert_eq!(stop.withdrawn, [(waiting.clone(), "wait".to_owned())]);
    assert_eq!(abort_reason(test.wait_ended(&waiting).await.verdict.as_ref()), StopReason::User);
    test.assert_running(&working);
    test.stop_and_wait(&working).await;
    test.model.script(ScriptedResponse::text("here"));
    assert_eq!(test.run_message("two", "and now?").await.output.as_deref(), Some("here"), "the permit is free");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_run_whose_time_is_over_ends_where_it_waits() {
    let test = TestEngine::start_shared().await;
    let working = start_streaming_run(&test, "s").await;
    let timeout = Some(Duration::from_millis(50));
    let waiting = test.send(Submission { timeout, ..submission("s", "too late") }).await;
    let view = test.wait_ended(&waiting).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::Timeout);
    assert!(!receipt_of(&view).turn.recorded, "{view:#?}");
    test.assert_running(&working);
    test.stop_and_wait(&working).await;
    assert_eq!(test.model.recorded_requests().len(), 1);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_session_stays_deleted_whatever_ran_in_it() {
    let test = TestEngine::start_shared().await;
    for crossing in 0..ROUNDS {
        let session = format!("s{crossing}");
        let run = start_streaming_run(&test, &session).await;
        let queued = test.send(submission(&session, "later")).await;
        assert!(test.delete_session(&session).await);
        for run in [&run, &queued] {
            // The streaming run leaves its receipt, without its texts.
            let left = test.wait_ended(run).await;
            assert_eq!((left.text.as_str(), left.output), ("", None));
            assert!(left.receipt.is_some());
        }
        let found = test.engine.find_session(&parse_session_key(&session)).await.unwrap();
        assert!(found.is_none(), "session {session} came back");
    }
    test.model.script(ScriptedResponse::text("anew"));
    test.run_message("s0", "and now?").await;
    assert!(!messages_as_text(&test.last_messages()).contains("go on"), "what was deleted is shown to the model");
    test.close().await;
}

#[derive(Clone, Copy, PartialEq)]
enum SessionEndKind {
    Reset,
    Deletion,
}

/// The message arrives while the end of the session waits for a command that ignores SIGTERM and ends when a file
/// appears.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_crosses_the_end_of_its_session_is_stopped_with_the_rest(
    #[values(SessionEndKind::Reset, SessionEndKind::Deletion)] end: SessionEndKind,
) {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        (config.stop_timeouts.term, config.stop_timeouts.grace) = (WAIT_TIMEOUT, 2 * WAIT_TIMEOUT);
    })
    .await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let command = "trap '' TERM; echo deaf; while [ ! -e go ]; do sleep 0.01; done";
    test.model.script(shell_call(command));
    let run = test.send(submission("s", "the old one")).await;
    test.wait_printed(&run, "deaf").await;
    test.answer_by_marker();
    test.script_marker("late", [ScriptedResponse::SilentBeforeHeaders]);
    let (alice, session, gently) = (alice(), parse_session_key("s"), stop_ask(StopLevel::Gentle));
    let ending = async {
        match end {
            SessionEndKind::Reset => test.engine.reset_session(&alice, &session, &gently).await,
            SessionEndKind::Deletion => test.engine.delete_session(&alice, &session, &gently).await,
        }
    };
    let sending = async {
        watcher.wait_event(&run, "ending", |event| matches!(event.kind, EventKind::Ending { .. })).await;
        let late = test.send(submission("s", "the late one marker:late")).await;
        std::fs::write(test.workdir().join("go"), "").unwrap();
        late
    };
    let (done, late) = tokio::join!(ending, sending);
    assert!(done.unwrap());
    watcher.wait_ended(&late).await;
    let events = watcher.run_events(&late);
    let Some(EventKind::Ended { verdict, .. }) = events.last().map(|event| &event.kind) else { panic!("{events:#?}") };
    assert_eq!(abort_reason(Some(verdict)), StopReason::User, "it continues in a session that has ended");
    assert_eq!(test.engine.find_session(&session).await.unwrap().is_some(), end == SessionEndKind::Reset);
    test.assert_next_message_works("s").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(!seen.contains("the old one") && !seen.contains("the late one"), "{seen}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_session_takes_its_background_commands_along() {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    let call = background_call(commands::signal_ignoring_setsid_child(&marker));
    test.model.script(call).script(ScriptedResponse::text("It runs."));
    let view = test.run_message_in_memory("s", "serve").await;
    marker.wait_for_count(2).await;
    assert!(test.delete_session("s").await);
    assert_eq!(marker.marked_processes(), [], "the command of a deleted session is alive");
    assert!(test.engine.session_processes(&parse_session_key("s")).is_empty());
    assert!(!test.stop(&view.run_id).stopped_anything());
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_work_panics_fails_alone_and_its_session_goes_on() {
    let test = TestEngine::start_shared().await;
    let beside = start_streaming_run(&test, "beside").await;
    test.model.script(shell_call("true"));
    test.point_hook.arm(Point::BeforeTool, 1, || panic!("as the test wants"));
    let view = test.run_message("s", "break").await;
    assert!(matches!(&view.verdict, Some(Verdict::Failed { code, .. }) if code == "bug"), "{view:#?}");
    assert!(receipt_of(&view).leftovers.is_empty() && receipt_of(&view).turn.recorded, "{view:#?}");
    test.model.script(ScriptedResponse::text("fine"));
    assert_eq!(test.run_message("s", "and now?").await.output.as_deref(), Some("fine"));
    test.assert_running(&beside);
    test.stop_and_wait(&beside).await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_crosses_a_stop_is_taken_or_refused_and_a_refused_one_runs_nothing() {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        let main: &mut AgentConfig = config.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.insert("write_file".to_owned(), ApprovalPolicy::Ask);
    })
    .await;
    // Without a script the model is silent: a run whose call was allowed waits until the stop comes.
    test.model.respond_by_prompt(|_, _| ScriptedResponse::SilentBeforeHeaders);
    let mut accepted = 0;
    for crossing in 0..ROUNDS {
        let (session, name) = (format!("s{crossing}"), format!("file-{crossing}"));
        test.model.script(ScriptedResponse::tool_call("c1", "write_file", &json!({"path": name, "content": "x"})));
        let run = test.send(submission(&session, "write it")).await;
        let row = test.wait_approval_of(&run).await;
        let start = Barrier::new(2);
        let answering = || {
            start.wait();
            test.engine.answer_approval(&bob(), &row.id, Decision::Allow.into())
        };
        let (answer, stop) = std::thread::scope(|threads| {
            let answer = threads.spawn(answering);
            start.wait();
            let stop = test.stop(&run);
            (answer.join().unwrap(), stop)
        });
        assert_eq!(stop.aborted, std::slice::from_ref(&run));
        let view = test.wait_ended(&run).await;
        assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
        assert!(receipt_of(&view).leftovers.is_empty() && test.engine.pending_approvals().is_empty(), "{view:#?}");
        test.model.script(ScriptedResponse::text("fine"));
        test.run_message(&session, "and now?").await;
        let not_started = messages_as_text(&test.last_messages()).contains("Not started");
        let written = test.workdir().join(&name).exists();
        assert!(!(written && not_started), "the call ran, but the model is told that it did not: {answer:?}");
        assert!(answer.is_ok() || not_started, "the answer was refused, but the call started");
        accepted += usize::from(answer.is_ok());
    }
    println!("{accepted} of {ROUNDS} answers were accepted");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_cut_in_the_middle_of_its_arguments_never_runs_and_breaks_no_history() {
    let test = TestEngine::start_shared().await;
    let cut = ScriptedStream::new().text("I write it.").raw_tool_call("c1", "write_file", "{\"path\": \"half\", \"con");
    test.model.script(cut.step(quell_testkit::model::StreamStep::Silent));
    let run = test.send(submission("s", "write it")).await;
    test.wait_text(&run).await;
    test.model.request_at(0).wait_paused().await;
    assert!(test.stop(&run).stopped_anything());
    test.wait_ended(&run).await;
    assert!(!test.workdir().join("half").exists());
    test.model.script(ScriptedResponse::text("fine"));
    test.assert_next_message_works("s").await;
    assert!(!messages_as_text(&test.last_messages()).contains("tool_calls"), "an incomplete call is shown");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2_an_error_that_surfaces_after_the_stop_is_cancelled_not_failed() {
    let test = TestEngine::start_shared().await;
    let run = parse_run_id("late-error");
    // The stop comes while the error answer is read; the error itself arrives after it.
    test.stop_at(Point::ModelError, 1, &run);
    test.model.script(ScriptedResponse::status(400));
    test.send(submission_as(&run, "s", "hello")).await;
    let view = test.wait_ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    test.close().await;
}
