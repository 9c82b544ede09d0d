//! Calls that ask: an answer is for what could be read.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use quell_protocol::approval::Decision;
use serde_json::json;

use super::super::effects::{Answer, Effect, Input};
use super::super::scene::{Scene, read};

/// The daemon lists these approvals as waiting.
fn asks(scene: &mut Scene, ids: &[&str]) {
    let row = |id: &&str| {
        read(json!({"id": id, "runId": "u.1", "sessionKey": "work", "agent": "main", "principal": "admin",
            "callId": "c1", "tool": "shell", "arguments": {}, "requestedAt": "", "expiresAt": "", "state": "pending"}))
    };
    scene.input(Input::Answer(Answer::Approvals(Ok(ids.iter().map(row).collect()))));
}

fn allow(id: &str) -> Effect {
    Effect::AnswerApproval { id: id.into(), decision: Decision::Allow }
}

#[test]
fn a_letter_answers_an_approval_only_when_it_could_be_read() {
    let mut scene = Scene::new();
    scene.running("work");
    asks(&mut scene, &["a1"]);
    assert_eq!(scene.key(KeyCode::Char('y')), []);
    assert_eq!(scene.chat.composer.text(), "y");
    scene.after(1_000);
    assert_eq!(scene.key(KeyCode::Char('n')), [], "while something is typed, letters are text");
    scene.control('c');
    assert_eq!(scene.key(KeyCode::Char('y')), [allow("a1")]);
    assert_eq!(scene.key(KeyCode::Char('y')), [], "once");
}

#[test]
fn a_call_that_waited_behind_another_one_is_not_allowed_with_it() {
    let mut scene = Scene::new();
    scene.running("work");
    asks(&mut scene, &["a1", "a2"]);
    scene.after(1_000);
    assert_eq!(scene.key(KeyCode::Char('y')), [allow("a1")]);
    assert_eq!(scene.key(KeyCode::Char('y')), [], "it has only just come to be seen");
    scene.control('c');
    scene.after(1_000);
    let mut held = KeyEvent::new(KeyCode::Char('y'), KeyModifiers::NONE);
    held.kind = KeyEventKind::Repeat;
    assert_eq!(scene.input(Input::Key(held)), [], "a key that is held down was pressed for another one");
    scene.control('c');
    assert_eq!(scene.key(KeyCode::Char('y')), [allow("a2")]);
}

#[test]
fn a_call_that_came_under_a_menu_is_read_first() {
    let mut scene = Scene::new();
    scene.running("work");
    scene.say("/help");
    asks(&mut scene, &["a1"]);
    scene.after(1_000);
    scene.esc();
    assert_eq!(scene.key(KeyCode::Char('y')), []);
    scene.control('c');
    scene.after(1_000);
    assert_eq!(scene.key(KeyCode::Char('y')), [allow("a1")]);
}

#[test]
fn a_typed_answer_is_for_the_call_that_was_shown_when_it_was_begun() {
    let mut scene = Scene::new();
    scene.running("work");
    asks(&mut scene, &["a1", "a2"]);
    scene.type_in("/approve");
    asks(&mut scene, &["a2"]);
    assert_eq!(scene.key(KeyCode::Enter), []);
    assert!(scene.screen(80, 24).contains("not answered, another call waits now: shell"));
    assert_eq!(scene.say("/approve"), [allow("a2")]);
}
