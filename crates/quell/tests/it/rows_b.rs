//! Rows A and B of the contract at the engine: messages, queues and budgets; the abort of an agent's model call, by example
//! (row B10's properties are in `rows_b10`).

use std::slice::from_ref;
use std::time::Duration;

use quell_engine::cell::Progress;
use quell_engine::dispatch::{Notice, StopText, Submission, SubmitError, Submitted};
use quell_kernel::Push;
use quell_kernel::queue::Refusal;
use quell_kernel::registry::{AgentPhase, StopAsk, StopScope};
use quell_protocol::api::{ComputeStatus, OnBusy};
use quell_protocol::{ErrorCode, ResourceKind, RunId, StopReason, Surface, Verdict};
use quell_testkit::{Behaviour, model::Stream};
use rstest::rstest;
use serde_json::json;

use crate::harness::{
    Claim, House, PATIENCE, Watcher, abort_reason, agent, alice, ask, flat, key, message, message_as, of_run,
    principal, receipt, root, run_id,
};

/// A run that waits for the model's headers.
async fn waiting(house: &House, session: &str) -> RunId {
    let before = house.model.seen().len();
    house.model.script(Behaviour::SilentBeforeHeaders);
    let run = house.send(message(session, "wait")).await;
    house.model.request(before).arrived().await;
    run
}

fn abort_main(
    house: &House,
    phase: AgentPhase,
) -> (quell_protocol::api::AgentAbortAnswer, quell_engine::dispatch::Stop) {
    house.engine.abort_agent(&alice(), &agent("main"), phase, &ask(Push::Gentle))
}

async fn settled(stop: &quell_engine::dispatch::Stop) {
    for ticket in &stop.tickets {
        tokio::time::timeout(PATIENCE, ticket.settled()).await.expect("the stop does not settle");
    }
}

#[rstest]
#[case::success(Behaviour::text("ok"))]
#[case::failure(Behaviour::status(400))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_an_active_request_is_known_before_it_leaves_and_gone_after_it(#[case] end: Behaviour) {
    let house = House::shared().await;
    assert_eq!(house.engine.model_requests(), 0);
    let aborted = waiting(&house, "a").await;
    assert_eq!(house.engine.model_requests(), 1);
    settled(&house.stop(&aborted)).await;
    assert_eq!(house.engine.model_requests(), 0);
    house.model.script(end);
    house.ask("b", "hello").await;
    assert_eq!(house.engine.model_requests(), 0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b6_an_abort_without_a_call_succeeds_and_changes_nothing() {
    let house = House::shared().await;
    let mut watcher = Watcher::of(&house.engine);
    for _ in 0..3 {
        let (answer, stop) = abort_main(&house, AgentPhase::WaitingLlm);
        assert_eq!((answer.ok, answer.aborted), (true, false));
        assert_eq!(answer.reason.as_deref(), Some("not_waiting_llm"));
        assert!(stop.tickets.is_empty());
    }
    let idle = |notice: &Notice| matches!(notice, Notice::Agent { status: ComputeStatus::Idle, .. });
    assert!(watcher.seen().iter().all(idle), "{:?}", watcher.seen());
    let run = waiting(&house, "s").await;
    let first = abort_main(&house, AgentPhase::WaitingLlm);
    let second = abort_main(&house, AgentPhase::WaitingLlm);
    assert_eq!((first.0.aborted, second.0.aborted), (true, false));
    assert_eq!(house.ended(&run).await.verdict.map(|verdict| verdict.word()), Some("aborted"));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_the_text_of_an_aborted_call_is_shown_to_people_and_no_answer_to_the_model() {
    let house = House::shared().await;
    house.model.script(Behaviour::text("first answer"));
    house.ask("s", "first question").await;
    for _ in 0..3 {
        let before = house.model.seen().len();
        house.model.script(Behaviour::silent_mid_stream("half an answ"));
        let run = house.send(message("s", "second question")).await;
        house.model.request(before).resting().await;
        house.text_came(&run).await;
        settled(&abort_main(&house, AgentPhase::WaitingLlm).1).await;
        house.ended(&run).await;
    }
    house.model.script(Behaviour::text("last answer"));
    house.ask("s", "last question").await;
    let seen = flat(&house.last_messages());
    assert!(seen.contains("first question") && seen.contains("first answer"), "{seen}");
    assert!(seen.contains("second question") && !seen.contains("half an answ"), "{seen}");
    let page = house.engine.history(&key("s"), 10, None).await.unwrap();
    let partial: Vec<_> = page.messages.iter().filter(|message| message.partial).collect();
    assert_eq!(partial.len(), 3, "people still see what was cut: {:#?}", page.messages);
    assert!(page.messages.iter().filter(|m| m.text.contains("half an answ")).all(|m| m.partial));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_to_an_unknown_agent_is_refused() {
    let house = House::shared().await;
    assert_eq!(house.engine.agent(&agent("nobody")), None);
    let error = house.refusal(Submission { agent: Some(agent("nobody")), ..message("s", "hello") }).await;
    assert!(matches!(&error, SubmitError::UnknownAgent(id) if *id == agent("nobody")), "{error:?}");
    assert_eq!(error.code(), ErrorCode::AgentNotFound);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b4_only_runs_that_wait_for_the_model_are_aborted_and_scope_run_takes_all() {
    let house = House::shared().await;
    house.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": "sleep 600"})));
    let in_tool = house.send(message("tool", "run it")).await;
    house.holds(&in_tool, ResourceKind::Process).await;
    let (answer, _) = abort_main(&house, AgentPhase::WaitingLlm);
    assert_eq!((answer.aborted, answer.reason.as_deref()), (false, Some("not_waiting_llm")));
    assert_eq!(house.status(), ComputeStatus::Processing);
    let at_model = waiting(&house, "model").await;
    let (answer, stop) = abort_main(&house, AgentPhase::WaitingLlm);
    assert_eq!(answer.run_ids, [at_model]);
    settled(&stop).await;
    assert_eq!(house.engine.active_of(&key("tool")), from_ref(&in_tool));
    let (answer, stop) = abort_main(&house, AgentPhase::Any);
    assert_eq!(answer.run_ids, [in_tool]);
    settled(&stop).await;
    assert_eq!(house.status(), ComputeStatus::Idle);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_the_status_is_pushed_as_it_changes_back_off_included() {
    let house = House::shared().await;
    let mut watcher = Watcher::of(&house.engine);
    house.model.script(Behaviour::rate_limited("50"));
    let run = house.send(message("s", "hello")).await;
    house.holds(&run, ResourceKind::Timer).await;
    assert_eq!(house.status(), ComputeStatus::WaitingLlm);
    settled(&house.stop(&run)).await;
    house.ended(&run).await;
    let statuses: Vec<ComputeStatus> = watcher
        .seen()
        .iter()
        .filter_map(|notice| match notice {
            Notice::Agent { status, .. } => Some(*status),
            _ => None,
        })
        .collect();
    let mut order = statuses.clone();
    order.dedup();
    let (waiting, stopping) = (ComputeStatus::WaitingLlm, ComputeStatus::Stopping);
    assert!(order.ends_with(&[ComputeStatus::Processing, waiting, stopping, ComputeStatus::Idle]), "{statuses:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_who_comes_back_hears_of_a_status_that_somebody_else_saw_before() {
    let house = House::shared().await;
    let command = json!({"command": "while [ ! -e go ]; do sleep 0.01; done"});
    house.model.script(Stream::new().wait_for("call").tool_call("c1", "shell", &command));
    house.model.script(Behaviour::SilentBeforeHeaders);
    let first = house.engine.subscribe();
    let run = house.send(message("s", "hello")).await;
    house.status_is(ComputeStatus::WaitingLlm).await;
    drop(first);
    house.model.open_gate("call");
    house.status_is(ComputeStatus::Processing).await;
    let mut second = Watcher::of(&house.engine);
    std::fs::write(house.workdir().join("go"), "").unwrap();
    house.model.request(1).arrived().await;
    let waits = |notice: &Notice| matches!(notice, Notice::Agent { status: ComputeStatus::WaitingLlm, .. });
    assert!(second.seen().iter().any(waits), "{:#?}", second.seen());
    house.stop(&run);
    house.ended(&run).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2_a_stop_reveals_nothing_of_runs_that_are_not_the_callers() {
    let house = House::shared().await;
    let run = waiting(&house, "s").await;
    let mallory = quell_engine::dispatch::Caller { principal: principal("mallory"), ..alice() };
    let others = house.engine.stop(&mallory, &of_run(&run), &ask(Push::Forced));
    assert!(others.aborted.is_empty() && others.tickets.is_empty(), "{others:?}");
    let other_key = StopScope::Run { id: run.clone(), session: Some(key("another")) };
    assert!(house.engine.stop(&alice(), &other_key, &ask(Push::Forced)).tickets.is_empty());
    assert_eq!(house.engine.active_of(&key("s")), from_ref(&run));
    let admin = StopAsk { surface: Surface::Ws, ..ask(Push::Gentle) };
    assert_eq!(house.engine.stop(&root(), &of_run(&run), &admin).aborted, from_ref(&run));
    house.ended(&run).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_messages_run_in_order_and_go_on_after_a_stop_of_the_run_before() {
    let house = House::shared().await;
    let first = waiting(&house, "s").await;
    let second = house.send(message("s", "second")).await;
    let third = house.send(message("s", "third")).await;
    assert_eq!(house.engine.active_of(&key("s")), [first.clone(), second.clone(), third.clone()]);
    house.model.script(Behaviour::text("2"));
    house.model.script(Behaviour::text("3"));
    house.stop(&first);
    assert_eq!(house.ended(&second).await.output.as_deref(), Some("2"));
    assert_eq!(house.ended(&third).await.output.as_deref(), Some("3"));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_a_session_withdraws_its_queue_and_gives_the_texts_back() {
    let house = House::shared().await;
    let first = waiting(&house, "s").await;
    let second = house.send(message("s", "second text")).await;
    let other = waiting(&house, "other").await;
    let stop = house.stop_session("s");
    assert_eq!(stop.aborted.len(), 2, "{stop:?}");
    assert_eq!(stop.withdrawn, [(second.clone(), "second text".to_owned())]);
    for run in [&first, &second] {
        assert_eq!(abort_reason(house.ended(run).await.verdict.as_ref()), StopReason::User);
    }
    assert_eq!(house.engine.active_of(&key("other")), from_ref(&other));
    house.model.script(Behaviour::text("ok"));
    house.ask("s", "and now?").await;
    assert!(!flat(&house.last_messages()).contains("second text"), "a withdrawn message leaves no turn");
    house.stop(&other);
    house.ended(&other).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_a_stop_text_stops_the_session_and_makes_no_run() {
    let house = House::shared().await;
    let run = waiting(&house, "s").await;
    let words = Submission { stop_text: StopText::Recognise, ..message("s", "  /STOP ") };
    match house.engine.submit(&alice(), words).await.unwrap() {
        Submitted::Stopped(answer) => assert_eq!((answer.aborted, answer.run_ids), (true, vec![run.clone()])),
        other => panic!("not a stop: {other:?}"),
    }
    assert_eq!(abort_reason(house.ended(&run).await.verdict.as_ref()), StopReason::Command);
    assert!(house.engine.active_runs().is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupting_message_aborts_and_starts_and_a_rejecting_one_is_refused() {
    let house = House::shared().await;
    let first = waiting(&house, "s").await;
    let refused = house.refusal(Submission { on_busy: OnBusy::Reject, ..message("s", "no") }).await;
    assert!(matches!(refused, SubmitError::Refused(Refusal::Busy)), "{refused:?}");
    house.model.script(Behaviour::text("the new one"));
    let second = house.send(Submission { on_busy: OnBusy::Interrupt, ..message("s", "instead") }).await;
    assert_eq!(abort_reason(house.ended(&first).await.verdict.as_ref()), StopReason::Superseded);
    assert_eq!(house.ended(&second).await.output.as_deref(), Some("the new one"));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steering_message_joins_the_running_run_at_its_next_step() {
    let house = House::shared().await;
    let call = Stream::new().wait_for("steered").tool_call("c1", "shell", &json!({"command": "true"}));
    house.model.script(call).script(Behaviour::text("done as you said"));
    let run = house.send(message("s", "begin")).await;
    house.model.request(0).resting().await;
    let steer = house.answer(Submission { on_busy: OnBusy::Steer, ..message("s", "turn left") }).await;
    assert_eq!((&steer.run_id, steer.state.as_str()), (&run, "steered"));
    assert!(steer.message_id.is_some());
    house.model.open_gate("steered");
    assert_eq!(house.ended(&run).await.output.as_deref(), Some("done as you said"));
    assert!(flat(&house.last_messages()).contains("turn left"));
    assert_eq!(house.model.seen().len(), 2, "the steering message made no run of its own");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_refuses_new_runs_lets_queued_ones_wait_and_active_ones_go_on() {
    let house = House::shared().await;
    house.model.script(Stream::new().wait_for("go").text("first"));
    let first = house.send(message("s", "first")).await;
    let second = house.send(message("s", "second")).await;
    house.engine.set_hold(&root(), true, Some("maintenance".to_owned())).await.unwrap();
    let refused = house.refusal(message("t", "third")).await;
    assert_eq!(refused.code(), ErrorCode::Held);
    house.model.open_gate("go");
    assert_eq!(house.ended(&first).await.output.as_deref(), Some("first"));
    assert_eq!(house.engine.active_of(&key("s")), from_ref(&second));
    assert_eq!(house.engine.live(&second).unwrap().progress(), Progress::Durable);
    house.model.script(Behaviour::text("second"));
    house.engine.set_hold(&root(), false, None).await.unwrap();
    assert_eq!(house.ended(&second).await.output.as_deref(), Some("second"));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_message_is_one_run_and_a_different_one_of_that_id_is_refused() {
    let house = House::shared().await;
    let run = run_id("the-key");
    house.model.script(Stream::new().wait_for("go").text("once"));
    house.send(message_as(&run, "s", "hello")).await;
    house.model.request(0).resting().await;
    let repeat =
        async |expected: &str| match house.engine.submit(&alice(), message_as(&run, "s", "hello")).await.unwrap() {
            Submitted::Repeat(answer) => assert_eq!((answer.run_id, answer.state.as_str()), (run.clone(), expected)),
            other => panic!("not a repeat: {other:?}"),
        };
    let conflict = async || {
        let error = house.refusal(message_as(&run, "s", "something else")).await;
        assert_eq!(error.code(), ErrorCode::Conflict);
    };
    repeat("running").await;
    conflict().await;
    house.model.open_gate("go");
    house.ended(&run).await;
    repeat("ended").await;
    conflict().await;
    assert_eq!(house.model.seen().len(), 1);
    house.close().await;
}

#[rstest]
#[case::steps(StopReason::Steps, "Step limit reached")]
#[case::tokens(StopReason::Tokens, "Token limit reached")]
#[case::time(StopReason::Timeout, "Execution paused")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_up_budget_is_a_stop_with_that_reason(#[case] budget: StopReason, #[case] error: &str) {
    let limited = budget.clone();
    let house = House::with(Claim::shared().await, move |config| match limited {
        StopReason::Steps => config.limits.max_steps = 2,
        StopReason::Tokens => config.limits.max_run_tokens = Some(30),
        _ => {}
    })
    .await;
    let call = Behaviour::tool_call("c1", "shell", &json!({"command": "true"}));
    let mut asked = message("s", "go on and on");
    if budget == StopReason::Timeout {
        house.model.script(Behaviour::SilentBeforeHeaders);
        asked.timeout = Some(Duration::from_millis(300));
    } else {
        house.model.script(call.clone()).script(call);
    }
    let run = house.send(asked).await;
    let view = house.ended(&run).await;
    assert_eq!(view.verdict, Some(Verdict::Aborted { reason: budget, by: None }));
    assert_eq!(view.result.as_ref().unwrap().error.as_deref(), Some(error));
    assert!(receipt(&view).leftovers.is_empty() && receipt(&view).turn.recorded, "{view:#?}");
    house.model.script(Behaviour::text("fine"));
    assert_eq!(house.ask("s", "and now?").await.verdict, Some(Verdict::Completed), "the session lives");
    house.close().await;
}
