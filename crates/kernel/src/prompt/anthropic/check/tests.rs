//! Tests that each broken message list is refused for its own reason.

use rstest::rstest;
use serde_json::{Value, json};

use super::check_messages;
use crate::prompt::tests::damage_message;

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn valid_messages() -> Vec<Value> {
    let call = |id| json!({"type": "tool_use", "id": id, "name": "shell", "input": {}});
    vec![
        json!({"role": "user", "content": [text("look")]}),
        json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "", "signature": "proof"}, text("I look."), call("a"),
            {"type": "thinking", "thinking": "", "signature": "proof"}, call("b"), text("There."),
        ]}),
        json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "b", "content": "B", "is_error": true},
            {"type": "tool_result", "tool_use_id": "a", "content": "A"},
            text("hurry"),
        ]}),
        json!({"role": "assistant", "content": [text("Two files.")]}),
        json!({"role": "user", "content": [
            text("thanks"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
            {"type": "image", "source": {"type": "url", "url": "https://host/x.png"}},
        ]}),
    ]
}

#[test]
fn a_good_list_passes() {
    assert_eq!(check_messages(&valid_messages()), Ok(()));
}

#[track_caller]
fn assert_refused(at: usize, why: &str, change: impl FnOnce(&mut Vec<Value>)) {
    let mut list = valid_messages();
    change(&mut list);
    let violation = check_messages(&list).unwrap_err();
    assert_eq!(violation.at, at, "{violation}");
    assert!(violation.rule.contains(why), "{violation}");
}

#[rstest]
#[case::no_object(0, "", json!([]), "is not an object")]
#[case::no_role(0, "/role", Value::Null, "no role")]
#[case::system(0, "/role", json!("system"), "alternation")]
#[case::same_side(3, "/role", json!("user"), "alternation")]
#[case::unknown_field(0, "/name", json!("x"), "unknown field")]
#[case::plain_content(0, "/content", json!("look"), "no list of blocks")]
#[case::empty(3, "/content", json!([]), "is empty")]
#[case::no_type(3, "/content/0", json!({"text": "x"}), "without a type")]
#[case::empty_text(3, "/content/0/text", json!(" "), "empty text block")]
#[case::text_field(3, "/content/0/citations", json!([]), "unknown field")]
#[case::wrong_block_of_model(3, "/content/0/type", json!("tool_result"), "cannot say")]
#[case::wrong_block_of_user(0, "/content/0/type", json!("tool_use"), "cannot say")]
#[case::unsigned(1, "/content/0/signature", Value::Null, "without a signature")]
#[case::blank_signature(1, "/content/0/signature", json!(""), "without a signature")]
#[case::thinking_text(1, "/content/0/thinking", Value::Null, "without its text")]
#[case::redacted_without_data(1, "/content/0", json!({"type": "redacted_thinking", "data": " "}), "without its data")]
#[case::redacted_with_text(1, "/content/0", json!({"type": "redacted_thinking", "data": "x", "thinking": ""}), "unknown field")]
#[case::id_twice(1, "/content/4/id", json!("a"), "used before")]
#[case::id_illegal(1, "/content/4/id", json!("call:0"), "illegal id")]
#[case::id_long(1, "/content/4/id", json!("x".repeat(65)), "illegal id")]
#[case::name(1, "/content/4/name", json!(""), "illegal name")]
#[case::input(1, "/content/4/input", json!("{}"), "no object")]
#[case::ends_with_thinking(3, "/content/0", json!({"type": "thinking", "thinking": "", "signature": "s"}), "ends with reasoning")]
#[case::ends_redacted(3, "/content/0", json!({"type": "redacted_thinking", "data": "x"}), "ends with reasoning")]
#[case::unknown_call(2, "/content/1/tool_use_id", json!("c"), "answers no call")]
#[case::answered_twice(2, "/content/1/tool_use_id", json!("b"), "answers no call")]
#[case::empty_result(2, "/content/1/content", json!(""), "empty result")]
#[case::no_result(2, "/content/1/content", Value::Null, "without text")]
#[case::is_error(2, "/content/0/is_error", json!("yes"), "neither true nor false")]
#[case::late_result(2, "/content/0", text("first this"), "result after text")]
#[case::unanswered(2, "/content/1", text("no result"), "without its result")]
#[case::no_source(4, "/content/1/source", Value::Null, "without a source")]
#[case::unknown_source(4, "/content/1/source/type", json!("file"), "unknown source")]
#[case::no_kind_that_is_taken(4, "/content/1/source/media_type", json!("image/bmp"), "kind that is not taken")]
#[case::no_base64(4, "/content/1/source/data", json!("iVBOR"), "no base64")]
#[case::field_of_a_source(4, "/content/2/source/media_type", json!("image/png"), "unknown field")]
#[case::a_plain_url(4, "/content/2/source/url", json!("http://host/x.png"), "not secure")]
#[case::result_behind_a_picture(2, "/content/0", json!({"type": "image", "source": {"type": "url", "url": "https://h/x"}}), "result after text")]
#[case::orphan(4, "/content/0", json!({"type": "tool_result", "tool_use_id": "a", "content": "A"}), "answers no call")]
fn a_broken_message_is_refused(#[case] at: usize, #[case] place: &str, #[case] damage: Value, #[case] why: &str) {
    assert_refused(at, why, |list| damage_message(list, at, place, damage));
}

#[test]
fn broken_orders_are_refused() {
    assert_refused(0, "alternation", |list| drop(list.remove(0)));
    assert_refused(4, "the model's own", |list| list.truncate(4));
    assert_refused(2, "the model's own", |list| list.truncate(2));
    assert_refused(0, "no message", Vec::clear);
    assert_refused(2, "without its result", |list| list[2]["content"] = json!([text("never mind")]));
}
