//! Tests that each broken content list is refused for its own reason.

use rstest::rstest;
use serde_json::{Value, json};

use super::check_contents;
use crate::prompt::tests::damage_message;

fn valid_contents() -> Vec<Value> {
    let call = |id: &str| json!({"functionCall": {"id": id, "name": "shell", "args": {}}, "thoughtSignature": "c2ln"});
    let result = |id: &str| json!({"functionResponse": {"id": id, "name": "shell", "response": {"output": "A"}}});
    vec![
        json!({"role": "user", "parts": [
            {"text": "look"},
            {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
            {"fileData": {"fileUri": "https://host/x.png"}},
        ]}),
        json!({"role": "model", "parts": [{"text": "I look."}, call("a"), call("b")]}),
        json!({"role": "user", "parts": [result("b"), result("a"), {"text": "thanks"}]}),
        json!({"role": "model", "parts": [{"text": "Two files."}]}),
        json!({"role": "user", "parts": [{"text": "bye"}]}),
    ]
}

#[test]
fn a_good_list_passes() {
    assert_eq!(check_contents(&valid_contents()), Ok(()));
}

#[rstest]
#[case::unknown_field(0, "/content", json!("x"), "unknown field")]
#[case::unknown_role(0, "/role", json!("tool"), "unknown role")]
#[case::same_role(3, "/role", json!("user"), "another content of its role")]
#[case::no_part(0, "/parts", json!([]), "no part")]
#[case::empty_text(0, "/parts/0/text", json!(" "), "empty part")]
#[case::picture(0, "/parts/1/inlineData/data", json!("?"), "no base64")]
#[case::picture_type(0, "/parts/1/inlineData/mimeType", json!("image/bmp"), "unknown type")]
#[case::file(0, "/parts/2/fileData/fileUri", json!("/x.png"), "without its URL")]
#[case::empty_signature(1, "/parts/1/thoughtSignature", json!(""), "empty signature")]
#[case::id_twice(1, "/parts/2/functionCall/id", json!("a"), "used before")]
#[case::no_id(1, "/parts/1/functionCall/id", json!(""), "without an id")]
#[case::name(1, "/parts/1/functionCall/name", json!("a b"), "illegal name")]
#[case::arguments(1, "/parts/1/functionCall/args", json!("{}"), "no object")]
#[case::other_call(2, "/parts/0/functionResponse/id", json!("c"), "no open call")]
#[case::other_name(2, "/parts/0/functionResponse/name", json!("x"), "no open call")]
#[case::empty_result(2, "/parts/0/functionResponse/response/output", json!(""), "empty text")]
#[case::no_result(2, "/parts/0", json!({"text": "A"}), "behind another part")]
#[case::one_result_missing(2, "/parts", json!([{"text": "A"}]), "a result is due")]
fn a_broken_content_is_refused(#[case] at: usize, #[case] place: &str, #[case] damage: Value, #[case] why: &str) {
    let mut contents = valid_contents();
    damage_message(&mut contents, at, place, damage);
    let violation = check_contents(&contents).unwrap_err();
    assert!(violation.at == at && violation.rule.contains(why), "{violation}");
}

#[rstest]
#[case::nothing(&[], 0, "no content")]
#[case::begins_with_the_model(&[3], 0, "begins the conversation")]
#[case::ends_with_the_model(&[0, 3], 2, "the model's")]
#[case::orphan_result(&[2], 0, "no open call")]
fn a_broken_order_is_refused(#[case] order: &[usize], #[case] at: usize, #[case] why: &str) {
    let contents: Vec<Value> = order.iter().map(|nth| valid_contents()[*nth].clone()).collect();
    let violation = check_contents(&contents).unwrap_err();
    assert!(violation.at == at && violation.rule.contains(why), "{violation}");
}
