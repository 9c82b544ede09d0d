//! Tests that each broken item list is refused for its own reason.

use rstest::rstest;
use serde_json::{Value, json};

use super::check_items;
use crate::prompt::tests::damage_message;

fn valid_items() -> Vec<Value> {
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "shell", "arguments": "{}"});
    vec![
        json!({"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
        ]}),
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}),
        call("a"),
        call("b"),
        json!({"type": "function_call_output", "call_id": "b", "output": "B"}),
        json!({"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "A"}]}),
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two files."}]}),
    ]
}

#[test]
fn a_good_list_passes() {
    assert_eq!(check_items(&valid_items()), Ok(()));
}

#[rstest]
#[case::unknown_type(0, "/type", json!("note"), "unknown type")]
#[case::unknown_role(0, "/role", json!("tool"), "unknown type or role")]
#[case::empty_text(0, "/content/0/text", json!(" "), "empty part")]
#[case::text_of_the_model(0, "/content/0/type", json!("output_text"), "another role")]
#[case::picture(0, "/content/1/image_url", json!("file:///x.png"), "neither data nor a URL")]
#[case::no_reasoning_id(1, "/id", json!(""), "without an id")]
#[case::no_encrypted(1, "/encrypted_content", json!(""), "without its content")]
#[case::id_twice(3, "/call_id", json!("a"), "used before")]
#[case::id_long(2, "/call_id", json!("x".repeat(65)), "empty or too long")]
#[case::name(2, "/name", json!("a b"), "illegal name")]
#[case::arguments(2, "/arguments", json!("[]"), "no object")]
#[case::no_call(4, "/call_id", json!("c"), "no open call")]
#[case::empty_output(4, "/output", json!(""), "empty text")]
fn a_broken_item_is_refused(#[case] at: usize, #[case] place: &str, #[case] damage: Value, #[case] why: &str) {
    let mut items = valid_items();
    damage_message(&mut items, at, place, damage);
    let violation = check_items(&items).unwrap_err();
    assert!(violation.at == at && violation.rule.contains(why), "{violation}");
}

#[rstest]
#[case::nothing(&[], 0, "no item")]
#[case::begins_with_the_model(&[6], 0, "without the user")]
#[case::user_twice(&[0, 0], 1, "another user")]
#[case::reasoning_last(&[0, 1], 2, "led to nothing")]
#[case::reasoning_before_the_user(&[0, 1, 0], 2, "is due")]
#[case::reasoning_twice(&[0, 1, 1, 6], 2, "reasoning twice")]
#[case::no_result(&[0, 2, 3, 4], 4, "missing at the end")]
#[case::user_before_the_result(&[0, 2, 0], 2, "a result is due")]
#[case::answer_between_results(&[0, 2, 3, 4, 6], 4, "a result is due")]
fn a_broken_order_is_refused(#[case] order: &[usize], #[case] at: usize, #[case] why: &str) {
    let items: Vec<Value> = order.iter().map(|nth| valid_items()[*nth].clone()).collect();
    let violation = check_items(&items).unwrap_err();
    assert!(violation.at == at && violation.rule.contains(why), "{violation}");
}
