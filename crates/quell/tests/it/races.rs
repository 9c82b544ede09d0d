//! Races of docs/races.md that belong to no other row: stops that come late, early or beside something else.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use quell_engine::agent::AgentConfig;
use quell_engine::scope::Point;
use quell_kernel::Push;
use quell_kernel::approval::ApprovalPolicy;
use quell_protocol::approval::Decision;
use quell_protocol::{EventKind, ResourceKind, RunId, StopReason, Verdict};
use quell_testkit::commands::{self, Marker};
use quell_testkit::model::Stream;
use quell_testkit::{Behaviour, leaks};
use rstest::rstest;
use serde_json::json;

use crate::harness::{
    Claim, House, PATIENCE, Watcher, abort_reason, agent, alice, ask, flat, key, message, of_run, receipt,
};

/// How often two things are let cross.
const CROSSINGS: usize = 50;

fn for_ever() -> Behaviour {
    Behaviour::tokens_forever(Duration::from_millis(2))
}

async fn streaming(house: &House, session: &str) -> RunId {
    house.model.script(for_ever());
    let run = house.send(message(session, "go on")).await;
    house.text_came(&run).await;
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_stop_of_the_run_before_leaves_the_one_at_work_alone() {
    let house = House::shared().await;
    house.model.script(Behaviour::text("one"));
    let before = house.ask("s", "first").await;
    let stopped = streaming(&house, "s").await;
    house.stop(&stopped);
    house.ended(&stopped).await;
    let now = streaming(&house, "s").await;
    for late in [&before.run_id, &stopped] {
        let stop = house.engine.stop(&alice(), &of_run(late), &ask(Push::Forced));
        assert!(!stop.did_something(), "{stop:?}");
    }
    assert_eq!(house.engine.live(&now).unwrap().verdict(), None);
    assert_eq!(house.engine.run(&before.run_id).await.unwrap().unwrap().verdict, Some(Verdict::Completed));
    house.stop(&now);
    house.ended(&now).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_message_starts_when_the_last_process_of_the_stopped_run_is_dead() {
    let house = House::shared().await;
    let mark = Marker::new();
    house.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": commands::deaf_setsid_child(&mark)})));
    let run = house.send(message("s", "run it")).await;
    mark.at_least(2).await;
    house.printed(&run, "deaf").await;
    let watched = Arc::new(mark);
    let survivors = Arc::new(std::sync::Mutex::new(None));
    let (mark, seen) = (Arc::clone(&watched), Arc::clone(&survivors));
    house.trap.arm(Point::LoadHistory, 1, move || *seen.lock().unwrap() = Some(mark.survivors()));
    assert!(house.stop(&run).did_something());
    house.model.script(Behaviour::text("fine"));
    let next = house.ask("s", "and now?").await;
    assert_eq!(next.verdict, Some(Verdict::Completed));
    assert_eq!(survivors.lock().unwrap().take(), Some(Vec::new()), "processes beside the next run");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_for_a_place_is_stopped_at_once_and_takes_none() {
    let house = House::with(Claim::shared().await, |config| config.limits.in_flight_runs = 1).await;
    let working = streaming(&house, "one").await;
    let waiting = house.send(message("two", "wait")).await;
    let stop = house.stop(&waiting);
    assert_eq!(stop.withdrawn, [(waiting.clone(), "wait".to_owned())]);
    assert_eq!(abort_reason(house.ended(&waiting).await.verdict.as_ref()), StopReason::User);
    assert_eq!(house.engine.live(&working).unwrap().verdict(), None);
    house.stop(&working);
    house.ended(&working).await;
    house.model.script(Behaviour::text("here"));
    assert_eq!(house.ask("two", "and now?").await.output.as_deref(), Some("here"), "the place is free");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_run_whose_time_is_over_ends_where_it_waits() {
    let house = House::shared().await;
    let working = streaming(&house, "s").await;
    let timed =
        quell_engine::dispatch::Submission { timeout: Some(Duration::from_millis(50)), ..message("s", "too late") };
    let waiting = house.send(timed).await;
    let view = house.ended(&waiting).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::Timeout);
    assert!(!receipt(&view).turn.recorded, "{view:#?}");
    assert_eq!(house.engine.live(&working).unwrap().verdict(), None);
    house.stop(&working);
    house.ended(&working).await;
    assert_eq!(house.model.seen().len(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_session_stays_deleted_whatever_ran_in_it() {
    let house = House::shared().await;
    for crossing in 0..CROSSINGS {
        let session = format!("s{crossing}");
        let run = streaming(&house, &session).await;
        let queued = house.send(message(&session, "later")).await;
        assert!(house.engine.delete_session(&alice(), &key(&session), &ask(Push::Gentle)).await.unwrap());
        for run in [&run, &queued] {
            let (engine, id) = (house.engine.clone(), run.clone());
            leaks::settled(PATIENCE, move || match engine.live(&id) {
                Some(_) => Err(format!("run {id} of the deleted session is kept")),
                None => Ok(()),
            })
            .await;
            // What was streaming leaves its receipt, without its texts.
            let left = house.engine.run(run).await.unwrap().expect("its receipt is kept");
            assert_eq!((left.text.as_str(), left.output), ("", None));
            assert!(left.receipt.is_some());
        }
        assert!(house.engine.session(&key(&session)).await.unwrap().is_none(), "session {session} came back");
    }
    house.model.script(Behaviour::text("anew"));
    house.ask("s0", "and now?").await;
    assert!(!flat(&house.last_messages()).contains("go on"), "what was deleted is shown to the model");
    house.close().await;
}

/// A way to end a session.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Reset,
    Deletion,
}

/// It comes while the end waits for a command that ends when it is told by a file, and not by a signal.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_crosses_the_end_of_its_session_is_stopped_with_the_rest(
    #[values(End::Reset, End::Deletion)] end: End,
) {
    let house = House::with(Claim::shared().await, |config| {
        (config.stop.term, config.stop.grace) = (PATIENCE, 2 * PATIENCE);
    })
    .await;
    let mut watcher = Watcher::of(&house.engine);
    let command = "trap '' TERM; echo deaf; while [ ! -e go ]; do sleep 0.01; done";
    house.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    let run = house.send(message("s", "the old one")).await;
    house.printed(&run, "deaf").await;
    house.answer_by_marker();
    house.script("late", [Behaviour::SilentBeforeHeaders]);
    let (alice, session, gently) = (alice(), key("s"), ask(Push::Gentle));
    let ending = async {
        match end {
            End::Reset => house.engine.reset_session(&alice, &session, &gently).await,
            End::Deletion => house.engine.delete_session(&alice, &session, &gently).await,
        }
    };
    let sending = async {
        watcher.until(&run, "ending", |event| matches!(event.kind, EventKind::Ending { .. })).await;
        let late = house.send(message("s", "the late one marker:late")).await;
        std::fs::write(house.workdir().join("go"), "").unwrap();
        late
    };
    let (done, late) = tokio::join!(ending, sending);
    assert!(done.unwrap());
    watcher.until_ended(&late).await;
    let events = watcher.events(&late);
    let Some(EventKind::Ended { verdict, .. }) = events.last().map(|event| &event.kind) else { panic!("{events:#?}") };
    assert_eq!(abort_reason(Some(verdict)), StopReason::User, "it works on in a session that is over");
    assert_eq!(house.engine.session(&session).await.unwrap().is_some(), end == End::Reset);
    assert_eq!(house.ask("s", "and now? marker:next").await.verdict, Some(Verdict::Completed));
    let seen = flat(&house.last_messages());
    assert!(!seen.contains("the old one") && !seen.contains("the late one"), "{seen}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_session_takes_its_background_commands_along() {
    let house = House::shared().await;
    let mark = Marker::new();
    let command = json!({"command": commands::deaf_setsid_child(&mark), "background": true});
    house.model.script(Behaviour::tool_call("c1", "shell", &command)).script(Behaviour::text("It runs."));
    let view = house.ask_and_wait("s", "serve").await;
    mark.at_least(2).await;
    assert!(house.engine.delete_session(&alice(), &key("s"), &ask(Push::Gentle)).await.unwrap());
    assert_eq!(mark.survivors(), [], "deleted, and its command is alive");
    assert!(house.engine.processes(&key("s")).is_empty());
    assert!(!house.engine.stop(&alice(), &of_run(&view.run_id), &ask(Push::Gentle)).did_something());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_work_panics_fails_alone_and_its_session_goes_on() {
    let house = House::shared().await;
    let beside = streaming(&house, "beside").await;
    house.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": "true"})));
    house.trap.arm(Point::BeforeTool, 1, || panic!("as the test wants"));
    let view = house.ask("s", "break").await;
    assert!(matches!(&view.verdict, Some(Verdict::Failed { code, .. }) if code == "bug"), "{view:#?}");
    assert!(receipt(&view).leftovers.is_empty() && receipt(&view).turn.recorded, "{view:#?}");
    house.model.script(Behaviour::text("fine"));
    assert_eq!(house.ask("s", "and now?").await.output.as_deref(), Some("fine"));
    assert_eq!(house.engine.live(&beside).unwrap().verdict(), None);
    house.stop(&beside);
    house.ended(&beside).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_crosses_a_stop_is_taken_or_refused_and_a_refused_one_runs_nothing() {
    let house = House::with(Claim::shared().await, |config| {
        let main: &mut AgentConfig = config.agents.get_mut(&agent("main")).unwrap();
        main.approvals.insert("write_file".to_owned(), ApprovalPolicy::Ask);
    })
    .await;
    let mut taken = 0;
    for crossing in 0..CROSSINGS {
        let (session, name) = (format!("s{crossing}"), format!("file-{crossing}"));
        house.model.script(Behaviour::tool_call("c1", "write_file", &json!({"path": name, "content": "x"})));
        let run = house.send(message(&session, "write it")).await;
        house.holds(&run, ResourceKind::Approval).await;
        let row = house.engine.approvals().remove(0);
        let start = Barrier::new(2);
        let answering = || {
            start.wait();
            house.engine.answer_approval(&alice(), &row.id, Decision::Allow)
        };
        let (answer, stop) = std::thread::scope(|threads| {
            let answer = threads.spawn(answering);
            start.wait();
            let stop = house.stop(&run);
            (answer.join().unwrap(), stop)
        });
        assert_eq!(stop.aborted, std::slice::from_ref(&run));
        let view = house.ended(&run).await;
        assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
        assert!(receipt(&view).leftovers.is_empty() && house.engine.approvals().is_empty(), "{view:#?}");
        house.model.script(Behaviour::text("fine"));
        house.ask(&session, "and now?").await;
        let not_started = flat(&house.last_messages()).contains("Not started");
        let written = house.workdir().join(&name).exists();
        assert!(!(written && not_started), "it ran, and the model is told that it did not: {answer:?}");
        assert!(answer.is_ok() || not_started, "refused, and still it began");
        taken += usize::from(answer.is_ok());
    }
    println!("{taken} of {CROSSINGS} answers were taken");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_cut_in_the_middle_of_its_arguments_never_runs_and_breaks_no_history() {
    let house = House::shared().await;
    let cut = Stream::new().text("I write it.").raw_tool_call("c1", "write_file", "{\"path\": \"half\", \"con");
    house.model.script(cut.step(quell_testkit::model::Step::Silent));
    let run = house.send(message("s", "write it")).await;
    house.text_came(&run).await;
    house.model.request(0).resting().await;
    assert!(house.stop(&run).did_something());
    house.ended(&run).await;
    assert!(!house.workdir().join("half").exists());
    house.model.script(Behaviour::text("fine"));
    assert_eq!(house.ask("s", "and now?").await.verdict, Some(Verdict::Completed));
    assert!(!flat(&house.last_messages()).contains("tool_calls"), "a call that was never whole is shown");
    house.close().await;
}
