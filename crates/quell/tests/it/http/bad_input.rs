//! Invalid input is refused with a stable code.

use quell_testkit::ScriptedResponse;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::{TestServer, assert_problem, percent_encode, send_text};

#[rstest]
#[case::cut("{\"text\": \"x\"", 400, "malformed_json")]
#[case::not_json("text=x", 400, "malformed_json")]
#[case::empty("", 400, "malformed_json")]
#[case::two_values("{\"text\":\"x\"} {}", 400, "malformed_json")]
#[case::deep(
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    400,
    ""
)]
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
async fn a_bad_message_is_refused(#[case] body: &'static str, #[case] status: u16, #[case] code: &str) {
    let server = TestServer::start().await;
    let answer = send_text(&server.http, Method::POST, "/api/sessions/s/runs", body).await;
    let code = if code.is_empty() { answer.problem_code().unwrap().to_owned() } else { code.to_owned() };
    assert_problem(&answer, status, &code);
    assert_eq!(server.http.get("/api/runs").await.expect_status(200)["items"], json!([]), "a run was accepted");
    server.run_to_end("s").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_utf8_is_malformed() {
    let server = TestServer::start().await;
    let answer = send_text(&server.http, Method::POST, "/api/sessions/s/runs", b"{\"text\":\"\xff\"}".to_vec()).await;
    assert_problem(&answer, 400, "malformed_json");
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
        let answer = server.post_run("s", &json!({"text": "x".repeat(bytes)})).await;
        assert_problem(&answer, 413, "body_too_large");
    }
    server.run_to_end("s").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_beyond_the_limit_is_refused_before_the_body_comes() {
    let server = start_with_body_limit().await;
    let mut socket = server.open_request("POST", "/api/sessions/s/runs", "content-length: 999999999").await;
    assert_refused_as_too_large(&mut socket).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_body_in_chunks_is_refused() {
    let server = start_with_body_limit().await;
    let mut socket = server.open_request("POST", "/api/stop", "transfer-encoding: chunked").await;
    let chunk = format!("{BODY_LIMIT:x}\r\n{}\r\n", " ".repeat(BODY_LIMIT));
    socket.write_all(chunk.as_bytes()).await.unwrap();
    // The server may have refused and closed by now.
    let _ = socket.write_all(b"1\r\nx\r\n").await;
    assert_refused_as_too_large(&mut socket).await;
}

async fn assert_refused_as_too_large(socket: &mut TcpStream) {
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
#[case::cut("/api/runs/%2")]
#[case::not_hex("/api/runs/%zz")]
#[case::not_utf8("/api/sessions/%ff/runs")]
#[case::in_an_agent("/api/agent/a%/abort")]
#[case::where_no_route_is("/nowhere/%C3")]
#[tokio::test(flavor = "multi_thread")]
async fn malformed_escapes_are_bad_requests(#[case] path: &str) {
    let server = TestServer::start().await;
    let answer = raw_request(&server, "POST", path, "").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("\"code\":\"invalid_request\""), "{answer}");
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

#[tokio::test(flavor = "multi_thread")]
async fn session_keys_have_limits() {
    let server = TestServer::start().await;
    let longest = "k".repeat(512);
    server.model.script(ScriptedResponse::text("done"));
    assert_eq!(server.post_run(&longest, &json!({"text": "x"})).await.status, 202);
    for key in ["k".repeat(513), "a\nb".to_owned(), "a\0b".to_owned()] {
        assert_problem(&server.post_run(&key, &json!({"text": "x"})).await, 400, "invalid_request");
    }
}

#[rstest]
#[case::run("/api/runs?sate=active")]
#[case::state("/api/runs?state=lost")]
#[case::limit("/api/runs?limit=many")]
#[case::cursor("/api/runs?cursor=none")]
#[case::sessions("/api/sessions?cursor=none")]
#[tokio::test(flavor = "multi_thread")]
async fn bad_queries_are_refused(#[case] path: &str) {
    let server = TestServer::start().await;
    assert_problem(&server.http.get(path).await, 400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_routes_and_methods_are_problems() {
    let server = TestServer::start().await;
    assert_problem(&server.http.get("/api/nothing").await, 404, "not_found");
    assert_problem(&server.http.delete("/api/runs").await, 405, "method_not_allowed");
    assert_eq!(server.http.delete("/api/hold/x").await.status, 404);
    let answer = server.http.request(Method::POST, "/api/hold").send().await.unwrap();
    assert_eq!(answer.status(), 405);
    let allowed = answer.headers()["allow"].to_str().unwrap().to_owned();
    assert!(["GET", "PUT", "DELETE"].iter().all(|method| allowed.contains(method)), "{allowed}");
}
