//! Events of the OpenAI dialect, with the habits of its servers.

use quell_protocol::Usage;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::ModelAnswer;
use crate::dialect::tests::FedAnswer;

fn apply_chunks(chunks: &[Value]) -> (Vec<String>, ModelAnswer) {
    let fed = FedAnswer::from_events(&ChatCompletions::OPENAI, chunks);
    (fed.sink.0, fed.partial.into_answer())
}

#[rstest]
#[case::text(json!({"content": "a"}), &["text a"])]
#[case::nothing(json!({"role": "assistant", "content": null, "tool_calls": null}), &[])]
#[case::empty(json!({"content": ""}), &[])]
#[case::deepseek(json!({"content": null, "reasoning_content": "t"}), &["thinking t"])]
#[case::openrouter(json!({"content": "", "reasoning": "t"}), &["thinking t"])]
#[case::both_names(json!({"reasoning_content": "t", "reasoning": "t"}), &["thinking t"])]
#[case::mistral(
    json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, {"type": "text", "text": "a"}]}),
    &["thinking t", "text a"]
)]
#[case::plain_thinking_part(json!({"content": [{"type": "thinking", "thinking": "t"}]}), &["thinking t"])]
#[case::refusal(json!({"refusal": "no"}), &["text no"])]
#[case::unknown_fields(json!({"content": "a", "audio": {"x": [1]}, "reasoning": {"odd": 1}}), &["text a"])]
fn pieces_are_told_as_they_are_meant(#[case] delta: Value, #[case] expected: &[&str]) {
    let (deltas, _) = apply_chunks(&[json!({"choices": [{"index": 0, "delta": delta}]})]);
    assert_eq!(deltas, expected);
}

#[rstest]
#[case("stop", FinishReason::Stop)]
#[case("length", FinishReason::Length)]
#[case("tool_calls", FinishReason::ToolCalls)]
#[case("function_call", FinishReason::ToolCalls)]
#[case("content_filter", FinishReason::ContentFilter)]
#[case("eos", FinishReason::Other("eos".to_owned()))]
fn every_reason_has_its_word(#[case] reason: &str, #[case] expected: FinishReason) {
    let (_, answer) = apply_chunks(&[json!({"choices": [{"delta": {}, "finish_reason": reason}]})]);
    assert_eq!(answer.finish_reason, expected);
}

#[test]
fn without_a_reason_the_calls_tell_it() {
    let call = json!({"id": "a", "function": {"name": "x", "arguments": {"k": 1}}});
    let (_, answer) = apply_chunks(&[json!({"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": null}]})]);
    assert_eq!(answer.finish_reason, FinishReason::ToolCalls);
    assert_eq!(
        answer.message.calls().next().unwrap().arguments,
        r#"{"k":1}"#,
        "arguments that come as an object become text"
    );
}

#[test]
fn the_last_count_is_the_right_one_and_other_choices_are_not_ours() {
    let count = |output: u64| json!({"prompt_tokens": 9, "completion_tokens": output});
    let (deltas, answer) = apply_chunks(&[
        json!({"choices": [{"delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}], "usage": count(1)}),
        json!({"choices": [], "usage": count(2)}),
        json!({"choices": [], "usage": null}),
    ]);
    assert_eq!(deltas, ["text a"]);
    assert_eq!(answer.usage, Some(Usage { input_tokens: 9, output_tokens: 2, cached_tokens: 0, estimated: false }));
}

#[test]
fn an_endless_answer_is_refused() {
    let mut fed = FedAnswer::default();
    let data = json!({"choices": [{"delta": {"content": "x".repeat(1024 * 1024)}}]}).to_string();
    let refused = (0..17).find_map(|_| fed.apply(&ChatCompletions::OPENAI, "", &data).err());
    assert!(matches!(refused, Some(ResponseError::Unreadable(_))), "{refused:?}");
    assert_eq!(fed.sink.0.len(), 16);
}
