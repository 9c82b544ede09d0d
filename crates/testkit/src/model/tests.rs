//! The server refuses invalid requests, and says that a client has left only when it has.

use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::StreamExt as _;
use reqwest::Response;
use rstest::rstest;
use serde_json::{Value, json};

use super::request_checks::{check_request_body, thinking_signature};
use super::*;
use crate::daemon::http_client;
use crate::history_check::corpus::ModelDialect;

async fn send_messages(model: &ScriptedModel, messages: Value) -> Response {
    let body = json!({"model": "m", "stream": true, "messages": messages});
    http_client().post(format!("{}/chat/completions", model.base_url())).json(&body).send().await.unwrap()
}

async fn send_text(model: &ScriptedModel, text: &str) -> Response {
    send_messages(model, json!([{"role": "user", "content": text}])).await
}

/// The failure of the check that ends most tests.
fn check_failure(model: &ScriptedModel) -> String {
    let judged = catch_unwind(AssertUnwindSafe(|| model.assert_histories_valid()));
    *judged.unwrap_err().downcast().unwrap()
}

#[tokio::test]
async fn a_client_has_left_only_when_it_is_gone() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::silent_mid_stream("There are"));
    let answer = send_text(&model, "hi").await;
    let request = model.request_at(0).wait_arrived().await;
    request.wait_paused().await;
    assert!(request.progress().client_left.is_none());
    drop(answer);
    request.wait_client_left().await;
}

#[tokio::test]
#[should_panic(expected = "did not leave request 0")]
async fn a_client_that_stayed_to_the_end_did_not_leave() {
    let model = ScriptedModel::start().await;
    send_text(&model, "hi").await.text().await.unwrap();
    model.request_at(0).wait_client_left().await;
}

#[tokio::test]
async fn split_writes_arrive_in_pieces() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedStream::new().text("ü").split_writes(1));
    // Pieces may be read together, but no reader gets them all at once.
    assert!(send_text(&model, "hi").await.bytes_stream().count().await > 1);
}

#[tokio::test]
async fn a_broken_history_is_answered_400_and_takes_no_response() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::text("kept for a valid one"));
    let orphan = json!([{"role": "user", "content": "go"}, {"role": "tool", "tool_call_id": "c9", "content": "x"}]);
    let answer = send_messages(&model, orphan).await;
    assert_eq!(answer.status(), 400);
    let error = answer.json::<Value>().await.unwrap()["error"].take();
    assert_eq!((&error["code"], &error["param"]), (&json!("orphan_result"), &json!("messages[1].tool_call_id")));
    assert_eq!(model.unused_count(), 1);
    let message = check_failure(&model);
    assert!(message.contains("orphan_result") && message.contains("request 0"), "{message}");
}

#[rstest]
#[case::no_json("/chat/completions", &[], "{", 400)]
#[case::not_streamed("/chat/completions", &[], r#"{"model": "m"}"#, 400)]
#[case::other_path("/embeddings", &[], "{}", 404)]
#[case::no_stream_of_responses("/responses", &[], r#"{"model": "m"}"#, 400)]
#[case::no_gemini_key("/models/m:streamGenerateContent?alt=sse", &[], "{}", 401)]
#[case::no_gemini_events("/models/m:streamGenerateContent", &[("x-goog-api-key", "k")], "{}", 400)]
#[case::no_key("/messages", &[("anthropic-version", "2023-06-01")], "{}", 401)]
#[case::no_version("/messages", &[("x-api-key", "k")], "{}", 401)]
#[tokio::test]
async fn an_invalid_request_is_refused_and_fails_the_check(
    #[case] path: &str,
    #[case] headers: &[(&str, &str)],
    #[case] body: &'static str,
    #[case] status: u16,
) {
    let model = ScriptedModel::start().await;
    let request = http_client().post(model.base_url() + path).body(body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    assert_eq!(request.send().await.unwrap().status(), status);
    assert!(model.recorded_requests().is_empty());
    check_failure(&model);
}

/// An Anthropic request that ends with the result of a call, with these blocks of the assistant before it.
fn tool_loop_body(blocks: Value, settings: &Value) -> Value {
    let mut body = json!({"model": "m", "stream": true, "max_tokens": 5000, "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "A"}]},
    ]});
    body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    body
}

fn thought(text: &str) -> Value {
    json!({"type": "thinking", "thinking": text, "signature": thinking_signature("Hm.", 0)})
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn call_block() -> Value {
    json!({"type": "tool_use", "id": "a", "name": "shell", "input": {}})
}

fn thinking_settings(budget: u64) -> Value {
    json!({"thinking": {"type": "enabled", "budget_tokens": budget}})
}

#[rstest]
#[case::as_it_went_out(json!([thought("Hm."), call_block()]), thinking_settings(1024), "")]
#[case::without_thinking(json!([text_block("I look."), call_block()]), json!({}), "")]
#[case::changed(json!([thought("Hm!"), call_block()]), json!({}), "messages[1].content[0]")]
#[case::moved(json!([call_block(), thought("Hm."), text_block("So.")]), json!({}), "messages[1].content[1]")]
#[case::turned_on(json!([text_block("I look."), call_block()]), thinking_settings(1024), "body.messages")]
#[case::small_budget(json!([thought("Hm."), call_block()]), thinking_settings(1023), "body.thinking.budget_tokens")]
#[case::no_room(json!([thought("Hm."), call_block()]), thinking_settings(5000), "body.thinking.budget_tokens")]
#[case::warm(
    json!([thought("Hm."), call_block()]),
    json!({"temperature": 0.5, "thinking": {"budget_tokens": 1024}}),
    "body.temperature"
)]
#[case::no_length(json!([thought("Hm."), call_block()]), json!({"max_tokens": null}), "body.max_tokens")]
fn thinking_comes_back_unchanged_or_not_at_all(#[case] blocks: Value, #[case] settings: Value, #[case] place: &str) {
    let found = check_request_body(ModelDialect::Anthropic, &tool_loop_body(blocks, &settings));
    let places: Vec<&str> = found.iter().map(|violation| violation.place.as_str()).collect();
    assert_eq!(places.join(" "), place, "{found:#?}");
}
