//! The Anthropic dialect over real connections: complete answers, refusals, broken streams, and stops.

use rstest::rstest;

use super::super::fake_server::{FakeModelServer, FakeServerStep, plain_response, stream_head};
use super::stops::stop_after_first_piece;
use super::*;

fn event_step(event: &serde_json::Value) -> FakeServerStep {
    let name = event["type"].as_str().unwrap();
    FakeServerStep::Send(format!("event: {name}\ndata: {event}\n\n").into_bytes())
}

fn start_step() -> FakeServerStep {
    let usage = json!({"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 1});
    event_step(
        &json!({"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": usage}}),
    )
}

fn text_step(delta: &str) -> FakeServerStep {
    event_step(&json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": delta}}))
}

fn ending_step(reason: &str) -> FakeServerStep {
    event_step(&json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}}))
}

fn stop_step() -> FakeServerStep {
    event_step(&json!({"type": "message_stop"}))
}

fn ping_step() -> FakeServerStep {
    event_step(&json!({"type": "ping"}))
}

fn error_event(kind: &str, message: &str) -> serde_json::Value {
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

fn one_word_answer(word: &str) -> Vec<FakeServerStep> {
    vec![
        stream_head(),
        start_step(),
        ping_step(),
        text_step(word),
        ending_step("end_turn"),
        stop_step(),
        FakeServerStep::Close,
    ]
}

fn anthropic_fixture(fake: &FakeModelServer) -> ModelCallFixture {
    ModelCallFixture::of_kind(ProviderKind::ANTHROPIC, fake.base_url(), |config| {
        config.api_key = Some("sk-ant".to_owned().into());
        config.idle_timeout_s = 2.0;
    })
}

const REPORTED_USAGE: Usage = Usage { input_tokens: 100, output_tokens: 7, cached_tokens: 90, estimated: false };

#[tokio::test]
async fn an_answer_streams_and_is_counted_at_both_ends() {
    let fake = FakeModelServer::start(vec![one_word_answer("Hello")]).await;
    let fixture = anthropic_fixture(&fake);
    let (answer, sink) = fixture.answer().await;
    assert_eq!(
        (answer.message.text().as_str(), answer.finish_reason, answer.usage),
        ("Hello", FinishReason::Stop, Some(REPORTED_USAGE))
    );
    assert_eq!((sink.text.as_str(), sink.usages), ("Hello", vec![REPORTED_USAGE]));
    assert!(fixture.is_idle());
    let (head, body) = fake.requests().remove(0);
    assert!(head.starts_with("POST /v1/messages HTTP/1.1\r\n"), "{head}");
    for header in ["x-api-key: sk-ant", "anthropic-version: 2023-06-01", "accept: text/event-stream"] {
        assert!(head.contains(header), "{head}");
    }
    assert!(!head.contains("authorization"), "{head}");
    assert_eq!((&body["model"], &body["max_tokens"], &body["stream"]), (&json!("m/1"), &json!(100), &json!(true)));
}

/// As in the other dialect: an answer is complete when the model or the server ended it.
#[rstest]
#[case::no_end_mark(vec![start_step(), text_step("a"), ending_step("end_turn"), FakeServerStep::Close])]
#[case::no_reason(vec![start_step(), text_step("a"), stop_step(), FakeServerStep::Close])]
#[case::stays_open_after_the_mark(vec![start_step(), text_step("a"), ending_step("end_turn"), stop_step()])]
#[case::stays_open_without_a_mark(vec![start_step(), text_step("a"), ending_step("end_turn")])]
#[tokio::test]
async fn these_answers_are_complete(#[case] events: Vec<FakeServerStep>) {
    let fake = FakeModelServer::start(vec![[vec![stream_head()], events].concat()]).await;
    let fixture = anthropic_fixture(&fake);
    assert_eq!(fixture.answer().await.0.message.text(), "a");
    assert_eq!(fixture.scope.ledger().open_count(), 0);
}

#[rstest]
#[case::between_events(vec![start_step(), text_step("four chars and more"), FakeServerStep::Close], 5)]
#[case::in_an_event(vec![start_step(), text_step("four"), FakeServerStep::Send(b"event: message_delta\ndata: {\"ty".to_vec()), FakeServerStep::Close], 1)]
#[case::before_the_first_block(vec![start_step(), ping_step(), FakeServerStep::Close], 1)]
#[tokio::test]
async fn a_stream_that_ends_too_early_is_truncated_and_costs_its_input(
    #[case] events: Vec<FakeServerStep>,
    #[case] output: u64,
) {
    let fake = FakeModelServer::start(vec![[vec![stream_head()], events].concat()]).await;
    let (error, sink) = anthropic_fixture(&fake).failure().await;
    assert!(matches!(error, ModelError::Truncated { .. }), "{error:?}");
    assert_eq!(sink.usages, [Usage { input_tokens: 100, output_tokens: output, cached_tokens: 90, estimated: true }]);
    assert_eq!((sink.retries.len(), fake.requests().len()), (0, 1));
}

#[tokio::test]
async fn an_overloaded_server_is_asked_again_when_it_wishes() {
    let body = error_event("overloaded_error", "Overloaded").to_string();
    let fake = FakeModelServer::start(vec![
        plain_response("529 Overloaded", "", &body),
        plain_response("529 Overloaded", "retry-after: 0.05\r\n", &body),
        one_word_answer("ok"),
    ])
    .await;
    let (answer, sink) = anthropic_fixture(&fake).answer().await;
    assert_eq!(answer.message.text(), "ok");
    let delays: Vec<_> = sink.retries.iter().map(|(_, delay, _)| delay.as_millis()).collect();
    assert_eq!(delays, [1, 50]);
    assert!(sink.retries[0].2.contains("HTTP 529") && sink.retries[0].2.contains("Overloaded"), "{:?}", sink.retries);
    assert_eq!(sink.usages, [REPORTED_USAGE], "refused attempts cost nothing");
}

/// The status line was sent before the error was known. No content had come yet, so this is an ordinary refusal.
#[rstest]
#[case::at_once(vec![])]
#[case::after_the_head_of_the_message(vec![start_step(), ping_step()])]
#[case::in_a_block_without_content(vec![
    start_step(),
    event_step(&json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}})),
])]
#[tokio::test]
async fn a_stream_that_begins_with_overloaded_is_asked_for_again(#[case] before: Vec<FakeServerStep>) {
    let error = event_step(&error_event("overloaded_error", "Overloaded"));
    let overloaded = [vec![stream_head()], before, vec![error, FakeServerStep::Close]].concat();
    let fake = FakeModelServer::start(vec![overloaded, one_word_answer("ok")]).await;
    let (answer, sink) = anthropic_fixture(&fake).answer().await;
    assert_eq!((answer.message.text().as_str(), answer.message.blocks.len()), ("ok", 1));
    assert_eq!((sink.retries.len(), sink.usages), (1, vec![REPORTED_USAGE]), "the refused attempt costs nothing");
    let requests = fake.requests();
    assert_eq!(requests[0].1, requests[1].1, "the same is sent again");
}

#[tokio::test]
async fn an_error_inside_the_stream_ends_it_and_may_pass() {
    let error = event_step(&error_event("overloaded_error", "Overloaded"));
    let fake = FakeModelServer::start(vec![vec![stream_head(), start_step(), text_step("a"), error]]).await;
    let (error, sink) = anthropic_fixture(&fake).failure().await;
    let ModelError::Rejected { status: Some(529), retryable: true, message, .. } = error else { panic!("{error:?}") };
    assert_eq!(message, "Overloaded");
    fake.wait_for_disconnects(1).await;
    assert_eq!((sink.retries.len(), sink.usages[0].input_tokens, sink.usages[0].estimated), (0, 100, true));
}

#[rstest]
#[case::refused(plain_response(
    "400 Bad Request",
    "",
    &error_event("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum").to_string()
))]
#[case::too_many_bytes(plain_response("413 Payload Too Large", "", &error_event("request_too_large", "too large").to_string()))]
#[case::inside(vec![stream_head(), event_step(&error_event("invalid_request_error", "prompt is too long")), FakeServerStep::Close])]
#[tokio::test]
async fn too_long_a_conversation_is_told_from_other_refusals(#[case] script: Vec<FakeServerStep>) {
    let fake = FakeModelServer::start(vec![script]).await;
    let error = anthropic_fixture(&fake).failure().await.0;
    assert!(matches!(error, ModelError::ContextOverflow { .. }), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_is_no_stream_counts_too() {
    let content = json!([{"type": "text", "text": "whole"}]);
    let usage = json!({"input_tokens": 100, "output_tokens": 7});
    let body = json!({"type": "message", "content": content, "stop_reason": "max_tokens", "usage": usage}).to_string();
    let fake =
        FakeModelServer::start(vec![plain_response("200 OK", "content-type: application/json\r\n", &body)]).await;
    let (answer, sink) = anthropic_fixture(&fake).answer().await;
    assert_eq!((answer.message.text().as_str(), answer.finish_reason), ("whole", FinishReason::Length));
    assert_eq!(sink.usages, [Usage { cached_tokens: 0, ..REPORTED_USAGE }]);
}

#[tokio::test]
async fn a_server_of_the_other_dialect_is_unreadable() {
    let fake = FakeModelServer::start(vec![super::super::fake_server::one_word_answer("hello")]).await;
    let error = anthropic_fixture(&fake).failure().await.0;
    assert!(matches!(error, ModelError::BadStream { .. }), "{error:?}");
}

/// The input was counted before the stop; the output is estimated.
#[tokio::test]
async fn a_stop_in_the_middle_closes_the_socket_and_accounts_for_the_step() {
    let fake = FakeModelServer::start(vec![vec![stream_head(), start_step(), text_step("12345")]]).await;
    let fixture = anthropic_fixture(&fake);
    let sink = stop_after_first_piece(&fake, &fixture).await;
    assert_eq!(sink.usages, [Usage { input_tokens: 100, output_tokens: 2, cached_tokens: 90, estimated: true }]);
}
