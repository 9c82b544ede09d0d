//! Events and bodies of the Anthropic dialect.

use quell_kernel::turn::{MessageBlock, Thinking};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::dialect::tests::FedAnswer;
use crate::{ModelAnswer, RawCall};

fn apply_events(events: &[Value]) -> FedAnswer {
    FedAnswer::from_events(&AnthropicMessages, events)
}

fn answer_from_events(events: &[Value]) -> ModelAnswer {
    apply_events(events).into_answer()
}

fn message_start(usage: Value) -> Value {
    json!({"type": "message_start", "message": {"type": "message", "content": [], "stop_reason": null, "usage": usage}})
}

fn block_start(index: u64, block: Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn block_delta(index: u64, delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn message_delta(reason: &str, usage: Value) -> Value {
    json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null}, "usage": usage})
}

#[test]
fn thinking_text_and_calls_come_together_in_their_order() {
    let fed = apply_events(&[
        message_start(json!({"input_tokens": 9, "output_tokens": 1})),
        block_start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        block_delta(0, json!({"type": "thinking_delta", "thinking": "First "})),
        block_delta(0, json!({"type": "thinking_delta", "thinking": "ls."})),
        block_delta(0, json!({"type": "signature_delta", "signature": "pro"})),
        block_delta(0, json!({"type": "signature_delta", "signature": "of"})),
        json!({"type": "content_block_stop", "index": 0}),
        block_start(1, json!({"type": "redacted_thinking", "data": "ZW5j"})),
        block_start(2, json!({"type": "thinking", "thinking": ""})),
        block_delta(2, json!({"type": "signature_delta", "signature": "alone"})),
        json!({"type": "ping"}),
        block_start(3, json!({"type": "text", "text": "I "})),
        block_delta(3, json!({"type": "text_delta", "text": "look."})),
        block_delta(3, json!({"type": "citations_delta", "citation": {}})),
        block_start(4, json!({"type": "tool_use", "id": "a", "name": "shell", "input": {}})),
        block_delta(4, json!({"type": "input_json_delta", "partial_json": ""})),
        block_delta(4, json!({"type": "input_json_delta", "partial_json": "{\"command\":"})),
        block_delta(4, json!({"type": "input_json_delta", "partial_json": " \"ls\"}"})),
        block_start(5, json!({"type": "tool_use", "id": "b", "name": "list_files", "input": {}})),
        block_start(6, json!({"type": "tool_use", "id": "c", "name": "shell", "input": {"command": "w"}})),
        block_start(7, json!({"type": "server_tool_use", "id": "d"})),
        json!({"type": "yet_to_come", "index": 1}),
        message_delta("tool_use", json!({"output_tokens": 42})),
    ]);
    assert_eq!(fed.sink.0, ["thinking First ", "thinking ls.", "text I ", "text look."]);
    let answer = fed.into_answer();
    let shown = |text: &str, proof: &str| Thinking::Shown { text: text.into(), signature: Some(proof.into()) };
    let redacted = Thinking::Redacted { data: "ZW5j".into() };
    assert!(answer.message.thinking().eq(&[shown("First ls.", "proof"), redacted, shown("", "alone")]));
    let calls: Vec<_> = answer
        .message
        .calls()
        .map(|call| (call.id.as_deref().unwrap(), call.name.as_str(), call.arguments.as_str()))
        .collect();
    let expected =
        [("a", "shell", "{\"command\": \"ls\"}"), ("b", "list_files", ""), ("c", "shell", "{\"command\":\"w\"}")];
    assert_eq!(calls, expected);
    assert_eq!((answer.message.text().as_str(), answer.finish_reason), ("I look.", FinishReason::ToolCalls));
    assert_eq!(answer.usage, Some(Usage { input_tokens: 9, output_tokens: 42, cached_tokens: 0, estimated: false }));
}

#[test]
fn thinking_and_text_between_calls_keep_their_place() {
    let call = |index, id| {
        block_start(index, json!({"type": "tool_use", "id": id, "name": "shell", "input": {"command": id}}))
    };
    let thinks = |index, text| block_start(index, json!({"type": "thinking", "thinking": text, "signature": "proof"}));
    let answer = answer_from_events(&[
        message_start(Value::Null),
        thinks(0, "one"),
        block_start(1, json!({"type": "text", "text": "First."})),
        call(2, "a"),
        thinks(3, "two"),
        call(4, "b"),
        block_start(5, json!({"type": "text", "text": "Both."})),
        message_delta("tool_use", Value::Null),
    ]);
    let block_text = |block: &MessageBlock<RawCall>| match block {
        MessageBlock::Thinking(thinking) => thinking.readable_text().into_owned(),
        MessageBlock::Text { text } => text.clone(),
        MessageBlock::Call(call) => call.arguments.clone(),
    };
    let texts: Vec<String> = answer.message.blocks.iter().map(block_text).collect();
    assert_eq!(texts, ["one", "First.", r#"{"command":"a"}"#, "two", r#"{"command":"b"}"#, "Both."]);
}

#[rstest]
#[case("end_turn", FinishReason::Stop)]
#[case("stop_sequence", FinishReason::Stop)]
#[case("tool_use", FinishReason::ToolCalls)]
#[case("max_tokens", FinishReason::Length)]
#[case("model_context_window_exceeded", FinishReason::Length)]
#[case("refusal", FinishReason::ContentFilter)]
#[case("pause_turn", FinishReason::Paused)]
#[case("bored", FinishReason::Other("bored".to_owned()))]
fn every_reason_has_its_word(#[case] reason: &str, #[case] expected: FinishReason) {
    assert_eq!(
        answer_from_events(&[message_start(Value::Null), message_delta(reason, Value::Null)]).finish_reason,
        expected
    );
}

#[rstest]
#[case::at_both_ends(json!({"input_tokens": 7, "output_tokens": 1}), json!({"output_tokens": 5}), Some((7, 5)))]
#[case::with_the_cache(
    json!({"input_tokens": 7, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 300, "output_tokens": 1}),
    json!({"output_tokens": 5}),
    Some((327, 5))
)]
#[case::again_at_the_end(
    json!({"input_tokens": 7, "output_tokens": 1}),
    json!({"input_tokens": 7, "cache_read_input_tokens": 300, "output_tokens": 5}),
    Some((307, 5))
)]
#[case::zero_is_no_correction(
    json!({"input_tokens": 7, "output_tokens": 1}), json!({"input_tokens": 0, "output_tokens": 5}), Some((7, 5))
)]
#[case::only_at_the_end(json!({"input_tokens": 0, "output_tokens": 0}), json!({"input_tokens": 7, "output_tokens": 5}), Some((7, 5)))]
#[case::only_at_the_start(json!({"input_tokens": 7, "output_tokens": 1}), Value::Null, None)]
#[case::nowhere(Value::Null, Value::Null, None)]
fn both_ends_count(#[case] first: Value, #[case] last: Value, #[case] counted: Option<(u64, u64)>) {
    let cached = |usage: &Value| usage["cache_read_input_tokens"].as_u64();
    let cached_tokens = cached(&last).or(cached(&first)).unwrap_or_default();
    let usage = answer_from_events(&[message_start(first), message_delta("end_turn", last)]).usage;
    let expected = counted.map(|(input_tokens, output_tokens)| Usage {
        input_tokens,
        output_tokens,
        cached_tokens,
        estimated: false,
    });
    assert_eq!(usage, expected);
}

#[test]
fn the_count_of_a_beginning_is_an_estimate() {
    let fed = apply_events(&[message_start(json!({"input_tokens": 7, "output_tokens": 1}))]);
    assert_eq!(fed.partial.usage, Some(Usage { input_tokens: 7, output_tokens: 1, cached_tokens: 0, estimated: true }));
}

#[rstest]
#[case("overloaded_error", Some(529))]
#[case("api_error", Some(500))]
#[case("rate_limit_error", Some(429))]
#[case("invalid_request_error", Some(400))]
#[case("new_error", None)]
fn an_error_event_has_the_status_of_its_type(#[case] kind: &str, #[case] status: Option<u16>) {
    let data = json!({"type": "error", "error": {"type": kind, "message": "m"}}).to_string();
    let result = FedAnswer::default().apply(&AnthropicMessages, "error", &data);
    let Err(ResponseError::Reported(report)) = result else { panic!("{result:?}") };
    assert_eq!((report.status, report.message.as_str()), (status, "m"));
}

#[rstest]
#[case::no_json("hello")]
#[case::no_type("{}")]
#[case::other_dialect(r#"{"choices":[{"delta":{"content":"a"}}]}"#)]
#[case::no_delta(r#"{"type":"content_block_delta","index":0}"#)]
fn an_invalid_event_is_unreadable(#[case] data: &str) {
    let result = FedAnswer::default().apply(&AnthropicMessages, "", data);
    assert!(matches!(result, Err(ResponseError::Unreadable(_))), "{result:?}");
}

#[test]
fn a_whole_answer_is_taken_with_its_count() {
    let body = json!({"type": "message", "role": "assistant", "stop_reason": "tool_use", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "proof"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "shell", "input": {"command": "ls"}},
    ], "usage": {"input_tokens": 7, "output_tokens": 5}});
    let mut fed = FedAnswer::default();
    fed.apply_whole(&AnthropicMessages, &body.to_string()).unwrap();
    assert_eq!(fed.sink.0, ["thinking Hm.", "text I look."]);
    let answer = fed.into_answer();
    assert!(answer.message.thinking().all(Thinking::is_returnable));
    let call = answer.message.calls().next().unwrap();
    assert_eq!((call.arguments.as_str(), answer.finish_reason), (r#"{"command":"ls"}"#, FinishReason::ToolCalls));
    assert_eq!(answer.usage, Some(Usage { input_tokens: 7, output_tokens: 5, cached_tokens: 0, estimated: false }));
}

#[test]
fn an_endless_signature_is_refused() {
    let mut fed = FedAnswer::default();
    fed.partial.begin_signed_thinking();
    let data = block_delta(0, json!({"type": "signature_delta", "signature": "x".repeat(1024 * 1024)})).to_string();
    let refused = (0..17).find_map(|_| fed.apply(&AnthropicMessages, "", &data).err());
    assert!(matches!(refused, Some(ResponseError::Unreadable(_))), "{refused:?}");
}

#[test]
fn the_end_mark_ends_the_stream() {
    let end = json!({"type": "message_stop"}).to_string();
    assert_eq!(FedAnswer::default().apply(&AnthropicMessages, "message_stop", &end), Ok(StreamStatus::Done));
}
