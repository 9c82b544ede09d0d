//! Commands in the background: they outlive their call and their run, belong to the session, and end with it, with their run's
//! stop, with a kill and with the daemon (decisions.md, "What a stop covers").

use quell_kernel::Push;
use quell_kernel::registry::{Background, Queued, StopScope};
use quell_protocol::api::RunView;
use quell_protocol::{CallEnd, EventKind, ResourceKind, RunId};
use quell_testkit::Behaviour;
use quell_testkit::commands::{self, Marker};
use serde_json::{Value, json};

use crate::harness::{Claim, House, PATIENCE, Watcher, alice, ask, key, message, receipt};

async fn house() -> House {
    let house = House::with(Claim::shared().await, |config| config.limits.background_per_session = 2).await;
    house.answer_by_marker();
    house
}

fn start(command: &str) -> Behaviour {
    Behaviour::tool_call("c1", "shell", &json!({"command": command, "background": true}))
}

fn process(arguments: &Value) -> Behaviour {
    Behaviour::tool_call("c1", "process", arguments)
}

fn for_ever() -> Behaviour {
    Behaviour::tokens_forever(std::time::Duration::from_millis(2))
}

/// A run that left a command with a child of its own session running, and has ended.
async fn left_behind(house: &House, mark: &Marker) -> RunView {
    house.script("start", [start(&commands::setsid_child(mark)), Behaviour::text("It runs.")]);
    let view = house.ask_and_wait("s", "serve marker:start").await;
    assert_eq!(view.output.as_deref(), Some("It runs."));
    mark.at_least(2).await;
    view
}

fn outputs(watcher: &mut Watcher, run: &RunId) -> Vec<(CallEnd, String)> {
    let ended = |kind: &EventKind| match kind {
        EventKind::ToolEnded { end, output, .. } => Some((*end, output.clone())),
        _ => None,
    };
    watcher.events(run).iter().filter_map(|event| ended(&event.kind)).collect()
}

#[tokio::test]
async fn a_command_outlives_its_run_and_is_looked_after_by_later_ones() {
    let house = house().await;
    let mut watcher = Watcher::of(&house.engine);
    house.script("one", [start("read -r line; echo \"got $line\"; cat"), Behaviour::text("Started.")]);
    let view = house.ask_and_wait("s", "go marker:one").await;
    let row = receipt(&view).resources.iter().find(|row| row.kind == ResourceKind::Process).unwrap();
    assert_eq!(row.how, "kept");
    assert!(receipt(&view).leftovers.is_empty());
    house.script(
        "two",
        [
            process(&json!({"action": "list"})),
            process(&json!({"action": "write", "text": "seven\n", "close": true})),
            process(&json!({"action": "wait"})),
            process(&json!({"action": "write", "text": "more"})),
        ],
    );
    let run = house.ask("s", "and now? marker:two").await.run_id;
    let said = outputs(&mut watcher, &run);
    assert!(said[0].1.contains("running") && said[0].1.contains("read -r line"), "{said:?}");
    assert_eq!(said[1], (CallEnd::Ok, "6 bytes written".to_owned()));
    assert!(
        said[2].1.starts_with("got seven\n[p") && said[2].1.contains("ended with exit code 0; next: 10]"),
        "{said:?}"
    );
    assert_eq!(said[3], (CallEnd::Error, "its standard input is closed".to_owned()));
    house.close().await;
}

#[tokio::test]
async fn a_kill_ends_it_with_everything_it_started() {
    let house = house().await;
    let mut watcher = Watcher::of(&house.engine);
    let mark = Marker::new();
    left_behind(&house, &mark).await;
    house.script("kill", [process(&json!({"action": "kill"}))]);
    let run = house.ask("s", "end it marker:kill").await.run_id;
    mark.gone(PATIENCE).await;
    let said = outputs(&mut watcher, &run);
    assert!(said[0].1.contains("ended by signal 15"), "{said:?}");
    let row = house.engine.processes(&key("s"))[0].row();
    assert_eq!((row.state.as_str(), row.how.as_deref()), ("ended", Some("term")));
    assert!(row.leftovers.is_empty(), "{row:#?}");
    house.close().await;
}

#[tokio::test]
async fn the_stop_of_an_ended_run_ends_what_it_left_and_a_repeat_does_nothing() {
    let house = house().await;
    let mark = Marker::new();
    let view = left_behind(&house, &mark).await;
    let stop = house.stop(&view.run_id);
    assert!(stop.did_something() && stop.aborted.is_empty());
    assert!(!house.stop(&view.run_id).did_something(), "it was told already");
    stop.settled().await;
    mark.gone(PATIENCE).await;
    assert_eq!(house.ended(&view.run_id).await.receipt, view.receipt, "its receipt is as it was");
    assert!(!house.stop(&view.run_id).did_something());
    house.close().await;
}

#[tokio::test]
async fn the_stop_of_a_session_ends_them_unless_they_are_to_be_kept() {
    let house = house().await;
    let mark = Marker::new();
    left_behind(&house, &mark).await;
    let keep = StopScope::Session { key: key("s"), queued: Queued::Withdraw, background: Background::Keep };
    assert!(!house.engine.stop(&alice(), &keep, &ask(Push::Gentle)).did_something());
    mark.at_least(2).await;
    let stop = house.stop_session("s");
    assert!(stop.did_something());
    stop.settled().await;
    mark.gone(PATIENCE).await;
    house.close().await;
}

#[tokio::test]
async fn a_kept_session_loses_only_what_its_stopped_run_had_started() {
    let house = house().await;
    let (old, new) = (Marker::new(), Marker::new());
    left_behind(&house, &old).await;
    house.script("again", [start(&commands::setsid_child(&new)), for_ever()]);
    let run = house.send(message("s", "again marker:again")).await;
    new.at_least(2).await;
    house.text_came(&run).await;
    let keep = StopScope::Session { key: key("s"), queued: Queued::Withdraw, background: Background::Keep };
    let stop = house.engine.stop(&alice(), &keep, &ask(Push::Gentle));
    assert_eq!(stop.aborted, std::slice::from_ref(&run));
    let view = house.ended(&run).await;
    new.gone(PATIENCE).await;
    old.at_least(2).await;
    let row = receipt(&view).resources.iter().find(|row| row.kind == ResourceKind::Process).unwrap();
    assert_eq!((row.how.as_str(), row.process.as_ref().unwrap().signal), ("term", Some(15)), "{row:#?}");
    house.close().await;
    old.gone(PATIENCE).await;
}

#[tokio::test]
async fn nobody_ends_what_another_started() {
    let house = house().await;
    let mark = Marker::new();
    left_behind(&house, &mark).await;
    let bob = quell_engine::dispatch::Caller { principal: crate::harness::principal("bob"), ..alice() };
    assert!(!house.engine.stop(&bob, &StopScope::whole_session(key("s")), &ask(Push::Gentle)).did_something());
    assert!(!house.engine.stop(&bob, &StopScope::Everything, &ask(Push::Forced)).did_something());
    let process = house.engine.processes(&key("s")).remove(0);
    assert!(!house.engine.end_process(&bob, &process, Push::Gentle));
    mark.at_least(2).await;
    assert!(house.engine.end_process(&alice(), &process, Push::Forced));
    process.ended().await;
    house.close().await;
}

#[tokio::test]
async fn a_session_has_only_so_many_and_only_its_own() {
    let house = house().await;
    let mut watcher = Watcher::of(&house.engine);
    house.script("many", [start("sleep 1000"), start("sleep 1000"), start("sleep 1000")]);
    let many = house.ask_and_wait("s", "go marker:many").await.run_id;
    let said = outputs(&mut watcher, &many);
    assert!(said[2].0 == CallEnd::Error && said[2].1.contains("which is the limit"), "{said:?}");
    house.script("other", [process(&json!({"action": "list"})), process(&json!({"action": "kill", "id": "p1"}))]);
    let other = house.ask("another", "go marker:other").await.run_id;
    let said = outputs(&mut watcher, &other);
    assert_eq!(said[0].1, "This conversation has no background commands.");
    assert_eq!(said[1].0, CallEnd::Error);
    assert_eq!(house.engine.living_processes(), 2);
    house.close().await;
}

#[tokio::test]
async fn a_shut_down_ends_them() {
    let house = house().await;
    let mark = Marker::new();
    left_behind(&house, &mark).await;
    house.close().await;
    mark.gone(PATIENCE).await;
}
