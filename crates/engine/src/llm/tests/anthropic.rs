//! The Anthropic dialect over the same way as the other: complete answers, refusals, streams that break, and stops.

use rstest::rstest;

use super::super::fake::{Fake, Step, plain, stream_head};
use super::*;

fn happens(event: &serde_json::Value) -> Step {
    let name = event["type"].as_str().unwrap();
    Step::Send(format!("event: {name}\ndata: {event}\n\n").into_bytes())
}

fn start() -> Step {
    let usage = json!({"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 1});
    happens(
        &json!({"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": usage}}),
    )
}

fn text(delta: &str) -> Step {
    happens(&json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": delta}}))
}

fn ending(reason: &str) -> Step {
    happens(&json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}}))
}

fn stop() -> Step {
    happens(&json!({"type": "message_stop"}))
}

fn ping() -> Step {
    happens(&json!({"type": "ping"}))
}

fn failure(kind: &str, message: &str) -> serde_json::Value {
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

fn word(word: &str) -> Vec<Step> {
    vec![stream_head(), start(), ping(), text(word), ending("end_turn"), stop(), Step::Close]
}

fn bench(fake: &Fake) -> Bench {
    Bench::of_kind(ProviderKind::Anthropic, fake.base_url(), |config| {
        config.api_key = Some("sk-ant".to_owned().into());
        config.idle_timeout_s = 2.0;
    })
}

const COUNTED: Usage = Usage { input_tokens: 100, output_tokens: 7, estimated: false };

#[tokio::test]
async fn an_answer_streams_and_is_counted_at_both_ends() {
    let fake = Fake::start(vec![word("Hello")]).await;
    let bench = bench(&fake);
    let mut sink = Recorder::default();
    let answer = bench.call(&mut sink).await.unwrap();
    assert_eq!((answer.message.text().as_str(), answer.finish, answer.usage), ("Hello", Finish::Stop, Some(COUNTED)));
    assert_eq!((sink.text.as_str(), sink.usages), ("Hello", vec![COUNTED]));
    assert!(bench.is_idle());
    let (head, body) = fake.requests().remove(0);
    assert!(head.starts_with("POST /v1/messages HTTP/1.1\r\n"), "{head}");
    for header in ["x-api-key: sk-ant", "anthropic-version: 2023-06-01", "accept: text/event-stream"] {
        assert!(head.contains(header), "{head}");
    }
    assert!(!head.contains("authorization"), "{head}");
    assert_eq!((&body["model"], &body["max_tokens"], &body["stream"]), (&json!("m/1"), &json!(100), &json!(true)));
}

/// As in the other dialect: complete is what the model ended, or what the server ended.
#[rstest]
#[case::no_end_mark(vec![start(), text("a"), ending("end_turn"), Step::Close])]
#[case::no_reason(vec![start(), text("a"), stop(), Step::Close])]
#[case::stays_open_after_the_mark(vec![start(), text("a"), ending("end_turn"), stop()])]
#[case::stays_open_without_a_mark(vec![start(), text("a"), ending("end_turn")])]
#[tokio::test]
async fn these_answers_are_complete(#[case] events: Vec<Step>) {
    let fake = Fake::start(vec![[vec![stream_head()], events].concat()]).await;
    let bench = bench(&fake);
    assert_eq!(bench.call(&mut Recorder::default()).await.unwrap().message.text(), "a");
    assert_eq!(bench.scope.ledger().open_count(), 0);
}

#[rstest]
#[case::between_events(vec![start(), text("four chars and more"), Step::Close], 5)]
#[case::in_an_event(vec![start(), text("four"), Step::Send(b"event: message_delta\ndata: {\"ty".to_vec()), Step::Close], 1)]
#[case::before_the_first_block(vec![start(), ping(), Step::Close], 1)]
#[tokio::test]
async fn a_stream_that_ends_too_early_is_truncated_and_costs_its_input(#[case] events: Vec<Step>, #[case] output: u64) {
    let fake = Fake::start(vec![[vec![stream_head()], events].concat()]).await;
    let mut sink = Recorder::default();
    let error = bench(&fake).call(&mut sink).await.unwrap_err();
    assert!(matches!(error, ModelError::Truncated { .. }), "{error:?}");
    assert_eq!(sink.usages, [Usage { input_tokens: 100, output_tokens: output, estimated: true }]);
    assert_eq!((sink.retries.len(), fake.requests().len()), (0, 1));
}

#[tokio::test]
async fn an_overloaded_server_is_asked_again_when_it_wishes() {
    let body = failure("overloaded_error", "Overloaded").to_string();
    let fake = Fake::start(vec![
        plain("529 Overloaded", "", &body),
        plain("529 Overloaded", "retry-after: 0.05\r\n", &body),
        word("ok"),
    ])
    .await;
    let mut sink = Recorder::default();
    assert_eq!(bench(&fake).call(&mut sink).await.unwrap().message.text(), "ok");
    let delays: Vec<_> = sink.retries.iter().map(|(_, delay, _)| delay.as_millis()).collect();
    assert_eq!(delays, [1, 50]);
    assert!(sink.retries[0].2.contains("HTTP 529") && sink.retries[0].2.contains("Overloaded"), "{:?}", sink.retries);
    assert_eq!(sink.usages, [COUNTED], "refused attempts cost nothing");
}

/// The status went out before the server knew: nothing was said yet, so this is a refusal like any other.
#[rstest]
#[case::at_once(vec![])]
#[case::after_the_head_of_the_message(vec![start(), ping()])]
#[case::in_a_block_without_content(vec![
    start(),
    happens(&json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}})),
])]
#[tokio::test]
async fn a_stream_that_begins_with_overloaded_is_asked_for_again(#[case] before: Vec<Step>) {
    let error = happens(&failure("overloaded_error", "Overloaded"));
    let overloaded = [vec![stream_head()], before, vec![error, Step::Close]].concat();
    let fake = Fake::start(vec![overloaded, word("ok")]).await;
    let mut sink = Recorder::default();
    let answer = bench(&fake).call(&mut sink).await.unwrap();
    assert_eq!((answer.message.text().as_str(), answer.message.blocks.len()), ("ok", 1));
    assert_eq!((sink.retries.len(), sink.usages), (1, vec![COUNTED]), "the refused attempt costs nothing");
    let requests = fake.requests();
    assert_eq!(requests[0].1, requests[1].1, "the same is sent again");
}

#[tokio::test]
async fn an_error_inside_the_stream_ends_it_and_may_pass() {
    let error = happens(&failure("overloaded_error", "Overloaded"));
    let fake = Fake::start(vec![vec![stream_head(), start(), text("a"), error]]).await;
    let mut sink = Recorder::default();
    let error = bench(&fake).call(&mut sink).await.unwrap_err();
    let ModelError::Rejected { status: Some(529), retryable: true, message, .. } = error else { panic!("{error:?}") };
    assert_eq!(message, "Overloaded");
    fake.left(1).await;
    assert_eq!((sink.retries.len(), sink.usages[0].input_tokens, sink.usages[0].estimated), (0, 100, true));
}

#[rstest]
#[case::refused(plain(
    "400 Bad Request",
    "",
    &failure("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum").to_string()
))]
#[case::too_many_bytes(plain("413 Payload Too Large", "", &failure("request_too_large", "too large").to_string()))]
#[case::inside(vec![stream_head(), happens(&failure("invalid_request_error", "prompt is too long")), Step::Close])]
#[tokio::test]
async fn too_long_a_conversation_is_told_from_other_refusals(#[case] script: Vec<Step>) {
    let fake = Fake::start(vec![script]).await;
    let error = bench(&fake).call(&mut Recorder::default()).await.unwrap_err();
    assert!(matches!(error, ModelError::ContextOverflow { .. }), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_is_no_stream_counts_too() {
    let content = json!([{"type": "text", "text": "whole"}]);
    let usage = json!({"input_tokens": 100, "output_tokens": 7});
    let body = json!({"type": "message", "content": content, "stop_reason": "max_tokens", "usage": usage}).to_string();
    let fake = Fake::start(vec![plain("200 OK", "content-type: application/json\r\n", &body)]).await;
    let mut sink = Recorder::default();
    let answer = bench(&fake).call(&mut sink).await.unwrap();
    assert_eq!((answer.message.text().as_str(), answer.finish), ("whole", Finish::Length));
    assert_eq!(sink.usages, [COUNTED]);
}

#[tokio::test]
async fn a_server_of_the_other_dialect_is_unreadable() {
    let fake = Fake::start(vec![super::super::fake::word("hello")]).await;
    let error = bench(&fake).call(&mut Recorder::default()).await.unwrap_err();
    assert!(matches!(error, ModelError::BadStream { .. }), "{error:?}");
}

/// The input was counted before the stop, the output is what came.
#[tokio::test]
async fn a_stop_in_the_middle_closes_the_socket_and_accounts_for_the_step() {
    let fake = Fake::start(vec![vec![stream_head(), start(), text("12345")]]).await;
    let bench = bench(&fake);
    let mut sink = Recorder::default();
    let mut pieces = sink.pieces.subscribe();
    let (outcome, ()) = tokio::join!(bench.call(&mut sink), async {
        assert!(pieces.wait_for(|count| *count == 1).await.is_ok());
        bench.scope.cancel();
    });
    assert_eq!(outcome, Err(ModelError::Cancelled));
    fake.left(1).await;
    assert_eq!(sink.usages, [Usage { input_tokens: 100, output_tokens: 2, estimated: true }]);
    assert!(bench.is_idle());
    assert_eq!((bench.scope.ledger().open_count(), bench.ledger()[0].2), (0, "closed"));
}
