//! Complete answers.

use rstest::rstest;

use super::super::fake::{Fake, Step, counted, event, finish, plain, stream_head, text, word};
use super::*;

#[tokio::test]
async fn an_answer_streams_is_counted_and_gives_everything_back() {
    let mut script = vec![stream_head(), event(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#)];
    script.extend([event(r#"{"choices":[{"delta":{"reasoning_content":"Hm."}}]}"#), text("Hel"), text("lo 안녕")]);
    script.extend([finish("stop"), counted(12, 3), event("[DONE]"), Step::Close]);
    let fake = Fake::start(vec![script]).await;
    let bench = Bench::new(fake.base_url());
    let mut sink = Recorder::default();
    let answer = bench.call(&mut sink).await.unwrap();

    let usage = Usage { input_tokens: 12, output_tokens: 3, estimated: false };
    let expected = ModelAnswer {
        message: Message::new(vec![Thinking::Open { text: "Hm.".to_owned() }], "Hello 안녕", Vec::new()),
        usage: Some(usage),
        finish: Finish::Stop,
    };
    assert_eq!(answer, expected);
    assert_eq!((sink.text.as_str(), sink.thinking.as_str()), ("Hello 안녕", "Hm."));
    assert_eq!((sink.usages, sink.inputs.len()), (vec![usage], 1));
    assert_eq!(bench.ledger(), [(ResourceKind::ModelRequest, "p/m/1 (attempt 1)".to_owned(), "finished")]);
    assert!(bench.is_idle());
}

#[tokio::test]
async fn the_request_is_what_the_dialect_says() {
    let fake = Fake::start(vec![word("ok")]).await;
    let mut bench = Bench::with(fake.base_url(), |config| {
        config.api_key = Some("sk-secret".to_owned().into());
        config.headers.insert("X-Team".to_owned(), "blue".to_owned());
    });
    bench.tools = vec![ToolSpec {
        name: "shell".to_owned(),
        description: "Runs a command.".to_owned(),
        parameters: json!({"type": "object"}).into(),
    }];
    bench.call(&mut Recorder::default()).await.unwrap();
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
    let script = vec![stream_head(), text("first"), Step::Gate, finish("stop"), Step::Close];
    let fake = Fake::start(vec![script]).await;
    let bench = Bench::new(fake.base_url());
    let mut sink = Recorder::default();
    let mut pieces = sink.pieces.subscribe();
    let (answer, ()) = tokio::join!(bench.call(&mut sink), async {
        let seen = pieces.wait_for(|count| *count == 1).await.map(|count| *count);
        assert_eq!(seen.ok(), Some(1));
        assert!(bench.models.active().has_agent(&bench.agent) && bench.models.active().has_run(&bench.run));
        fake.open_gate();
    });
    assert_eq!(answer.unwrap().message.text(), "first");
}

/// A server may end in many ways once the model has said why it stopped, or without saying so but with its end mark.
#[rstest]
#[case::by_the_book(vec![text("a"), finish("stop"), event("[DONE]"), Step::Close])]
#[case::no_end_mark(vec![text("a"), finish("stop"), Step::Close])]
#[case::no_reason(vec![text("a"), event("[DONE]"), Step::Close])]
#[case::stays_open_after_the_mark(vec![text("a"), event("[DONE]")])]
#[case::stays_open_without_a_mark(vec![text("a"), finish("stop")])]
#[case::no_blank_line_after_the_mark(vec![text("a"), Step::Send(b"data: [DONE]".to_vec()), Step::Close])]
#[case::no_blank_line_after_the_reason(
    vec![text("a"), Step::Send(br#"data: {"choices":[{"finish_reason":"stop"}]}"#.to_vec()), Step::Close]
)]
#[case::torn_count(vec![text("a"), finish("stop"), Step::Send(b"data: {\"usa".to_vec()), Step::Close])]
#[case::comments(vec![Step::Send(b": wait\n\n".to_vec()), text("a"), finish("stop"), event("[DONE]")])]
#[case::empty_events(vec![event(""), text("a"), event("{}"), event(r#"{"choices":null}"#), finish("stop"), event("[DONE]")])]
#[tokio::test]
async fn these_answers_are_complete(#[case] events: Vec<Step>) {
    let fake = Fake::start(vec![[vec![stream_head()], events].concat()]).await;
    let bench = Bench::with(fake.base_url(), |config| config.idle_timeout_s = 2.0);
    let mut sink = Recorder::default();
    let answer = bench.call(&mut sink).await.unwrap();
    assert_eq!((answer.message.text().as_str(), answer.finish, answer.usage), ("a", Finish::Stop, None));
    let [usage] = sink.usages[..] else { panic!("one usage, not {:?}", sink.usages) };
    assert!(usage.estimated && usage.output_tokens == 1 && usage.input_tokens == sink.inputs[0]);
    assert_eq!(bench.scope.ledger().open_count(), 0);
}

#[tokio::test]
async fn an_answer_that_is_no_stream_counts_too() {
    let message = json!({"role": "assistant", "content": "whole", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}},
        {"id": "a", "type": "function", "function": {"name": "y", "arguments": "{}"}},
    ]});
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    let body = json!({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}).to_string();
    let fake = Fake::start(vec![plain("200 OK", "content-type: application/json; charset=utf-8\r\n", &body)]).await;
    let mut sink = Recorder::default();
    let answer = Bench::new(fake.base_url()).call(&mut sink).await.unwrap();
    assert_eq!(
        (answer.message.text().as_str(), sink.text.as_str(), answer.finish),
        ("whole", "whole", Finish::ToolCalls)
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
    let mut script = vec![Step::Send(head.as_bytes().to_vec())];
    script.extend(stream.bytes().map(|byte| Step::Send([b"1\r\n", &[byte][..], b"\r\n"].concat())));
    let fake = Fake::start(vec![script]).await;
    let answer = Bench::new(fake.base_url()).call(&mut Recorder::default()).await.unwrap();
    let call = |id: &str, name: &str, arguments: &str| RawCall {
        id: Some(id.to_owned()),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let expected = [call("call_1", "shell", "{\"command\":\"ls 안\"}"), call("call_2", "read_file", "{\"path\":")];
    assert!(answer.message.calls().eq(&expected), "arguments that are no JSON are the loop's matter too");
    assert_eq!(answer.finish, Finish::ToolCalls);
}
