//! Interruption within a conversation of a chat network, which may span sessions.

use std::sync::Arc;

use quell_protocol::InterruptionScope;

use super::*;
use crate::queue::Admission;
use crate::registry::{Accepted, Registry, StopScope};
use crate::run::RunState;

fn scope(sender: &str, scope_id: Option<&str>) -> Option<Arc<InterruptionScope>> {
    Some(Arc::new(InterruptionScope {
        channel: "telegram".to_owned(),
        reply_target: "chat-1".to_owned(),
        sender: sender.to_owned(),
        scope_id: scope_id.map(str::to_owned),
    }))
}

fn of(sender: &str, id: &str, key: &str) -> NewRun {
    NewRun { scope: scope(sender, None), principal: principal(sender), ..new_run(id, key, OnBusy::Interrupt) }
}

fn registry() -> Registry {
    let mut registry = Registry::new(StopTimes::default(), BOUNDS);
    registry.enroll(agent("main"));
    registry
}

fn let_in(registry: &mut Registry, run: NewRun) -> Vec<RunId> {
    let id = run.id.clone();
    assert!(matches!(registry.accept(run, at(1)), Ok(Accepted::New(_))));
    registry.durable(&id, at(1)).aborted
}

fn start(registry: &mut Registry, id: &str) {
    assert!(!registry.input(&run_id(id), Input::Start, at(2)).is_empty(), "{id} did not start");
}

fn end(registry: &mut Registry, id: &str) {
    let id = run_id(id);
    registry.input(&id, Input::Returned(Outcome::Completed), at(3));
    registry.input(&id, Input::Released, at(3));
    registry.input(&id, Input::Recorded, at(3));
    assert!(registry.get(&id).is_some_and(|entry| entry.state.is_ended()));
}

fn due(registry: &Registry, key: &str) -> Option<String> {
    registry.due(&session(key)).map(|entry| entry.run.id.as_str().to_owned())
}

/// A cancelled middle run ended early, and C overlapped A.
#[test]
fn of_a_chain_in_one_session_the_last_waits_for_the_first() {
    let mut registry = registry();
    assert!(let_in(&mut registry, of("alice", "a", "s")).is_empty());
    start(&mut registry, "a");
    assert_eq!(let_in(&mut registry, of("alice", "b", "s")), [run_id("a")]);
    assert_eq!(let_in(&mut registry, of("alice", "c", "s")), [run_id("b")], "a is being aborted already");
    assert!(matches!(registry.get(&run_id("b")).unwrap().state, RunState::Ended { .. }), "it never started");
    assert_eq!(due(&registry, "s"), None, "a is not over");
    end(&mut registry, "a");
    assert_eq!(due(&registry, "s").as_deref(), Some("c"));
}

/// Two threads without a scope of their own are two sessions of one scope.
#[test]
fn of_a_chain_over_sessions_each_waits_for_all_before_it() {
    let mut registry = registry();
    let_in(&mut registry, of("alice", "a", "thread-1"));
    start(&mut registry, "a");
    assert_eq!(let_in(&mut registry, of("alice", "b", "thread-2")), [run_id("a")]);
    assert_eq!(due(&registry, "thread-2"), None);
    assert_eq!(let_in(&mut registry, of("alice", "c", "thread-3")), [run_id("b")]);
    assert_eq!(due(&registry, "thread-3"), None);
    assert_eq!(registry.sessions_of_scope(&scope("alice", None).unwrap()), [session("thread-3")]);
    end(&mut registry, "a");
    assert_eq!(due(&registry, "thread-3").as_deref(), Some("c"));
}

#[test]
fn another_scope_is_untouched() {
    let mut registry = registry();
    let threads = |id: &str, scope_id| NewRun { scope: scope("alice", Some(scope_id)), ..of("alice", id, id) };
    for run in [of("alice", "a", "s-a"), of("bob", "b", "s-b"), threads("t1", "1"), threads("t2", "2")] {
        assert!(let_in(&mut registry, run).is_empty());
    }
    for id in ["a", "b", "t1", "t2"] {
        start(&mut registry, id);
    }
    assert_eq!(let_in(&mut registry, of("alice", "a2", "s-a")), [run_id("a")]);
    let stop = chat(scope("alice", Some("2")), "t2");
    assert_eq!(registry.stop(&stop, &who("alice"), &ask(), at(4)).aborted, [run_id("t2")]);
    for id in ["b", "t1"] {
        assert_eq!(registry.get(&run_id(id)).unwrap().state, RunState::Running, "{id}");
    }
}

/// Queued runs were out of reach, and a second message made the running one unstoppable.
#[test]
fn a_stop_of_a_conversation_covers_what_runs_and_what_waits_and_nobody_elses() {
    let mut registry = registry();
    let queued = |id: &str| NewRun { on_busy: OnBusy::Queue, ..of("alice", id, "s") };
    for id in ["a", "b", "c"] {
        let_in(&mut registry, queued(id));
    }
    start(&mut registry, "a");
    let stop = chat(scope("alice", None), "s");
    assert!(registry.stop(&stop, &who("bob"), &ask(), at(4)).covered.is_empty());
    let stopped = registry.stop(&stop, &who("alice"), &ask(), at(4));
    assert_eq!(stopped.aborted, [run_id("a"), run_id("b"), run_id("c")]);
    assert_eq!(stopped.withdrawn.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), [run_id("b"), run_id("c")]);
}

#[test]
fn an_operator_stops_a_whole_channel() {
    let mut registry = registry();
    let_in(&mut registry, of("alice", "a", "s-a"));
    let_in(&mut registry, of("bob", "b", "s-b"));
    let_in(&mut registry, new_run("page", "s-page", OnBusy::Queue));
    let stop = |name: &str| StopScope::Channel { name: name.to_owned() };
    assert!(registry.stop(&stop("slack"), &admin(), &ask(), at(4)).aborted.is_empty());
    assert_eq!(registry.stop(&stop("telegram"), &who("alice"), &ask(), at(4)).aborted, [run_id("a")]);
    assert_eq!(registry.stop(&stop("telegram"), &admin(), &ask(), at(4)).aborted, [run_id("b")]);
    assert_eq!(registry.get(&run_id("page")).unwrap().state, RunState::Queued);
}

/// The page showed a run at work in a chat's session, and whoever may stop it could not from the chat.
#[test]
fn an_operator_stops_in_a_chat_what_the_page_started_there() {
    let chats = ["telegram_chat-1_alice", "telegram_chat-2_bob", "telegram2_chat-1_alice"];
    let registry = || {
        let mut registry = registry();
        for key in chats {
            let_in(&mut registry, new_run(key, key, OnBusy::Queue));
        }
        registry
    };
    let here = chat(scope("alice", None), chats[0]);
    assert!(registry().stop(&here, &who("alice"), &ask(), at(4)).covered.is_empty(), "it is another's");
    assert_eq!(registry().stop(&here, &admin(), &ask(), at(4)).aborted, [run_id(chats[0])]);
    let channel = StopScope::Channel { name: "telegram".to_owned() };
    assert_eq!(registry().stop(&channel, &admin(), &ask(), at(4)).aborted, [run_id(chats[0]), run_id(chats[1])]);
}

fn steering(run: NewRun) -> NewRun {
    NewRun { on_busy: OnBusy::Steer, ..run }
}

fn admission(registry: &mut Registry, run: NewRun) -> Admission {
    let id = run.id.clone();
    let Ok(Accepted::New(admission)) = registry.accept(run, at(1)) else { panic!("{id} is not let in") };
    registry.durable(&id, at(1));
    admission
}

fn into(id: &str) -> Admission {
    Admission::Steer { into: run_id(id) }
}

/// It joined a run that answers elsewhere: its sender read nothing, and could not stop it.
#[test]
fn a_message_steers_only_a_run_of_its_own_conversation() {
    let mut registry = registry();
    let page = |id: &str| NewRun { principal: principal("alice"), ..new_run(id, "s", OnBusy::Steer) };
    let thread = |id: &str| NewRun { scope: scope("alice", Some("1")), ..steering(of("alice", id, "s")) };
    let_in(&mut registry, page("page"));
    start(&mut registry, "page");
    assert_eq!(admission(&mut registry, page("page-2")), into("page"));
    for run in [steering(of("alice", "chat", "s")), thread("thread")] {
        assert_eq!(admission(&mut registry, run), Admission::Queue);
    }
    assert_eq!(registry.take_steers(&run_id("page")).len(), 1);
    end(&mut registry, "page");
    start(&mut registry, "chat");
    assert_eq!(admission(&mut registry, page("page-3")), Admission::Queue);
}

#[test]
fn a_message_steers_only_a_run_that_its_sender_may_stop() {
    for scope in [None, scope("alice", None)] {
        let mut registry = registry();
        let of = |sender: &str, id: &str| NewRun { scope: scope.clone(), ..steering(of(sender, id, "s")) };
        let_in(&mut registry, of("alice", "a"));
        start(&mut registry, "a");
        assert_eq!(admission(&mut registry, of("alice", "own")), into("a"));
        assert_eq!(admission(&mut registry, NewRun { admin: true, ..of("root", "admin") }), into("a"));
        assert_eq!(admission(&mut registry, of("bob", "other")), Admission::Queue);
    }
}

/// What was said after a message with files was answered before it.
#[test]
fn in_a_chat_a_message_steers_past_none_that_waits_for_its_turn() {
    let mut registry = registry();
    let_in(&mut registry, of("alice", "a", "s"));
    start(&mut registry, "a");
    assert_eq!(admission(&mut registry, steering(of("alice", "before", "s"))), into("a"));
    let files = NewRun { on_busy: OnBusy::Queue, ..of("alice", "files", "s") };
    assert_eq!(admission(&mut registry, files), Admission::Queue);
    assert_eq!(admission(&mut registry, steering(of("alice", "after", "s"))), Admission::Queue);
    let taken: Vec<RunId> = registry.take_steers(&run_id("a")).into_iter().map(|(id, _)| id).collect();
    assert_eq!(taken, [run_id("before")]);
    end(&mut registry, "a");
    assert_eq!(due(&registry, "s").as_deref(), Some("files"));
}

fn chat(scope: Option<Arc<InterruptionScope>>, key: &str) -> StopScope {
    StopScope::Conversation { scope: InterruptionScope::clone(&scope.unwrap()), session: session(key) }
}
