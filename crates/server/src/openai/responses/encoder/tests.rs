//! Checks that items and events are those of the API, at each end of a run.

use quell_protocol::{Requester, RunId};
use rstest::rstest;

use super::*;

fn encoder(includes_encrypted_reasoning: bool) -> ResponseEncoder {
    let ids = ResponseIds::of_run(&RunId::parse("0193a7a6-0f3c-7a6b-8a53-5f3c1b0d9e11").unwrap());
    let response = json!({"id": ids.response(), "model": "p/m", "status": "in_progress", "output": []});
    ResponseEncoder::new(ids, response, includes_encrypted_reasoning)
}

fn finish(end: ResponseVerdict) -> ResponseFinish {
    ResponseFinish { end, message: None, calls: Vec::new(), usage: Usage::default(), ended_at: 7 }
}

/// The data of the events, whose frames must be well formed and counted from 0.
fn read(events: &[ResponseEvent]) -> Vec<Value> {
    let read = |(number, event): (usize, &ResponseEvent)| {
        let (name, data) = event.frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap();
        assert_eq!((data["type"].as_str(), data["sequence_number"].as_u64()), (Some(name), Some(number as u64)));
        assert_eq!(event.number, number as u64);
        data
    };
    events.iter().enumerate().map(read).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("response.")).collect()
}

/// Checks that each added item is done, and that the last event has the items that are done.
fn assert_items_closed(events: &[Value]) {
    let of = |kind: &str| -> Vec<&Value> { events.iter().filter(|event| event["type"] == kind).collect() };
    let (added, done) = (of("response.output_item.added"), of("response.output_item.done"));
    let index = |event: &&Value| event["output_index"].as_u64().unwrap();
    let added: Vec<u64> = added.iter().map(index).collect();
    assert!(added.iter().copied().eq(0..added.len() as u64), "items are added in order: {added:?}");
    let mut closed: Vec<u64> = done.iter().map(index).collect();
    closed.sort_unstable();
    assert_eq!(closed, added);
    let parts = |end: &str| of(&format!("response.content_part.{end}")).len();
    assert_eq!(parts("added"), parts("done"));
    let parts = |end: &str| of(&format!("response.reasoning_summary_part.{end}")).len();
    assert_eq!(parts("added"), parts("done"));
    let mut items: Vec<(u64, &Value)> = done.iter().map(|event| (index(event), &event["item"])).collect();
    items.sort_by_key(|(index, _)| *index);
    let output = events.last().unwrap()["response"]["output"].as_array().unwrap();
    assert_eq!(output.iter().collect::<Vec<_>>(), items.into_iter().map(|(_, item)| item).collect::<Vec<_>>());
}

#[test]
fn a_text_streams_as_the_api_does() {
    let (mut encoder, mut events) = (encoder(false), Vec::new());
    encoder.begin(&mut events);
    encoder.push_text("Hel", &mut events);
    encoder.push_text("lo \"ü\"\n", &mut events);
    let usage = Usage { input_tokens: 3, output_tokens: 2, cached_tokens: 1, estimated: false };
    encoder.finish(ResponseFinish { usage, ..finish(ResponseVerdict::Completed) }, &mut events);
    let events = read(&events);
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(kinds(&events), expected);
    assert_items_closed(&events);
    assert_eq!((&events[5]["delta"], &events[6]["text"]), (&json!("lo \"ü\"\n"), &json!("Hello \"ü\"\n")));
    let response = &events[9]["response"];
    assert_eq!((&response["status"], &response["completed_at"]), (&json!("completed"), &json!(7)));
    assert_eq!(response["output"][0]["content"][0]["text"], "Hello \"ü\"\n");
    assert_eq!(response["usage"]["total_tokens"], 5);
    assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], 1);
}

#[rstest]
#[case::stopped(ResponseVerdict::Cancelled, "response.incomplete", "cancelled")]
#[case::failed(ResponseVerdict::Failed("server_error", "broken".into()), "response.failed", "failed")]
#[case::cut(ResponseVerdict::Incomplete("max_output_tokens"), "response.incomplete", "incomplete")]
fn open_items_are_closed_at_each_end(#[case] end: ResponseVerdict, #[case] event: &str, #[case] status: &str) {
    let (mut encoder, mut events) = (encoder(false), Vec::new());
    encoder.begin(&mut events);
    encoder.push_thinking("hm", &mut events);
    encoder.push_text("half an ans", &mut events);
    encoder.push_thinking("or", &mut events);
    let snapshot = encoder.snapshot();
    assert_eq!(snapshot["output"][1]["status"], "in_progress");
    encoder.finish(finish(end), &mut events);
    let events = read(&events);
    assert_items_closed(&events);
    let last = events.last().unwrap();
    assert_eq!((last["type"].as_str(), last["response"]["status"].as_str()), (Some(event), Some(status)));
    let output = &last["response"]["output"];
    assert_eq!(output[0]["summary"][0]["text"], "hmor");
    assert_eq!((&output[1]["content"][0]["text"], &output[1]["status"]), (&json!("half an ans"), &json!("incomplete")));
}

#[test]
fn an_end_without_output_has_no_items() {
    let (mut encoder, mut events) = (encoder(false), Vec::new());
    encoder.begin(&mut events);
    encoder.finish(finish(ResponseVerdict::Cancelled), &mut events);
    assert_eq!(kinds(&read(&events)), ["created", "in_progress", "incomplete"]);
    assert_eq!(encoder.snapshot()["output"], json!([]));
}

#[rstest]
fn calls_follow_with_their_reasoning(#[values(true, false)] is_included: bool) {
    let call = ToolCall::from_wire("call_1", "look", json!({"at": "ü"}));
    let message = AssistantMessage::new(
        vec![Thinking::Shown { text: "hm".into(), signature: Some("sig".into()) }],
        "",
        vec![call.clone()],
    );
    let (mut encoder, mut events) = (encoder(is_included), Vec::new());
    encoder.begin(&mut events);
    encoder.push_thinking("hm", &mut events);
    let ended = ResponseFinish { message: Some(message), calls: vec![call], ..finish(ResponseVerdict::Completed) };
    encoder.finish(ended, &mut events);
    let events = read(&events);
    assert_items_closed(&events);
    let output = events.last().unwrap()["response"]["output"].as_array().unwrap();
    assert_eq!(output.len(), 2);
    assert_eq!(output[0]["encrypted_content"].is_string(), is_included);
    assert!(encoder.output()[0]["encrypted_content"].is_string(), "it is kept for the next response");
    assert_eq!((&output[1]["call_id"], &output[1]["arguments"]), (&json!("call_1"), &json!("{\"at\":\"ü\"}")));
    let arguments = kinds(&events).into_iter().filter(|kind| kind.starts_with("function_call")).count();
    assert_eq!(arguments, 2);
}

#[rstest]
#[case(Verdict::Completed, Some(AnswerEnd::Calls), "completed")]
#[case(Verdict::Completed, Some(AnswerEnd::Length), "incomplete")]
#[case(Verdict::Completed, None, "failed")]
#[case(Verdict::Failed { code: "truncated".into(), message: String::new() }, None, "incomplete")]
#[case(Verdict::Failed { code: "bug".into(), message: String::new() }, None, "failed")]
#[case(Verdict::Aborted { reason: StopReason::User, by: None }, None, "cancelled")]
#[case(Verdict::Aborted { reason: StopReason::Disconnect, by: None }, None, "cancelled")]
#[case(Verdict::Aborted { reason: StopReason::DaemonStopped, by: None }, None, "failed")]
#[case(Verdict::Aborted { reason: StopReason::Timeout, by: None::<Requester> }, None, "failed")]
fn each_verdict_has_a_status(#[case] verdict: Verdict, #[case] end: Option<AnswerEnd>, #[case] status: &str) {
    assert_eq!(ResponseVerdict::of(&verdict, end.as_ref()).status(), status);
}
