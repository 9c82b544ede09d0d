//! Which Alt combinations count as two presses.

use rstest::rstest;

use super::*;
use crate::harness::ChatHarness;

const ESC: KeyEvent = KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE);

fn alt(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::ALT)
}

#[rstest]
#[case(KeyCode::Char('x'), true)]
#[case(KeyCode::Tab, true)]
#[case(KeyCode::Enter, true)]
#[case(KeyCode::Char('b'), false)]
#[case(KeyCode::Left, false)]
#[case(KeyCode::Backspace, false)]
fn while_something_runs_a_key_with_alt_that_means_nothing_is_two(#[case] code: KeyCode, #[case] two: bool) {
    let mut scene = ChatHarness::new();
    assert_eq!(scene.chat.split_alt_key(alt(code)), (None, alt(code)), "nothing runs");
    scene.submit_running("work");
    let plain = KeyEvent::new(code, KeyModifiers::NONE);
    assert_eq!(scene.chat.split_alt_key(alt(code)), if two { (Some(ESC), plain) } else { (None, alt(code)) });
    assert_eq!(scene.chat.split_alt_key(plain), (None, plain));
}

#[test]
fn the_other_modifiers_stay_with_the_second_press() {
    let (scene, _) = ChatHarness::running("work");
    let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    let both = KeyEvent { modifiers: KeyModifiers::CONTROL | KeyModifiers::ALT, ..control };
    assert_eq!(scene.chat.split_alt_key(both), (Some(ESC), control));
}

#[test]
fn alt_enter_is_a_new_line_in_what_is_typed() {
    let (mut scene, _) = ChatHarness::running("work");
    scene.type_text("one");
    assert_eq!(scene.chat.split_alt_key(alt(KeyCode::Enter)), (None, alt(KeyCode::Enter)));
}
