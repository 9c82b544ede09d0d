//! Another session on the screen: what comes late for the one left behind changes nothing here, and no text is lost.

use crossterm::event::KeyCode;
use quell_protocol::SessionKey;
use serde_json::json;

use super::super::effects::{Answer, Effect, Input};
use super::super::scene::{Scene, read, sent_run};
use super::{ended, refused};
use crate::link::Sent;

#[test]
fn another_session_takes_over_the_screen_and_not_the_input() {
    let mut scene = Scene::new();
    scene.running("work");
    scene.say("/new");
    scene.type_in("draft");
    assert_eq!(scene.chat.session().as_str(), "cli:2026-03-01-abcd");
    assert!(!scene.chat.is_active());
    assert!(scene.screen(80, 24).contains("1 run goes on in the session left behind: work"));
    // What comes late from the old session changes nothing here.
    let row =
        json!({"key": "work", "state": "active", "createdAt": "", "lastUsedAt": "", "activeRuns": ["r7"], "turns": 0});
    let key = SessionKey::parse("work").unwrap();
    assert_eq!(scene.input(Input::Answer(Answer::Session { key, result: Ok(read(row)) })), []);
    assert_eq!(scene.chat.composer.text(), "draft");
}

#[test]
fn texts_that_a_stop_withdrew_in_the_session_left_behind_come_back_here() {
    let mut scene = Scene::new();
    scene.running("one");
    let two = scene.sent("two", "queued");
    let three = scene.sent("three", "queued");
    scene.esc();
    // The end of one is seen before the session is left, the answer comes behind that.
    ended(&mut scene, &two);
    scene.say("/new");
    let work = SessionKey::parse("work").unwrap();
    let withdrawn = json!([{"runId": two.as_str(), "text": "two"}, {"runId": three.as_str(), "text": "three"}]);
    let result = Ok(read(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn})));
    scene.input(Input::Answer(Answer::SessionStopped { session: work, result }));
    let mut lines: Vec<&str> = scene.chat.composer.text().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["three", "two"]);
    assert!(scene.chat.stop.is_none() && !scene.chat.is_active());
}

#[test]
fn what_fails_in_the_session_left_behind_is_said_with_its_name() {
    let mut scene = Scene::new();
    scene.running("one");
    scene.esc();
    let unsent = sent_run(&scene.say("two")).unwrap();
    let stop = sent_run(&scene.say("/stop")).unwrap();
    scene.say("/new");
    let farewell = scene.chat.farewell();
    assert!(farewell.contains(&"two".into()), "who leaves now is told its text: {farewell:?}");
    let work = SessionKey::parse("work").unwrap();
    scene.input(Input::Answer(Answer::SessionStopped { session: work, result: Err(refused()) }));
    assert!(scene.screen(80, 24).contains("session work could not be stopped: no"));
    scene.input(Input::Answer(Answer::Sent { run: stop, result: Err(refused()) }));
    assert_eq!(scene.screen(80, 24).matches("session work could not be stopped").count(), 2);
    scene.input(Input::Answer(Answer::Sent { run: unsent, result: Err(refused()) }));
    assert_eq!(scene.chat.composer.text(), "two");
}

#[test]
fn the_session_left_behind_lends_no_model_and_no_message_to_the_new_one() {
    let mut scene = Scene::new();
    scene.running("one");
    let two = sent_run(&scene.say("two")).unwrap();
    scene.say("/quit");
    scene.key(KeyCode::Char('s'));
    let effects = scene.chat.open(SessionKey::parse("other").unwrap());
    assert!(!effects.contains(&Effect::Leave) && !scene.chat.is_leaving());
    let before = scene.chat.transcript.len();
    let steered = read(json!({"runId": "u.1", "sessionKey": "work", "state": "steered"}));
    scene.input(Input::Answer(Answer::Sent { run: two, result: Ok(Sent::Accepted(steered)) }));
    let row = json!({"key": "work", "state": "active", "createdAt": "", "lastUsedAt": "", "activeRuns": ["r7"],
        "agent": "scout", "turns": 0});
    let set = Answer::ModelSet { model: "m".into(), result: Ok(read(row)) };
    assert_eq!(scene.input(Input::Answer(set)), []);
    assert_eq!(scene.chat.transcript.len(), before);
    assert!(!scene.chat.facts.exists && scene.chat.facts.agent.is_none());
}
