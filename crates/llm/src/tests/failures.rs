//! Refusals, retries, timeouts, and broken streams.

use rstest::rstest;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::super::fake_server::{
    FakeModelServer, FakeServerStep, event_step, finish_step, one_word_answer, plain_response, stream_head, text_step,
    usage_step,
};
use super::*;

/// The longest wait for a call. It only limits how late a failing test fails.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

const SERVER_ERROR: &str = "500 Internal Server Error";

#[tokio::test]
async fn server_errors_are_tried_again_until_one_attempt_succeeds() {
    let (_fake, fixture) = ModelCallFixture::start(vec![
        plain_response(SERVER_ERROR, "", "oops"),
        plain_response("408 Request Timeout", "", ""),
        vec![FakeServerStep::Close],
        one_word_answer("ok"),
    ])
    .await;
    let (answer, sink) = fixture.answer().await;
    assert_eq!(answer.message.text(), "ok");
    let delays: Vec<_> = sink.retries.iter().map(|(attempt, delay, _)| (*attempt, delay.as_millis())).collect();
    assert_eq!(delays, [(1, 1), (2, 2), (3, 4)]);
    let why = &sink.retries[0].2;
    assert!(why.contains("HTTP 500") && why.contains("oops"), "{why}");
    let ends: Vec<_> = fixture.ledger().into_iter().map(|(kind, _, how)| (kind, how)).collect();
    let (request, timer) = (ResourceKind::ModelRequest, ResourceKind::Timer);
    let failed = [(request, Release::Failed), (timer, Release::Finished)];
    assert_eq!(ends, [&failed[..], &failed, &failed, &[(request, Release::Finished)]].concat());
    assert_eq!((sink.inputs.len(), sink.usages.len()), (4, 1), "refused attempts cost nothing");
}

#[tokio::test]
async fn the_rule_of_retries_ends_them() {
    let fake = FakeModelServer::start(vec![plain_response("503 Service Unavailable", "", "busy"); 3]).await;
    let fixture = ModelCallFixture::with(fake.base_url(), |config| config.max_retries = 2);
    let (error, sink) = fixture.failure().await;
    let ModelError::Rejected { status: Some(503), retryable: true, .. } = error else { panic!("{error:?}") };
    assert_eq!((sink.retries.len(), fake.requests().len(), sink.usages.len()), (2, 3, 0));
    assert!(fixture.is_idle());
}

#[tokio::test]
async fn a_servers_wish_is_honoured() {
    let refusal = plain_response("429 Too Many Requests", "retry-after: 0.05\r\n", "slow down");
    let fake = FakeModelServer::start(vec![refusal, one_word_answer("ok")]).await;
    let (answer, sink) = ModelCallFixture::new(fake.base_url()).answer().await;
    assert_eq!(answer.message.text(), "ok");
    let delays: Vec<_> = sink.retries.iter().map(|(_, delay, _)| delay.as_millis()).collect();
    assert_eq!(delays, [50]);
}

#[rstest]
#[case::bad_key("401 Unauthorized", r#"{"error":{"message":"no"}}"#, "check its API key")]
#[case::no_money("429 Too Many Requests", r#"{"error":{"message":"no","code":"insufficient_quota"}}"#, "billing")]
#[case::no_model("404 Not Found", r#"{"error":"no"}"#, "the model's name")]
#[case::bad_request("400 Bad Request", "no", "settings")]
#[case::redirect("307 Temporary Redirect", "no", "base_url")]
#[tokio::test]
async fn refusals_that_stay_are_not_tried_again(#[case] status: &str, #[case] body: &str, #[case] hint: &str) {
    let fake = FakeModelServer::start(vec![plain_response(status, "location: http://127.0.0.1:1/\r\n", body)]).await;
    let (error, sink) = ModelCallFixture::new(fake.base_url()).failure().await;
    let ModelError::Rejected { message, retryable: false, .. } = &error else { panic!("{error:?}") };
    assert_eq!(message, "no");
    assert!(error.to_string().contains(hint), "{error}");
    assert_eq!((sink.retries.len(), sink.usages.len()), (0, 0));
}

#[tokio::test]
async fn too_long_a_conversation_is_told_from_other_refusals() {
    let body = r#"{"error":{"message":"maximum context length is 8","code":"context_length_exceeded"}}"#;
    let stream = vec![stream_head(), event_step(body), FakeServerStep::Close];
    let (_fake, fixture) = ModelCallFixture::start(vec![plain_response("400 Bad Request", "", body), stream]).await;
    for _ in 0..2 {
        let error = fixture.failure().await.0;
        assert_eq!(error, ModelError::ContextOverflow { message: "maximum context length is 8".to_owned() });
    }
}

#[rstest]
#[case::openai("400 Bad Request", r#"{"error":{"message":"Invalid image data.","code":"invalid_image"}}"#, true)]
#[case::anthropic(
    "400 Bad Request",
    r#"{"type":"error","error":{"type":"invalid_request_error","message":"Could not process image"}}"#,
    true
)]
#[case::vllm("400 Bad Request", r#"{"message":"m/1 is not a multimodal model","code":400}"#, true)]
#[case::openrouter(
    "404 Not Found",
    r#"{"error":{"message":"No endpoints found that support image input","code":404}}"#,
    true
)]
#[case::llama_cpp(
    "500 Internal Server Error",
    r#"{"error":{"code":500,"message":"image input is not supported - hint: mmproj"}}"#,
    true
)]
#[case::another_reason("400 Bad Request", r#"{"error":{"message":"max_tokens is too large"}}"#, false)]
#[case::no_such_model("404 Not Found", r#"{"error":{"message":"the model vision-1 does not exist"}}"#, false)]
#[case::no_right("403 Forbidden", r#"{"error":{"message":"no images for you"}}"#, false)]
#[tokio::test]
async fn a_refusal_of_pictures_is_told_from_others_and_stays(
    #[case] status: &str,
    #[case] body: &str,
    #[case] of_pictures: bool,
) {
    let fake = FakeModelServer::start(vec![plain_response(status, "", body); 2]).await;
    let mut fixture = ModelCallFixture::with(fake.base_url(), |config| config.max_retries = 0);
    let error = fixture.failure().await.0;
    assert!(matches!(error, ModelError::Rejected { .. }), "nothing was shown: {error:?}");
    fixture.conversation.pictures.count = 1;
    let error = fixture.failure().await.0;
    assert_eq!(error.code() == "vision", of_pictures, "{error:?}");
}

#[tokio::test]
async fn a_refusal_of_pictures_is_not_tried_again_even_where_others_are() {
    let refusal = plain_response(SERVER_ERROR, "", r#"{"error":{"message":"image input is not supported"}}"#);
    let stream = vec![stream_head(), event_step(r#"{"error":{"message":"no vision here"}}"#), FakeServerStep::Close];
    let (_fake, mut fixture) = ModelCallFixture::start(vec![refusal, stream]).await;
    fixture.conversation.pictures.count = 1;
    for words in ["image input is not supported", "no vision here"] {
        let mut sink = RecordingSink::default();
        let error = fixture.call(&mut sink).await.unwrap_err();
        assert_eq!(error, ModelError::Vision { provider: "p".to_owned(), message: words.to_owned() });
        assert!(sink.retries.is_empty() && error.to_string().contains("vision = false"), "{error}");
    }
}

#[tokio::test]
async fn the_data_of_pictures_is_not_counted_as_text() {
    let (_fake, mut fixture) = ModelCallFixture::start(vec![one_word_answer("ok"), one_word_answer("ok")]).await;
    let data = "A".repeat(4_000_000);
    let mut sink = RecordingSink::default();
    fixture.call(&mut sink).await.unwrap();
    fixture.conversation.messages = vec![json!({"role": "user", "content": data})];
    fixture.conversation.pictures = quell_kernel::prompt::ImageUsage { count: 2, bytes: data.len() };
    fixture.call(&mut sink).await.unwrap();
    let [text, pictures] = sink.inputs[..] else { panic!("{:?}", sink.inputs) };
    assert!((text + 3200).abs_diff(pictures) < 10, "{text} {pictures}");
}

#[tokio::test]
async fn a_key_that_the_server_echoes_is_in_no_error() {
    let body = r#"{"error":{"message":"bad key sk-hunter-2 or blue-hunter"}}"#;
    let fake = FakeModelServer::start(vec![plain_response("401 Unauthorized", "", body)]).await;
    let fixture = ModelCallFixture::with(fake.base_url(), |config| {
        config.api_key = Some("sk-hunter-2".to_owned().into());
        config.headers.insert("api-key".to_owned(), "blue-hunter".to_owned());
        assert!(!format!("{config:?}").contains("hunter"));
    });
    let error = fixture.failure().await.0;
    assert!(!format!("{error} {error:?} {:?}", fixture.models).contains("hunter"), "{error:?}");
    assert!(error.to_string().contains("bad key *** or ***"), "{error}");
}

#[tokio::test]
async fn a_closed_port_is_unreachable_with_the_cause() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let fixture = ModelCallFixture::with(format!("http://user:pw@{free}/v1?key=k"), |config| config.max_retries = 1);
    let (error, sink) = fixture.failure().await;
    let ModelError::Unreachable { url, cause, .. } = error else { panic!("{error:?}") };
    assert_eq!(url, format!("http://{free}/v1/chat/completions"), "without what may be secret");
    assert!(cause.contains("refused"), "{cause}");
    assert_eq!((sink.retries.len(), sink.usages.len()), (1, 0));
}

#[tokio::test]
async fn an_unreachable_server_is_named_with_the_place_that_was_asked_for_its_models() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut config = ProviderConfig::new(ProviderKind::OPENAI);
    config.base_url = Some(format!("http://user:pw@{free}/v1"));
    let outcome = fetch_model_list("p", config, Duration::from_secs(4)).await;
    let Err(ModelListError::Call(ModelError::Unreachable { url, .. })) = outcome else { panic!("{outcome:?}") };
    assert_eq!(url, format!("http://{free}/v1/models"));
}

/// A listener with a full queue: further connections get no answer.
pub(super) async fn unresponsive_listener() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
        queued.push(stream);
    }
    (listener, queued)
}

#[tokio::test]
async fn a_connection_that_does_not_stand_in_time_is_tried_again_and_costs_nothing() {
    let (listener, _queued) = unresponsive_listener().await;
    let fixture = ModelCallFixture::with(format!("http://{}/v1", listener.local_addr().unwrap()), |config| {
        config.connect_timeout_s = 0.05;
        config.max_retries = 1;
    });
    let (error, sink) = fixture.failure().await;
    assert!(matches!(error, ModelError::TimedOut { timeout: ModelTimeout::Connect, .. }), "{error:?}");
    assert_eq!((sink.retries.len(), sink.usages.len()), (1, 0));
}

#[tokio::test]
async fn silence_before_the_headers_is_tried_again_and_may_have_cost_something() {
    let fake = FakeModelServer::start(vec![vec![], one_word_answer("ok")]).await;
    let fixture = ModelCallFixture::with(fake.base_url(), |config| config.header_timeout_s = 0.5);
    let (answer, sink) = fixture.answer().await;
    assert_eq!(answer.message.text(), "ok");
    fake.wait_for_disconnects(1).await;
    assert!(sink.retries[0].2.contains("no answer within 500ms; raise header_timeout_s"), "{:?}", sink.retries);
    assert_eq!(sink.usages.iter().map(|usage| usage.output_tokens).collect::<Vec<_>>(), [0, 1]);
    assert!(sink.usages.iter().copied().all(is_estimated));
}

#[rstest]
#[case::stream(stream_head(), b": OPENROUTER PROCESSING\n\n")]
#[case::white_space(FakeServerStep::Send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n".to_vec()), b"  \r\n\t ")]
#[tokio::test]
async fn an_answer_of_comments_alone_does_not_begin(#[case] head: FakeServerStep, #[case] nothing: &[u8]) {
    let fake =
        FakeModelServer::start(vec![vec![head, FakeServerStep::Flood(nothing.repeat(100))], one_word_answer("ok")])
            .await;
    let fixture = ModelCallFixture::with(fake.base_url(), |config| config.header_timeout_s = 0.5);
    let mut sink = RecordingSink::default();
    let answer = timeout(CALL_TIMEOUT, fixture.call(&mut sink)).await.expect("comments keep the call for ever");
    assert_eq!(answer.unwrap().message.text(), "ok");
    fake.wait_for_disconnects(1).await;
    assert!(sink.retries[0].2.contains("no answer within 500ms; raise header_timeout_s"), "{:?}", sink.retries);
}

#[rstest]
#[case::in_the_middle(vec![text_step("four chars")])]
#[case::behind_the_end(vec![text_step("four chars"), finish_step("stop")])]
#[tokio::test]
async fn comments_do_not_keep_an_answer_that_says_nothing_more(#[case] said: Vec<FakeServerStep>) {
    let comments = FakeServerStep::Flood(b": still here\n\n".repeat(100));
    let is_whole = said.len() > 1;
    let fake = FakeModelServer::start(vec![[vec![stream_head()], said, vec![comments]].concat()]).await;
    let fixture = ModelCallFixture::with(fake.base_url(), |config| config.idle_timeout_s = 0.5);
    let mut sink = RecordingSink::default();
    let answer = timeout(CALL_TIMEOUT, fixture.call(&mut sink)).await.expect("comments keep the call for ever");
    match answer {
        Ok(answer) => assert!(is_whole && answer.message.text() == "four chars", "{answer:?}"),
        Err(error) => {
            assert!(!is_whole && matches!(error, ModelError::TimedOut { timeout: ModelTimeout::Idle, .. }), "{error:?}")
        }
    }
    fake.wait_for_disconnects(1).await;
}

#[tokio::test]
async fn silence_in_the_middle_is_not_tried_again() {
    let fake = FakeModelServer::start(vec![vec![stream_head(), text_step("four chars"), usage_step(9, 1)]]).await;
    let fixture = ModelCallFixture::with(fake.base_url(), |config| config.idle_timeout_s = 0.5);
    let (error, sink) = fixture.failure().await;
    assert!(matches!(error, ModelError::TimedOut { timeout: ModelTimeout::Idle, .. }), "{error:?}");
    fake.wait_for_disconnects(1).await;
    let cut = Usage { input_tokens: 9, output_tokens: 1, cached_tokens: 0, estimated: true };
    assert_eq!((sink.retries.len(), sink.usages), (0, vec![cut]), "a count of a cut answer is an estimate");
    assert_eq!(fixture.ledger()[0].2, Release::Failed);
}

#[rstest]
#[case::in_an_event(vec![text_step("a"), FakeServerStep::Send(b"data: {\"choices\":[{\"del".to_vec()), FakeServerStep::Close])]
#[case::in_the_reason(vec![text_step("a"), FakeServerStep::Send(b"data: {\"choices\":[{\"finish_reason\":\"st".to_vec()), FakeServerStep::Close])]
#[case::between_events(vec![text_step("a"), FakeServerStep::Close])]
#[case::before_the_first(vec![FakeServerStep::Close])]
#[case::empty_reason(vec![text_step("a"), finish_step(""), FakeServerStep::Close])]
#[case::only_the_end_mark(vec![event_step("[DONE]"), FakeServerStep::Close])]
#[tokio::test]
async fn a_stream_that_ends_too_early_is_truncated_and_never_tried_again(#[case] events: Vec<FakeServerStep>) {
    let (fake, fixture) = ModelCallFixture::start(vec![[vec![stream_head()], events].concat()]).await;
    let (error, sink) = fixture.failure().await;
    assert!(matches!(error, ModelError::Truncated { .. }), "{error:?}");
    assert_eq!((sink.retries.len(), fake.requests().len(), sink.usages.len()), (0, 1, 1));
    assert_eq!(fixture.ledger()[0].2, Release::Failed);
}

#[tokio::test]
async fn a_body_that_is_shorter_than_its_framing_says_is_truncated() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n20\r\ndata: ";
    let fake =
        FakeModelServer::start(vec![vec![FakeServerStep::Send(head.as_bytes().to_vec()), FakeServerStep::Close]]).await;
    let error = ModelCallFixture::new(fake.base_url()).failure().await.0;
    assert!(matches!(error, ModelError::Truncated { .. }), "{error:?}");
}

#[rstest]
#[case::object(event_step(r#"{"error":{"message":"overloaded","code":529}}"#), Some(529), true)]
#[case::text(event_step(r#"{"error":"overloaded"}"#), None, false)]
#[case::named(FakeServerStep::Send(b"event: error\ndata: overloaded\n\n".to_vec()), None, false)]
#[tokio::test]
async fn an_error_inside_the_stream_ends_it(
    #[case] report: FakeServerStep,
    #[case] status: Option<u16>,
    #[case] retryable: bool,
) {
    let fake = FakeModelServer::start(vec![vec![stream_head(), text_step("a"), report]]).await;
    let (error, sink) = ModelCallFixture::new(fake.base_url()).failure().await;
    let expected =
        ModelError::Rejected { provider: "p".to_owned(), status, message: "overloaded".to_owned(), retryable };
    assert_eq!(error, expected);
    fake.wait_for_disconnects(1).await;
    assert_eq!((sink.text.as_str(), sink.retries.len(), sink.usages.len()), ("a", 0, 1));
}

#[rstest]
#[case::not_json(vec![stream_head(), event_step("hello")])]
#[case::wrong_shape(vec![stream_head(), event_step(r#"{"choices":7}"#)])]
#[case::endless_line(vec![stream_head(), FakeServerStep::Send(vec![b'x'; super::super::response::MAX_LINE_BYTES + 1])])]
#[case::web_page(plain_response("200 OK", "content-type: text/html\r\n", "<html>"))]
#[case::other_json(plain_response("200 OK", "content-type: application/json\r\n", "[1]"))]
#[tokio::test]
async fn a_stream_of_no_known_dialect_is_unreadable(#[case] script: Vec<FakeServerStep>) {
    let fake = FakeModelServer::start(vec![script]).await;
    let error = ModelCallFixture::new(fake.base_url()).failure().await.0;
    assert!(matches!(error, ModelError::BadStream { .. }), "{error:?}");
    fake.wait_for_disconnects(1).await;
}
