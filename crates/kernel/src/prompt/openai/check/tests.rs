//! Tests that each broken message list is refused for its own reason.

use rstest::rstest;
use serde_json::{Value, json};

use super::check_messages;
use crate::prompt::tests::damage_message;

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "shell", "arguments": "{}"}})
}

fn valid_messages() -> Vec<Value> {
    vec![
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "look"}),
        json!({"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]}),
        json!({"role": "tool", "tool_call_id": "b", "content": "B"}),
        json!({"role": "tool", "tool_call_id": "a", "content": "A"}),
        json!({"role": "assistant", "content": "Two files."}),
        json!({"role": "user", "content": [
            {"type": "text", "text": "thanks"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "image_url", "image_url": {"url": "https://host/x.png"}},
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
#[case::no_object(1, "", json!("hi"), "is not an object")]
#[case::unknown_role(1, "/role", json!("developer"), "unknown role")]
#[case::unknown_field(1, "/name", json!("x"), "unknown field")]
#[case::second_system(1, "/role", json!("system"), "not the first")]
#[case::empty_user(1, "/content", json!(" "), "empty text")]
#[case::no_text(5, "/content", Value::Null, "no text")]
#[case::empty_assistant(5, "/content", json!(""), "empty text")]
#[case::empty_text_beside_calls(2, "/content", json!(""), "empty text")]
#[case::reasoning_empty(2, "/reasoning_content", json!(" "), "no text or empty")]
#[case::reasoning_of_an_answer(5, "/reasoning_content", json!("hm"), "led to no call")]
#[case::no_calls(2, "/tool_calls", json!([]), "empty list of calls")]
#[case::calls_no_list(2, "/tool_calls", json!({}), "no list")]
#[case::no_function(2, "/tool_calls/0/type", json!("custom"), "no function")]
#[case::id_twice(2, "/tool_calls/1/id", json!("a"), "used before")]
#[case::id_empty(2, "/tool_calls/1/id", json!(""), "empty or too long")]
#[case::id_long(2, "/tool_calls/1/id", json!("x".repeat(41)), "empty or too long")]
#[case::name(2, "/tool_calls/1/function/name", json!("a b"), "illegal name")]
#[case::name_long(2, "/tool_calls/1/function/name", json!("a".repeat(65)), "illegal name")]
#[case::arguments_object(2, "/tool_calls/1/function/arguments", json!({}), "no string")]
#[case::arguments_cut(2, "/tool_calls/1/function/arguments", json!("{\"a\":"), "no JSON")]
#[case::arguments_text(2, "/tool_calls/1/function/arguments", json!("\"a\""), "no object")]
#[case::unknown_call(4, "/tool_call_id", json!("c"), "answers no open call")]
#[case::answered_twice(4, "/tool_call_id", json!("b"), "answers no open call")]
#[case::empty_result(4, "/content", json!(""), "empty text")]
#[case::two_assistants(6, "/role", json!("assistant"), "another assistant")]
#[case::no_part(6, "/content", json!([]), "no part")]
#[case::no_object_as_part(6, "/content/0", json!("thanks"), "a part that is not an object")]
#[case::empty_part(6, "/content/0/text", json!(" "), "an empty part")]
#[case::unknown_part(6, "/content/0/type", json!("image"), "cannot say")]
#[case::field_of_a_part(6, "/content/0/cache_control", json!({}), "unknown field")]
#[case::no_base64(6, "/content/1/image_url/url", json!("data:image/png;base64,iVBOR"), "no base64")]
#[case::no_data(6, "/content/1/image_url/url", json!("data:image/png;base64,"), "no base64")]
#[case::no_kind_that_is_taken(6, "/content/1/image_url/url", json!("data:image/bmp;base64,AAAA"), "neither data nor a URL")]
#[case::a_path(6, "/content/2/image_url/url", json!("/etc/x.png"), "neither data nor a URL")]
fn a_broken_message_is_refused(#[case] at: usize, #[case] place: &str, #[case] damage: Value, #[case] why: &str) {
    assert_refused(at, why, |list| damage_message(list, at, place, damage));
}

#[test]
fn broken_orders_are_refused() {
    assert_refused(4, "result is due", |list| drop(list.remove(4)));
    assert_refused(4, "result is due", |list| list.insert(4, json!({"role": "user", "content": "stop"})));
    assert_refused(4, "missing at the end", |list| list.truncate(4));
    assert_refused(7, "another user", |list| list.push(json!({"role": "user", "content": "hm"})));
    assert_refused(1, "begins", |list| drop(list.remove(1)));
    assert_refused(0, "answers no open call", |list| drop(list.drain(..3)));
    assert_refused(1, "no message", |list| list.truncate(1));
}
