//! Tests of the stored form and of damaged rows.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::samples::ended;
use super::super::*;

const V1: &str = include_str!("../fixtures/turn-v1.json");
const V2: &str = include_str!("../fixtures/turn-v2.json");
const V3: &str = include_str!("../fixtures/turn-v3.json");

#[test]
fn a_turn_stored_by_version_1_reads_and_is_written_in_blocks() {
    let mut same: Value = serde_json::from_str(V2).unwrap();
    // Version 1 did not store the model.
    same["items"][1].as_object_mut().unwrap().remove("model");
    assert_eq!(Turn::from_stored(V1).unwrap(), Turn::from_stored(&same.to_string()).unwrap());
}

#[test]
fn a_turn_stored_by_version_2_reads_and_writes_the_same() {
    let turn = Turn::from_stored(V2).unwrap();
    let mut same: Value = serde_json::from_str(V2).unwrap();
    same["version"] = json!(TURN_VERSION);
    assert_eq!(serde_json::from_str::<Value>(&turn.to_stored()).unwrap(), same);
    assert_eq!(turn.run_id().as_str(), "0198f6f2-4b7e-7c3a-9d53-0b1f6f1f2a11");
    assert_eq!(turn.items().len(), 3);
    assert_eq!(turn.partial().unwrap().text, "The backup is half");
    assert_eq!(turn.verdict().as_str(), "aborted");
    assert_eq!((turn.usage().input_tokens, turn.sealed_at.as_str()), (2210, "2026-11-20T09:41:07.120334Z"));
    assert_eq!(turn.synthetic_ids().count(), 2);
}

#[test]
fn a_turn_stored_by_version_3_reads_and_writes_the_same() {
    let turn = Turn::from_stored(V3).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&turn.to_stored()).unwrap(), serde_json::from_str::<Value>(V3).unwrap());
}

/// The fixture is what this program writes. A change of texts or ids would silently make two kinds of history.
#[test]
fn version_3_is_what_sealing_writes() {
    let old = Turn::from_stored(V3).unwrap();
    let mut draft = TurnDraft::new(old.run_id().clone(), "back up the photos, then clean up".into());
    let thinking = vec![
        Thinking::Shown { text: "Copy first.".into(), signature: Some("c2lnbmVk".into()) },
        Thinking::Item { id: "rs_1".into(), summary: vec!["Then sync.".into()], encrypted: "ZW5j".into() },
        Thinking::BlockSignature { signature: "Y2FsbA==".into() },
    ];
    let call = |id, command| ToolCall::from_wire(id, "shell", json!({"command": command, "timeout_s": 0.1}));
    let calls = vec![call("call_0", "cp -r photos backup"), call("call_0", "sync"), call("", "rm -r tmp")];
    let made = draft.finish_message(AssistantMessage {
        model: Some("anthropic/claude".into()),
        ..AssistantMessage::new(thinking, "I copy first.", calls)
    });
    draft.add_user("not the raw ones".into(), None);
    draft.finish_call(&made[0].id, CallResult::new(quell_protocol::CallEnd::Ok, "412 files"));
    draft.append_output(&made[1].id, "syncing disk 1\n");
    draft.push_text("The backup is half");
    draft.push_thinking("So far");
    let sealing = SealOptions {
        verdict: old.verdict(),
        policy: PartialPolicy::Discard,
        sealed_at: old.sealed_at.clone(),
        usage: old.usage(),
    };
    assert_eq!(draft.seal(sealing), old);
}

#[test]
fn redacted_reasoning_is_stored_beside_the_kind_that_can_be_read_and_in_its_place() {
    let mut stored: Value = serde_json::from_str(V2).unwrap();
    stored["items"][1]["blocks"].as_array_mut().unwrap().insert(3, json!({"kind": "thinking", "redacted": "ZW5j"}));
    stored["version"] = json!(TURN_VERSION);
    let turn = Turn::from_stored(&stored.to_string()).unwrap();
    let TurnItem::Assistant(message) = &turn.items()[1] else { panic!("{turn:#?}") };
    assert_eq!(message.blocks[3], MessageBlock::Thinking(Thinking::Redacted { data: "ZW5j".into() }));
    assert!(
        matches!(&message.blocks[0], MessageBlock::Thinking(Thinking::Shown { text, signature: Some(_) }) if text == "Copy first.")
    );
    assert_eq!(serde_json::from_str::<Value>(&turn.to_stored()).unwrap(), stored);
}

proptest! {
    #[test]
    fn storing_changes_nothing(end in ended()) {
        let turn = end.turn("run-1");
        let stored = turn.to_stored();
        let read = Turn::from_stored(&stored).unwrap();
        prop_assert_eq!(read.to_stored(), stored);
        prop_assert_eq!(read, turn);
    }
}

#[test]
fn a_newer_version_is_named_whatever_its_shape() {
    let error = Turn::from_stored(r#"{"version": 4, "pieces": {}}"#).unwrap_err();
    assert_eq!(error.to_string(), "the stored turn has version 4, and this program reads up to 3");
    let mut turn: Value = serde_json::from_str(V1).unwrap();
    turn["version"] = json!(7);
    assert!(serde_json::from_value::<Turn>(turn).is_err());
}

#[rstest]
#[case::nothing("")]
#[case::cut(&V1[..V1.len() / 2])]
#[case::no_version(r#"{"items": []}"#)]
#[case::no_turn(r#"{"version": 1}"#)]
#[case::not_an_object("[1]")]
fn json_that_is_no_turn_is_unreadable(#[case] json: &str) {
    assert!(matches!(Turn::from_stored(json), Err(InvalidTurn::Unreadable(_))));
}

#[rstest]
#[case::no_items("/items", json!([]))]
#[case::begins_with_the_model("/items/0", json!({"kind": "assistant", "text": "hello"}))]
#[case::empty_message("/items/2", json!({"kind": "assistant", "text": " "}))]
#[case::unsigned("/items/1/blocks/0", json!({"kind": "thinking", "text": "hmm"}))]
#[case::blank_signature("/items/1/blocks/0/signature", json!(" "))]
#[case::redacted_to_nothing("/items/1/blocks/0", json!({"kind": "thinking", "redacted": ""}))]
#[case::item_without_content("/items/1/blocks/0", json!({"kind": "thinking", "item": "rs_1", "encrypted": ""}))]
#[case::empty_signature("/items/1/blocks/0", json!({"kind": "thinking", "block_signature": " "}))]
#[case::same_id("/items/1/blocks/3/call/id", json!("call_0"))]
fn a_damaged_turn_is_refused(#[case] place: &str, #[case] damage: Value) {
    let mut turn: Value = serde_json::from_str(V2).unwrap();
    *turn.pointer_mut(place).unwrap() = damage;
    let read = Turn::from_stored(&turn.to_string());
    assert!(matches!(read, Err(InvalidTurn::Damaged(_))), "{read:?}");
}

#[rstest]
#[case::unanswered("/items/1/blocks/2", json!({"kind": "call", "call": {"id": "call_0", "tool": "shell", "arguments": {}}}))]
#[case::empty_id("/items/1/blocks/2/call/id", json!(""))]
#[case::unknown_item("/items/2/kind", json!("tool"))]
fn a_damaged_turn_is_unreadable(#[case] place: &str, #[case] damage: Value) {
    let mut turn: Value = serde_json::from_str(V2).unwrap();
    *turn.pointer_mut(place).unwrap() = damage;
    let read = Turn::from_stored(&turn.to_string());
    assert!(matches!(read, Err(InvalidTurn::Unreadable(_))), "{read:?}");
}
