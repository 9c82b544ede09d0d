//! Background commands outlive their call and their run and belong to the session.
//!
//! They end with the session, with a stop of their run, with a kill and with the daemon (docs/design/decisions.md,
//! "What a stop covers").

use quell_engine::engine::StopResult;
use quell_kernel::registry::{BackgroundPolicy, QueuedPolicy};

use crate::prelude::*;
use crate::test_engine::{background_call, endless_tokens};

async fn start_engine() -> TestEngine {
    let test =
        TestEngine::start_with(ProcessLock::shared().await, |config| config.limits.background_per_session = 2).await;
    test.answer_by_marker();
    test
}

fn process_call(arguments: &Value) -> ScriptedResponse {
    ScriptedResponse::tool_call("c1", "process", arguments)
}

/// Stops the session `s` without its background commands.
fn stop_keeping_background(test: &TestEngine) -> StopResult {
    let (queued, background) = (QueuedPolicy::Withdraw, BackgroundPolicy::Keep);
    let scope = StopScope::Session { key: parse_session_key("s"), queued, background };
    test.engine.stop(&alice(), &scope, &stop_ask(StopLevel::Gentle))
}

/// Runs a message whose call leaves a command with a `setsid` child running, and waits for the end of the run.
async fn run_leaving_command(test: &TestEngine, marker: &ProcessMarker) -> RunView {
    test.script_marker("start", [background_call(commands::setsid_child(marker)), ScriptedResponse::text("It runs.")]);
    let view = test.run_message_in_memory("s", "serve marker:start").await;
    assert_eq!(view.output.as_deref(), Some("It runs."));
    marker.wait_for_count(2).await;
    view
}

#[tokio::test]
async fn a_command_outlives_its_run_and_is_looked_after_by_later_ones() {
    let test = start_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker(
        "one",
        [background_call("read -r line; echo \"got $line\"; cat"), ScriptedResponse::text("Started.")],
    );
    let view = test.run_message_in_memory("s", "go marker:one").await;
    let row = receipt_of(&view).resources.iter().find(|row| row.kind == ResourceKind::Process).unwrap();
    assert_eq!(row.how, "kept");
    assert!(receipt_of(&view).leftovers.is_empty());
    test.script_marker(
        "two",
        [
            process_call(&json!({"action": "list"})),
            process_call(&json!({"action": "write", "text": "seven\n", "close": true})),
            process_call(&json!({"action": "wait"})),
            process_call(&json!({"action": "write", "text": "more"})),
        ],
    );
    let run = test.run_message("s", "and now? marker:two").await.run_id;
    let outputs = watcher.call_ends(&run);
    assert!(outputs[0].1.contains("running") && outputs[0].1.contains("read -r line"), "{outputs:?}");
    assert_eq!(outputs[1], (CallEnd::Ok, "6 bytes written".to_owned()));
    assert!(
        outputs[2].1.starts_with("got seven\n[p") && outputs[2].1.contains("ended with exit code 0; next: 10]"),
        "{outputs:?}"
    );
    assert_eq!(outputs[3], (CallEnd::Error, "its standard input is closed".to_owned()));
    test.close().await;
}

#[tokio::test]
async fn a_kill_ends_it_with_everything_it_started() {
    let test = start_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let marker = ProcessMarker::new();
    run_leaving_command(&test, &marker).await;
    test.script_marker("kill", [process_call(&json!({"action": "kill"}))]);
    let run = test.run_message("s", "end it marker:kill").await.run_id;
    marker.wait_gone(WAIT_TIMEOUT).await;
    let outputs = watcher.call_ends(&run);
    assert!(outputs[0].1.contains("ended by signal 15"), "{outputs:?}");
    let row = test.engine.session_processes(&parse_session_key("s"))[0].to_rows().remove(0);
    assert_eq!((row.state.as_str(), row.how.as_deref()), ("ended", Some("term")));
    assert!(row.leftovers.is_empty(), "{row:#?}");
    test.close().await;
}

#[tokio::test]
async fn the_stop_of_an_ended_run_ends_what_it_left_and_a_repeat_does_nothing() {
    let test = start_engine().await;
    let marker = ProcessMarker::new();
    let view = run_leaving_command(&test, &marker).await;
    let stop = test.stop(&view.run_id);
    assert!(stop.stopped_anything() && stop.aborted.is_empty());
    assert!(!test.stop(&view.run_id).stopped_anything(), "a repeated stop did something");
    stop.wait_settled().await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    assert_eq!(test.wait_ended(&view.run_id).await.receipt, view.receipt, "the receipt changed");
    assert!(!test.stop(&view.run_id).stopped_anything());
    test.close().await;
}

#[tokio::test]
async fn the_stop_of_a_session_ends_them_unless_they_are_to_be_kept() {
    let test = start_engine().await;
    let marker = ProcessMarker::new();
    run_leaving_command(&test, &marker).await;
    assert!(!stop_keeping_background(&test).stopped_anything());
    marker.wait_for_count(2).await;
    let stop = test.stop_session("s");
    assert!(stop.stopped_anything());
    stop.wait_settled().await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    test.close().await;
}

#[tokio::test]
async fn a_kept_session_loses_only_what_its_stopped_run_had_started() {
    let test = start_engine().await;
    let (old, new) = (ProcessMarker::new(), ProcessMarker::new());
    run_leaving_command(&test, &old).await;
    test.script_marker("again", [background_call(commands::setsid_child(&new)), endless_tokens()]);
    let run = test.send(submission("s", "again marker:again")).await;
    new.wait_for_count(2).await;
    test.wait_text(&run).await;
    let stop = stop_keeping_background(&test);
    assert_eq!(stop.aborted, std::slice::from_ref(&run));
    let view = test.wait_ended(&run).await;
    new.wait_gone(WAIT_TIMEOUT).await;
    old.wait_for_count(2).await;
    let row = receipt_of(&view).resources.iter().find(|row| row.kind == ResourceKind::Process).unwrap();
    assert_eq!((row.how.as_str(), row.process.as_ref().unwrap().signal), ("term", Some(15)), "{row:#?}");
    test.close().await;
    old.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test]
async fn background_commands_of_others_cannot_be_stopped() {
    let test = start_engine().await;
    let marker = ProcessMarker::new();
    run_leaving_command(&test, &marker).await;
    let session = StopScope::whole_session(parse_session_key("s"));
    assert!(!test.engine.stop(&bob(), &session, &stop_ask(StopLevel::Gentle)).stopped_anything());
    assert!(!test.engine.stop(&bob(), &StopScope::Everything, &stop_ask(StopLevel::Forced)).stopped_anything());
    let process = test.engine.session_processes(&parse_session_key("s")).remove(0);
    assert!(!test.engine.end_process(&bob(), &process, StopLevel::Gentle));
    marker.wait_for_count(2).await;
    assert!(test.engine.end_process(&alice(), &process, StopLevel::Forced));
    process.wait_ended().await;
    test.close().await;
}

#[tokio::test]
async fn a_session_has_only_so_many_and_only_its_own() {
    let test = start_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker(
        "many",
        [background_call("sleep 1000"), background_call("sleep 1000"), background_call("sleep 1000")],
    );
    let many = test.run_message_in_memory("s", "go marker:many").await.run_id;
    let outputs = watcher.call_ends(&many);
    assert!(outputs[2].0 == CallEnd::Error && outputs[2].1.contains("which is the limit"), "{outputs:?}");
    test.script_marker(
        "other",
        [process_call(&json!({"action": "list"})), process_call(&json!({"action": "kill", "id": "p1"}))],
    );
    let other = test.run_message("another", "go marker:other").await.run_id;
    let outputs = watcher.call_ends(&other);
    assert_eq!(outputs[0].1, "This conversation has no background commands.");
    assert_eq!(outputs[1].0, CallEnd::Error);
    assert_eq!(test.engine.count_live_processes(), 2);
    test.close().await;
}

#[tokio::test]
async fn a_shut_down_ends_them() {
    let test = start_engine().await;
    let marker = ProcessMarker::new();
    run_leaving_command(&test, &marker).await;
    test.close().await;
    marker.wait_gone(WAIT_TIMEOUT).await;
}
