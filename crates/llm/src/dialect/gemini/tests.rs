//! Events, bodies and requests of the Gemini dialect.

use quell_kernel::turn::{MessageBlock, Thinking};
use quell_protocol::{AgentId, RunId};
use rstest::rstest;

use super::*;
use crate::RawCall;
use crate::dialect::tests::FedAnswer;
use crate::tests::shell_tool;

fn parts_event(parts: Value) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}],
        "usageMetadata": {"promptTokenCount": 90, "totalTokenCount": 90}, "modelVersion": "gemini-x"})
}

fn end_event(reason: &str) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": reason}],
        "usageMetadata": {"promptTokenCount": 90, "cachedContentTokenCount": 64, "candidatesTokenCount": 12,
            "thoughtsTokenCount": 30, "totalTokenCount": 132}})
}

#[test]
fn signatures_stay_with_the_parts_that_they_came_on() {
    let fed = FedAnswer::from_events(
        &GeminiContent,
        &[
            parts_event(json!([{"text": "First ls.", "thought": true}])),
            parts_event(json!([{"text": "I "}, {"text": "look"}])),
            parts_event(json!([{"text": ".", "thoughtSignature": "c2ln"}, {"text": " Now."}])),
            parts_event(json!([
                {"functionCall": {"name": "shell", "args": {"command": "ls"}}, "thoughtSignature": "Y2FsbA=="},
                {"functionCall": {"id": "b", "name": "shell", "args": {}}},
                {"functionCall": {"id": "b", "name": "wait"}},
                {"executableCode": {"code": "1"}},
            ])),
            parts_event(json!([{"text": "", "thoughtSignature": "bG9zdA=="}])),
            end_event("STOP"),
        ],
    );
    assert_eq!(fed.sink.0, ["thinking First ls.", "text I ", "text look", "text .", "text  Now."]);
    let answer = fed.into_answer();
    let text = |text: &str| MessageBlock::Text { text: text.into() };
    let signature = |text: &str| MessageBlock::Thinking(Thinking::BlockSignature { signature: text.into() });
    let call = |id: Option<&str>, name: &str, arguments: &str| {
        MessageBlock::Call(RawCall { id: id.map(Into::into), name: name.into(), arguments: arguments.into() })
    };
    let expected = [
        MessageBlock::Thinking(Thinking::Shown { text: "First ls.".into(), signature: None }),
        text("I look"),
        signature("c2ln"),
        text("."),
        text(" Now."),
        signature("Y2FsbA=="),
        call(None, "shell", "{\"command\":\"ls\"}"),
        call(Some("b"), "shell", "{}"),
        call(Some("b"), "wait", ""),
    ];
    assert_eq!(answer.message.blocks, expected);
    assert_eq!(answer.finish_reason, FinishReason::ToolCalls);
    assert_eq!(answer.usage, Some(Usage { input_tokens: 90, output_tokens: 42, cached_tokens: 64, estimated: false }));
}

#[rstest]
#[case("STOP", FinishReason::Stop)]
#[case("MAX_TOKENS", FinishReason::Length)]
#[case("SAFETY", FinishReason::ContentFilter)]
#[case("PROHIBITED_CONTENT", FinishReason::ContentFilter)]
#[case("MALFORMED_FUNCTION_CALL", FinishReason::Other("MALFORMED_FUNCTION_CALL".into()))]
fn every_reason_has_its_word(#[case] reason: &str, #[case] expected: FinishReason) {
    assert_eq!(FedAnswer::from_events(&GeminiContent, &[end_event(reason)]).into_answer().finish_reason, expected);
}

#[test]
fn a_blocked_prompt_is_a_refusal() {
    let fed = FedAnswer::from_events(&GeminiContent, &[json!({"promptFeedback": {"blockReason": "SAFETY"}})]);
    assert!(fed.partial.has_begun);
    assert_eq!(fed.into_answer().finish_reason, FinishReason::ContentFilter);
}

#[rstest]
#[case::alone(r#"{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}"#)]
#[case::in_a_list(r#"[{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}]"#)]
fn an_error_body_gives_its_words_and_status(#[case] body: &str) {
    let report = GeminiContent.parse_error(body);
    assert_eq!((report.status, report.message.as_str()), (Some(429), "m"));
}

#[test]
fn an_error_inside_the_stream_is_reported() {
    let data = r#"{"error":{"code":503,"message":"m","status":"UNAVAILABLE"}}"#;
    let result = FedAnswer::default().apply(&GeminiContent, "", data);
    let Err(ResponseError::Reported(report)) = result else { panic!("{result:?}") };
    assert_eq!((report.status, report.message.as_str()), (Some(503), "m"));
}

#[rstest]
#[case::wrong_text(r#"{"candidates":[{"content":{"parts":[{"text":5}]}}]}"#)]
#[case::wrong_call(r#"{"candidates":[{"content":{"parts":[{"functionCall":"ls"}]}}]}"#)]
#[case::no_list(r#"{"candidates":{}}"#)]
fn an_invalid_event_is_unreadable(#[case] data: &str) {
    let result = FedAnswer::default().apply(&GeminiContent, "", data);
    assert!(matches!(result, Err(ResponseError::Unreadable(_))), "{result:?}");
}

#[test]
fn model_names_lose_their_collection() {
    let list = br#"{"models":[{"name":"models/gemini-2.5-pro"},{"name":"tunedModels/x"},{}]}"#;
    assert_eq!(GeminiContent.parse_model_list(list).unwrap(), ["gemini-2.5-pro", "tunedModels/x"]);
}

#[rstest]
#[case(ThinkingMode::Adaptive, -1, false)]
#[case(ThinkingMode::Tokens(2000), 2000, true)]
fn the_request_is_complete(#[case] thinking: ThinkingMode, #[case] budget: i64, #[case] web_search: bool) {
    let (run, agent, tools) = (RunId::parse("r").unwrap(), AgentId::parse("main").unwrap(), [shell_tool()]);
    let contents = vec![json!({"role": "user", "parts": [{"text": "hi"}]})];
    let conversation = Conversation { system: "Be brief.".into(), messages: contents, ..Conversation::default() };
    let request = ModelCallRequest {
        run: &run,
        agent: &agent,
        conversation: &conversation,
        tools: &tools,
        answer: &AnswerOptions { temperature: Some(0.5), max_tokens: Some(100), ..AnswerOptions::default() },
        thinking: Some(thinking),
        web_search,
    };
    let base_url = Url::parse("http://h/v1beta").unwrap();
    let encoded = GeminiContent.encode_request(&base_url, "gemini-x", &request).unwrap();
    let mut expected = json!({"contents": conversation.messages, "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": [{"name": "shell", "description": "Runs a command.",
            "parametersJsonSchema": {"type": "object"}}]}],
        "generationConfig": {"temperature": 0.5, "maxOutputTokens": 100,
            "thinkingConfig": {"includeThoughts": true, "thinkingBudget": budget}}});
    if web_search {
        expected["tools"].as_array_mut().unwrap().push(json!({"googleSearch": {}}));
        expected["toolConfig"] = json!({"includeServerSideToolInvocations": true});
    }
    assert_eq!(serde_json::from_str::<Value>(&encoded.body).unwrap(), expected);
}

#[test]
fn a_search_goes_back_and_its_pages_become_links() {
    let call = json!({"id": "ts_1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["rust"]}});
    let result = json!({"id": "ts_1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"search_suggestions": "x"}});
    let page = |n: u8| json!({"web": {"uri": format!("https://a.example/{n}"), "title": "a.example"}});
    let grounding = json!({"webSearchQueries": ["rust", "rust 2"], "groundingChunks": [page(1), page(1), page(2), {}]});
    let fed = FedAnswer::from_events(
        &GeminiContent,
        &[
            parts_event(json!([{"toolCall": call, "thoughtSignature": "c2ln"}, {"toolResponse": result}])),
            parts_event(json!([{"text": "It is safe."}])),
            json!({"candidates": [{"finishReason": "STOP", "groundingMetadata": grounding}]}),
        ],
    );
    let (answer, seen) = fed.into_answer_with_links();
    let links = "\n\n- [a.example](https://a.example/1)\n- [a.example](https://a.example/2)";
    assert_eq!(seen, ["search rust", "text It is safe.", "search rust 2", &format!("text {links}")]);
    let search = |part: Value| MessageBlock::Thinking(Thinking::WebSearch { part });
    let expected = [
        search(json!({"toolCall": call, "thoughtSignature": "c2ln"})),
        search(json!({"toolResponse": result})),
        MessageBlock::Text { text: "It is safe.".into() },
    ];
    assert_eq!(answer.message.blocks, expected);
    assert_eq!(answer.message.text(), format!("It is safe.{links}"));
}
