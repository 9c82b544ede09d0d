//! Complete answers.

use rstest::rstest;

use super::super::fake_server::{
    FakeModelServer, FakeServerStep, event_step, finish_step, one_word_answer, plain_response, stream_head, text_step,
    usage_step,
};
use super::*;

#[tokio::test]
async fn an_answer_streams_is_counted_and_gives_everything_back() {
    let mut script = vec![stream_head(), event_step(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#)];
    script.extend([
        event_step(r#"{"choices":[{"delta":{"reasoning_content":"Hm."}}]}"#),
        text_step("Hel"),
        text_step("lo 안녕"),
    ]);
    script.extend([finish_step("stop"), usage_step(12, 3), event_step("[DONE]"), FakeServerStep::Close]);
    let (_fake, fixture) = ModelCallFixture::start(vec![script]).await;
    let (answer, sink) = fixture.answer().await;

    let usage = Usage { input_tokens: 12, output_tokens: 3, cached_tokens: 0, estimated: false };
    let expected = ModelAnswer {
        message: ModelMessage::new(vec![Thinking::Open { text: "Hm.".to_owned() }], "Hello 안녕", Vec::new()),
        usage: Some(usage),
        finish_reason: FinishReason::Stop,
    };
    assert_eq!(answer, expected);
    assert_eq!((sink.text.as_str(), sink.thinking.as_str()), ("Hello 안녕", "Hm."));
    assert_eq!((sink.usages, sink.inputs.len()), (vec![usage], 1));
    assert_eq!(fixture.ledger(), [(ResourceKind::ModelRequest, "p/m/1 (attempt 1)".to_owned(), Release::Finished)]);
    assert!(fixture.is_idle());
}

#[tokio::test]
async fn the_request_is_what_the_dialect_says() {
    let fake = FakeModelServer::start(vec![one_word_answer("ok")]).await;
    let mut fixture = ModelCallFixture::with(fake.base_url(), |config| {
        config.api_key = Some("sk-secret".to_owned().into());
        config.headers.insert("X-Team".to_owned(), "blue".to_owned());
    });
    fixture.tools = vec![shell_tool()];
    fixture.answer().await;
    let (head, body) = fake.requests().remove(0);
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{head}");
    for header in ["authorization: Bearer sk-secret", "x-team: blue", "accept: text/event-stream"] {
        assert!(head.contains(header), "{head}");
    }
    let function = json!({"name": "shell", "description": "Runs a command.", "parameters": {"type": "object"}});
    let expected = json!({
        "model": "m/1",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": true,
        "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": function}],
        "temperature": 0.5,
        "max_tokens": 100,
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn the_first_piece_is_told_while_the_server_keeps_silent() {
    let script =
        vec![stream_head(), text_step("first"), FakeServerStep::Gate, finish_step("stop"), FakeServerStep::Close];
    let (fake, fixture) = ModelCallFixture::start(vec![script]).await;
    let mut sink = RecordingSink::default();
    let mut pieces = sink.pieces.subscribe();
    let (answer, ()) = tokio::join!(fixture.call(&mut sink), async {
        let seen = pieces.wait_for(|count| *count == 1).await.map(|count| *count);
        assert_eq!(seen.ok(), Some(1));
        assert_eq!(fixture.models.active_requests().count(), 1);
        fake.open_gate();
    });
    assert_eq!(answer.unwrap().message.text(), "first");
}

/// Once the model has said why it stopped, or the end mark has come, a server may end the connection in any way.
#[rstest]
#[case::by_the_book(vec![text_step("a"), finish_step("stop"), event_step("[DONE]"), FakeServerStep::Close])]
#[case::no_end_mark(vec![text_step("a"), finish_step("stop"), FakeServerStep::Close])]
#[case::no_reason(vec![text_step("a"), event_step("[DONE]"), FakeServerStep::Close])]
#[case::stays_open_after_the_mark(vec![text_step("a"), event_step("[DONE]")])]
#[case::stays_open_without_a_mark(vec![text_step("a"), finish_step("stop")])]
#[case::no_blank_line_after_the_mark(vec![text_step("a"), FakeServerStep::Send(b"data: [DONE]".to_vec()), FakeServerStep::Close])]
#[case::no_blank_line_after_the_reason(
    vec![text_step("a"), FakeServerStep::Send(br#"data: {"choices":[{"finish_reason":"stop"}]}"#.to_vec()), FakeServerStep::Close]
)]
#[case::torn_count(vec![text_step("a"), finish_step("stop"), FakeServerStep::Send(b"data: {\"usa".to_vec()), FakeServerStep::Close])]
#[case::comments(vec![FakeServerStep::Send(b": wait\n\n".to_vec()), text_step("a"), finish_step("stop"), event_step("[DONE]")])]
#[case::empty_events(vec![event_step(""), text_step("a"), event_step("{}"), event_step(r#"{"choices":null}"#), finish_step("stop"), event_step("[DONE]")])]
#[tokio::test]
async fn these_answers_are_complete(#[case] events: Vec<FakeServerStep>) {
    let fake = FakeModelServer::start(vec![[vec![stream_head()], events].concat()]).await;
    let fixture = ModelCallFixture::with(fake.base_url(), |config| config.idle_timeout_s = 2.0);
    let (answer, sink) = fixture.answer().await;
    assert_eq!((answer.message.text().as_str(), answer.finish_reason, answer.usage), ("a", FinishReason::Stop, None));
    let [usage] = sink.usages[..] else { panic!("one usage, not {:?}", sink.usages) };
    assert!(usage.estimated && usage.output_tokens == 1 && usage.input_tokens == sink.inputs[0]);
    assert_eq!(fixture.scope.ledger().open_count(), 0);
}

#[tokio::test]
async fn an_answer_that_is_no_stream_counts_too() {
    let message = json!({"role": "assistant", "content": "whole", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}},
        {"id": "a", "type": "function", "function": {"name": "y", "arguments": "{}"}},
    ]});
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    let body = json!({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}).to_string();
    let fake = FakeModelServer::start(vec![plain_response(
        "200 OK",
        "content-type: application/json; charset=utf-8\r\n",
        &body,
    )])
    .await;
    let (answer, sink) = ModelCallFixture::new(fake.base_url()).answer().await;
    assert_eq!(
        (answer.message.text().as_str(), sink.text.as_str(), answer.finish_reason),
        ("whole", "whole", FinishReason::ToolCalls)
    );
    let names: Vec<_> = answer.message.calls().map(|call| (call.id.as_deref(), call.name.as_str())).collect();
    assert_eq!(names, [(Some("a"), "x"), (Some("a"), "y")], "double ids are the loop's matter");
}

#[tokio::test]
async fn calls_arrive_whole_when_every_byte_comes_alone() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let deltas = [
        json!([{"index": 0, "id": "call_1", "function": {"name": "shell", "arguments": ""}}]),
        json!([{"index": 0, "function": {"arguments": "{\"command\":"}}, {"index": 1, "id": "call_2"}]),
        json!([{"index": 1, "function": {"name": "read_file", "arguments": "{\"path"}}]),
        json!([{"index": 0, "function": {"arguments": "\"ls 안\"}"}}, {"index": 1, "function": {"arguments": "\":"}}]),
    ];
    let mut stream: String = deltas
        .iter()
        .map(|calls| format!("data: {}\r\n\r\n", json!({"choices": [{"delta": {"tool_calls": calls}}]})))
        .collect();
    stream += "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\r\n\r\ndata: [DONE]\r\n\r\n";
    let mut script = vec![FakeServerStep::Send(head.as_bytes().to_vec())];
    script.extend(stream.bytes().map(|byte| FakeServerStep::Send([b"1\r\n", &[byte][..], b"\r\n"].concat())));
    let fake = FakeModelServer::start(vec![script]).await;
    let answer = ModelCallFixture::new(fake.base_url()).answer().await.0;
    let call = |id: &str, name: &str, arguments: &str| RawCall {
        id: Some(id.to_owned()),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let expected = [call("call_1", "shell", "{\"command\":\"ls 안\"}"), call("call_2", "read_file", "{\"path\":")];
    assert!(answer.message.calls().eq(&expected), "arguments that are no JSON are the loop's matter too");
    assert_eq!(answer.finish_reason, FinishReason::ToolCalls);
}
