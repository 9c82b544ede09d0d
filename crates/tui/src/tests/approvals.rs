//! Approvals: only a call that could be read can be answered.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use quell_protocol::approval::{ApprovalAnswer, Decision};
use serde_json::json;

use crate::effects::{ChatEffect, ChatInput};
use crate::harness::ChatHarness;

/// The daemon lists these approvals as waiting.
fn asks(scene: &mut ChatHarness, ids: &[&str]) {
    let row = |id: &&str| {
        json!({"id": id, "runId": "u.1", "sessionKey": "work", "agent": "main", "principal": "admin",
            "callId": "c1", "tool": "shell", "arguments": {"command": "ls"}, "requestedAt": "", "expiresAt": "", "state": "pending"})
    };
    scene.receive_approvals(ids.iter().map(row).collect());
}

fn allow(id: &str) -> ChatEffect {
    answer(id, Decision::Allow.into())
}

fn answer(id: &str, answer: ApprovalAnswer) -> ChatEffect {
    ChatEffect::AnswerApproval { id: id.into(), answer }
}

#[test]
fn a_letter_answers_an_approval_only_when_it_could_be_read() {
    let (mut scene, _) = ChatHarness::running("work");
    asks(&mut scene, &["a1"]);
    assert_eq!(scene.press_key(KeyCode::Char('y')), []);
    assert_eq!(scene.chat.composer.text(), "y");
    scene.advance_time(1_000);
    assert_eq!(scene.press_key(KeyCode::Char('n')), [], "while something is typed, letters are text");
    scene.press_control('c');
    assert_eq!(scene.press_key(KeyCode::Char('y')), [allow("a1")]);
    assert_eq!(scene.press_key(KeyCode::Char('y')), [], "once");
}

#[test]
fn a_call_that_waited_behind_another_one_is_not_allowed_with_it() {
    let (mut scene, _) = ChatHarness::running("work");
    asks(&mut scene, &["a1", "a2"]);
    scene.advance_time(1_000);
    assert_eq!(scene.press_key(KeyCode::Char('y')), [allow("a1")]);
    assert_eq!(scene.press_key(KeyCode::Char('y')), [], "it has only just come to be seen");
    scene.press_control('c');
    scene.advance_time(1_000);
    let mut held = KeyEvent::new(KeyCode::Char('y'), KeyModifiers::NONE);
    held.kind = KeyEventKind::Repeat;
    assert_eq!(scene.send_input(ChatInput::Key(held)), [], "a key that is held down was pressed for another one");
    scene.press_control('c');
    assert_eq!(scene.press_key(KeyCode::Char('y')), [allow("a2")]);
}

#[test]
fn a_call_that_came_under_a_menu_is_read_first() {
    let (mut scene, _) = ChatHarness::running("work");
    scene.submit_text("/help");
    asks(&mut scene, &["a1"]);
    scene.advance_time(1_000);
    scene.press_esc();
    assert_eq!(scene.press_key(KeyCode::Char('y')), []);
    scene.press_control('c');
    scene.advance_time(1_000);
    assert_eq!(scene.press_key(KeyCode::Char('y')), [allow("a1")]);
}

#[test]
fn a_typed_answer_is_for_the_call_that_was_shown_when_it_was_begun() {
    let (mut scene, _) = ChatHarness::running("work");
    asks(&mut scene, &["a1", "a2"]);
    scene.type_text("/approve");
    asks(&mut scene, &["a2"]);
    assert_eq!(scene.press_key(KeyCode::Enter), []);
    assert!(scene.screen_text(80, 24).contains("not answered, another call waits now: shell"));
    assert_eq!(scene.submit_text("/approve"), [allow("a2")]);
}

#[test]
fn a_call_that_asks_to_leave_the_sandbox_is_marked() {
    let (mut scene, _) = ChatHarness::running("work");
    let escalation = json!({"reason": "it needs \u{202e}the disk", "mode": "workspace", "rule": "only the workdir", "opens": "all files"});
    scene.receive_approvals(
        json!([{"id": "a1", "runId": "u.1", "sessionKey": "work", "agent": "main", "principal": "admin",
        "callId": "c1", "tool": "shell", "arguments": {"command": "ls"}, "escalation": escalation, "requestedAt": "",
        "expiresAt": "", "state": "pending"}]),
    );
    let screen = scene.screen_text(120, 40);
    for part in ["outside of the sandbox", "the disk", "only the workdir", "all files"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    assert!(!screen.contains('\u{202e}'), "{screen}");
}

#[test]
fn a_call_is_allowed_for_the_session_and_denied_with_a_reason() {
    let (mut scene, _) = ChatHarness::running("work");
    asks(&mut scene, &["a1", "a2", "a3"]);
    scene.advance_time(1_000);
    // No single key gives a lasting right.
    assert_eq!(scene.press_key(KeyCode::Char('s')), []);
    assert!(scene.screen_text(100, 24).contains("/approve session"));
    assert_eq!(scene.press_key(KeyCode::Enter), [answer("a1", ApprovalAnswer::for_session())]);
    let pattern = ApprovalAnswer::for_pattern("git *".to_owned());
    assert_eq!(scene.submit_text("/approve pattern git *"), [answer("a2", pattern)]);
    let denial = ApprovalAnswer::denial(Some("not on Friday".to_owned()));
    assert_eq!(scene.submit_text("/deny not on Friday"), [answer("a3", denial)]);
}

#[test]
fn a_key_writes_a_rule_into_the_input_and_typing_on_allows_nothing() {
    let (mut scene, _) = ChatHarness::running("work");
    asks(&mut scene, &["a1", "a2"]);
    scene.advance_time(1_000);
    assert!(scene.screen_text(100, 24).contains("every shell call of this session"));
    assert_eq!(scene.press_key(KeyCode::Char('p')), []);
    assert_eq!(scene.press_key(KeyCode::Enter), [answer("a1", ApprovalAnswer::for_pattern("ls".to_owned()))]);
    scene.advance_time(1_000);
    // "should", typed as an answer to the question.
    for letter in "should".chars() {
        assert_eq!(scene.press_key(KeyCode::Char(letter)), []);
    }
    assert_eq!(scene.press_key(KeyCode::Enter), []);
    assert!(scene.screen_text(100, 24).contains("nothing was allowed"));
}

#[test]
fn no_rule_is_offered_for_a_call_outside_of_the_sandbox_but_that_of_its_command() {
    for (tool, arguments, offers_pattern) in [
        ("shell", json!({"command": "ls"}), true),
        ("shell", json!({"command": "ls \u{202e}x"}), false),
        ("shell", json!({"command": "rm *"}), false),
        ("write_file", json!({"path": "a", "content": ""}), false),
        ("apply_patch", json!({"input": ""}), false),
    ] {
        let (mut scene, _) = ChatHarness::running("work");
        let escalation =
            json!({"reason": "why", "mode": "workspace", "rule": "only the workdir", "opens": "all files"});
        scene.receive_approvals(
            json!([{"id": "a1", "runId": "u.1", "sessionKey": "work", "agent": "main", "principal": "admin",
            "callId": "c1", "tool": tool, "arguments": arguments, "escalation": escalation, "requestedAt": "",
            "expiresAt": "", "state": "pending"}]),
        );
        scene.advance_time(1_000);
        let screen = scene.screen_text(120, 40);
        assert!(!screen.contains("call of this session"), "{tool}: {screen}");
        assert_eq!(screen.contains("p writes a rule"), offers_pattern, "{tool}: {screen}");
    }
}

#[test]
fn an_allowance_that_is_written_wrong_allows_nothing() {
    let (mut scene, _) = ChatHarness::running("work");
    asks(&mut scene, &["a1"]);
    for wrong in ["/approve everything", "/approve pattern"] {
        assert_eq!(scene.submit_text(wrong), []);
        assert!(scene.screen_text(100, 24).contains("/approve session"), "{wrong}");
    }
}
