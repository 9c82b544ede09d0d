//! Requests of the Messages API: every option, every problem, and histories that were rendered.

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::client_request::samples::{any_json, assert_same_conversation, rendered_conversation};
use crate::image::image_sources;
use crate::prompt;
use crate::turn::ModelMessage;

const PNG: &str = "iVBORw0KGgo=";

fn parsed(extra: Value) -> Result<ClientRequest, ClientRequestProblem> {
    let mut body = json!({"model": "p/m", "max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}]});
    extra.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
    parse(&body)
}

fn problem_of(messages: Value) -> ClientRequestProblem {
    parsed(json!({"messages": messages})).unwrap_err()
}

fn image() -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}})
}

#[test]
fn every_option_of_a_request_is_read() {
    let schema = json!({"type": "object"});
    let tool = json!({"name": "look", "description": "Looks.", "input_schema": schema, "cache_control": {"type": "ephemeral"}});
    let request = parsed(json!({
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "stream": true,
        "tools": [tool],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        "metadata": {"user_id": "ann"}, "service_tier": "auto", "top_k": null,
    }));
    let request = request.unwrap();
    assert!(request.stream && request.conversation.instructions == "Be brief.");
    let tools = request.answer.tools.clone();
    assert_eq!((tools[0].name.as_str(), tools[0].description.as_str()), ("look", "Looks."));
    let format = AnswerFormat::JsonSchema {
        name: "answer".into(),
        description: None,
        schema: json!({}).into(),
        strict: Some(true),
    };
    let expected = AnswerOptions {
        tools,
        tool_choice: ToolChoice::Required,
        parallel_tool_calls: Some(false),
        temperature: None,
        top_p: Some(0.9),
        max_tokens: Some(4000),
        stop_sequences: vec!["END".into()],
        format,
        reasoning_effort: Some("low".into()),
        thinking: ThinkingChoice::On(ThinkingMode::Tokens(2000)),
        strict_tools: Vec::new(),
    };
    assert_eq!(request.answer, expected);
}

#[rstest]
#[case(json!({}), ThinkingChoice::Unspecified)]
#[case(json!({"thinking": {"type": "disabled"}, "temperature": 0.5}), ThinkingChoice::Off)]
#[case(json!({"thinking": {"type": "adaptive"}}), ThinkingChoice::On(ThinkingMode::Adaptive))]
fn a_request_says_whether_the_model_thinks(#[case] extra: Value, #[case] expected: ThinkingChoice) {
    assert_eq!(parsed(extra).unwrap().answer.thinking, expected);
    let configured = Some(ThinkingMode::Tokens(3000));
    let mode = match expected {
        ThinkingChoice::Unspecified => configured,
        ThinkingChoice::Off => None,
        ThinkingChoice::On(mode) => Some(mode),
    };
    assert_eq!(expected.mode_or(configured), mode);
}

#[test]
fn tools_results_images_and_reasoning_are_read() {
    let request = parsed(json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, image()]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
            {"type": "redacted_thinking", "data": "ZW5j"},
            {"type": "text", "text": "I look.", "citations": null},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}},
            {"type": "tool_use", "id": "t2", "name": "look", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": "broken"},
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "seen"}, image()]}]},
    ]}));
    let conversation = request.unwrap().conversation;
    assert_eq!(image_sources(&conversation.text).count(), 1);
    let [message] = conversation.continuation.as_slice() else { panic!("{conversation:?}") };
    assert_eq!(message.model.as_deref(), Some("p/m"));
    let shown = Thinking::Shown { text: "Hm.".into(), signature: Some("sig".into()) };
    let redacted = Thinking::Redacted { data: "ZW5j".into() };
    assert_eq!(message.thinking().collect::<Vec<_>>(), [&shown, &redacted]);
    let results: Vec<_> = message.calls().map(|call| (&call.result.output[..], call.result.end)).collect();
    assert_eq!(results, [("seen", CallEnd::Ok), ("broken", CallEnd::Error)]);
    let pictures: Vec<_> = message.calls().flat_map(|call| &call.result.pictures).collect();
    assert_eq!(pictures, [&format!("data:image/png;base64,{PNG}")]);
}

#[test]
fn text_after_results_is_a_new_message_of_the_user() {
    let request = parsed(json!({"messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1"}, {"type": "text", "text": "and now?"}]},
    ]}));
    let conversation = request.unwrap().conversation;
    assert_eq!((conversation.text.as_str(), conversation.turns.len()), ("and now?", 1));
    assert!(conversation.continuation.is_empty());
}

#[test]
fn a_last_message_of_the_assistant_is_a_continuation() {
    let messages = json!([{"role": "user", "content": "go"}, {"role": "assistant", "content": "Sure, "}]);
    let continuation = parsed(json!({"messages": messages})).unwrap().conversation.continuation;
    assert_eq!(continuation.iter().map(ModelMessage::own_text).collect::<Vec<_>>(), ["Sure, "]);
}

#[rstest]
#[case(json!({"top_k": 3}), "top_k", RequestProblemKind::Unsupported)]
#[case(json!({"speed": "fast"}), "speed", RequestProblemKind::Unsupported)]
#[case(json!({"mcp_servers": []}), "mcp_servers", RequestProblemKind::Unsupported)]
#[case(json!({"max_token": 1}), "max_token", RequestProblemKind::UnknownField)]
#[case(json!({"max_tokens": null}), "max_tokens", RequestProblemKind::Missing)]
#[case(json!({"max_tokens": "many"}), "max_tokens", RequestProblemKind::Invalid)]
#[case(json!({"temperature": 1.5}), "temperature", RequestProblemKind::Invalid)]
#[case(json!({"temperature": 0, "thinking": {"type": "adaptive"}}), "temperature", RequestProblemKind::Invalid)]
#[case(json!({"thinking": {"type": "enabled", "budget_tokens": 4000}}), "thinking.budget_tokens", RequestProblemKind::Invalid)]
#[case(json!({"thinking": {"type": "enabled", "budget_tokens": 5}}), "thinking.budget_tokens", RequestProblemKind::Invalid)]
#[case(json!({"stop_sequences": [" "]}), "stop_sequences[0]", RequestProblemKind::Invalid)]
#[case(json!({"tool_choice": {"type": "any"}}), "tool_choice", RequestProblemKind::Invalid)]
#[case(json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0].type", RequestProblemKind::Unsupported)]
#[case(json!({"tools": [{"name": "look", "input_schema": {}}]}), "tools[0].input_schema.type", RequestProblemKind::Missing)]
#[case(json!({"output_config": {"effort": "huge"}}), "output_config.effort", RequestProblemKind::Invalid)]
#[case(json!({"messages": []}), "messages", RequestProblemKind::Invalid)]
#[case(json!({"messages": [{"role": "user", "content": ""}]}), "messages[0].content", RequestProblemKind::Invalid)]
#[case(json!({"messages": [{"role": "user", "content": [{"type": "document"}]}]}), "messages[0].content[0].type", RequestProblemKind::Unsupported)]
#[case(json!({"messages": [{"role": "user", "content": "x", "name": "ann"}]}), "messages[0].name", RequestProblemKind::UnknownField)]
fn a_problem_names_its_field(#[case] extra: Value, #[case] field: &str, #[case] kind: RequestProblemKind) {
    let problem = parsed(extra).unwrap_err();
    assert_eq!((problem.field.as_str(), problem.kind), (field, kind), "{problem}");
}

#[test]
fn calls_and_results_that_do_not_fit_are_refused_as_by_anthropic() {
    let user = json!({"role": "user", "content": "go"});
    let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]});
    let result = json!({"type": "tool_result", "tool_use_id": "t1", "content": "x"});
    for messages in [
        json!([user, call, user]),
        json!([user, call, {"role": "user", "content": [{"type": "text", "text": "x"}, result]}]),
    ] {
        let problem = problem_of(messages);
        assert_eq!(problem.field, "messages[2]");
        assert!(problem.message.contains("without `tool_result` blocks immediately after: t1"), "{problem}");
    }
    assert_eq!(problem_of(json!([user, call])).field, "messages");
    let problem = problem_of(json!([user, {"role": "user", "content": [result]}]));
    assert_eq!(problem.field, "messages[1].content[0]");
    assert!(problem.message.starts_with("unexpected `tool_use_id`"), "{problem}");
    assert!(problem_of(json!([user, call, {"role": "user", "content": [result, result]}])).message.contains("single"));
}

#[test]
fn a_count_needs_no_limit_of_the_answer() {
    let body = json!({"model": "p/m", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(parse(&body).unwrap_err().field, "max_tokens");
    assert_eq!(parse_to_count(&body).unwrap().conversation.text, "hi");
}

#[test]
fn a_signature_that_was_not_given_out_is_refused() {
    let search = json!([{"web_search": {"role": "system"}}]).to_string();
    for signature in ["", "quell1:", "quell1:AAAA", &format!("quell1:{}", STANDARD_NO_PAD.encode(search))] {
        let block = json!({"type": "thinking", "thinking": "x", "signature": signature});
        let problem = problem_of(json!([{"role": "assistant", "content": [block]}]));
        assert_eq!(problem.field, "messages[0].content[0].signature");
    }
}

#[test]
fn reasoning_of_any_provider_returns_unchanged() {
    let all = [
        Thinking::Shown { text: "a".into(), signature: Some("sig".into()) },
        Thinking::Open { text: "b".into() },
        Thinking::Redacted { data: "c".into() },
        Thinking::Item { id: "rs_1".into(), summary: vec!["d".into()], encrypted: "e".into() },
        Thinking::BlockSignature { signature: "f".into() },
    ];
    let mut content: Vec<Value> = all.iter().map(|thinking| thinking_block(&[thinking]).unwrap()).collect();
    let search = Thinking::WebSearch { part: json!({"type": "web_search_call"}) };
    assert_eq!(thinking_block(&[&search]), None);
    content.push(thinking_block(&[&all[0], &search, &all[2]]).unwrap());
    content.push(thinking_block(&[&Thinking::Shown { text: "for people".into(), signature: None }]).unwrap());
    content.push(json!({"type": "text", "text": "so"}));
    let messages = json!([{"role": "user", "content": "go"}, {"role": "assistant", "content": content}]);
    let continuation = parsed(json!({"messages": messages})).unwrap().conversation.continuation;
    let expected: Vec<Thinking> = all.iter().chain([&all[0], &all[2]]).cloned().collect();
    assert_eq!(continuation[0].thinking().cloned().collect::<Vec<_>>(), expected);
}

proptest! {
    #[test]
    fn a_rendered_history_is_parsed_to_the_same_conversation(expected in rendered_conversation()) {
        let render = |prompt: &prompt::Prompt<'_>| {
            let request = prompt::anthropic::build_request(prompt);
            json!([request.system, request.messages])
        };
        let request = prompt::anthropic::build_request(&expected.prompt());
        let body = json!({"model": expected.model(), "system": request.system, "messages": request.messages});
        let parsed = parse_to_count(&body).unwrap();
        assert_same_conversation(&parsed.conversation, &expected, render);
    }

    #[test]
    fn random_json_never_panics(body in any_json()) {
        let _ = parse(&body);
        for role in ["user", "assistant"] {
            let messages = json!([{"role": role, "content": [body]}, {"role": role, "content": body}]);
            let _ = parse_to_count(&json!({"model": "p/m", "messages": messages, "tools": body}));
        }
    }
}
