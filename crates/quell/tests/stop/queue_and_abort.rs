//! Message queue, busy policies, budgets and the abort of model calls, at the engine (rows A and B of
//! docs/design/requirements.md). `agent_abort_properties` holds the property tests of row B10.

use std::slice::from_ref;

use quell_engine::engine::{Caller, EngineNotice, StopResult, StopTextMode, SubmitError, SubmitOutcome};
use quell_kernel::admission::AdmissionError;
use quell_kernel::expiry::ExpiryLimits;
use quell_kernel::registry::{AgentRunFilter, StopRequest};
use quell_protocol::api::{AgentAbortAnswer, ComputeStatus, OnBusy};
use quell_protocol::{ErrorCode, Surface};

use crate::prelude::*;
use crate::test_engine::{parse_principal, shell_call, skip_time};

/// Starts a run that waits for the model's headers.
async fn start_waiting_run(test: &TestEngine, session: &str) -> RunId {
    let before = test.model.recorded_requests().len();
    test.model.script(ScriptedResponse::SilentBeforeHeaders);
    let run = test.send(submission(session, "wait")).await;
    test.model.request_at(before).wait_arrived().await;
    run
}

fn abort_main_agent(test: &TestEngine, phase: AgentRunFilter) -> (AgentAbortAnswer, StopResult) {
    test.engine.abort_agent(&alice(), &parse_agent_id("main"), phase, &stop_ask(StopLevel::Gentle))
}

async fn wait_settled(stop: &StopResult) {
    tokio::time::timeout(WAIT_TIMEOUT, stop.wait_settled()).await.expect("the stop does not settle");
}

#[rstest]
#[case::success(ScriptedResponse::text("ok"))]
#[case::failure(ScriptedResponse::status(400))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_an_active_request_is_known_before_it_leaves_and_gone_after_it(#[case] end: ScriptedResponse) {
    let test = TestEngine::start_shared().await;
    assert_eq!(test.engine.count_model_requests(), 0);
    let aborted = start_waiting_run(&test, "a").await;
    assert_eq!(test.engine.count_model_requests(), 1);
    wait_settled(&test.stop(&aborted)).await;
    assert_eq!(test.engine.count_model_requests(), 0);
    test.model.script(end);
    test.run_message("b", "hello").await;
    assert_eq!(test.engine.count_model_requests(), 0);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b6_an_abort_without_a_call_succeeds_and_changes_nothing() {
    let test = TestEngine::start_shared().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    for _ in 0..3 {
        let (answer, stop) = abort_main_agent(&test, AgentRunFilter::WaitingLlm);
        assert_eq!((answer.ok, answer.aborted), (true, false));
        assert_eq!(answer.reason.as_deref(), Some("not_waiting_llm"));
        assert!(stop.tickets.is_empty());
    }
    let idle = |notice: &EngineNotice| matches!(notice, EngineNotice::Agent { status: ComputeStatus::Idle, .. });
    assert!(watcher.read_notices().iter().all(idle), "{:?}", watcher.read_notices());
    let run = start_waiting_run(&test, "s").await;
    let first = abort_main_agent(&test, AgentRunFilter::WaitingLlm);
    let second = abort_main_agent(&test, AgentRunFilter::WaitingLlm);
    assert_eq!((first.0.aborted, second.0.aborted), (true, false));
    assert_eq!(test.wait_ended(&run).await.verdict.map(|verdict| verdict.as_str()), Some("aborted"));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_the_text_of_an_aborted_call_is_shown_to_people_and_no_answer_to_the_model() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedResponse::text("first answer"));
    test.run_message("s", "first question").await;
    for _ in 0..3 {
        let before = test.model.recorded_requests().len();
        test.model.script(ScriptedResponse::silent_mid_stream("half an answ"));
        let run = test.send(submission("s", "second question")).await;
        test.model.request_at(before).wait_paused().await;
        test.wait_text(&run).await;
        wait_settled(&abort_main_agent(&test, AgentRunFilter::WaitingLlm).1).await;
        test.wait_ended(&run).await;
    }
    test.model.script(ScriptedResponse::text("last answer"));
    test.run_message("s", "last question").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("first question") && seen.contains("first answer"), "{seen}");
    assert!(seen.contains("second question") && !seen.contains("half an answ"), "{seen}");
    let page = test.engine.history_page(&parse_session_key("s"), 10, None).await.unwrap();
    let partial: Vec<_> = page.messages.iter().filter(|message| message.partial).collect();
    assert_eq!(partial.len(), 3, "people see the interrupted text: {:#?}", page.messages);
    assert!(page.messages.iter().filter(|m| m.text.contains("half an answ")).all(|m| m.partial));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_to_an_unknown_agent_is_refused() {
    let test = TestEngine::start_shared().await;
    assert_eq!(test.engine.find_agent(&parse_agent_id("nobody")), None);
    let agent = Some(parse_agent_id("nobody"));
    let error = test.expect_refusal(Submission { agent, ..submission("s", "hello") }).await;
    assert!(matches!(&error, SubmitError::UnknownAgent(id) if *id == parse_agent_id("nobody")), "{error:?}");
    assert_eq!(error.code(), ErrorCode::AgentNotFound);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b4_only_runs_that_wait_for_the_model_are_aborted_and_scope_run_takes_all() {
    let test = TestEngine::start_shared().await;
    test.model.script(shell_call("sleep 600"));
    let in_tool = test.send(submission("tool", "run it")).await;
    test.wait_resource_held(&in_tool, ResourceKind::Process).await;
    let (answer, _) = abort_main_agent(&test, AgentRunFilter::WaitingLlm);
    assert_eq!((answer.aborted, answer.reason.as_deref()), (false, Some("not_waiting_llm")));
    assert_eq!(test.agent_status(), ComputeStatus::Processing);
    let at_model = start_waiting_run(&test, "model").await;
    let (answer, stop) = abort_main_agent(&test, AgentRunFilter::WaitingLlm);
    assert_eq!(answer.run_ids, [at_model]);
    wait_settled(&stop).await;
    assert_eq!(test.active_runs_of("tool"), from_ref(&in_tool));
    let (answer, stop) = abort_main_agent(&test, AgentRunFilter::Any);
    assert_eq!(answer.run_ids, [in_tool]);
    wait_settled(&stop).await;
    assert_eq!(test.agent_status(), ComputeStatus::Idle);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_the_status_is_pushed_as_it_changes_back_off_included() {
    let test = TestEngine::start_shared().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.model.script(ScriptedResponse::rate_limited("50"));
    let run = test.send(submission("s", "hello")).await;
    test.wait_resource_held(&run, ResourceKind::Timer).await;
    assert_eq!(test.agent_status(), ComputeStatus::WaitingLlm);
    wait_settled(&test.stop(&run)).await;
    test.wait_ended(&run).await;
    let status = |notice: &EngineNotice| match notice {
        EngineNotice::Agent { status, .. } => Some(*status),
        _ => None,
    };
    let mut statuses: Vec<ComputeStatus> = watcher.read_notices().iter().filter_map(status).collect();
    statuses.dedup();
    use ComputeStatus::{Idle, Processing, Stopping, WaitingLlm};
    assert!(statuses.ends_with(&[Processing, WaitingLlm, Stopping, Idle]), "{statuses:?}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_who_comes_back_hears_of_a_status_that_somebody_else_saw_before() {
    let test = TestEngine::start_shared().await;
    let command = json!({"command": "while [ ! -e go ]; do sleep 0.01; done"});
    test.model.script(ScriptedStream::new().wait_for_gate("call").tool_call("c1", "shell", &command));
    test.model.script(ScriptedResponse::SilentBeforeHeaders);
    let first = test.engine.subscribe();
    let run = test.send(submission("s", "hello")).await;
    test.wait_agent_status(ComputeStatus::WaitingLlm).await;
    drop(first);
    test.model.open_gate("call");
    test.wait_agent_status(ComputeStatus::Processing).await;
    let mut second = NoticeRecorder::subscribe(&test.engine);
    std::fs::write(test.workdir().join("go"), "").unwrap();
    test.model.request_at(1).wait_arrived().await;
    let waits = |notice: &EngineNotice| matches!(notice, EngineNotice::Agent { status: ComputeStatus::WaitingLlm, .. });
    assert!(second.read_notices().iter().any(waits), "{:#?}", second.read_notices());
    test.stop_and_wait(&run).await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2_a_stop_reveals_nothing_of_runs_that_are_not_the_callers() {
    let test = TestEngine::start_shared().await;
    let run = start_waiting_run(&test, "s").await;
    let mallory = Caller { principal: parse_principal("mallory"), ..alice() };
    let others = test.engine.stop(&mallory, &run_stop_scope(&run), &stop_ask(StopLevel::Forced));
    assert!(others.aborted.is_empty() && others.tickets.is_empty(), "{others:?}");
    let other_key = StopScope::Run { id: run.clone(), session: Some(parse_session_key("another")), agent: None };
    assert!(test.engine.stop(&alice(), &other_key, &stop_ask(StopLevel::Forced)).tickets.is_empty());
    assert_eq!(test.active_runs_of("s"), from_ref(&run));
    let admin = StopRequest { surface: Surface::Ws, ..stop_ask(StopLevel::Gentle) };
    assert_eq!(test.engine.stop(&root(), &run_stop_scope(&run), &admin).aborted, from_ref(&run));
    test.wait_ended(&run).await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_messages_run_in_order_and_go_on_after_a_stop_of_the_run_before() {
    let test = TestEngine::start_shared().await;
    let first = start_waiting_run(&test, "s").await;
    let second = test.send(submission("s", "second")).await;
    let third = test.send(submission("s", "third")).await;
    assert_eq!(test.active_runs_of("s"), [first.clone(), second.clone(), third.clone()]);
    test.model.script(ScriptedResponse::text("2"));
    test.model.script(ScriptedResponse::text("3"));
    test.stop(&first);
    assert_eq!(test.wait_ended(&second).await.output.as_deref(), Some("2"));
    assert_eq!(test.wait_ended(&third).await.output.as_deref(), Some("3"));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_a_session_withdraws_its_queue_and_gives_the_texts_back() {
    let test = TestEngine::start_shared().await;
    let first = start_waiting_run(&test, "s").await;
    let second = test.send(submission("s", "second text")).await;
    let other = start_waiting_run(&test, "other").await;
    let stop = test.stop_session("s");
    assert_eq!(stop.aborted.len(), 2, "{stop:?}");
    assert_eq!(stop.withdrawn, [(second.clone(), "second text".to_owned())]);
    for run in [&first, &second] {
        assert_eq!(abort_reason(test.wait_ended(run).await.verdict.as_ref()), StopReason::User);
    }
    assert_eq!(test.active_runs_of("other"), from_ref(&other));
    test.model.script(ScriptedResponse::text("ok"));
    test.run_message("s", "and now?").await;
    assert!(!messages_as_text(&test.last_messages()).contains("second text"), "a withdrawn message leaves no turn");
    test.stop_and_wait(&other).await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_a_stop_text_stops_the_session_and_makes_no_run() {
    let test = TestEngine::start_shared().await;
    let run = start_waiting_run(&test, "s").await;
    let stop_text = Submission { stop_text_mode: StopTextMode::Recognise, ..submission("s", "  /STOP ") };
    match test.engine.submit(&alice(), stop_text).await.unwrap() {
        SubmitOutcome::Stopped(answer) => assert_eq!((answer.aborted, answer.run_ids), (true, vec![run.clone()])),
        other => panic!("not a stop: {other:?}"),
    }
    assert_eq!(abort_reason(test.wait_ended(&run).await.verdict.as_ref()), StopReason::Command);
    assert!(test.engine.active_runs().is_empty());
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupting_message_aborts_and_starts_and_a_rejecting_one_is_refused() {
    let test = TestEngine::start_shared().await;
    let first = start_waiting_run(&test, "s").await;
    let refused = test.expect_refusal(Submission { on_busy: OnBusy::Reject, ..submission("s", "no") }).await;
    assert!(matches!(refused, SubmitError::Refused(AdmissionError::Busy)), "{refused:?}");
    test.model.script(ScriptedResponse::text("the new one"));
    let second = test.send(Submission { on_busy: OnBusy::Interrupt, ..submission("s", "instead") }).await;
    assert_eq!(abort_reason(test.wait_ended(&first).await.verdict.as_ref()), StopReason::Superseded);
    assert_eq!(test.wait_ended(&second).await.output.as_deref(), Some("the new one"));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steering_message_joins_the_running_run_at_its_next_step() {
    let test = TestEngine::start_shared().await;
    let call = ScriptedStream::new().wait_for_gate("steered").tool_call("c1", "shell", &json!({"command": "true"}));
    test.model.script(call).script(ScriptedResponse::text("done as you said"));
    let run = test.send(submission("s", "begin")).await;
    test.model.request_at(0).wait_paused().await;
    let steer = test.send_for_answer(Submission { on_busy: OnBusy::Steer, ..submission("s", "turn left") }).await;
    assert_eq!((&steer.run_id, steer.state.as_str()), (&run, "steered"));
    assert!(steer.message_id.is_some());
    test.model.open_gate("steered");
    assert_eq!(test.wait_ended(&run).await.output.as_deref(), Some("done as you said"));
    assert!(messages_as_text(&test.last_messages()).contains("turn left"));
    assert_eq!(test.model.recorded_requests().len(), 2, "the steering message made no run of its own");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_refuses_new_runs_lets_queued_ones_wait_and_active_ones_go_on() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedStream::new().wait_for_gate("go").text("first"));
    let first = test.send(submission("s", "first")).await;
    let second = test.send(submission("s", "second")).await;
    test.engine.set_hold(&root(), true, Some("maintenance".to_owned())).await.unwrap();
    let refused = test.expect_refusal(submission("t", "third")).await;
    assert_eq!(refused.code(), ErrorCode::Held);
    test.model.open_gate("go");
    assert_eq!(test.wait_ended(&first).await.output.as_deref(), Some("first"));
    assert_eq!(test.active_runs_of("s"), from_ref(&second));
    assert_eq!(test.engine.live_run(&second).unwrap().progress(), RunProgress::Durable);
    test.model.script(ScriptedResponse::text("second"));
    test.engine.set_hold(&root(), false, None).await.unwrap();
    assert_eq!(test.wait_ended(&second).await.output.as_deref(), Some("second"));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_message_is_one_run_and_a_different_one_of_that_id_is_refused() {
    let test = TestEngine::start_shared().await;
    let run = parse_run_id("the-key");
    test.model.script(ScriptedStream::new().wait_for_gate("go").text("once"));
    test.send(submission_as(&run, "s", "hello")).await;
    test.model.request_at(0).wait_paused().await;
    let repeat =
        async |expected: &str| match test.engine.submit(&alice(), submission_as(&run, "s", "hello")).await.unwrap() {
            SubmitOutcome::Duplicate(answer) => {
                assert_eq!((answer.run_id, answer.state.as_str()), (run.clone(), expected))
            }
            other => panic!("not a repeat: {other:?}"),
        };
    let conflict = async || {
        let error = test.expect_refusal(submission_as(&run, "s", "something else")).await;
        assert_eq!(error.code(), ErrorCode::Conflict);
    };
    repeat("running").await;
    conflict().await;
    test.model.open_gate("go");
    test.wait_ended(&run).await;
    repeat("ended").await;
    conflict().await;
    assert_eq!(test.model.recorded_requests().len(), 1);
    test.close().await;
}

#[rstest]
#[case::steps(StopReason::Steps, "Step limit reached")]
#[case::tokens(StopReason::Tokens, "Token limit reached")]
#[case::time(StopReason::Timeout, "Execution paused")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_up_budget_is_a_stop_with_that_reason(#[case] budget: StopReason, #[case] error: &str) {
    let limited = budget.clone();
    let test = TestEngine::start_with(ProcessLock::shared().await, move |config| match limited {
        StopReason::Steps => config.limits.max_steps = 2,
        StopReason::Tokens => config.limits.max_run_tokens = Some(30),
        _ => {}
    })
    .await;
    let call = shell_call("true");
    let mut asked = submission("s", "go on and on");
    if budget == StopReason::Timeout {
        // Not by script: on a busy machine the time is over before the model is asked.
        test.model.respond_by_prompt(|_, _| ScriptedResponse::SilentBeforeHeaders);
        asked.timeout = Some(Duration::from_millis(300));
    } else {
        test.model.script(call.clone()).script(call);
    }
    let run = test.send(asked).await;
    let view = test.wait_ended(&run).await;
    let result = view.result.as_ref().unwrap();
    assert_eq!(
        (result.cancelled, result.limit.is_some()),
        (budget == StopReason::Timeout, budget != StopReason::Timeout)
    );
    assert_eq!(result.error.as_deref(), Some(error));
    assert_eq!(view.verdict, Some(Verdict::Aborted { reason: budget, by: None }));
    assert!(receipt_of(&view).leftovers.is_empty() && receipt_of(&view).turn.recorded, "{view:#?}");
    test.model.script(ScriptedResponse::text("fine"));
    test.assert_next_message_works("s").await;
    test.close().await;
}

/// Row A6 in `docs/design/requirements.md`: the maintenance ends what its own timer has missed.
#[tokio::test]
async fn an_expired_run_is_ended_by_the_maintenance() {
    let expiry = ExpiryLimits { grace: Duration::ZERO, min: Duration::ZERO, max: Duration::from_secs(5) };
    let test = TestEngine::start_with(ProcessLock::shared().await, move |config| config.expiry = expiry).await;
    test.model.script(ScriptedStream::new().text("half an answer").wait_for_gate("never"));
    let run = test.send(submission("s", "go on and on")).await;
    test.wait_text(&run).await;
    skip_time(Duration::from_secs(11)).await;
    let view = test.wait_ended(&run).await;
    assert_eq!(view.verdict, Some(Verdict::Aborted { reason: StopReason::Timeout, by: None }));
    assert!(receipt_of(&view).leftovers.is_empty(), "{view:#?}");
    test.close().await;
}
