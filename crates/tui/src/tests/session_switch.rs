//! After a switch of sessions, late responses for the old session change nothing in the new one, and no text is lost.

use crossterm::event::KeyCode;
use quell_client::daemon_client::SendReply;
use quell_protocol::SessionKey;
use serde_json::json;

use super::refused;
use crate::effects::{ChatEffect, DaemonResponse};
use crate::harness::{ChatHarness, from_json, sent_run_id};

#[test]
fn another_session_takes_over_the_screen_and_not_the_input() {
    let (mut scene, _) = ChatHarness::running("work");
    scene.submit_text("/new");
    scene.type_text("draft");
    assert_eq!(scene.chat.session().as_str(), "cli:2026-03-01-abcd");
    assert!(!scene.chat.is_active());
    assert!(scene.screen_text(80, 24).contains("1 run goes on in the session left behind: work"));
    // A late response for the old session changes nothing here.
    let row =
        json!({"key": "work", "state": "active", "createdAt": "", "lastUsedAt": "", "activeRuns": ["r7"], "turns": 0});
    let key = SessionKey::parse("work").unwrap();
    assert_eq!(scene.respond(DaemonResponse::Session { key, result: Ok(from_json(row)) }), []);
    assert_eq!(scene.chat.composer.text(), "draft");
}

#[test]
fn texts_that_a_stop_withdrew_in_the_session_left_behind_come_back_here() {
    let (mut scene, _) = ChatHarness::running("one");
    let two = scene.submit_accepted("two", "queued");
    let three = scene.submit_accepted("three", "queued");
    scene.press_esc();
    // The end of one run arrives before the switch, the answer to the stop after it.
    scene.receive_stopped(&two);
    scene.submit_text("/new");
    let work = SessionKey::parse("work").unwrap();
    let withdrawn = json!([{"runId": two.as_str(), "text": "two"}, {"runId": three.as_str(), "text": "three"}]);
    let result = Ok(from_json(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn})));
    scene.respond(DaemonResponse::SessionStopped { session: work, result });
    let mut lines: Vec<&str> = scene.chat.composer.text().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["three", "two"]);
    assert!(scene.chat.stop.is_none() && !scene.chat.is_active());
}

#[test]
fn a_stop_names_the_schedules_that_it_paused() {
    let (mut scene, _) = ChatHarness::running("one");
    scene.press_esc();
    let session = scene.chat.session().clone();
    let result = Ok(from_json(json!({"aborted": true, "runIds": [], "pausedSchedules": ["s-1", "s-2"]})));
    scene.respond(DaemonResponse::SessionStopped { session, result });
    let shown = scene.screen_text(80, 24);
    assert!(shown.contains("Paused what was scheduled: s-1, s-2"), "{shown}");
}

#[test]
fn failures_in_the_previous_session_name_it() {
    let (mut scene, _) = ChatHarness::running("one");
    scene.press_esc();
    let unsent = sent_run_id(&scene.submit_text("two")).unwrap();
    let stop = sent_run_id(&scene.submit_text("/stop")).unwrap();
    scene.submit_text("/new");
    let farewell = scene.chat.exit_messages();
    assert!(farewell.contains(&"two".into()), "who leaves now is told its text: {farewell:?}");
    let work = SessionKey::parse("work").unwrap();
    scene.respond(DaemonResponse::SessionStopped { session: work, result: Err(refused()) });
    assert!(scene.screen_text(80, 24).contains("session work could not be stopped: no"));
    scene.receive_unsent(stop, refused());
    assert_eq!(scene.screen_text(80, 24).matches("session work could not be stopped").count(), 2);
    scene.receive_unsent(unsent, refused());
    assert_eq!(scene.chat.composer.text(), "two");
}

#[test]
fn the_session_left_behind_lends_no_model_and_no_message_to_the_new_one() {
    let (mut scene, _) = ChatHarness::running("one");
    let two = sent_run_id(&scene.submit_text("two")).unwrap();
    scene.submit_text("/quit");
    scene.press_key(KeyCode::Char('s'));
    scene.chat.switch_session(SessionKey::parse("other").unwrap());
    let effects = std::mem::take(&mut scene.chat.effects);
    assert!(!effects.contains(&ChatEffect::Exit) && !scene.chat.is_leaving());
    let before = scene.chat.transcript.len();
    let steered = from_json(json!({"runId": "u.1", "sessionKey": "work", "state": "steered"}));
    scene.respond(DaemonResponse::Sent { run: two, result: Ok(SendReply::Accepted(steered)) });
    let row = json!({"key": "work", "state": "active", "createdAt": "", "lastUsedAt": "", "activeRuns": ["r7"],
        "agent": "scout", "turns": 0});
    let set = DaemonResponse::ModelSet { model: "m".into(), result: Ok(from_json(row)) };
    assert_eq!(scene.respond(set), []);
    assert_eq!(scene.chat.transcript.len(), before);
    assert!(!scene.chat.session_info.exists && scene.chat.session_info.agent.is_none());
}
