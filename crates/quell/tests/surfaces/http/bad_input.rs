//! Invalid input is refused with a stable code.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::prelude::*;

#[rstest]
#[case::cut("{\"text\": \"x\"", 400, "malformed_json")]
#[case::not_json("text=x", 400, "malformed_json")]
#[case::empty("", 400, "malformed_json")]
#[case::two_values("{\"text\":\"x\"} {}", 400, "malformed_json")]
#[case::deep("[".repeat(130), 400, "")]
#[case::invalid_utf8(b"{\"text\":\"\xff\"}", 400, "malformed_json")]
#[case::wrong_type("{\"text\": 7}", 400, "invalid_request")]
#[case::not_an_object("[]", 400, "invalid_request")]
#[case::missing("{}", 400, "invalid_request")]
#[case::unknown_field("{\"text\":\"x\",\"onbusy\":\"queue\"}", 400, "invalid_request")]
#[case::twice("{\"text\":\"x\",\"text\":\"y\"}", 400, "invalid_request")]
#[case::bad_policy("{\"text\":\"x\",\"onBusy\":\"maybe\"}", 400, "invalid_request")]
#[case::bad_key("{\"text\":\"x\",\"idempotencyKey\":\"a b\"}", 400, "invalid_request")]
#[case::negative_time("{\"text\":\"x\",\"timeoutMs\":-1}", 400, "invalid_request")]
#[case::blank_text("{\"text\":\"  \\n\"}", 400, "invalid_request")]
#[case::no_text("{\"text\":\"\"}", 400, "invalid_request")]
#[case::no_such_agent("{\"text\":\"x\",\"agent\":\"nobody\"}", 404, "agent_not_found")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_message_is_refused(#[case] body: impl Into<Vec<u8>>, #[case] status: u16, #[case] code: &str) {
    let server = TestServer::start().await;
    let answer = send_text(&server.http, Method::POST, "/api/sessions/s/runs", body.into()).await;
    let code = if code.is_empty() { answer.problem_code().unwrap().to_owned() } else { code.to_owned() };
    assert_problem(&answer, status, &code);
    assert_eq!(server.http.get("/api/runs").await.expect_status(200)["items"], json!([]), "a run was accepted");
    server.run_to_end("s").await;
}

#[rstest]
#[case::text("text/plain", 415)]
#[case::form("application/x-www-form-urlencoded", 415)]
#[case::json_of_a_kind("application/vnd.quell+json; charset=utf-8", 202)]
#[case::loud("Application/JSON", 202)]
#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_json(#[case] kind: &str, #[case] status: u16) {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done"));
    let request = server.http.request(Method::POST, "/api/sessions/s/runs").header("content-type", kind);
    let answer = server.http.send(request.body("{\"text\":\"x\"}")).await;
    assert_eq!(answer.status, status);
    if status == 415 {
        assert_problem(&answer, 415, "unsupported_media_type");
    }
}

/// In bytes.
const BODY_LIMIT: usize = 64 * 1024;

async fn start_with_body_limit() -> TestServer {
    TestServer::start_with(|plan| plan.engine.limits.request_body_bytes = BODY_LIMIT).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_body_with_its_length_is_refused() {
    let server = start_with_body_limit().await;
    for bytes in [BODY_LIMIT, 16 * BODY_LIMIT] {
        assert_problem(&server.post_run("s", &json!({"text": "x".repeat(bytes)})).await, 413, "body_too_large");
    }
    server.run_to_end("s").await;
}

#[rstest]
#[case::length_without_a_body("/api/sessions/s/runs", "content-length: 999999999", "")]
#[case::chunks("/api/stop", "transfer-encoding: chunked", &format!("{BODY_LIMIT:x}\r\n{}\r\n1\r\nx\r\n", " ".repeat(BODY_LIMIT)))]
#[tokio::test(flavor = "multi_thread")]
async fn a_body_beyond_the_limit_is_refused_before_its_end(
    #[case] path: &str,
    #[case] header: &str,
    #[case] body: &str,
) {
    let server = start_with_body_limit().await;
    let mut socket = server.open_request("POST", path, header).await;
    // The server may refuse and close before all of it is written.
    let _ = socket.write_all(body.as_bytes()).await;
    let mut answer = vec![0; 12];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 413");
}

/// Sends a request with this exact path; returns the whole answer.
async fn raw_request(server: &TestServer, method: &str, path: &str, body: &str) -> String {
    let headers = format!("connection: close\r\ncontent-length: {}", body.len());
    let mut socket = server.open_request(method, path, &headers).await;
    socket.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[rstest]
#[case::colons("agent:main:user-456")]
#[case::slashes("a/b//c")]
#[case::letters("안녕/ü?x=1#y%20 z")]
#[case::dots("..")]
#[tokio::test(flavor = "multi_thread")]
async fn session_keys_come_back_unchanged(#[case] key: &str) {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done"));
    let path = format!("/api/sessions/{}", percent_encode(key).replace("..", "%2E%2E"));
    let sent = raw_request(&server, "POST", &format!("{path}/runs"), "{\"text\":\"x\"}").await;
    assert!(sent.starts_with("HTTP/1.1 202"), "{sent}");
    let body = |answer: &str| serde_json::from_str::<Value>(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body(&sent)["sessionKey"], key);
    server.wait_ended(body(&sent)["runId"].as_str().unwrap()).await;
    let shown = raw_request(&server, "GET", &path, "").await;
    assert_eq!(body(&shown)["key"], key, "{shown}");
}

#[rstest]
#[case::unknown_route(Method::GET, "/api/nothing", 404, "not_found")]
#[case::below_a_route(Method::DELETE, "/api/hold/x", 404, "not_found")]
#[case::no_metrics(Method::GET, "/metrics", 404, "not_found")]
#[case::unknown_method(Method::DELETE, "/api/runs", 405, "method_not_allowed")]
#[case::misspelt_parameter(Method::GET, "/api/runs?sate=active", 400, "invalid_request")]
#[case::unknown_state(Method::GET, "/api/runs?state=lost", 400, "invalid_request")]
#[case::limit(Method::GET, "/api/runs?limit=many", 400, "invalid_request")]
#[case::cursor_of_runs(Method::GET, "/api/runs?cursor=none", 400, "invalid_request")]
#[case::cursor_of_sessions(Method::GET, "/api/sessions?cursor=none", 400, "invalid_request")]
#[case::blank_agent(Method::POST, "/api/agent/%20/abort", 400, "missing_agent_id")]
#[case::empty_agent(Method::POST, "/api/agent//abort", 400, "missing_agent_id")]
#[case::unknown_agent(Method::POST, "/api/agent/nobody/abort", 404, "agent_not_found")]
#[case::agent_too_long_to_exist(Method::POST, "/api/agent/LONG/abort", 404, "agent_not_found")]
#[case::agent_that_is_not_there(Method::GET, "/api/agents/nobody", 404, "agent_not_found")]
#[case::bad_scope(Method::POST, "/api/agent/main/abort?scope=all", 400, "invalid_request")]
#[case::unknown_session(Method::GET, "/api/sessions/three", 404, "session_not_found")]
#[case::history_of_an_unknown_session(Method::GET, "/api/sessions/three/history", 404, "session_not_found")]
#[case::reset_of_an_unknown_session(Method::POST, "/api/sessions/three/reset", 404, "session_not_found")]
#[case::deletion_of_an_unknown_session(Method::DELETE, "/api/sessions/three", 404, "session_not_found")]
#[case::agent_of_a_session_key(Method::POST, "/api/sessions/agent:nobody:user-1/runs", 404, "agent_not_found")]
#[case::cut_escape(Method::POST, "/api/runs/%2", 400, "invalid_request")]
#[case::escape_that_is_not_hex(Method::POST, "/api/runs/%zz", 400, "invalid_request")]
#[case::escape_that_is_not_utf8(Method::POST, "/api/sessions/%ff/runs", 400, "invalid_request")]
#[case::escape_in_an_agent(Method::POST, "/api/agent/a%/abort", 400, "invalid_request")]
#[case::escape_where_no_route_is(Method::POST, "/nowhere/%C3", 400, "invalid_request")]
#[case::session_key_too_long(Method::POST, "/api/sessions/LONGLONGLONG/runs", 400, "invalid_request")]
#[case::line_break_in_a_session_key(Method::POST, "/api/sessions/a%0Ab/runs", 400, "invalid_request")]
#[case::null_in_a_session_key(Method::POST, "/api/sessions/a%00b/runs", 400, "invalid_request")]
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_says_why(
    #[case] method: Method,
    #[case] path: &str,
    #[case] status: u16,
    #[case] code: &str,
) {
    let server = TestServer::start().await;
    let body = if path.ends_with("/runs") { json!({"text": "x"}) } else { json!({}) };
    let request = server.http.request(method, &path.replace("LONG", &"k".repeat(171))).json(&body);
    assert_problem(&server.http.send(request).await, status, code);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_session_key_is_accepted() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done"));
    assert_eq!(server.post_run(&"k".repeat(512), &json!({"text": "x"})).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_method_is_answered_with_the_allowed_ones() {
    let server = TestServer::start().await;
    let answer = server.http.request(Method::POST, "/api/hold").send().await.unwrap();
    assert_eq!(answer.status(), 405);
    let allowed = answer.headers()["allow"].to_str().unwrap().to_owned();
    assert!(["GET", "PUT", "DELETE"].iter().all(|method| allowed.contains(method)), "{allowed}");
}
