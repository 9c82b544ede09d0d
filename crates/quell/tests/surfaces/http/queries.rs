//! List and show sessions and runs; the OpenAPI document; security headers; answers of a closing daemon.

use quell_protocol::ErrorCode;

use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_shown_reset_and_deleted() {
    let server = TestServer::start().await;
    server.run_to_end("one").await;
    server.run_to_end("two").await;
    let list = server.http.get("/api/sessions").await.expect_status(200);
    let keys: Vec<_> = list["items"].as_array().unwrap().iter().map(|row| row["key"].clone()).collect();
    assert_eq!(keys, ["two", "one"], "the last used comes first");
    for row in list["items"].as_array().unwrap() {
        assert!(row["lastUsedAt"].is_string() && row["state"].is_string(), "{row}");
    }
    let _ = server.http.post("/api/sessions/one/reset", &json!({})).await.expect_status(200);
    server.run_to_end("one").await;
    let sent = server.model.recorded_requests().pop().unwrap();
    let user_messages = sent.messages().iter().filter(|message| message["role"] == "user");
    assert_eq!(user_messages.count(), 1, "the history was emptied");
    assert_eq!(server.http.delete("/api/sessions/one").await.status, 204);
    assert_problem(&server.http.get("/api/sessions/one").await, 404, "session_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_stops_what_runs_first() {
    let (server, run) = TestServer::start_streaming().await;
    let _ = server.http.post("/api/sessions/s/reset", &json!({"reason": "anew"})).await.expect_status(200);
    assert_eq!(server.wait_ended(&run).await["verdict"]["reason"], "anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages() {
    let server = TestServer::start().await;
    let mut runs = [server.run_to_end("s").await, server.run_to_end("s").await, server.run_to_end("s").await];
    let mut found = Vec::new();
    let mut path = "/api/runs?limit=2".to_owned();
    loop {
        let page = server.http.get(&path).await.expect_status(200);
        found.extend(page["items"].as_array().unwrap().iter().map(|run| run["runId"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        path = format!("/api/runs?limit=2&cursor={}", percent_encode(cursor));
    }
    runs.reverse();
    assert_eq!(found, runs);
    assert_eq!(server.http.get("/api/runs?session=other").await.expect_status(200)["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_names_every_code() {
    let server = TestServer::start().await;
    let document = server.http.get("/openapi.json").await.expect_status(200);
    let about = document["info"]["description"].as_str().unwrap();
    for code in ErrorCode::ALL {
        assert!(about.contains(code.as_str()), "{}", code.as_str());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_cannot_be_framed_sniffed_or_kept() {
    let server = TestServer::start().await;
    for path in ["/", "/healthz", "/api/runs", "/nowhere"] {
        let answer = server.http.request(Method::GET, path).send().await.unwrap();
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("x-frame-options"), "DENY", "{path}");
        // The page is cached and revalidated each time; it holds no personal data.
        let kept = if path == "/" { "no-cache" } else { "no-store" };
        assert_eq!(header("cache-control"), kept, "{path}");
        assert!(header("content-security-policy").contains("default-src 'none'"), "{path}");
        assert_eq!(header("referrer-policy"), "no-referrer", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closing_daemon_says_so() {
    let server = TestServer::start().await;
    let run = server.run_to_end("s").await;
    server.wait_forgotten(&run).await;
    server.engine.shut_down().await;
    assert_eq!(server.http.get("/healthz").await.status, 200);
    assert_problem(&server.http.get("/readyz").await, 503, "shutting_down");
    assert_problem(&server.post_run("agent:main:s", &json!({"text": "x"})).await, 503, "shutting_down");
    assert_problem(&server.http.get(&format!("/api/runs/{run}")).await, 503, "store_unavailable");
    // For the abort of an agent, this comes before everything else.
    for path in ["/api/agent/main/abort", "/api/agent/nobody/abort", "/api/agent/%20/abort", "/api/agent//abort"] {
        assert_problem(&server.http.post(path, &json!({})).await, 500, "society_not_initialized");
    }
}
