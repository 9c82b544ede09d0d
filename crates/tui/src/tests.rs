//! The state machine driven by keys and responses: what may happen in each state, and what must never happen.

mod approvals;
mod mcp;
mod properties;
mod run_ends;
mod session_switch;

use crossterm::event::KeyCode;
use quell_client::daemon_client::SendReply;
use quell_client::test_support::daemon::run_view;
use serde_json::json;

use crate::effects::{
    ChatEffect, ChatInput, ChatRunUpdate, DaemonFailure, DaemonFailureKind, DaemonQuery, DaemonResponse, HistorySlice,
};
use crate::harness::{ChatHarness, from_json, run_id, sent_run_id};

fn stop_effects(effects: &[ChatEffect]) -> Vec<(bool, bool)> {
    let stop = |effect: &ChatEffect| match effect {
        ChatEffect::StopSession { force, .. } => Some((true, *force)),
        ChatEffect::StopRun { force, .. } => Some((false, *force)),
        _ => None,
    };
    effects.iter().filter_map(stop).collect()
}

fn away() -> DaemonFailure {
    DaemonFailure { text: "connection refused".into(), kind: DaemonFailureKind::Unreachable }
}

fn refused() -> DaemonFailure {
    DaemonFailure { text: "no".into(), kind: DaemonFailureKind::Refused }
}

fn not_found() -> DaemonFailure {
    DaemonFailure { text: "no such run".into(), kind: DaemonFailureKind::NotFound }
}

#[test]
fn the_arguments_are_sound_and_the_help_has_examples() {
    use clap::Args as _;
    let command = crate::ChatArgs::augment_args(clap::Command::new("chat"));
    command.clone().debug_assert();
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    assert!(help.contains("Examples:") && help.contains("quell chat"), "{help}");
}

#[test]
fn esc_does_nothing_while_nothing_runs() {
    let mut scene = ChatHarness::new();
    scene.type_text("a thought");
    assert_eq!(scene.press_esc(), []);
    assert_eq!(scene.chat.composer.text(), "a thought");
}

#[test]
fn esc_stops_and_the_second_forces() {
    let (mut scene, id) = ChatHarness::running("work");
    assert_eq!(stop_effects(&scene.press_esc()), [(true, false)]);
    let force = ChatEffect::StopRun { run: id.clone(), force: true };
    assert_eq!(
        scene.press_esc(),
        [force],
        "the run that was meant, and not whatever else began in the session meanwhile"
    );
    scene.receive_stop_answer(json!({"aborted": true, "runIds": [id.as_str()]}));
    assert!(scene.chat.stop.is_some());
    scene.receive_stopped(&id);
    assert!(scene.chat.stop.is_some(), "the answer to the force is still out");
    scene.respond(DaemonResponse::RunStopped { run: id, result: Err(not_found()) });
    assert!(scene.chat.stop.is_none() && !scene.chat.is_active());
    assert_eq!(scene.press_esc(), []);
}

#[test]
fn a_message_on_its_way_is_stopped_by_its_own_id() {
    let mut scene = ChatHarness::new();
    let id = sent_run_id(&scene.submit_text("work")).unwrap();
    let effects = scene.press_esc();
    assert!(effects.contains(&ChatEffect::StopRun { run: id, force: false }), "{effects:?}");
    assert_eq!(stop_effects(&effects), [(false, false), (true, false)]);
}

#[test]
fn a_run_that_began_after_the_stop_is_stopped_gently_first() {
    let (mut scene, _) = ChatHarness::running("one");
    scene.press_esc();
    scene.submit_accepted("two", "queued");
    assert_eq!(stop_effects(&scene.press_esc()), [(true, false)]);
    assert_eq!(stop_effects(&scene.press_esc()), [(false, true), (false, true)]);
}

#[test]
fn a_stop_that_could_not_be_sent_goes_out_for_the_same_runs_when_the_daemon_is_back() {
    let (mut scene, id) = ChatHarness::running("one");
    scene.press_esc();
    scene.receive_stop_failure(away());
    assert!(scene.chat.stop.is_some());
    let effects = scene.receive_approvals(json!([]));
    assert_eq!(
        effects.iter().find(|effect| matches!(effect, ChatEffect::StopRun { .. })),
        Some(&ChatEffect::StopRun { run: id, force: false })
    );
}

#[test]
fn a_stop_that_was_sent_late_ends_with_its_runs() {
    for answered_first in [false, true] {
        let (mut scene, id) = ChatHarness::running("one");
        scene.press_esc();
        scene.receive_stop_failure(away());
        scene.receive_approvals(json!([]));
        let late = || DaemonResponse::RunStopped { run: run_id("u.1"), result: Err(not_found()) };
        if answered_first {
            scene.respond(late());
            scene.receive_stopped(&id);
        } else {
            scene.receive_stopped(&id);
            assert!(scene.chat.stop.is_some(), "its answer is still out");
            scene.respond(late());
        }
        assert!(scene.chat.stop.is_none(), "answered first: {answered_first}");
    }
}

#[test]
fn a_stop_of_a_message_that_could_not_be_sent_ends_with_it() {
    let mut scene = ChatHarness::new();
    let id = sent_run_id(&scene.submit_text("one")).unwrap();
    scene.press_esc();
    scene.receive_stop_failure(away());
    scene.respond(DaemonResponse::RunStopped { run: id.clone(), result: Err(away()) });
    assert!(scene.chat.stop.is_some());
    scene.receive_unsent(id, away());
    assert!(scene.chat.stop.is_none() && !scene.chat.is_active());
}

#[test]
fn a_refused_stop_of_another_sessions_run_leaves_the_stop_of_this_one() {
    let (mut scene, _) = ChatHarness::running("one");
    scene.press_esc();
    scene.respond(DaemonResponse::RunStopped { run: run_id("far"), result: Err(refused()) });
    assert!(scene.chat.stop.is_some());
}

#[test]
fn a_refused_stop_is_said_and_over() {
    let (mut scene, _) = ChatHarness::running("one");
    scene.press_esc();
    scene.receive_stop_failure(refused());
    assert!(scene.chat.stop.is_none() && scene.chat.is_active());
    assert!(scene.screen_text(80, 24).contains("the stop was refused: no"));
}

#[test]
fn the_texts_of_the_queue_come_back_once_and_in_their_order() {
    for early in [false, true] {
        let (mut scene, id) = ChatHarness::running("one");
        let (two, three) = (scene.submit_accepted("two", "queued"), scene.submit_accepted("three", "queued"));
        scene.type_text("four");
        scene.press_esc();
        if early {
            // The ends of queued runs may arrive before the answer to the stop.
            scene.receive_stopped(&three);
            scene.receive_stopped(&two);
        }
        let withdrawn = json!([{"runId": three.as_str(), "text": "three"}, {"runId": two.as_str(), "text": "two"}]);
        scene.receive_stop_answer(json!({"aborted": true, "runIds": [id.as_str()], "withdrawn": withdrawn}));
        scene.receive_stopped(&two);
        scene.receive_stopped(&id);
        let lines: Vec<&str> = scene.chat.composer.text().lines().collect();
        let expected = if early { ["three", "two", "four"] } else { ["two", "three", "four"] };
        assert_eq!(lines, expected);
        assert!(scene.chat.stop.is_none() && !scene.chat.is_active());
    }
}

#[test]
fn a_text_comes_back_once_however_the_answers_of_a_stop_overtake_each_other() {
    let (mut scene, _) = ChatHarness::running("one");
    let two = scene.submit_accepted("two", "queued");
    let three = sent_run_id(&scene.submit_text("three")).unwrap();
    scene.press_esc();
    scene.respond(DaemonResponse::RunStopped { run: three.clone(), result: Err(not_found()) });
    // The answer to one stop request says nothing about the other one, which returns this text.
    scene.receive_stopped(&two);
    assert_eq!(scene.chat.composer.text(), "");
    let accepted = from_json(json!({"runId": three.as_str(), "sessionKey": "work", "state": "queued"}));
    scene.respond(DaemonResponse::Sent { run: three.clone(), result: Ok(SendReply::Accepted(accepted)) });
    scene.receive_stopped(&three);
    let withdrawn = json!([{"runId": two.as_str(), "text": "two"}]);
    scene.receive_stop_answer(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn}));
    assert_eq!(scene.chat.composer.text(), "two\nthree", "and the one that no answer names is not lost");
}

#[test]
fn a_text_that_its_end_brought_back_is_not_brought_by_a_later_answer_too() {
    let (mut scene, _) = ChatHarness::running("one");
    let two = scene.submit_accepted("two", "queued");
    // A stop text typed as a message is known as a stop only by its answer.
    let stop = sent_run_id(&scene.submit_text("stop")).unwrap();
    scene.receive_stopped(&two);
    let withdrawn = json!([{"runId": two.as_str(), "text": "two"}]);
    let answer = SendReply::Stopped(from_json(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn})));
    scene.respond(DaemonResponse::Sent { run: stop, result: Ok(answer) });
    assert_eq!(scene.chat.composer.text(), "two");
}

#[test]
fn a_queued_message_that_somebody_else_withdraws_comes_back() {
    let (mut scene, _) = ChatHarness::running("one");
    let two = scene.submit_accepted("two", "queued");
    scene.receive_stopped(&two);
    assert_eq!(scene.chat.composer.text(), "two");
}

#[test]
fn a_message_that_is_refused_comes_back() {
    let mut scene = ChatHarness::new();
    let id = sent_run_id(&scene.submit_text("hello")).unwrap();
    scene.type_text("more");
    scene.receive_unsent(id, refused());
    assert_eq!(scene.chat.composer.text(), "hello\nmore");
    assert!(!scene.chat.is_active());
}

#[test]
fn a_message_whose_answer_was_lost_is_looked_for_before_it_is_sent_twice() {
    let mut scene = ChatHarness::new();
    let id = sent_run_id(&scene.submit_text("hello")).unwrap();
    scene.receive_unsent(id.clone(), away());
    assert_eq!(scene.chat.composer.text(), "hello");
    let effects = scene.receive_approvals(json!([]));
    assert!(effects.contains(&ChatEffect::Query(DaemonQuery::Run(id.clone()))), "{effects:?}");
    let effects = scene.receive_run(id.as_str(), json!({"sessionKey": "work", "text": "hello"}));
    assert_eq!(effects, [ChatEffect::FollowRun { run: id, after: 0 }]);
    assert!(scene.chat.composer.is_empty() && scene.chat.is_active());
}

#[test]
fn a_run_that_was_started_elsewhere_is_found_and_followed_once() {
    let mut scene = ChatHarness::new();
    let key = scene.chat.session().clone();
    let session = || {
        let row = json!({"key": "work", "state": "active", "createdAt": "", "lastUsedAt": "", "activeRuns": ["r7"], "turns": 0});
        ChatInput::Response(DaemonResponse::Session { key: key.clone(), result: Ok(from_json(row)) })
    };
    let ask = ChatEffect::Query(DaemonQuery::Run(run_id("r7")));
    assert_eq!(scene.send_input(session()), [ask]);
    assert_eq!(scene.send_input(session()), []);
    let see = |scene: &mut ChatHarness| scene.receive_run("r7", json!({"sessionKey": "work"}));
    assert_eq!(see(&mut scene), [ChatEffect::FollowRun { run: run_id("r7"), after: 0 }]);
    assert_eq!((scene.send_input(session()), see(&mut scene)), (vec![], vec![]));
    assert_eq!(stop_effects(&scene.press_esc()), [(true, false)]);
}

#[test]
fn del_stops_the_run_that_was_chosen_wherever_its_line_has_moved() {
    let mut scene = ChatHarness::new();
    scene.submit_text("/runs");
    let list = |scene: &mut ChatHarness, ids: &[&str]| {
        let rows: Vec<_> = ids.iter().map(|id| run_view(id, json!({"sessionKey": "far"}))).collect();
        scene.receive_active_runs(json!(rows));
    };
    let stop = |id: &str, force| vec![ChatEffect::StopRun { run: run_id(id), force }];
    list(&mut scene, &["r1", "r2", "r3"]);
    scene.press_key(KeyCode::Down);
    // An older run ends, so the rows below it move up.
    list(&mut scene, &["r2", "r3"]);
    assert_eq!(scene.press_key(KeyCode::Delete), stop("r2", false));
    assert_eq!(scene.press_key(KeyCode::Delete), stop("r2", true), "pressed again it forces that one");
    list(&mut scene, &["r3"]);
    assert_eq!(scene.press_key(KeyCode::Delete), [], "what was chosen is gone, and its neighbour was not chosen");
    assert_eq!(scene.press_key(KeyCode::Enter), []);
    scene.press_key(KeyCode::Down);
    assert_eq!(scene.press_key(KeyCode::Delete), stop("r3", false));
}

#[test]
fn ctrl_c_clears_then_stops_then_asks() {
    let (mut scene, _) = ChatHarness::running("work");
    scene.type_text("draft");
    assert_eq!(scene.press_control('c'), []);
    assert!(scene.chat.composer.is_empty());
    assert_eq!(stop_effects(&scene.press_control('c')), [(true, false)]);
    assert_eq!(scene.press_control('c'), []);
    assert!(scene.screen_text(80, 24).contains("1 run not over. Leave?"));
    assert_eq!(scene.press_control('c'), [], "it never ends while something runs without being told to");
    scene.press_esc();
    scene.press_key(KeyCode::Up);
    assert_eq!(scene.chat.composer.text(), "draft");
}

#[test]
fn stop_and_quit_waits_for_the_end_of_the_run() {
    let (mut scene, id) = ChatHarness::running("work");
    scene.submit_text("/quit");
    assert_eq!(stop_effects(&scene.press_key(KeyCode::Char('s'))), [(true, false)]);
    assert!(!scene.receive_stop_answer(json!({"aborted": true, "runIds": []})).contains(&ChatEffect::Exit));
    assert!(scene.receive_stopped(&id).contains(&ChatEffect::Exit));
}

#[test]
fn a_lost_daemon_is_told_and_the_next_answer_ends_that() {
    let (mut scene, id) = ChatHarness::running("work");
    scene.receive_update(id.clone(), ChatRunUpdate::Disconnected("gone".into()));
    assert!(scene.screen_text(80, 24).contains("not connected"));
    scene.receive_update(id, ChatRunUpdate::Reconnected);
    assert!(scene.screen_text(80, 24).contains("● live"));
}

#[test]
fn older_pages_are_asked_for_once_when_the_top_is_seen() {
    let mut scene = ChatHarness::new();
    let before = HistorySlice::PageBefore("7".into());
    let session = scene.chat.session().clone();
    scene.receive_history(HistorySlice::NewestPage, json!({"items": [], "nextCursor": "7"}));
    let ask = ChatEffect::Query(DaemonQuery::History { session, page: before.clone() });
    assert_eq!(scene.send_input(ChatInput::TopReached), [ask]);
    assert_eq!(scene.send_input(ChatInput::TopReached), []);
    scene.receive_history(before, json!({"items": []}));
    assert_eq!(scene.send_input(ChatInput::TopReached), []);
}

#[test]
fn a_stop_text_that_stopped_nothing_says_so() {
    let mut scene = ChatHarness::new();
    let id = sent_run_id(&scene.submit_text("stop")).unwrap();
    let answer = SendReply::Stopped(from_json(json!({"aborted": false, "runIds": []})));
    scene.respond(DaemonResponse::Sent { run: id, result: Ok(answer) });
    assert!(scene.screen_text(80, 24).contains("nothing to stop"));
    assert!(!scene.chat.is_active());
}

#[test]
fn a_misused_command_comes_back_to_be_mended() {
    let mut scene = ChatHarness::new();
    scene.submit_text("/hold that thought");
    assert_eq!(scene.chat.composer.text(), "/hold that thought");
    scene.press_control('c');
    scene.send_input(ChatInput::Paste("/nothing".into()));
    scene.press_key(KeyCode::Enter);
    assert_eq!(scene.chat.composer.text(), "/nothing");
}

#[test]
fn a_slash_alone_does_nothing_at_enter() {
    let (mut scene, _) = ChatHarness::running("work");
    assert_eq!(scene.submit_text("/"), []);
    assert_eq!(scene.chat.composer.text(), "/stop");
    assert!(sent_run_id(&scene.press_key(KeyCode::Enter)).is_some(), "the second Enter does it");
}

#[test]
fn a_stop_text_that_could_not_be_sent_is_a_stop_that_goes_out_later() {
    let (mut scene, id) = ChatHarness::running("work");
    let stop = sent_run_id(&scene.submit_text("/stop")).unwrap();
    scene.receive_unsent(stop, away());
    assert!(scene.chat.composer.is_empty() && scene.chat.stop.is_some());
    let effects = scene.receive_approvals(json!([]));
    assert!(effects.contains(&ChatEffect::StopRun { run: id, force: false }), "{effects:?}");
}

#[test]
fn typing_at_the_exit_question_answers_no() {
    for first in ['h', 'y', 'n', '/', '1'] {
        let mut scene = ChatHarness::new();
        assert_eq!(scene.press_control('c'), []);
        scene.press_key(KeyCode::Char(first));
        assert!(scene.chat.menu.is_none(), "{first} takes the question back");
        scene.type_text(" there");
        assert_eq!(scene.chat.composer.text(), format!("{first} there"), "and is typed");
        assert!(!scene.press_key(KeyCode::Enter).contains(&ChatEffect::Exit));
    }
    // While a run is active, two letters are answers on the screen; every other letter is text.
    let (mut scene, _) = ChatHarness::running("work");
    scene.send_input(ChatInput::Paste("/quit".into()));
    scene.press_key(KeyCode::Enter);
    scene.type_text("and then");
    assert_eq!(scene.chat.composer.text(), "and then");
    assert!(!scene.press_key(KeyCode::Enter).contains(&ChatEffect::Exit));
}
