//! Answers as events and whole, in the form of Anthropic's messages.

use quell_engine::engine::ClientAnswer;
use quell_protocol::{CallEnd, StopReason};

use super::*;

fn outcome(end: AnswerEnd, calls: Vec<ToolCall>) -> AnswerOutcome {
    let usage = Usage { input_tokens: 100, output_tokens: 7, cached_tokens: 60, estimated: false };
    let answer = Some(ClientAnswer { end, calls, model: "p/m".into() });
    AnswerOutcome { verdict: Verdict::Completed, answer, usage }
}

fn answer(reasoning: Reasoning) -> AnthropicAnswer {
    let mut answer = AnthropicAnswer::new("p/m", reasoning);
    answer.set_run(&RunId::parse("r1").unwrap());
    answer
}

/// The events without those at the beginning and the end, in short form: index and what happened.
fn blocks(frames: &str) -> Vec<String> {
    let events = frames.split("\n\n").filter(|frame| !frame.is_empty()).map(|frame| {
        let (name, data) = frame.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"], name.strip_prefix("event: ").unwrap(), "the name of an event is its type");
        data
    });
    let short = |event: Value| {
        let index = event["index"].as_u64();
        let text =
            |value: &Value| value.as_object().unwrap().values().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
        Some(match event["type"].as_str()? {
            "content_block_start" => format!("{} start {}", index?, event["content_block"]["type"].as_str()?),
            "content_block_delta" => {
                let mut delta = event["delta"].clone();
                delta.as_object_mut()?.remove("type");
                format!("{} {}", index?, text(&delta))
            }
            "content_block_stop" => format!("{} stop", index?),
            _ => return None,
        })
    };
    events.filter_map(short).collect()
}

fn call() -> ToolCall {
    ToolCall::from_wire("t1", "look", json!({"at": 1}))
}

fn message(blocks: Vec<MessageBlock<AnsweredCall>>) -> ModelMessage<AnsweredCall> {
    ModelMessage { blocks, ..ModelMessage::default() }
}

fn signed(text: &str) -> Thinking {
    Thinking::Shown { text: text.into(), signature: Some(format!("sig of {text}")) }
}

#[test]
fn an_answer_begins_and_ends_as_anthropic_writes_it() {
    let (mut answer, mut frames) = (answer(Reasoning::Signed), String::new());
    answer.write_text("Hel", &mut frames);
    answer.write_text("lo", &mut frames);
    assert!(answer.write_end(&outcome(AnswerEnd::StopSequence(Some("END".into())), Vec::new()), None, &mut frames));
    let events: Vec<(&str, Value)> = frames
        .split("\n\n")
        .filter_map(|frame| frame.split_once("\ndata: "))
        .map(|(name, data)| (name, serde_json::from_str(data).unwrap()))
        .collect();
    let usage = |input: u64, cached: u64, output: u64| {
        json!({"input_tokens": input, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached, "output_tokens": output})
    };
    let start = json!({"type": "message_start", "message": {"id": "msg_r1", "type": "message", "role": "assistant",
        "model": "p/m", "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage(0, 0, 0)}});
    assert_eq!(events[0], ("event: message_start", start));
    let end = json!({"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"},
        "usage": usage(40, 60, 7)});
    assert_eq!(events[events.len() - 2], ("event: message_delta", end));
    assert_eq!(blocks(&frames), ["0 start text", "0 Hel", "0 lo", "0 stop"]);
    assert!(frames.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
}

#[test]
fn signed_reasoning_stays_open_until_its_signature_is_known() {
    let (mut answer, mut frames) = (answer(Reasoning::Signed), String::new());
    answer.write_thinking("Hm.", &mut frames);
    answer.write_text("I look.", &mut frames);
    answer.write_thinking("Now.", &mut frames);
    let blocks_of_model = vec![
        MessageBlock::Thinking(signed("Hm.")),
        MessageBlock::Text { text: "I look.".into() },
        MessageBlock::Thinking(signed("Now.")),
    ];
    answer.write_end(&outcome(AnswerEnd::Calls, vec![call()]), Some(&message(blocks_of_model)), &mut frames);
    let expected = [
        "0 start thinking",
        "0 Hm.",
        "1 start text",
        "1 I look.",
        "1 stop",
        "2 start thinking",
        "2 Now.",
        "0 sig of Hm.",
        "0 stop",
        "2 sig of Now.",
        "2 stop",
        "3 start tool_use",
        "3 {\"at\":1}",
        "3 stop",
    ];
    assert_eq!(blocks(&frames), expected);
}

#[test]
fn hidden_reasoning_comes_before_the_calls() {
    let (mut answer, mut frames) = (answer(Reasoning::Signed), String::new());
    answer.write_text("I look.", &mut frames);
    let redacted = MessageBlock::Thinking(Thinking::Redacted { data: "ZW5j".into() });
    answer.write_end(&outcome(AnswerEnd::Calls, vec![call()]), Some(&message(vec![redacted])), &mut frames);
    let expected = [
        "0 start text",
        "0 I look.",
        "0 stop",
        "1 start redacted_thinking",
        "1 stop",
        "2 start tool_use",
        "2 {\"at\":1}",
        "2 stop",
    ];
    assert_eq!(blocks(&frames), expected);
}

#[test]
fn reasoning_of_an_agent_is_closed_at_once() {
    let (mut answer, mut frames) = (answer(Reasoning::Unsigned), String::new());
    answer.write_thinking("Hm.", &mut frames);
    answer.write_text("Hi.", &mut frames);
    answer.write_waiting(&mut frames);
    answer.write_end(&outcome(AnswerEnd::Done, Vec::new()), None, &mut frames);
    let expected = ["0 start thinking", "0 Hm.", &format!("0 {UNSIGNED}"), "0 stop", "1 start text", "1 Hi.", "1 stop"];
    assert_eq!(blocks(&frames), expected);
    assert!(frames.contains("event: ping\ndata: {\"type\":\"ping\"}\n\n"));
}

#[test]
fn a_whole_answer_keeps_the_order_of_the_model() {
    let result = quell_kernel::turn::CallResult::new(CallEnd::Ok, "x");
    let message = message(vec![
        MessageBlock::Thinking(signed("Hm.")),
        MessageBlock::Text { text: "I look.".into() },
        MessageBlock::Text { text: "\n".into() },
        MessageBlock::Call(AnsweredCall { call: call(), result, synthetic: None }),
    ]);
    let whole = answer(Reasoning::Signed).whole("I look.\n", &outcome(AnswerEnd::Calls, vec![call()]), Some(&message));
    let whole = whole.unwrap();
    let content = json!([
        {"type": "thinking", "thinking": "Hm.", "signature": "sig of Hm."},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}},
    ]);
    assert_eq!((&whole["content"], &whole["stop_reason"]), (&content, &json!("tool_use")));
    assert_eq!(whole["usage"]["cache_read_input_tokens"], 60);
}

#[test]
fn a_run_without_an_answer_has_no_stop_reason() {
    let stopped = Verdict::Aborted { reason: StopReason::User, by: None };
    let none = AnswerOutcome { verdict: stopped, answer: None, usage: Usage::default() };
    let mut frames = String::new();
    assert!(!answer(Reasoning::Signed).write_end(&none, None, &mut frames));
    assert_eq!((frames.as_str(), stop_words(&none)), ("", None));
    let failed = |code: &str| AnswerOutcome {
        verdict: Verdict::Failed { code: code.into(), message: "x".into() },
        answer: None,
        usage: Usage::default(),
    };
    assert_eq!(stop_words(&failed("truncated")).map(|words| words.reason), Some("max_tokens"));
    assert_eq!(stop_words(&failed(CODE_REFUSED)).map(|words| words.reason), Some("refusal"));
    assert_eq!(stop_words(&failed("unreachable")), None);
}
