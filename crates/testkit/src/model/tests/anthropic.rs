//! The Anthropic dialect of the scripted model, as a client sees it.

use super::*;
use crate::history_check::corpus::ModelDialect;

fn request_body(messages: Value) -> Value {
    json!({"model": "m", "stream": true, "max_tokens": 100, "messages": messages})
}

fn simple_request() -> Value {
    request_body(json!([{"role": "user", "content": "hi marker:a"}]))
}

async fn post_messages(model: &ScriptedModel, body: &Value) -> Response {
    let request = http_client().post(format!("{}/messages", model.base_url())).json(body);
    request.header("x-api-key", "k").header("anthropic-version", "2023-06-01").send().await.unwrap()
}

/// The events of an answer; checks that each has the name of its type.
async fn read_events(response: Response) -> Vec<Value> {
    let mut decoder = TestSseDecoder::default();
    let mut body = response.bytes_stream();
    let mut events = Vec::new();
    while let Some(Ok(piece)) = body.next().await {
        for frame in decoder.push(&piece) {
            let event: Value = serde_json::from_str(&frame.data).unwrap();
            assert_eq!(Some(frame.event.as_str()), event["type"].as_str());
            events.push(event);
        }
    }
    events
}

fn event_names(events: &[Value]) -> Vec<String> {
    let name = |event: &Value| {
        let inner = ["/content_block/type", "/delta/type"].into_iter().find_map(|at| event.pointer(at)?.as_str());
        [event["type"].as_str().unwrap(), inner.unwrap_or_default()].join(" ").trim().to_owned()
    };
    events.iter().map(name).collect()
}

#[tokio::test]
async fn an_answer_is_a_message_of_blocks_each_opened_and_closed() {
    let model = ScriptedModel::start().await;
    let stream = ScriptedStream::new().thinking("H").thinking("m").redacted("ZW5j").text("I look.");
    model.script(
        stream
            .tool_call("c1", "shell", &json!({"command": "ls"}))
            .usage(UsageReporting::AsAsked, 12, 3)
            .split_writes(3),
    );
    let events = read_events(post_messages(&model, &simple_request()).await).await;
    let expected = [
        "message_start",
        "ping",
        "content_block_start thinking",
        "content_block_delta thinking_delta",
        "content_block_delta thinking_delta",
        "content_block_delta signature_delta",
        "content_block_stop",
        "content_block_start redacted_thinking",
        "content_block_stop",
        "content_block_start text",
        "content_block_delta text_delta",
        "content_block_stop",
        "content_block_start tool_use",
        "content_block_delta input_json_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(event_names(&events), expected);
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 12);
    assert_eq!(
        (&events[12]["index"], &events[13]["delta"]["partial_json"]),
        (&json!(3), &json!("{\"command\":\"ls\"}"))
    );
    let last = &events[15];
    assert_eq!((&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]), (&json!("tool_use"), &json!(3)));
    let request = model.request_at(0).wait_arrived().await;
    assert_eq!((request.dialect, request.markers.as_slice()), (ModelDialect::Anthropic, &["a".to_owned()][..]));
    assert_eq!(request.header("anthropic-version"), Some("2023-06-01"));
    model.assert_histories_valid();
}

#[tokio::test]
async fn one_server_speaks_both_dialects() {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, request| ScriptedResponse::text(format!("{:?}", request.dialect)));
    assert_eq!(collect_answer(send_text(&model, "hi").await).await.text, "OpenAi");
    let events = read_events(post_messages(&model, &simple_request()).await).await;
    assert!(events.iter().any(|event| event["delta"]["text"] == "Anthropic"), "{events:#?}");
    model.assert_histories_valid();
}

#[rstest]
#[case::cut(ScriptedResponse::cut_without_terminal("a"), "content_block_delta text_delta")]
#[case::dropped(ScriptedStream::new().thinking("a").end_with(StreamEnd::Dropped).into(), "content_block_delta thinking_delta")]
#[case::torn(ScriptedResponse::cut_mid_event("a"), "content_block_delta text_delta")]
#[case::error(ScriptedResponse::error_inside_stream("a", "Overloaded"), "error")]
#[case::no_mark(ScriptedStream::new().text("a").end_with(StreamEnd::WithoutDone).into(), "message_delta")]
#[case::no_reason(ScriptedStream::new().text("a").end_with(StreamEnd::WithoutFinish).into(), "message_stop")]
#[tokio::test]
async fn a_stream_ends_as_scripted(#[case] behaviour: ScriptedResponse, #[case] last: &str) {
    let model = ScriptedModel::start().await;
    model.script(behaviour);
    let names = event_names(&read_events(post_messages(&model, &simple_request()).await).await);
    assert_eq!(names.last().map(String::as_str), Some(last));
    let reasons = names.iter().filter(|name| *name == "message_delta").count();
    assert_eq!(reasons, usize::from(last == "message_delta"), "{names:?}");
}

/// A conversation that ends with the result of a call before which the model was thinking.
fn tool_loop_request(thinking: &Value) -> Value {
    request_body(json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [thinking, {"type": "tool_use", "id": "a", "name": "shell", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "A"}]},
    ]))
}

#[tokio::test]
async fn reasoning_is_taken_back_only_as_it_went_out() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedStream::new().thinking("Hm.").text("ok"));
    let said = read_events(post_messages(&model, &simple_request()).await).await;
    let proof = said.iter().find_map(|event| event.pointer("/delta/signature").cloned()).unwrap();
    let thought = |text: &str| json!({"type": "thinking", "thinking": text, "signature": proof});
    assert_eq!(post_messages(&model, &tool_loop_request(&thought("Hm."))).await.status(), 200);
    let mut behind = tool_loop_request(&thought("Hm."));
    behind["messages"][1]["content"].as_array_mut().unwrap().rotate_left(1);
    behind["messages"][1]["content"].as_array_mut().unwrap().push(json!({"type": "text", "text": "So."}));
    assert_eq!(post_messages(&model, &behind).await.status(), 400, "reasoning that was moved behind the call");
    let refused = post_messages(&model, &tool_loop_request(&thought("Hm!"))).await;
    assert_eq!(refused.status(), 400);
    let error: Value = refused.json().await.unwrap();
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
    assert!(error["error"]["message"].as_str().unwrap().contains("did not give to this text in this place"), "{error}");
}

#[rstest]
#[case::small(json!({"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 5000}), 400)]
#[case::no_room(json!({"thinking": {"type": "enabled", "budget_tokens": 5000}, "max_tokens": 5000}), 400)]
#[case::warm(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 5000, "temperature": 0.5}), 400)]
#[case::right(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 5000}), 200)]
#[case::no_length(json!({"max_tokens": null}), 400)]
#[tokio::test]
async fn settings_are_held_to_the_rules(#[case] settings: Value, #[case] status: u16) {
    let model = ScriptedModel::start().await;
    let mut body = simple_request();
    body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    assert_eq!(post_messages(&model, &body).await.status(), status);
}

#[tokio::test]
async fn a_loop_that_began_without_thinking_must_not_turn_it_on() {
    let model = ScriptedModel::start().await;
    let mut body = tool_loop_request(&json!({"type": "text", "text": "I look."}));
    assert_eq!(post_messages(&model, &body).await.status(), 200);
    body["max_tokens"] = json!(5000);
    body["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    assert_eq!(post_messages(&model, &body).await.status(), 400);
}

#[rstest]
#[case::no_key("anthropic-version", "2023-06-01")]
#[case::no_version("x-api-key", "k")]
#[tokio::test]
async fn a_request_without_its_headers_is_refused_and_fails_the_test(#[case] only: &str, #[case] value: &str) {
    let model = ScriptedModel::start().await;
    let request =
        http_client().post(format!("{}/messages", model.base_url())).json(&simple_request()).header(only, value);
    assert_eq!(request.send().await.unwrap().status(), 401);
    assert!(model.recorded_requests().is_empty());
    let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.assert_histories_valid()));
    assert!(judged.is_err());
}
