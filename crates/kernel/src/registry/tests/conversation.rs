//! Tests of superseding and stops within a chat conversation, which may span sessions.

use std::sync::Arc;

use quell_protocol::InterruptionScope;

use super::*;
use crate::admission::Admission;
use crate::registry::{AcceptOutcome, RunRegistry, StopScope};
use crate::run::RunState;

fn scope(sender: &str, scope_id: Option<&str>) -> Option<Arc<InterruptionScope>> {
    Some(Arc::new(InterruptionScope {
        channel: "telegram".to_owned(),
        reply_target: "chat-1".to_owned(),
        sender: sender.to_owned(),
        scope_id: scope_id.map(str::to_owned),
    }))
}

fn interrupting_run(sender: &str, id: &str, key: &str) -> NewRun {
    NewRun {
        interruption_scope: scope(sender, None),
        principal: principal(sender),
        ..new_run(id, key, OnBusy::Interrupt)
    }
}

fn start(registry: &mut RunRegistry, id: &str) {
    assert!(!registry.apply_input(&run_id(id), RunStateInput::Start, at(0)).is_empty(), "{id} did not start");
}

fn due_run_id(registry: &RunRegistry, key: &str) -> Option<String> {
    registry.due_run(&session(key)).map(|entry| entry.run.id.as_str().to_owned())
}

/// The aborted middle run used to end early, so that C overlapped A.
#[test]
fn of_a_chain_in_one_session_the_last_waits_for_the_first() {
    let mut registry = registry();
    assert!(accept_durable(&mut registry, interrupting_run("alice", "a", "s")).is_empty());
    start(&mut registry, "a");
    assert_eq!(accept_durable(&mut registry, interrupting_run("alice", "b", "s")), [run_id("a")]);
    assert_eq!(
        accept_durable(&mut registry, interrupting_run("alice", "c", "s")),
        [run_id("b")],
        "a is already being aborted"
    );
    assert!(matches!(registry.get(&run_id("b")).unwrap().state, RunState::Ended { .. }), "it never started");
    assert_eq!(due_run_id(&registry, "s"), None, "a is not over");
    finish_run(&mut registry, "a");
    assert_eq!(due_run_id(&registry, "s").as_deref(), Some("c"));
}

/// Threads without a scope id of their own are several sessions of one scope.
#[test]
fn of_a_chain_over_sessions_each_waits_for_all_before_it() {
    let mut registry = registry();
    accept_durable(&mut registry, interrupting_run("alice", "a", "thread-1"));
    start(&mut registry, "a");
    assert_eq!(accept_durable(&mut registry, interrupting_run("alice", "b", "thread-2")), [run_id("a")]);
    assert_eq!(due_run_id(&registry, "thread-2"), None);
    assert_eq!(accept_durable(&mut registry, interrupting_run("alice", "c", "thread-3")), [run_id("b")]);
    assert_eq!(due_run_id(&registry, "thread-3"), None);
    assert_eq!(registry.queued_sessions_of_scope(&scope("alice", None).unwrap()), [session("thread-3")]);
    finish_run(&mut registry, "a");
    assert_eq!(due_run_id(&registry, "thread-3").as_deref(), Some("c"));
}

#[test]
fn another_scope_is_untouched() {
    let mut registry = registry();
    let threads = |id: &str, scope_id| NewRun {
        interruption_scope: scope("alice", Some(scope_id)),
        ..interrupting_run("alice", id, id)
    };
    for run in [
        interrupting_run("alice", "a", "s-a"),
        interrupting_run("bob", "b", "s-b"),
        threads("t1", "1"),
        threads("t2", "2"),
    ] {
        assert!(accept_durable(&mut registry, run).is_empty());
    }
    for id in ["a", "b", "t1", "t2"] {
        start(&mut registry, id);
    }
    assert_eq!(accept_durable(&mut registry, interrupting_run("alice", "a2", "s-a")), [run_id("a")]);
    let stop = conversation_scope(scope("alice", Some("2")), "t2");
    assert_eq!(registry.stop(&stop, &who("alice"), &ask(), at(4)).aborted, [run_id("t2")]);
    for id in ["b", "t1"] {
        assert_eq!(registry.get(&run_id(id)).unwrap().state, RunState::Running, "{id}");
    }
}

/// A stop used to miss queued runs, and after a second message also the running one.
#[test]
fn a_stop_of_a_conversation_covers_what_runs_and_what_waits_and_nobody_elses() {
    let mut registry = registry();
    let queued = |id: &str| NewRun { on_busy: OnBusy::Queue, ..interrupting_run("alice", id, "s") };
    for id in ["a", "b", "c"] {
        accept_durable(&mut registry, queued(id));
    }
    start(&mut registry, "a");
    let stop = conversation_scope(scope("alice", None), "s");
    assert!(registry.stop(&stop, &who("bob"), &ask(), at(4)).covered.is_empty());
    let stopped = registry.stop(&stop, &who("alice"), &ask(), at(4));
    assert_eq!(stopped.aborted, [run_id("a"), run_id("b"), run_id("c")]);
    assert_eq!(stopped.withdrawn.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), [run_id("b"), run_id("c")]);
}

#[test]
fn an_operator_stops_a_whole_channel() {
    let mut registry = registry();
    accept_durable(&mut registry, interrupting_run("alice", "a", "s-a"));
    accept_durable(&mut registry, interrupting_run("bob", "b", "s-b"));
    accept_durable(&mut registry, new_run("page", "s-page", OnBusy::Queue));
    let stop = |name: &str| StopScope::Channel { name: name.to_owned() };
    assert!(registry.stop(&stop("slack"), &admin(), &ask(), at(4)).aborted.is_empty());
    assert_eq!(registry.stop(&stop("telegram"), &who("alice"), &ask(), at(4)).aborted, [run_id("a")]);
    assert_eq!(registry.stop(&stop("telegram"), &admin(), &ask(), at(4)).aborted, [run_id("b")]);
    assert_eq!(registry.get(&run_id("page")).unwrap().state, RunState::Queued);
}

/// The page showed an active run in a chat's session that an operator could not stop from the chat.
#[test]
fn an_operator_stops_in_a_chat_what_the_page_started_there() {
    let chats = ["telegram_chat-1_alice", "telegram_chat-2_bob", "telegram2_chat-1_alice"];
    let registry = || {
        let mut registry = registry();
        for key in chats {
            accept_durable(&mut registry, new_run(key, key, OnBusy::Queue));
        }
        registry
    };
    let here = conversation_scope(scope("alice", None), chats[0]);
    assert!(
        registry().stop(&here, &who("alice"), &ask(), at(4)).covered.is_empty(),
        "the run belongs to another principal"
    );
    assert_eq!(registry().stop(&here, &admin(), &ask(), at(4)).aborted, [run_id(chats[0])]);
    let channel = StopScope::Channel { name: "telegram".to_owned() };
    assert_eq!(registry().stop(&channel, &admin(), &ask(), at(4)).aborted, [run_id(chats[0]), run_id(chats[1])]);
}

fn with_steer_policy(run: NewRun) -> NewRun {
    NewRun { on_busy: OnBusy::Steer, ..run }
}

fn accept_for_admission(registry: &mut RunRegistry, run: NewRun) -> Admission {
    let id = run.id.clone();
    let Ok(AcceptOutcome::New(admission)) = registry.accept(run, at(0)) else { panic!("{id} is not accepted") };
    registry.commit_acceptance(&id, at(0));
    admission
}

fn steer_admission(id: &str) -> Admission {
    Admission::Steer { into: run_id(id) }
}

/// A message used to steer a run that answers elsewhere: its sender saw no answer and could not stop the run.
#[test]
fn a_message_steers_only_a_run_of_its_own_conversation() {
    let mut registry = registry();
    let page = |id: &str| NewRun { principal: principal("alice"), ..new_run(id, "s", OnBusy::Steer) };
    let thread = |id: &str| NewRun {
        interruption_scope: scope("alice", Some("1")),
        ..with_steer_policy(interrupting_run("alice", id, "s"))
    };
    accept_durable(&mut registry, page("page"));
    start(&mut registry, "page");
    assert_eq!(accept_for_admission(&mut registry, page("page-2")), steer_admission("page"));
    for run in [with_steer_policy(interrupting_run("alice", "chat", "s")), thread("thread")] {
        assert_eq!(accept_for_admission(&mut registry, run), Admission::Queue);
    }
    assert_eq!(registry.take_steering_messages(&run_id("page")).len(), 1);
    finish_run(&mut registry, "page");
    start(&mut registry, "chat");
    assert_eq!(accept_for_admission(&mut registry, page("page-3")), Admission::Queue);
}

#[test]
fn a_message_steers_only_a_run_that_its_sender_may_stop() {
    for scope in [None, scope("alice", None)] {
        let mut registry = registry();
        let of = |sender: &str, id: &str| NewRun {
            interruption_scope: scope.clone(),
            ..with_steer_policy(interrupting_run(sender, id, "s"))
        };
        accept_durable(&mut registry, of("alice", "a"));
        start(&mut registry, "a");
        assert_eq!(accept_for_admission(&mut registry, of("alice", "own")), steer_admission("a"));
        assert_eq!(
            accept_for_admission(&mut registry, NewRun { admin: true, ..of("root", "admin") }),
            steer_admission("a")
        );
        assert_eq!(accept_for_admission(&mut registry, of("bob", "other")), Admission::Queue);
    }
}

#[test]
fn a_message_does_not_steer_a_run_that_is_ending() {
    let mut registry = registry();
    let of = |id: &str| with_steer_policy(interrupting_run("alice", id, "s"));
    accept_durable(&mut registry, of("a"));
    start(&mut registry, "a");
    registry.abort(vec![run_id("a")], StopLevel::Gentle, &StopReason::Timeout, Moment::default());
    assert_eq!(accept_for_admission(&mut registry, of("late")), Admission::Queue);
}

/// A message after one with files used to be answered before it.
#[test]
fn in_a_chat_a_message_steers_past_none_that_waits_for_its_turn() {
    let mut registry = registry();
    accept_durable(&mut registry, interrupting_run("alice", "a", "s"));
    start(&mut registry, "a");
    assert_eq!(
        accept_for_admission(&mut registry, with_steer_policy(interrupting_run("alice", "before", "s"))),
        steer_admission("a")
    );
    let files = NewRun { on_busy: OnBusy::Queue, ..interrupting_run("alice", "files", "s") };
    assert_eq!(accept_for_admission(&mut registry, files), Admission::Queue);
    assert_eq!(
        accept_for_admission(&mut registry, with_steer_policy(interrupting_run("alice", "after", "s"))),
        Admission::Queue
    );
    let taken: Vec<RunId> = registry.take_steering_messages(&run_id("a")).into_iter().map(|(id, _)| id).collect();
    assert_eq!(taken, [run_id("before")]);
    finish_run(&mut registry, "a");
    assert_eq!(due_run_id(&registry, "s").as_deref(), Some("files"));
}

fn conversation_scope(scope: Option<Arc<InterruptionScope>>, key: &str) -> StopScope {
    StopScope::Conversation { scope: InterruptionScope::clone(&scope.unwrap()), session: session(key) }
}
