//! Events, bodies and requests of the Responses dialect.

use quell_kernel::turn::{MessageBlock, Thinking};
use quell_protocol::{AgentId, RunId, Usage};
use rstest::rstest;

use super::*;
use crate::RawCall;
use crate::dialect::tests::FedAnswer;
use crate::tests::shell_tool;

fn item_event(kind: &str, index: u64, item: Value) -> Value {
    json!({"type": format!("response.output_item.{kind}"), "output_index": index, "item": item})
}

fn end_event(status: &str, details: Value) -> Value {
    json!({"type": format!("response.{status}"), "response": {"status": status, "error": null,
        "incomplete_details": details, "output": [], "usage": {"input_tokens": 90,
        "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 42,
        "output_tokens_details": {"reasoning_tokens": 30}, "total_tokens": 132}}})
}

fn reasoning(id: &str, summary: Value, encrypted: &str) -> Value {
    json!({"type": "reasoning", "id": id, "summary": summary, "encrypted_content": encrypted})
}

fn call_item(id: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "shell", "arguments": arguments, "status": "x"})
}

#[test]
fn reasoning_text_and_parallel_calls_keep_their_order() {
    let arguments = |index: u64, delta: &str| json!({"type": "response.function_call_arguments.delta", "output_index": index, "delta": delta});
    let summary = json!([{"type": "summary_text", "text": "First ls."}, {"type": "summary_text", "text": "Then w."}]);
    let fed = FedAnswer::from_events(
        &OpenAiResponses,
        &[
            json!({"type": "response.created", "response": {"status": "in_progress", "error": null}}),
            item_event("added", 0, reasoning("rs_1", json!([]), "")),
            json!({"type": "response.reasoning_summary_part.added", "summary_index": 0}),
            json!({"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "First ls."}),
            json!({"type": "response.reasoning_summary_part.added", "summary_index": 1}),
            json!({"type": "response.reasoning_summary_text.delta", "summary_index": 1, "delta": "Then w."}),
            item_event("done", 0, reasoning("rs_1", summary, "ZW5j")),
            item_event("added", 1, json!({"type": "web_search_call", "id": "ws_1", "status": "in_progress"})),
            json!({"type": "response.web_search_call.searching", "output_index": 1}),
            item_event("done", 1, json!({"type": "web_search_call", "id": "ws_1", "status": "completed"})),
            item_event("added", 2, json!({"type": "message", "role": "assistant", "content": []})),
            json!({"type": "response.output_text.delta", "output_index": 2, "delta": "I "}),
            json!({"type": "response.output_text.delta", "output_index": 2, "delta": "look."}),
            item_event("done", 2, json!({"type": "message", "content": [{"type": "output_text", "text": "I look."}]})),
            item_event("added", 3, call_item("a", "")),
            item_event("added", 4, call_item("b", "")),
            arguments(4, "{\"command\":"),
            arguments(3, "{\"command\": \"ls\"}"),
            arguments(4, " \"w\"}"),
            item_event("done", 3, call_item("a", "{\"command\": \"ls\"}")),
            item_event("done", 4, call_item("b", "{\"command\": \"w\"}")),
            item_event("added", 5, call_item("c", "")),
            item_event("done", 5, call_item("c", "{\"command\": \"id\"}")),
            item_event("added", 6, reasoning("rs_2", json!([]), "")),
            item_event("done", 6, reasoning("rs_2", json!([]), "bW9yZQ==")),
            end_event("completed", Value::Null),
        ],
    );
    assert_eq!(fed.sink.0, ["thinking First ls.", "thinking \n\n", "thinking Then w.", "text I ", "text look."]);
    let answer = fed.into_answer();
    let call = |id: &str, command: &str| {
        let arguments = format!("{{\"command\": \"{command}\"}}");
        MessageBlock::Call(RawCall { id: Some(id.into()), name: "shell".into(), arguments })
    };
    let item = |id: &str, summary: &[&str], encrypted: &str| {
        let summary = summary.iter().map(ToString::to_string).collect();
        MessageBlock::Thinking(Thinking::Item { id: id.into(), summary, encrypted: encrypted.into() })
    };
    let expected = [
        item("rs_1", &["First ls.", "Then w."], "ZW5j"),
        MessageBlock::Thinking(Thinking::WebSearch {
            part: json!({"type": "web_search_call", "id": "ws_1", "status": "completed"}),
        }),
        MessageBlock::Text { text: "I look.".into() },
        call("a", "ls"),
        call("b", "w"),
        call("c", "id"),
        item("rs_2", &[], "bW9yZQ=="),
    ];
    assert_eq!(answer.message.blocks, expected);
    assert_eq!(answer.finish_reason, FinishReason::ToolCalls);
    assert_eq!(answer.usage, Some(Usage { input_tokens: 90, output_tokens: 42, cached_tokens: 64, estimated: false }));
}

#[rstest]
#[case("completed", Value::Null, FinishReason::Stop)]
#[case("incomplete", json!({"reason": "max_output_tokens"}), FinishReason::Length)]
#[case("incomplete", json!({"reason": "content_filter"}), FinishReason::ContentFilter)]
#[case("incomplete", json!({"reason": "bored"}), FinishReason::Other("bored".into()))]
fn every_reason_has_its_word(#[case] status: &str, #[case] details: Value, #[case] expected: FinishReason) {
    let refusal = json!({"type": "response.refusal.delta", "delta": "No."});
    let answer = FedAnswer::from_events(&OpenAiResponses, &[refusal, end_event(status, details)]).into_answer();
    assert_eq!((answer.message.text().as_str(), answer.finish_reason), ("No.", expected));
}

#[rstest]
#[case::failed(json!({"type": "response.failed", "response": {"status": "failed",
    "error": {"code": "server_error", "message": "m"}}}), Some(500))]
#[case::event(json!({"type": "error", "code": "rate_limit_exceeded", "message": "m", "param": null}), Some(429))]
#[case::nested(json!({"type": "error", "error": {"code": "invalid_prompt", "message": "m"}}), Some(400))]
#[case::unknown(json!({"type": "error", "code": "new_error", "message": "m"}), None)]
fn an_error_has_the_status_of_its_code(#[case] event: Value, #[case] status: Option<u16>) {
    let result = FedAnswer::default().apply(&OpenAiResponses, "", &event.to_string());
    let Err(ResponseError::Reported(report)) = result else { panic!("{result:?}") };
    assert_eq!((report.status, report.message.as_str()), (status, "m"));
}

#[rstest]
#[case::no_type("{}")]
#[case::other_dialect(r#"{"choices":[{"delta":{"content":"a"}}]}"#)]
#[case::wrong_type(r#"{"type":"response.output_text.delta","delta":5}"#)]
fn an_invalid_event_is_unreadable(#[case] data: &str) {
    let result = FedAnswer::default().apply(&OpenAiResponses, "", data);
    assert!(matches!(result, Err(ResponseError::Unreadable(_))), "{result:?}");
}

#[test]
fn a_whole_answer_is_taken_with_its_count() {
    let body = json!({"status": "completed", "error": null, "incomplete_details": null, "output": [
        reasoning("rs_1", json!([{"type": "summary_text", "text": "Hm."}]), "ZW5j"),
        {"type": "message", "content": [{"type": "output_text", "text": "I look."}]},
        call_item("a", "{}"),
    ], "usage": {"input_tokens": 7, "output_tokens": 5}});
    let mut fed = FedAnswer::default();
    fed.apply_whole(&OpenAiResponses, &body.to_string()).unwrap();
    assert_eq!(fed.sink.0, ["thinking Hm.", "text I look."]);
    let answer = fed.into_answer();
    assert!(answer.message.thinking().all(Thinking::is_returnable));
    assert_eq!(answer.message.calls().next().unwrap().arguments, "{}");
    assert_eq!(answer.usage, Some(Usage { input_tokens: 7, output_tokens: 5, cached_tokens: 0, estimated: false }));
}

#[rstest]
#[case("gpt-5", None, false, json!({"include": ["reasoning.encrypted_content"], "temperature": 0.5}))]
#[case("gpt-4.1", None, true, json!({"temperature": 0.5}))]
#[case("o3", Some(ThinkingMode::Tokens(8000)), false, json!({"include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"}}))]
fn the_request_is_complete(
    #[case] model: &str,
    #[case] thinking: Option<ThinkingMode>,
    #[case] web_search: bool,
    #[case] more: Value,
) {
    let (run, agent, tools) = (RunId::parse("r").unwrap(), AgentId::parse("main").unwrap(), [shell_tool()]);
    let items = vec![json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]})];
    let conversation = Conversation { system: "Be brief.".into(), messages: items, ..Conversation::default() };
    let request = ModelCallRequest {
        run: &run,
        agent: &agent,
        conversation: &conversation,
        tools: &tools,
        answer: &AnswerOptions { temperature: Some(0.5), max_tokens: Some(100), ..AnswerOptions::default() },
        thinking,
        web_search,
    };
    let base_url = Url::parse("http://h/v1").unwrap();
    let body: Value =
        serde_json::from_str(&OpenAiResponses.encode_request(&base_url, model, &request).unwrap().body).unwrap();
    let mut expected = json!({"model": model, "instructions": "Be brief.", "input": conversation.messages,
        "stream": true, "store": false, "parallel_tool_calls": true, "max_output_tokens": 100,
        "tools": [{"type": "function", "name": "shell", "description": "Runs a command.",
            "parameters": {"type": "object"}, "strict": false}]});
    expected.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    if web_search {
        expected["tools"].as_array_mut().unwrap().push(json!({"type": "web_search"}));
    }
    assert_eq!(body, expected);
}

#[test]
fn a_search_goes_back_and_its_pages_become_links() {
    let action = json!({"type": "search", "query": "rust", "queries": ["rust", "rust 2"]});
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action});
    let open = json!({"type": "web_search_call", "id": "ws_2", "status": "completed", "action": {"type": "open_page",
        "url": "https://a.example/1"}});
    let page = |n: u8| {
        json!({"type": "url_citation", "url": format!("https://a.example/{n}"), "title": "A (page)",
        "start_index": 0, "end_index": 2})
    };
    let file = json!({"type": "file_citation", "file_id": "f", "filename": "x", "index": 1});
    let message = json!({"type": "message", "content": [{"type": "output_text", "text": "It is safe.",
        "annotations": [page(1), file, page(2)]}]});
    let fed = FedAnswer::from_events(
        &OpenAiResponses,
        &[
            item_event("done", 0, search.clone()),
            item_event("done", 1, open.clone()),
            json!({"type": "response.output_text.delta", "output_index": 2, "delta": "It is safe."}),
            json!({"type": "response.output_text.annotation.added", "annotation": page(1)}),
            item_event("done", 2, message),
            end_event("completed", Value::Null),
        ],
    );
    let (answer, seen) = fed.into_answer_with_links();
    let links = "\n\n- [A page](https://a.example/1)\n- [A page](https://a.example/2)";
    assert_eq!(seen, ["search rust", "search rust 2", "text It is safe.", &format!("text {links}")]);
    let part = |part: Value| MessageBlock::Thinking(Thinking::WebSearch { part });
    assert_eq!(answer.message.blocks, [part(search), part(open), MessageBlock::Text { text: "It is safe.".into() }]);
    assert_eq!(answer.message.text(), format!("It is safe.{links}"));
}

/// The API refuses a search without the reasoning that led to it.
#[rstest]
#[case::kept("ZW5j", 2)]
#[case::lost("", 0)]
fn a_search_is_kept_with_its_reasoning_alone(#[case] encrypted: &str, #[case] kept: usize) {
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed"});
    let fed = FedAnswer::from_events(
        &OpenAiResponses,
        &[item_event("done", 0, reasoning("rs_1", json!([]), encrypted)), item_event("done", 1, search)],
    );
    assert_eq!(fed.into_answer().message.thinking().filter(|thinking| thinking.is_returnable()).count(), kept);
}
