//! Requests of chat completions: every option, every problem, and histories that were rendered.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::client_request::ThinkingChoice;
use crate::client_request::samples::{any_json, assert_same_conversation, rendered_conversation};
use crate::prompt;

fn parsed(extra: Value) -> Result<ClientRequest, ClientRequestProblem> {
    let mut body = json!({"model": "p/m", "messages": [{"role": "user", "content": "hi"}]});
    extra.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
    parse(&body)
}

fn problem_of(messages: Value) -> (String, String) {
    let problem = parsed(json!({"messages": messages})).unwrap_err();
    (problem.field, problem.message)
}

#[test]
fn every_option_of_a_request_is_read() {
    let schema = json!({"type": "object", "properties": {}});
    let tool = json!({"name": "look", "description": "Looks.", "parameters": schema, "strict": true});
    let request = parsed(json!({
        "stream": true,
        "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": tool}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": false,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 100,
        "stop": ["END", "\n"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": true}},
        "reasoning_effort": "low",
        "user": "ann", "n": 1, "frequency_penalty": 0, "logprobs": false, "seed": null,
    }));
    let request = request.unwrap();
    assert!(request.stream && request.model == "p/m" && request.conversation.text == "hi");
    let AnswerOptions { tools, .. } = &request.answer;
    assert_eq!((tools[0].name.as_str(), &*tools[0].parameters), ("look", &schema));
    let format =
        AnswerFormat::JsonSchema { name: "x".into(), description: None, schema: json!({}).into(), strict: Some(true) };
    let expected = AnswerOptions {
        tools: tools.clone(),
        tool_choice: ToolChoice::Named("look".into()),
        parallel_tool_calls: Some(false),
        temperature: Some(0.5),
        top_p: Some(0.9),
        max_tokens: Some(100),
        stop_sequences: vec!["END".into(), "\n".into()],
        format,
        reasoning_effort: Some("low".into()),
        thinking: ThinkingChoice::Unspecified,
        strict_tools: vec!["look".into()],
    };
    assert_eq!(request.answer, expected);
}

#[rstest]
#[case(json!({"n": 2}), "n", RequestProblemKind::Unsupported)]
#[case(json!({"logprobs": true}), "logprobs", RequestProblemKind::Unsupported)]
#[case(json!({"logit_bias": {"50256": -100}}), "logit_bias", RequestProblemKind::Unsupported)]
#[case(json!({"seed": 1}), "seed", RequestProblemKind::Unsupported)]
#[case(json!({"modalities": ["text", "audio"]}), "modalities", RequestProblemKind::Unsupported)]
#[case(json!({"functions": []}), "functions", RequestProblemKind::Unsupported)]
#[case(json!({"web_search_options": {}}), "web_search_options", RequestProblemKind::Unsupported)]
#[case(json!({"temprature": 1}), "temprature", RequestProblemKind::UnknownField)]
#[case(json!({"temperature": "warm"}), "temperature", RequestProblemKind::Invalid)]
#[case(json!({"temperature": 2.5}), "temperature", RequestProblemKind::Invalid)]
#[case(json!({"max_tokens": 0}), "max_tokens", RequestProblemKind::Invalid)]
#[case(json!({"max_tokens": 1, "max_completion_tokens": 1}), "max_tokens", RequestProblemKind::Invalid)]
#[case(json!({"stop": ["a", "b", "c", "d", "e"]}), "stop", RequestProblemKind::Invalid)]
#[case(json!({"stream_options": {"include_usage": true}}), "stream_options", RequestProblemKind::Invalid)]
#[case(json!({"tool_choice": "auto"}), "tool_choice", RequestProblemKind::Invalid)]
#[case(json!({"tools": [{"type": "custom"}]}), "tools[0].type", RequestProblemKind::Unsupported)]
#[case(json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}), "tools[0].function.name", RequestProblemKind::Invalid)]
#[case(json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strct": true}}}), "response_format.json_schema.strct", RequestProblemKind::UnknownField)]
#[case(json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "lang": "en"}]}]}), "messages[0].content[0].lang", RequestProblemKind::UnknownField)]
#[case(json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}, "size": 1}]}]}), "messages[0].content[0].size", RequestProblemKind::UnknownField)]
#[case(json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "", "strict": true}}]}]}), "messages[0].tool_calls[0].function.strict", RequestProblemKind::UnknownField)]
#[case(json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "function", "function": {"name": "f", "args": 1}}}), "tool_choice.function.args", RequestProblemKind::UnknownField)]
#[case(json!({"messages": []}), "messages", RequestProblemKind::Invalid)]
#[case(json!({"messages": null}), "messages", RequestProblemKind::Missing)]
#[case(json!({"messages": [{"role": "user"}]}), "messages[0].content", RequestProblemKind::Missing)]
#[case(json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages[0].role", RequestProblemKind::Invalid)]
#[case(json!({"messages": [{"role": "assistant"}]}), "messages[0]", RequestProblemKind::Missing)]
#[case(json!({"messages": [{"role": "user", "content": [{"type": "file"}]}]}), "messages[0].content[0].type", RequestProblemKind::Unsupported)]
fn a_problem_names_its_field(#[case] extra: Value, #[case] field: &str, #[case] kind: RequestProblemKind) {
    let problem = parsed(extra).unwrap_err();
    assert_eq!((problem.field.as_str(), problem.kind), (field, kind), "{problem}");
}

/// As libraries do: with the number of a call in the stream, and with what they have parsed.
#[test]
fn what_libraries_add_to_an_answer_is_ignored() {
    let function = json!({"name": "look", "arguments": "{}", "parsed_arguments": {"a": 1}});
    let call = json!({"id": "c1", "type": "function", "index": 0, "function": function});
    let text = json!([{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]);
    let messages = json!([
        {"role": "user", "content": text},
        {"role": "assistant", "content": null, "refusal": null, "parsed": {"a": 1}, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]);
    let conversation = parsed(json!({"messages": messages})).unwrap().conversation;
    assert_eq!((conversation.text.as_str(), conversation.continuation.len()), ("go", 1));
}

#[test]
fn calls_and_results_that_do_not_fit_are_refused_as_by_openai() {
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]});
    let user = json!({"role": "user", "content": "go"});
    let (field, message) = problem_of(json!([user, call, user]));
    assert_eq!(field, "messages[2]");
    assert!(message.ends_with("did not have response messages: c1"), "{message}");
    let (field, _) = problem_of(json!([user, call]));
    assert_eq!(field, "messages");
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "x"});
    let (field, _) = problem_of(json!([user, result]));
    assert_eq!(field, "messages[1].tool_call_id");
    let (field, message) = problem_of(json!([user, call, result, result]));
    assert_eq!(
        (field.as_str(), message.as_str()),
        ("messages[3].tool_call_id", "the tool call has a response already")
    );
    let (field, _) = problem_of(json!([user, {"role": "system", "content": "late"}]));
    assert_eq!(field, "messages[1].role");
}

#[test]
fn arguments_that_are_no_json_stay_as_they_are() {
    assert_eq!(parse_arguments(" "), json!({}));
    assert_eq!(parse_arguments("{\"a\": 1}"), json!({"a": 1}));
    assert_eq!(parse_arguments("{\"a\": "), json!("{\"a\": "));
}

proptest! {
    #[test]
    fn a_rendered_history_is_parsed_to_the_same_conversation(expected in rendered_conversation()) {
        let messages = prompt::openai::build_messages(&expected.prompt());
        let body = json!({"model": expected.model(), "messages": messages});
        let parsed = parse(&body).unwrap();
        assert_same_conversation(&parsed.conversation, &expected, |prompt| json!(prompt::openai::build_messages(prompt)));
    }

    #[test]
    fn random_json_never_panics(body in any_json()) {
        let _ = parse(&body);
        let _ = parse(&json!({"model": "p/m", "messages": body}));
        let _ = parse(&json!({"model": "p/m", "messages": [{"role": "assistant", "tool_calls": body, "content": body}]}));
    }
}
