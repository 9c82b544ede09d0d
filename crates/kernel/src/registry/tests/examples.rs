//! Tests of the registry: examples of guarantees that documents name, or that random operations reach too rarely.

use quell_protocol::api::OnBusy;
use quell_protocol::{Requester, RunId, StopReason, Surface, Verdict};
use rstest::rstest;

use super::{
    LIMITS, accept_and_start, accept_durable, admin, agent, ask, at, finish_run, new_run, principal, registry, run_id,
    session, start_due, who,
};
use crate::admission::{Admission, AdmissionError, SubRunError};
use crate::registry::pending_stops::MAX_PENDING_STOPS;
use crate::registry::{AcceptOutcome, NewRun, RunRegistry, StopOutcome, StopScope};
use crate::run::{RunState, RunStateInput, StopLevel};

fn run_scope(id: &str, key: Option<&str>) -> StopScope {
    StopScope::Run { id: run_id(id), session: key.map(session), agent: None }
}

fn stop(registry: &mut RunRegistry, id: &str, by: &str) -> StopOutcome {
    registry.stop(&run_scope(id, None), &who(by), &ask(), at(0))
}

fn state<'a>(registry: &'a RunRegistry, id: &str) -> &'a RunState {
    &registry.get(&run_id(id)).expect("known").state
}

fn sub_run(id: &str, key: &str, parent: &str) -> NewRun {
    NewRun { parent: Some(run_id(parent)), ..new_run(id, key, OnBusy::Queue) }
}

fn forget(registry: &mut RunRegistry, id: &str) -> Vec<RunId> {
    registry.forget(&run_id(id), |_| false)
}

fn accept_and_commit(registry: &mut RunRegistry, run: NewRun, seconds: u64) -> StopOutcome {
    let id = run.id.clone();
    registry.accept(run, at(seconds)).expect("accepted");
    registry.commit_acceptance(&id, at(seconds))
}

#[test]
fn a_run_stopped_before_it_is_durable_never_starts() {
    let mut registry = registry();
    registry.accept(new_run("r", "s", OnBusy::Queue), at(0)).expect("accepted");
    let stopped = stop(&mut registry, "r", "ann");
    assert_eq!(stopped.withdrawn, [(run_id("r"), "text of r".to_owned())]);
    registry.commit_acceptance(&run_id("r"), at(0));
    assert!(registry.due_run(&session("s")).is_none());
    assert!(state(&registry, "r").is_ended());
}

#[rstest]
#[case::at_once(0, true)]
#[case::after_a_minute(60, true)]
#[case::later(61, false)]
fn a_stop_that_comes_first_ends_the_run_within_a_minute(#[case] seconds: u64, #[case] ends: bool) {
    let mut registry = registry();
    assert_eq!(stop(&mut registry, "r", "ann"), StopOutcome::default(), "the stop finds no run");
    let stopped = accept_and_commit(&mut registry, new_run("r", "s", OnBusy::Queue), seconds);
    assert_eq!(state(&registry, "r").is_ended(), ends);
    assert_eq!(stopped.aborted, if ends { vec![run_id("r")] } else { vec![] });
}

/// The receipt used to name the sender of the message.
#[test]
fn an_admins_stop_that_comes_first_ends_the_run_of_another_in_the_admins_name() {
    let mut registry = registry();
    let (id, ann) = (run_id("r"), principal("ann"));
    let early = |registry: &mut RunRegistry, who| registry.stop_run_of_owner(&id, &ann, &who, &ask(), at(0));
    assert_eq!(early(&mut registry, who("bob")), StopOutcome::default());
    registry.accept(new_run("r", "s", OnBusy::Queue), at(0)).unwrap();
    registry.rollback_acceptance(&id);
    assert_eq!(early(&mut registry, admin()), StopOutcome::default(), "the run is not accepted");
    assert_eq!(accept_and_commit(&mut registry, new_run("r", "s", OnBusy::Queue), 1).aborted, ["r"].map(run_id));
    let Some(Verdict::Aborted { by: Some(by), .. }) = state(&registry, "r").verdict() else { panic!("not aborted") };
    assert_eq!(by.principal, principal("root"));
}

#[test]
fn a_stop_that_names_a_runs_owner_gives_no_right_to_it() {
    let mut registry = registry();
    let (id, ann) = (run_id("r"), principal("ann"));
    registry.stop_run_of_owner(&id, &ann, &who("bob"), &ask(), at(0));
    accept_and_commit(&mut registry, new_run("r", "s", OnBusy::Queue), 1);
    assert!(registry.stop_run_of_owner(&id, &ann, &who("bob"), &ask(), at(2)).covered.is_empty());
    assert_eq!(*state(&registry, "r"), RunState::Queued);
    assert_eq!(registry.stop_run_of_owner(&id, &ann, &who("ann"), &ask(), at(2)).aborted, ["r"].map(run_id));
}

#[test]
fn a_stop_that_comes_first_outlives_an_acceptance_that_failed() {
    let mut registry = registry();
    stop(&mut registry, "r", "ann");
    registry.accept(new_run("r", "s", OnBusy::Queue), at(1)).expect("accepted");
    registry.rollback_acceptance(&run_id("r"));
    accept_and_commit(&mut registry, new_run("r", "s", OnBusy::Queue), 2);
    assert!(state(&registry, "r").is_ended());
}

#[test]
fn a_stop_that_comes_first_and_interrupts_leaves_the_older_runs_alone() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("old", "s", OnBusy::Queue));
    stop(&mut registry, "new", "ann");
    let stopped = accept_and_commit(&mut registry, new_run("new", "s", OnBusy::Interrupt), 1);
    assert_eq!(stopped.aborted, [run_id("new")]);
    assert_eq!(*state(&registry, "old"), RunState::Running);
}

#[test]
fn stops_that_come_first_are_bounded_and_the_oldest_goes() {
    let mut registry = registry();
    for number in 0..=MAX_PENDING_STOPS {
        stop(&mut registry, &format!("r{number}"), "ann");
    }
    for (id, ends) in [("r0".to_owned(), false), ("r1".to_owned(), true), (format!("r{MAX_PENDING_STOPS}"), true)] {
        accept_and_commit(&mut registry, new_run(&id, &id, OnBusy::Queue), 1);
        assert_eq!(state(&registry, &id).is_ended(), ends, "{id}");
    }
}

#[test]
fn a_stop_that_is_repeated_does_not_push_out_the_others() {
    let mut registry = registry();
    stop(&mut registry, "mine", "ann");
    for _ in 0..=MAX_PENDING_STOPS {
        stop(&mut registry, "r", "bob");
    }
    accept_and_commit(&mut registry, new_run("mine", "s", OnBusy::Queue), 1);
    assert!(state(&registry, "mine").is_ended());
}

#[test]
fn a_wrong_session_key_changes_nothing_and_is_not_kept() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("r", "s", OnBusy::Queue));
    let stopped = registry.stop(&run_scope("r", Some("t")), &who("ann"), &ask(), at(0));
    assert_eq!(stopped, StopOutcome::default());
    assert_eq!(*state(&registry, "r"), RunState::Running);
    finish_run(&mut registry, "r");
    forget(&mut registry, "r");
    accept_and_commit(&mut registry, new_run("r", "t", OnBusy::Queue), 1);
    assert_eq!(*state(&registry, "r"), RunState::Queued, "the stop was kept for the next run of that id");
}

#[test]
fn a_stop_for_another_agent_leaves_the_run_alone_also_if_it_comes_first() {
    let mut registry = registry();
    let of = |named: &str| StopScope::Run { id: run_id("r"), session: None, agent: Some(agent(named)) };
    registry.stop(&of("scout"), &who("ann"), &ask(), at(0));
    accept_and_start(&mut registry, new_run("r", "s", OnBusy::Queue));
    assert_eq!(registry.stop(&of("scout"), &admin(), &ask(), at(0)), StopOutcome::default());
    assert_eq!(*state(&registry, "r"), RunState::Running);
    assert_eq!(registry.stop(&of("main"), &who("ann"), &ask(), at(0)).aborted.len(), 1);
}

#[test]
fn only_the_owner_and_an_admin_stop_a_run() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("r", "s", OnBusy::Queue));
    let everything = StopScope::whole_session(session("s"));
    for scope in [run_scope("r", None), everything, StopScope::Everything] {
        assert_eq!(registry.stop(&scope, &who("bob"), &ask(), at(0)), StopOutcome::default(), "{scope:?}");
    }
    let stopped = registry.stop(&run_scope("r", None), &admin(), &ask(), at(0));
    assert_eq!(stopped.aborted, [run_id("r")]);
    let by = Requester { principal: admin().principal, surface: Surface::Http };
    let verdict = Verdict::Aborted { reason: StopReason::User, by: Some(by) };
    assert_eq!(state(&registry, "r").verdict(), Some(&verdict));
}

#[test]
fn a_stop_of_an_ended_run_stops_what_lives_below_it_and_leaves_its_verdict() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("top", "a", OnBusy::Queue));
    accept_and_start(&mut registry, sub_run("middle", "b", "top"));
    accept_and_start(&mut registry, sub_run("low", "c", "middle"));
    finish_run(&mut registry, "top");
    finish_run(&mut registry, "middle");
    assert!(forget(&mut registry, "top").is_empty() && forget(&mut registry, "middle").is_empty());
    let stopped = stop(&mut registry, "top", "ann");
    assert_eq!(stopped.aborted, [run_id("low")]);
    assert_eq!(stopped.covered, ["low", "middle", "top"].map(run_id));
    assert_eq!(state(&registry, "top").verdict(), Some(&Verdict::Completed));
    finish_run(&mut registry, "low");
    assert_eq!(forget(&mut registry, "low"), ["low", "middle", "top"].map(run_id), "its ancestors were kept for it");
    assert_eq!(registry.iter().count(), 0);
}

#[test]
fn an_ended_run_stays_until_it_holds_nothing() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("r", "s", OnBusy::Queue));
    finish_run(&mut registry, "r");
    let held = |id: &RunId| id.as_str() == "r";
    assert!(registry.forget(&run_id("r"), held).is_empty());
    assert_eq!(registry.retained_runs(), [run_id("r")]);
    assert_eq!(stop(&mut registry, "r", "ann").covered, [run_id("r")]);
    assert_eq!(forget(&mut registry, "r"), [run_id("r")]);
}

#[test]
fn only_a_run_at_work_starts_others() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("over", "a", OnBusy::Queue));
    finish_run(&mut registry, "over");
    accept_and_start(&mut registry, new_run("ending", "b", OnBusy::Queue));
    stop(&mut registry, "ending", "ann");
    accept_and_start(&mut registry, new_run("busy", "c", OnBusy::Queue));
    accept_durable(&mut registry, new_run("queued", "c", OnBusy::Queue));
    for parent in ["over", "ending", "queued", "unknown", "r"] {
        assert_eq!(registry.accept(sub_run("r", "s", parent), at(0)), Err(SubRunError::ParentOver.into()), "{parent}");
    }
    assert_eq!(registry.accept(sub_run("r", "s", "busy"), at(0)), Ok(AcceptOutcome::New(Admission::Queue)));
}

#[test]
fn a_tree_grows_only_so_deep_and_so_wide() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("top", "a", OnBusy::Queue));
    accept_and_start(&mut registry, sub_run("one", "b", "top"));
    accept_and_start(&mut registry, sub_run("below", "c", "one"));
    let deeper = registry.accept(sub_run("deeper", "d", "below"), at(0));
    assert_eq!(deeper, Err(SubRunError::TooDeep { limit: LIMITS.max_depth }.into()));
    accept_and_start(&mut registry, sub_run("two", "d", "top"));
    assert_eq!(
        registry.accept(sub_run("three", "e", "top"), at(0)),
        Err(SubRunError::TooMany { limit: LIMITS.max_children }.into())
    );
    finish_run(&mut registry, "two");
    assert!(registry.accept(sub_run("three", "e", "top"), at(0)).is_ok(), "an ended sub-run does not count");
}

#[test]
fn an_agent_stopped_by_a_person_is_not_restarted_in_that_turn() {
    let mut registry = registry();
    let scout = |id: &str, parent: &str| NewRun { agent: agent("scout"), ..sub_run(id, id, parent) };
    accept_and_start(&mut registry, new_run("top", "a", OnBusy::Queue));
    accept_and_start(&mut registry, sub_run("middle", "b", "top"));
    accept_and_start(&mut registry, scout("scout-1", "middle"));
    stop(&mut registry, "scout-1", "ann");
    let refused = Err(SubRunError::StoppedByPerson { agent: agent("scout") }.into());
    assert_eq!(registry.accept(scout("scout-2", "middle"), at(0)), refused);
    assert_eq!(registry.accept(scout("scout-2", "top"), at(0)), refused, "its parent may not start it either");
    assert!(registry.accept(sub_run("writer", "w", "middle"), at(0)).is_ok(), "another agent may be started");
    finish_run(&mut registry, "top");
    accept_and_start(&mut registry, new_run("next", "n", OnBusy::Queue));
    assert!(registry.accept(scout("scout-2", "next"), at(0)).is_ok(), "a new run may start it");
}

/// The parent of the stopped run is over, but the run above both goes on.
#[test]
fn nor_does_a_run_above_start_again_what_a_person_stopped_behind_a_run_that_is_over() {
    let mut registry = registry();
    let scout = |id: &str, parent: &str| NewRun { agent: agent("scout"), ..sub_run(id, id, parent) };
    accept_and_start(&mut registry, new_run("top", "a", OnBusy::Queue));
    accept_and_start(&mut registry, sub_run("middle", "b", "top"));
    accept_and_start(&mut registry, scout("scout-1", "middle"));
    finish_run(&mut registry, "middle");
    stop(&mut registry, "scout-1", "ann");
    let refused = Err(SubRunError::StoppedByPerson { agent: agent("scout") }.into());
    assert_eq!(registry.accept(scout("scout-2", "top"), at(0)), refused);
}

#[test]
fn a_sub_run_that_ran_out_of_time_may_be_started_again() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("top", "a", OnBusy::Queue));
    accept_and_start(&mut registry, sub_run("first", "b", "top"));
    registry.abort(vec![run_id("first")], StopLevel::Gentle, &StopReason::Timeout, at(0));
    assert!(registry.accept(sub_run("second", "c", "top"), at(0)).is_ok());
}

#[test]
fn an_interrupt_aborts_what_was_accepted_before_it_and_only_when_durable() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("active", "s", OnBusy::Queue));
    accept_durable(&mut registry, new_run("older", "s", OnBusy::Queue));
    let accepted = registry.accept(new_run("now", "s", OnBusy::Interrupt), at(0));
    assert_eq!(accepted, Ok(AcceptOutcome::New(Admission::Interrupt)));
    accept_durable(&mut registry, new_run("younger", "s", OnBusy::Queue));
    assert_eq!(*state(&registry, "active"), RunState::Running, "nothing is aborted before the acceptance is durable");
    let stopped = registry.commit_acceptance(&run_id("now"), at(0));
    assert_eq!(stopped.aborted, ["active", "older"].map(run_id));
    let reason = |verdict: &Verdict| matches!(verdict, Verdict::Aborted { reason: StopReason::Superseded, .. });
    assert!(state(&registry, "active").verdict().is_some_and(reason));
    finish_run(&mut registry, "active");
    assert_eq!(start_due(&mut registry, &session("s")), Some(run_id("now")));
    assert_eq!(*state(&registry, "younger"), RunState::Queued);
}

#[test]
fn steers_are_taken_once_in_order_and_only_by_a_running_run() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("active", "s", OnBusy::Queue));
    for id in ["one", "two"] {
        let accepted = registry.accept(new_run(id, "s", OnBusy::Steer), at(0));
        assert_eq!(accepted, Ok(AcceptOutcome::New(Admission::Steer { into: run_id("active") })));
    }
    assert!(registry.take_steering_messages(&run_id("active")).is_empty(), "not durable yet");
    registry.commit_acceptance(&run_id("one"), at(0));
    registry.commit_acceptance(&run_id("two"), at(0));
    let taken: Vec<RunId> = registry.take_steering_messages(&run_id("active")).into_iter().map(|(id, _)| id).collect();
    assert_eq!(taken, ["one", "two"].map(run_id));
    assert!(registry.take_steering_messages(&run_id("active")).is_empty());
    assert_eq!(registry.runs_of_session(&session("s")).count(), 1, "they are no longer queued");
    accept_durable(&mut registry, new_run("three", "s", OnBusy::Steer));
    registry.abort(vec![run_id("active")], StopLevel::Gentle, &StopReason::Timeout, at(0));
    assert!(registry.take_steering_messages(&run_id("active")).is_empty(), "an ending run takes no messages");
}

#[test]
fn a_steer_that_was_not_taken_is_a_run_of_its_own() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("active", "s", OnBusy::Queue));
    accept_durable(&mut registry, new_run("next", "s", OnBusy::Queue));
    accept_durable(&mut registry, new_run("steer", "s", OnBusy::Steer));
    finish_run(&mut registry, "active");
    assert_eq!(start_due(&mut registry, &session("s")), Some(run_id("next")));
    assert!(registry.take_steering_messages(&run_id("next")).is_empty(), "it was to steer the previous run");
    finish_run(&mut registry, "next");
    assert_eq!(start_due(&mut registry, &session("s")), Some(run_id("steer")));
}

#[test]
fn a_withdrawn_message_does_not_end_the_wait_of_a_steer() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("active", "s", OnBusy::Queue));
    accept_durable(&mut registry, new_run("waiting", "s", OnBusy::Queue));
    accept_durable(&mut registry, new_run("steer", "s", OnBusy::Steer));
    stop(&mut registry, "waiting", "ann");
    assert_eq!(registry.take_steering_messages(&run_id("active")).len(), 1);
}

fn model_call(id: &str) -> NewRun {
    NewRun { bypasses_queue: true, ..new_run(id, "calls", OnBusy::Queue) }
}

#[test]
fn plain_model_calls_start_beside_each_other() {
    let mut registry = registry();
    for call in 0..=LIMITS.max_queued {
        let id = format!("call-{call}");
        accept_durable(&mut registry, model_call(&id));
        assert!(registry.may_start_at_once(&run_id(&id)), "{id}");
        registry.apply_input(&run_id(&id), RunStateInput::Start, at(0));
        assert!(!registry.may_start_at_once(&run_id(&id)), "it has started");
    }
    accept_durable(&mut registry, new_run("message", "calls", OnBusy::Queue));
    assert!(!registry.may_start_at_once(&run_id("message")), "it waits for its turn");
    let scope = StopScope::whole_session(session("calls"));
    assert_eq!(registry.stop(&scope, &admin(), &ask(), at(0)).aborted.len(), LIMITS.max_queued + 2);
}

#[test]
fn a_plain_model_call_that_was_stopped_before_it_came_does_not_start() {
    let mut registry = registry();
    stop(&mut registry, "call", "ann");
    accept_durable(&mut registry, model_call("call"));
    assert!(!registry.may_start_at_once(&run_id("call")));
    assert!(state(&registry, "call").is_ended());
}

fn client_run(id: &str, surface: Surface, key: &str) -> NewRun {
    NewRun { surface, bypasses_queue: true, ..new_run(id, key, OnBusy::Queue) }
}

#[test]
fn a_token_has_only_so_many_requests_of_model_apis_at_once() {
    let mut registry = registry();
    accept_durable(&mut registry, client_run("call", Surface::Openai, "calls"));
    accept_durable(&mut registry, NewRun { bypasses_queue: false, ..client_run("agent", Surface::Anthropic, "own") });
    let third = || client_run("third", Surface::Openai, "calls");
    let refused = Err(AdmissionError::TooManyClientRuns { limit: LIMITS.max_client_runs });
    assert_eq!(registry.accept(third(), at(0)), refused);
    // Others, other surfaces, and sub-runs are not counted.
    let of_bob = NewRun { principal: principal("bob"), ..client_run("of-bob", Surface::Openai, "bob") };
    accept_durable(&mut registry, of_bob);
    accept_durable(&mut registry, new_run("message", "s", OnBusy::Queue));
    for id in ["call", "agent"] {
        registry.apply_input(&run_id(id), RunStateInput::Start, at(0));
    }
    accept_durable(
        &mut registry,
        NewRun { parent: Some(run_id("agent")), ..client_run("sub", Surface::Openai, "sub") },
    );
    // A run that is being stopped still holds something.
    stop(&mut registry, "call", "ann");
    assert!(!state(&registry, "call").is_ended());
    assert_eq!(registry.accept(third(), at(0)), refused);
    finish_run(&mut registry, "call");
    assert!(matches!(registry.accept(third(), at(0)), Ok(AcceptOutcome::New(_))));
    let fourth = || client_run("fourth", Surface::Openai, "calls");
    assert_eq!(registry.accept(fourth(), at(0)), refused);
    registry.rollback_acceptance(&run_id("third"));
    accept_durable(&mut registry, fourth());
}

#[test]
fn tasks_and_tool_calls_count_with_the_requests_of_their_token() {
    let mut registry = registry();
    let of = |id: &str, surface| NewRun { surface, ..new_run(id, id, OnBusy::Queue) };
    accept_durable(&mut registry, of("task", Surface::A2a));
    accept_durable(&mut registry, of("tool-call", Surface::Mcp));
    let refused = Err(AdmissionError::TooManyClientRuns { limit: LIMITS.max_client_runs });
    for surface in [Surface::A2a, Surface::Mcp, Surface::Openai] {
        assert_eq!(registry.accept(of("next", surface), at(0)), refused, "{surface:?}");
    }
    // What is said to a task that works is no other task, until that has ended without taking it in.
    registry.apply_input(&run_id("task"), RunStateInput::Start, at(0));
    let said = NewRun { surface: Surface::A2a, ..new_run("said", "task", OnBusy::Steer) };
    accept_durable(&mut registry, said);
    finish_run(&mut registry, "task");
    assert_eq!(registry.accept(of("next", Surface::Mcp), at(0)), refused);
    registry.apply_input(&run_id("said"), RunStateInput::Start, at(0));
    finish_run(&mut registry, "said");
    accept_durable(&mut registry, of("next", Surface::Mcp));
}

#[test]
fn a_late_payment_of_an_ended_run_is_not_lost() {
    let mut registry = registry();
    accept_and_start(&mut registry, new_run("r", "s", OnBusy::Queue));
    registry.abort(vec![run_id("r")], StopLevel::Forced, &StopReason::Timeout, at(0));
    registry.apply_input(&run_id("r"), RunStateInput::Recorded, at(0));
    registry.apply_input(&run_id("r"), RunStateInput::HardLimitPassed, at(5));
    assert!(state(&registry, "r").is_ended());
    assert!(forget(&mut registry, "r").is_empty(), "it still owes its release");
    assert_eq!(
        registry.apply_input(&run_id("r"), RunStateInput::Released, at(9)),
        [crate::run::RunEffect::AmendReceipt]
    );
    assert_eq!(forget(&mut registry, "r"), [run_id("r")]);
}
