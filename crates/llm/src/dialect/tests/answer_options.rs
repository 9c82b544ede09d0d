//! The options of an answer in the request of each dialect.

use quell_kernel::ToolSpec;
use quell_kernel::client_request::{AnswerFormat, ThinkingChoice, ToolChoice};
use serde_json::json;

use super::*;
use crate::ThinkingMode;

/// The body of a request with two tools, without what the dialect sends in any case.
fn body(dialect: &dyn Dialect, answer: &AnswerOptions, thinking: Option<ThinkingMode>) -> Result<Value, EncodeError> {
    let (run, agent) = (RunId::parse("r").unwrap(), AgentId::parse("main").unwrap());
    let tool = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: "Does it.".to_owned(),
        parameters: json!({"type": "object"}).into(),
    };
    let request = ModelCallRequest {
        run: &run,
        agent: &agent,
        conversation: &Conversation::default(),
        tools: &[tool("look"), tool("act")],
        answer,
        thinking,
        web_search: false,
    };
    let encoded = dialect.encode_request(&Url::parse("http://h/v1").unwrap(), "m", &request)?;
    let mut body: Value = serde_json::from_str(&encoded.body).unwrap();
    let fields = body.as_object_mut().unwrap();
    for name in ["model", "messages", "input", "contents", "stream", "stream_options", "store", "include"] {
        fields.remove(name);
    }
    Ok(body)
}

fn all_options() -> AnswerOptions {
    AnswerOptions {
        tools: Vec::new(),
        tool_choice: ToolChoice::Named("look".into()),
        parallel_tool_calls: Some(false),
        temperature: Some(0.5),
        top_p: Some(0.9),
        max_tokens: Some(100),
        stop_sequences: vec!["END".into()],
        format: AnswerFormat::JsonSchema {
            name: "x".into(),
            description: Some("An x.".into()),
            schema: json!({"type": "object"}).into(),
            strict: Some(true),
        },
        reasoning_effort: Some("low".into()),
        thinking: ThinkingChoice::Unspecified,
        strict_tools: vec!["act".into()],
    }
}

fn unsupported_option(result: Result<Value, EncodeError>) -> &'static str {
    match result {
        Err(EncodeError::UnsupportedOption { option, .. }) => option,
        other => panic!("{other:?}"),
    }
}

#[test]
fn chat_completions_have_every_option() {
    let function = |name: &str, more: Value| {
        let mut function = json!({"name": name, "description": "Does it.", "parameters": {"type": "object"}});
        function.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"type": "function", "function": function})
    };
    let schema = json!({"name": "x", "description": "An x.", "schema": {"type": "object"}, "strict": true});
    let expected = json!({
        "tools": [function("look", json!({})), function("act", json!({"strict": true}))],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": false,
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 100, "stop": ["END"], "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": schema},
    });
    assert_eq!(body(&ChatCompletions::OPENAI, &all_options(), None).unwrap(), expected);
    let max = AnswerOptions { reasoning_effort: Some("max".into()), ..AnswerOptions::default() };
    assert_eq!(unsupported_option(body(&ChatCompletions::OPENAI, &max, None)), "reasoning_effort");
    let thinking = body(&ChatCompletions::OPENAI, &AnswerOptions::default(), Some(ThinkingMode::Tokens(8000)));
    assert_eq!(thinking.unwrap()["reasoning_effort"], "medium");
}

#[test]
fn responses_have_every_option_but_stop_sequences() {
    assert_eq!(unsupported_option(body(&OpenAiResponses, &all_options(), None)), "stop_sequences");
    let answer = AnswerOptions { stop_sequences: Vec::new(), ..all_options() };
    let seen = body(&OpenAiResponses, &answer, Some(ThinkingMode::Adaptive)).unwrap();
    let function = |name: &str, strict: bool| {
        json!({"type": "function", "name": name, "description": "Does it.",
        "parameters": {"type": "object"}, "strict": strict})
    };
    let expected = json!({
        "tools": [function("look", false), function("act", true)],
        "tool_choice": {"type": "function", "name": "look"},
        "parallel_tool_calls": false,
        "top_p": 0.9, "max_output_tokens": 100, "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "x", "description": "An x.", "schema": {"type": "object"},
            "strict": true}},
    });
    assert_eq!(seen, expected);
}

#[test]
fn anthropic_messages_have_every_option_but_json_without_a_schema() {
    let tool = |name: &str| json!({"name": name, "description": "Does it.", "input_schema": {"type": "object"}});
    let mut strict = tool("act");
    strict["strict"] = json!(true);
    let expected = json!({
        "tools": [tool("look"), strict],
        "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": true},
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 100, "stop_sequences": ["END"],
        "output_config": {"effort": "low",
            "format": {"type": "json_schema", "schema": {"type": "object", "description": "An x."}}},
    });
    assert_eq!(body(&AnthropicMessages, &all_options(), None).unwrap(), expected);
    let json = AnswerOptions { format: AnswerFormat::JsonObject, ..AnswerOptions::default() };
    assert_eq!(unsupported_option(body(&AnthropicMessages, &json, None)), "format");
    let minimal = AnswerOptions { reasoning_effort: Some("minimal".into()), ..AnswerOptions::default() };
    assert_eq!(unsupported_option(body(&AnthropicMessages, &minimal, None)), "reasoning_effort");
}

#[test]
fn gemini_has_every_option_but_one_call_at_a_time() {
    assert_eq!(unsupported_option(body(&GeminiContent, &all_options(), None)), "parallel_tool_calls");
    let answer = AnswerOptions { parallel_tool_calls: None, ..all_options() };
    let seen = body(&GeminiContent, &answer, Some(ThinkingMode::Adaptive)).unwrap();
    let function =
        |name: &str| json!({"name": name, "description": "Does it.", "parametersJsonSchema": {"type": "object"}});
    let expected = json!({
        "tools": [{"functionDeclarations": [function("look"), function("act")]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}},
        "generationConfig": {"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 100, "stopSequences": ["END"],
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object", "description": "An x."},
            "thinkingConfig": {"thinkingLevel": "low", "includeThoughts": true}},
    });
    assert_eq!(seen, expected);
    let huge = AnswerOptions { reasoning_effort: Some("xhigh".into()), ..AnswerOptions::default() };
    assert_eq!(unsupported_option(body(&GeminiContent, &huge, None)), "reasoning_effort");
}

#[rstest]
#[case(ToolChoice::Auto, [json!(null), json!(null), json!(null), json!(null)])]
#[case(ToolChoice::None, [json!("none"), json!("none"), json!({"type": "none"}), json!({"mode": "NONE"})])]
#[case(ToolChoice::Required, [json!("required"), json!("required"), json!({"type": "any"}), json!({"mode": "ANY"})])]
fn a_choice_of_tools_has_its_word_in_every_dialect(#[case] tool_choice: ToolChoice, #[case] expected: [Value; 4]) {
    let answer = AnswerOptions { tool_choice, ..AnswerOptions::default() };
    let [chat, responses, anthropic, gemini]: [&dyn Dialect; 4] =
        [&ChatCompletions::OPENAI, &OpenAiResponses, &AnthropicMessages, &GeminiContent];
    let [chat, responses, anthropic] =
        [chat, responses, anthropic].map(|dialect| body(dialect, &answer, None).unwrap()["tool_choice"].clone());
    let gemini = body(gemini, &answer, None).unwrap()["toolConfig"]["functionCallingConfig"].clone();
    assert_eq!([chat, responses, anthropic, gemini], expected);
}

#[test]
fn the_stop_sequence_that_ended_an_answer_is_known() {
    let events = [
        json!({"type": "message_start", "message": {"usage": {"input_tokens": 1}}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}}),
        json!({"type": "message_stop"}),
    ];
    let answer = FedAnswer::from_events(&AnthropicMessages, &events).into_answer();
    assert_eq!(answer.finish_reason, crate::FinishReason::StopSequence("END".into()));
}
