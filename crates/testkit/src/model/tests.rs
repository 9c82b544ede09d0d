//! Every scripted response, as a client sees it.

mod anthropic;

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use reqwest::{Client, Response};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::daemon::{http_client, install_tls_provider};
use crate::leaks::TaskBaseline;
use crate::sse::TestSseDecoder;

fn request_body(text: &str) -> Value {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": text}]})
}

async fn post_request(client: &Client, model: &ScriptedModel, body: &Value) -> reqwest::Result<Response> {
    client.post(format!("{}/chat/completions", model.base_url())).json(body).send().await
}

async fn send_text(model: &ScriptedModel, text: &str) -> Response {
    post_request(&http_client(), model, &request_body(text)).await.unwrap()
}

/// The parts of one answer as a client reads them.
#[derive(Debug, Default)]
struct CollectedAnswer {
    text: String,
    thinking: String,
    calls: Vec<(String, String, String)>,
    finish_reason: Option<String>,
    usage: Option<(u64, u64)>,
    done: bool,
    error: Option<String>,
    /// True when the body ended by its own framing.
    whole_body: bool,
}

async fn collect_answer(response: Response) -> CollectedAnswer {
    let mut seen = CollectedAnswer { whole_body: true, ..CollectedAnswer::default() };
    let mut decoder = TestSseDecoder::default();
    let mut body = response.bytes_stream();
    while let Some(piece) = body.next().await {
        let Ok(piece) = piece else {
            seen.whole_body = false;
            break;
        };
        for frame in decoder.push(&piece) {
            apply_chunk(&mut seen, &frame.data);
        }
    }
    seen
}

fn apply_chunk(seen: &mut CollectedAnswer, data: &str) {
    if data == "[DONE]" {
        seen.done = true;
        return;
    }
    let chunk: Value = serde_json::from_str(data).unwrap();
    let text = |pointer: &str| chunk.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    seen.text += &text("/choices/0/delta/content");
    seen.thinking += &text("/choices/0/delta/reasoning_content");
    let reason = chunk.pointer("/choices/0/finish_reason").and_then(Value::as_str);
    seen.finish_reason = reason.map(str::to_owned).or(seen.finish_reason.take());
    seen.error = chunk.pointer("/error/message").map(ToString::to_string).or(seen.error.take());
    if let Some(usage) = chunk.get("usage") {
        seen.usage = Some((usage["prompt_tokens"].as_u64().unwrap(), usage["completion_tokens"].as_u64().unwrap()));
    }
    if let Some(call) = chunk.pointer("/choices/0/delta/tool_calls/0") {
        let at = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
        if at == seen.calls.len() {
            seen.calls.push((
                text("/choices/0/delta/tool_calls/0/id"),
                call["function"]["name"].to_string(),
                String::new(),
            ));
        }
        seen.calls[at].2 += call["function"]["arguments"].as_str().unwrap();
    }
}

#[tokio::test]
async fn an_unscripted_request_gets_a_short_complete_answer() {
    let model = ScriptedModel::start().await;
    let seen = collect_answer(send_text(&model, "hi").await).await;
    assert_eq!((seen.text.as_str(), seen.finish_reason.as_deref()), ("Done.", Some("stop")));
    assert!(seen.done && seen.whole_body && seen.usage.is_none());
    let request = model.request_at(0).wait_arrived().await;
    assert_eq!(request.wait_finished().await, ResponseOutcome::Complete);
    assert_eq!(request.progress().client_left, None);
    assert_eq!(request.last_user_text, "hi");
    model.assert_histories_valid();
}

#[rstest]
#[case::whole(None, LineEnd::Lf, Transfer::Chunked)]
#[case::byte_by_byte(Some(1), LineEnd::Lf, Transfer::Chunked)]
#[case::inside_crlf(Some(1), LineEnd::CrLf, Transfer::Chunked)]
#[case::odd_pieces(Some(7), LineEnd::CrLf, Transfer::UntilClose)]
#[case::cr(Some(3), LineEnd::Cr, Transfer::UntilClose)]
#[tokio::test]
async fn the_same_answer_comes_through_however_it_is_cut(
    #[case] piece: Option<usize>,
    #[case] line_end: LineEnd,
    #[case] transfer: Transfer,
) {
    let model = ScriptedModel::start().await;
    let arguments = json!({"command": "echo 'ü 🚀'"});
    let mut stream =
        ScriptedStream::new().thinking("Hm ü").text("Ich schaue 🚀").step(StreamStep::Comment("keep-alive".into()));
    stream = stream.tool_call("c1", "shell", &arguments).tool_call("c2", "shell", &json!({})).split_arguments(1);
    stream = stream.usage(UsageReporting::Always, 12, 3).line_end(line_end).transfer(transfer);
    model.script(match piece {
        Some(bytes) => stream.split_writes(bytes),
        None => stream,
    });
    let seen = collect_answer(send_text(&model, "hi").await).await;
    assert_eq!((seen.text.as_str(), seen.thinking.as_str()), ("Ich schaue 🚀", "Hm ü"));
    assert_eq!(seen.calls.len(), 2);
    assert_eq!(serde_json::from_str::<Value>(&seen.calls[0].2).unwrap(), arguments);
    assert_eq!((seen.calls[1].0.as_str(), seen.calls[1].2.as_str()), ("c2", "{}"));
    assert_eq!((seen.usage, seen.finish_reason.as_deref()), (Some((12, 3)), Some("tool_calls")));
    assert!(seen.done && seen.whole_body);
}

#[tokio::test]
async fn pieces_are_cut_inside_characters_and_line_ends() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedStream::new().text("ü").split_writes(1).line_end(LineEnd::CrLf));
    let pieces: Vec<_> = send_text(&model, "hi").await.bytes_stream().map(Result::unwrap).collect().await;
    // Pieces may be read together, but no reader gets them all at once.
    assert!(pieces.len() > 1);
    let record = model.request_at(0).wait_arrived().await;
    assert_eq!(record.wait_finished().await, ResponseOutcome::Complete);
    assert_eq!(record.progress().bytes_sent, pieces.iter().map(|piece| piece.len() as u64).sum::<u64>());
}

#[tokio::test]
async fn usage_is_sent_when_it_is_asked_for() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedStream::new().text("a")).script(ScriptedStream::new().text("b").usage(
        UsageReporting::Never,
        1,
        1,
    ));
    let mut body = request_body("hi");
    body["stream_options"] = json!({"include_usage": true});
    assert_eq!(collect_answer(post_request(&http_client(), &model, &body).await.unwrap()).await.usage, Some((10, 5)));
    assert_eq!(collect_answer(post_request(&http_client(), &model, &body).await.unwrap()).await.usage, None);
}

#[rstest]
#[case::mid_event(StreamEnd::MidEvent, false, false, false, ResponseOutcome::Cut)]
#[case::dropped(StreamEnd::Dropped, false, false, false, ResponseOutcome::Cut)]
#[case::reset(StreamEnd::Reset, false, false, false, ResponseOutcome::Cut)]
#[case::without_terminal(StreamEnd::WithoutTerminal, true, false, false, ResponseOutcome::Cut)]
#[case::without_done(StreamEnd::WithoutDone, true, true, false, ResponseOutcome::Complete)]
#[case::without_finish(StreamEnd::WithoutFinish, true, false, true, ResponseOutcome::Complete)]
#[case::complete(StreamEnd::Complete, true, true, true, ResponseOutcome::Complete)]
#[tokio::test]
async fn every_end_is_what_it_says(
    #[case] end: StreamEnd,
    #[case] whole_body: bool,
    #[case] finished: bool,
    #[case] done: bool,
    #[case] finish: ResponseOutcome,
) {
    let model = ScriptedModel::start().await;
    // The gate lets the client read the text before the connection ends.
    model.script(ScriptedStream::new().text("There are").wait_for_gate("seen").end_with(end));
    let answer = send_text(&model, "hi").await;
    let (seen, ()) = tokio::join!(collect_answer(answer), async {
        model.request_at(0).wait_paused().await;
        model.open_gate("seen");
    });
    assert_eq!((seen.whole_body, seen.finish_reason.is_some(), seen.done), (whole_body, finished, done));
    if end != StreamEnd::Reset {
        assert_eq!(seen.text, "There are");
    }
    assert_eq!(model.request_at(0).wait_finished().await, finish);
}

#[tokio::test]
async fn statuses_come_one_by_one_and_the_next_request_goes_on() {
    let model = ScriptedModel::start().await;
    model
        .script(ScriptedResponse::status(500))
        .script(ScriptedResponse::rate_limited("2"))
        .script(ScriptedResponse::text("at last"));
    assert_eq!(model.unused_count(), 3);
    // One client with a pool: all three requests use one kept-alive connection.
    install_tls_provider();
    let pooled = Client::builder().no_proxy().build().unwrap();
    let first = post_request(&pooled, &model, &request_body("a")).await.unwrap();
    assert_eq!(first.status(), 500);
    first.text().await.unwrap();
    let second = post_request(&pooled, &model, &request_body("a")).await.unwrap();
    assert_eq!((second.status().as_u16(), second.headers()["retry-after"].to_str().unwrap()), (429, "2"));
    second.text().await.unwrap();
    assert_eq!(collect_answer(post_request(&pooled, &model, &request_body("a")).await.unwrap()).await.text, "at last");
    model.wait_for_connections(1).await;
    drop(pooled);
    model.wait_for_connections(0).await;
    assert_eq!((model.unused_count(), model.wait_for_requests(3).await.len()), (0, 3));
    assert_eq!(model.request_at(1).wait_finished().await, ResponseOutcome::Status(429));
}

#[tokio::test]
async fn special_answers_are_what_they_say() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::duplicate_call_ids("c1", "shell", &json!({})));
    model.script(ScriptedResponse::bad_json_arguments("c1", "shell"));
    model.script(ScriptedResponse::error_inside_stream("There", "overloaded"));
    model.script(ScriptedResponse::huge_output(300_000));
    model.script(ScriptedStream::new().step(StreamStep::HugeFrame { bytes: 100_000 }));
    model.script(
        ScriptedStream::new().step(StreamStep::Raw(b"data: [DONE]\n\n".to_vec())).end_with(StreamEnd::WithoutTerminal),
    );
    model.script(ScriptedResponse::Verbatim(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_vec()));
    let twice = collect_answer(send_text(&model, "hi").await).await;
    assert_eq!((twice.calls[0].0.as_str(), twice.calls[1].0.as_str()), ("c1", "c1"));
    let bad = collect_answer(send_text(&model, "hi").await).await;
    assert!(serde_json::from_str::<Value>(&bad.calls[0].2).is_err() && bad.done);
    let failed = collect_answer(send_text(&model, "hi").await).await;
    assert_eq!((failed.text.as_str(), failed.error.as_deref()), ("There", Some("\"overloaded\"")));
    assert!(!failed.done);
    assert!(collect_answer(send_text(&model, "hi").await).await.text.len() >= 300_000);
    assert_eq!(collect_answer(send_text(&model, "hi").await).await.text.len(), 100_000);
    assert!(collect_answer(send_text(&model, "hi").await).await.done);
    assert_eq!(send_text(&model, "hi").await.text().await.unwrap(), "{}");
}

#[tokio::test]
async fn a_reset_before_the_answer_is_an_error_for_the_client() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::Reset);
    assert!(post_request(&http_client(), &model, &request_body("hi")).await.is_err());
    assert_eq!(model.request_at(0).wait_finished().await, ResponseOutcome::Cut);
}

#[rstest]
#[case::before_headers(ScriptedResponse::SilentBeforeHeaders, 0)]
#[case::headers_held(ScriptedStream::new().hold_headers("never").into(), 0)]
#[case::mid_stream(ScriptedResponse::silent_mid_stream("There are"), 1)]
#[case::at_a_gate(ScriptedStream::new().thinking("Hm").wait_for_gate("never").into(), 1)]
#[case::headers_only(ScriptedStream::new().step(StreamStep::Silent).into(), 0)]
#[tokio::test]
async fn a_client_that_leaves_in_a_silence_is_noticed(#[case] behaviour: ScriptedResponse, #[case] least_bytes: u64) {
    let model = ScriptedModel::start().await;
    model.script(behaviour);
    let body = request_body("hi");
    let client = http_client();
    let mut asking = Box::pin(async {
        let answer = post_request(&client, &model, &body).await;
        collect_answer(answer.unwrap()).await
    });
    tokio::select! {
        seen = &mut asking => panic!("it was not silent: {seen:?}"),
        () = model.request_at(0).wait_paused() => {}
    }
    let record = model.request_at(0).wait_arrived().await;
    assert!(record.progress().bytes_sent >= least_bytes && record.progress().client_left.is_none());
    let before = std::time::Instant::now();
    drop(asking);
    let left = record.wait_client_left().await;
    assert!(left >= before && left.duration_since(before) < Duration::from_secs(1), "noticed late");
    assert_eq!(record.wait_finished().await, ResponseOutcome::ClientLeft);
    model.wait_for_connections(0).await;
}

#[tokio::test]
async fn a_client_that_leaves_a_running_stream_is_noticed() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::tokens_forever(Duration::from_millis(1)));
    let mut body = send_text(&model, "hi").await.bytes_stream();
    body.next().await.unwrap().unwrap();
    model.request_at(0).wait_arrived().await.wait_bytes_sent(1000).await;
    drop(body);
    model.request_at(0).wait_client_left().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_the_server_cannot_write_is_noticed() {
    let model = ScriptedModel::start().await;
    // Far more than the socket buffers hold, and the client does not read.
    model.script(ScriptedResponse::huge_output(256 << 20));
    let answer = send_text(&model, "hi").await;
    model.request_at(0).wait_streaming().await;
    drop(answer);
    model.request_at(0).wait_client_left().await;
}

#[tokio::test]
#[should_panic(expected = "did not leave request 0")]
async fn a_client_that_stayed_to_the_end_did_not_leave() {
    let model = ScriptedModel::start().await;
    collect_answer(send_text(&model, "hi").await).await;
    model.request_at(0).wait_client_left().await;
}

#[tokio::test]
async fn gates_hold_until_they_are_opened_and_stay_open() {
    let model = ScriptedModel::start().await;
    let gated = || ScriptedStream::new().hold_headers("go").text("gone");
    model.script(gated()).script(gated());
    let (seen, ()) = tokio::join!(async { collect_answer(send_text(&model, "hi").await).await }, async {
        model.request_at(0).wait_paused().await;
        assert!(model.request_at(0).wait_arrived().await.progress().headers_sent.is_none());
        model.open_gate("go");
    });
    assert_eq!(seen.text, "gone");
    assert_eq!(collect_answer(send_text(&model, "hi").await).await.text, "gone");
}

#[tokio::test]
async fn a_broken_history_is_answered_400_and_takes_no_behaviour() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::text("kept for a valid one"));
    let mut body = request_body("hi");
    body["messages"] =
        json!([{"role": "user", "content": "go"}, {"role": "tool", "tool_call_id": "c9", "content": "x"}]);
    let answer = post_request(&http_client(), &model, &body).await.unwrap();
    assert_eq!(answer.status(), 400);
    let error: Value = answer.json().await.unwrap();
    assert_eq!(error["error"]["code"], "orphan_result");
    assert_eq!(error["error"]["param"], "messages[1].tool_call_id");
    assert_eq!(model.request_at(0).wait_finished().await, ResponseOutcome::Refused);
    assert_eq!(model.unused_count(), 1);
    let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.assert_histories_valid()));
    let message = *judged.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("orphan_result") && message.contains("request 0"), "{message}");
}

#[rstest]
#[case::no_json("/chat/completions", "{", 400)]
#[case::not_streamed("/chat/completions", r#"{"model": "m"}"#, 400)]
#[case::other_path("/responses", "{}", 404)]
#[tokio::test]
async fn an_invalid_request_is_refused_and_fails_the_check(
    #[case] path: &str,
    #[case] body: &'static str,
    #[case] status: u16,
) {
    let model = ScriptedModel::start().await;
    let answer = http_client().post(format!("{}{path}", model.base_url())).body(body).send().await.unwrap();
    assert_eq!(answer.status(), status);
    assert!(model.recorded_requests().is_empty());
    let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.assert_histories_valid()));
    assert!(judged.is_err());
}

#[tokio::test]
async fn behaviours_are_chosen_by_prompt_and_requests_found_by_marker() {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|text, request| match text {
        "silent marker:b" => ScriptedResponse::SilentBeforeHeaders,
        other => ScriptedResponse::text(format!("{} {other}", request.index)),
    });
    assert_eq!(collect_answer(send_text(&model, "echo marker:a").await).await.text, "0 echo marker:a");
    let (client, body) = (http_client(), request_body("silent marker:b"));
    tokio::select! {
        _ = post_request(&client, &model, &body) => panic!("it was not silent"),
        request = model.wait_for_marked_request("b") => assert_eq!(request.index, 1),
    }
    assert_eq!(model.wait_for_marked_request("a").await.markers, ["a"]);
    assert_eq!(model.request_at(1).wait_finished().await, ResponseOutcome::ClientLeft);
}

#[tokio::test]
async fn refused_connections_are_refused_until_the_port_opens_again() {
    let model = ScriptedModel::start().await;
    model.refuse_connections().await;
    let refused = post_request(&http_client(), &model, &request_body("hi")).await.unwrap_err();
    assert!(refused.is_connect(), "{refused:?}");
    model.accept_connections().await;
    assert_eq!(collect_answer(send_text(&model, "hi").await).await.text, "Done.");
}

#[tokio::test]
async fn a_black_hole_keeps_clients_connecting_and_sees_them_leave() {
    let hole = BlackHole::open().await;
    let url = format!("{}/chat/completions", hole.base_url());
    let client = http_client();
    let mut connecting = Box::pin(client.post(url).json(&request_body("hi")).send());
    tokio::select! {
        answer = &mut connecting => panic!("it connected: {answer:?}"),
        () = hole.wait_for_connecting(1) => {}
    }
    drop(connecting);
    hole.wait_for_connecting(0).await;
}

/// A runtime with a paused clock skips ahead when idle; the server and its conditions use real time.
#[tokio::test(start_paused = true)]
async fn waiting_is_real_where_the_tests_clock_stands_still() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::silent_mid_stream("There are"));
    let answer = send_text(&model, "hi").await;
    model.request_at(0).wait_paused().await;
    drop(answer);
    model.request_at(0).wait_client_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_run_at_once_and_every_leaving_is_noticed() {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|text, _| ScriptedStream::new().text(text).step(StreamStep::Silent).into());
    let client = http_client();
    let before = TaskBaseline::capture();
    let prompts: Vec<Value> = (0..1000).map(|n| request_body(&format!("run {n} marker:{n}"))).collect();
    let answers = join_all(prompts.iter().map(|body| post_request(&client, &model, body))).await;
    model.wait_for_connections(1000).await;
    for record in model.wait_for_requests(1000).await {
        record.wait_paused().await;
    }
    drop(answers);
    for record in model.recorded_requests() {
        record.wait_client_left().await;
    }
    model.wait_for_connections(0).await;
    before.assert_restored(Duration::from_secs(10)).await;
}
