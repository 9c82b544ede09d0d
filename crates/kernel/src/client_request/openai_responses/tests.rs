//! Checks which requests are read, and which field is named in a refusal.

use quell_protocol::{CallId, StopReason, Verdict};
use rstest::rstest;
use serde_json::json;

use super::reasoning::{ReasoningPlace, decode_reasoning};
use super::*;
use crate::client_request::{AnswerFormat, ToolChoice};
use crate::turn::{MessageBlock, ModelMessage, Thinking, ToolCall, TurnItem};

fn parse(body: &Value) -> ResponsesRequest {
    ResponsesRequest::parse(body).unwrap()
}

fn problem(body: &Value) -> ClientRequestProblem {
    let parsed = ResponsesRequest::parse(body).and_then(|request| request.client_request(&[]));
    parsed.unwrap_err()
}

fn body(input: Value) -> Value {
    json!({"model": "p/m", "input": input})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn call(id: &str) -> Value {
    json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "look", "arguments": "{\"at\":1}"})
}

fn output(id: &str) -> Value {
    json!({"type": "function_call_output", "call_id": id, "output": "a cat"})
}

#[test]
fn a_text_is_a_message_with_the_defaults_of_the_api() {
    let request = parse(&body(json!("hello")));
    assert!(request.store && !request.background && !request.stream && request.item_references().is_empty());
    let whole = request.client_request(&[]).unwrap();
    assert_eq!((whole.conversation.text.as_str(), whole.conversation.turns.len()), ("hello", 0));
    assert_eq!(whole.answer, AnswerOptions::default());
}

#[test]
fn every_option_reaches_the_neutral_form() {
    let request = parse(&json!({
        "model": "p/m", "input": "hello", "instructions": "Be brief.", "stream": true, "background": true,
        "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.9, "parallel_tool_calls": false, "user": "ann",
        "tools": [{"type": "function", "name": "look", "description": "Looks.", "parameters": {}, "strict": true}],
        "tool_choice": {"type": "function", "name": "look"}, "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "cat", "schema": {"type": "object"}, "strict": true}},
        "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"], "truncation": "disabled",
        "previous_response_id": "resp_1", "top_logprobs": 0,
    }));
    assert!(request.stream && request.background && request.includes_encrypted_reasoning);
    assert_eq!((request.previous.as_deref(), request.metadata["a"].as_str()), (Some("resp_1"), Some("b")));
    let AnswerOptions { tools, tool_choice, max_tokens, temperature, top_p, .. } = &request.answer;
    assert_eq!((tools[0].name.as_str(), tools[0].description.as_str()), ("look", "Looks."));
    assert_eq!((tool_choice, *max_tokens), (&ToolChoice::Named("look".into()), Some(7)));
    assert_eq!((*temperature, *top_p, request.answer.parallel_tool_calls), (Some(0.5), Some(0.9), Some(false)));
    assert_eq!(request.answer.reasoning_effort.as_deref(), Some("low"));
    assert!(matches!(&request.answer.format, AnswerFormat::JsonSchema { name, .. } if name == "cat"));
    assert_eq!(request.client_request(&[]).unwrap().conversation.instructions, "Be brief.");
}

#[rstest]
#[case(json!({"tools": [{"type": "web_search"}]}), "tools[0].type")]
#[case(json!({"truncation": "auto"}), "truncation")]
#[case(json!({"prompt": {"id": "pmpt_1"}}), "prompt")]
#[case(json!({"max_tool_calls": 3}), "max_tool_calls")]
#[case(json!({"top_logprobs": 5}), "top_logprobs")]
#[case(json!({"include": ["message.output_text.logprobs"]}), "include[0]")]
#[case(json!({"text": {"verbosity": "low"}}), "text.verbosity")]
#[case(json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice.type")]
#[case(json!({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}), "input[0].content[0].type")]
#[case(json!({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}), "input[0].content[0].file_id")]
#[case(json!({"input": [{"type": "computer_call"}]}), "input[0].type")]
#[case(json!({"input": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}), "input[1]")]
fn what_the_neutral_form_lacks_is_named(#[case] change: Value, #[case] field: &str) {
    let mut request = body(json!("hello"));
    request.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let problem = problem(&request);
    assert_eq!((problem.kind, problem.field.as_str()), (RequestProblemKind::Unsupported, field));
}

#[test]
fn a_refused_input_is_told_both_its_forms() {
    let message = problem(&body(json!(7))).message;
    assert_eq!(message, "expected a string or an array, but got a number");
}

#[rstest]
#[case(json!({"input": []}), RequestProblemKind::Invalid, "input")]
#[case(json!({"input": 7}), RequestProblemKind::Invalid, "input")]
#[case(json!({"input": null}), RequestProblemKind::Missing, "input")]
#[case(json!({"model": 1}), RequestProblemKind::Invalid, "model")]
#[case(json!({"colour": 1}), RequestProblemKind::UnknownField, "colour")]
#[case(json!({"stream_options": {"include_usage": true}}), RequestProblemKind::UnknownField, "stream_options.include_usage")]
#[case(json!({"text": {"format": {"type": "text", "colour": 1}}}), RequestProblemKind::UnknownField, "text.format.colour")]
#[case(json!({"conversation": {"id": "c", "colour": 1}}), RequestProblemKind::UnknownField, "conversation.colour")]
#[case(json!({"input": [{"role": "user", "content": "a", "name": "Ann"}]}), RequestProblemKind::UnknownField, "input[0].name")]
#[case(json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "lang": "en"}]}]}), RequestProblemKind::UnknownField, "input[0].content[0].lang")]
#[case(json!({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "strict": true}]}), RequestProblemKind::UnknownField, "input[0].strict")]
#[case(json!({"input": [{"type": "function_call_output", "call_id": "c", "output": "", "end": 1}]}), RequestProblemKind::UnknownField, "input[0].end")]
#[case(json!({"temperature": 3}), RequestProblemKind::Invalid, "temperature")]
#[case(json!({"max_output_tokens": 0}), RequestProblemKind::Invalid, "max_output_tokens")]
#[case(json!({"background": true, "store": false}), RequestProblemKind::Invalid, "background")]
#[case(json!({"conversation": "c", "store": false}), RequestProblemKind::Invalid, "store")]
#[case(json!({"previous_response_id": "a", "conversation": "b"}), RequestProblemKind::Invalid, "previous_response_id")]
#[case(json!({"metadata": {"a": 1}}), RequestProblemKind::Invalid, "metadata.a")]
#[case(json!({"input": [{"role": "nobody", "content": "a"}]}), RequestProblemKind::Invalid, "input[0].role")]
#[case(json!({"input": [{"type": "item_reference", "id": "msg_1"}]}), RequestProblemKind::Invalid, "input[0]")]
fn bad_input_is_refused_by_its_field(#[case] change: Value, #[case] kind: RequestProblemKind, #[case] field: &str) {
    let mut request = body(json!("hello"));
    request.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let problem = problem(&request);
    assert_eq!((problem.kind, problem.field.as_str()), (kind, field));
}

#[test]
fn an_output_belongs_to_a_call_before_it() {
    assert_eq!(problem(&body(json!([user("a"), output("c1")]))).field, "input[1]");
    assert_eq!(problem(&body(json!([user("a"), call("c1"), output("c1"), output("c1")]))).field, "input[3]");
    let unanswered = problem(&body(json!([user("a"), call("c1"), user("b")])));
    assert!(unanswered.message.contains("no tool output found for function call c1"), "{unanswered}");
}

#[test]
fn stored_items_come_before_those_of_the_request() {
    let stored = parse(&body(json!([user("look"), {"role": "assistant", "content": "wait"}, call("c1")])));
    let request = parse(&body(json!([output("c1")])));
    assert!(request.client_request(&[]).is_err(), "without its call the output fits nowhere");
    let conversation = request.client_request(&stored.input).unwrap().conversation;
    assert_eq!(conversation.text, "look");
    let [message] = conversation.continuation.as_slice() else { panic!("{conversation:?}") };
    assert_eq!(message.own_text(), "wait");
    let answered = message.calls().next().unwrap();
    assert_eq!((&answered.call.id, &answered.call.arguments), (&CallId::parse("c1").unwrap(), &json!({"at": 1})));
    assert_eq!(answered.result.output, "a cat");
}

#[test]
fn references_are_listed_with_and_without_a_type() {
    let request = parse(&body(json!([user("a"), {"type": "item_reference", "id": "msg_1"}, {"id": "rs_2"}])));
    assert_eq!(request.item_references(), [(1, "msg_1".to_owned()), (2, "rs_2".to_owned())]);
}

#[test]
fn images_and_parts_keep_their_order() {
    let url = "https://example.org/cat.png";
    let content = json!([{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": url}]);
    let request = parse(&body(json!([{"role": "user", "content": content}])));
    let text = request.client_request(&[]).unwrap().conversation.text;
    assert_eq!(text, format!("see\n\n[IMAGE:{url}]"));
}

fn thinking_of(conversation: &crate::client_request::ClientConversation) -> Vec<Thinking> {
    let messages = conversation.continuation.iter().flat_map(|message| message.blocks.clone());
    messages
        .filter_map(|block| if let MessageBlock::Thinking(thinking) = block { Some(thinking) } else { None })
        .collect()
}

#[test]
fn reasoning_goes_back_to_its_model_and_to_no_other() {
    let thinking = Thinking::Shown { text: "hm".into(), signature: Some("sig".into()) };
    let encrypted = encode_reasoning("p/m", std::slice::from_ref(&thinking), ReasoningPlace::Leading).unwrap();
    let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted});
    // Its item comes after the text that it led to.
    let input = json!([user("a"), {"role": "assistant", "content": "so"}, reasoning, call("c1"), output("c1")]);
    let conversation = parse(&body(input.clone())).client_request(&[]).unwrap().conversation;
    assert_eq!(conversation.continuation[0].blocks[0], MessageBlock::Thinking(thinking));
    let other = json!({"model": "p/other", "input": input});
    assert_eq!(thinking_of(&parse(&other).client_request(&[]).unwrap().conversation), []);
}

#[test]
fn reasoning_of_the_api_itself_is_passed_on() {
    let summary = json!([{"type": "summary_text", "text": "hm"}]);
    let item = json!({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAA"});
    let request = parse(&body(json!([user("a"), item, call("c1"), output("c1")])));
    let expected = Thinking::Item { id: "rs_1".into(), summary: vec!["hm".into()], encrypted: "gAAA".into() };
    assert_eq!(thinking_of(&request.client_request(&[]).unwrap().conversation), [expected]);
}

#[test]
fn reasoning_is_sealed_where_it_stood() {
    let leading = Thinking::Redacted { data: "secret".into() };
    let signature = Thinking::BlockSignature { signature: "sig".into() };
    let unsigned = Thinking::Shown { text: "lost".into(), signature: None };
    let blocks = vec![
        MessageBlock::Thinking(unsigned),
        MessageBlock::Thinking(leading.clone()),
        MessageBlock::Text { text: "so".into() },
        MessageBlock::Thinking(signature.clone()),
        MessageBlock::Call(ToolCall::from_wire("c1", "look", json!({}))),
    ];
    let sealed = seal_blocks(ModelMessage { blocks, ..ModelMessage::default() });
    assert_eq!(sealed.leading, [leading]);
    assert_eq!(sealed.calls[0].0, std::slice::from_ref(&signature));
    let encoded = encode_reasoning("p/m", &sealed.calls[0].0, ReasoningPlace::Here).unwrap();
    let decoded = decode_reasoning(&encoded).unwrap();
    assert!(!decoded.is_leading && decoded.blocks == [signature]);
    assert_eq!(encode_reasoning("p/m", &[], ReasoningPlace::Here), None);
    assert_eq!(decode_reasoning("quell1.broken"), None);
}

#[test]
fn a_conversation_begins_with_items() {
    let (items, metadata) = parse_conversation(&json!({"items": [user("a")], "metadata": {"k": "v"}})).unwrap();
    assert_eq!((items[0]["type"].as_str(), metadata["k"].as_str()), (Some("message"), Some("v")));
    assert_eq!(parse_conversation(&json!({})).unwrap().0, Vec::<Value>::new());
    assert_eq!(parse_conversation(&json!({"items": [7]})).unwrap_err().field, "items[0]");
    let reference = json!({"items": [user("a"), {"id": "msg_1"}]});
    assert_eq!(parse_conversation(&reference).unwrap_err().field, "items[1]");
}

#[test]
fn earlier_turns_are_kept_apart() {
    let input = json!([user("one"), {"role": "assistant", "content": "two"}, user("three")]);
    let conversation = parse(&body(input)).client_request(&[]).unwrap().conversation;
    assert_eq!((conversation.turns.len(), conversation.text.as_str()), (1, "three"));
    assert!(matches!(&conversation.turns[0].items()[0], TurnItem::User { text, .. } if text == "one"));
}

fn ended(mut item: Value, verdict: Verdict, cut_bytes: usize) -> Value {
    IncompleteEnd { verdict, cut_bytes }.mark(&mut item);
    item
}

fn stopped() -> Verdict {
    Verdict::Aborted { reason: StopReason::User, by: None }
}

fn answer(text: &str) -> Value {
    json!({"type": "message", "role": "assistant", "status": "incomplete",
        "content": [{"type": "output_text", "text": text}]})
}

#[rstest]
#[case::all_of_it_was_cut_off("half", 4, &[], Some("half"))]
#[case::a_finished_step_stays("I look.\n\nhälf", 5, &["I look."], Some("hälf"))]
#[case::stopped_between_two_steps("I look.", 0, &["I look."], None)]
fn a_stopped_answer_is_no_finished_one(
    #[case] text: &str,
    #[case] cut_bytes: usize,
    #[case] finished: &[&str],
    #[case] cut: Option<&str>,
) {
    let history = [parse(&body(json!("work"))).input.remove(0), ended(answer(text), stopped(), cut_bytes)];
    for policy in [PartialPolicy::Discard, PartialPolicy::Keep] {
        let request = ResponsesRequest { partial: policy, ..parse(&body(json!("and now?"))) };
        let conversation = request.client_request(&history).unwrap().conversation;
        let [turn] = conversation.turns.as_slice() else { panic!("{conversation:#?}") };
        let texts: Vec<String> = turn.items()[1..]
            .iter()
            .map(|item| match item {
                TurnItem::Assistant(message) => message.own_text(),
                TurnItem::User { text, .. } => text.clone(),
            })
            .collect();
        assert_eq!(texts, finished);
        let partial = turn.partial().map(|partial| (partial.text.as_str(), partial.policy));
        assert_eq!(partial, cut.map(|text| (text, policy)));
        assert!(turn.note().unwrap().contains("stopped on purpose by the user"), "{:?}", turn.note());
        assert_eq!(conversation.text, "and now?");
    }
}

#[test]
fn a_stop_before_any_answer_leaves_the_request_with_a_note() {
    let history = [ended(parse(&body(json!("work"))).input.remove(0), stopped(), 0)];
    let conversation = parse(&body(json!("and now?"))).client_request(&history).unwrap().conversation;
    assert_eq!((conversation.turns.len(), conversation.text.as_str()), (1, "and now?"));
    assert!(conversation.turns[0].note().is_some());
    // Only stored items say how a response ended: a client cannot say it.
    let input = json!([ended(user("work"), stopped(), 0), user("and now?")]);
    assert_eq!(problem(&body(input)).field, "input[0].quell_end");
}
