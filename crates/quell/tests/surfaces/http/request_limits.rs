//! The limit of requests of each principal, over HTTP and WebSocket, and what no limiter counts.

use quell_test_support::ws_client::WsTestClient;

use crate::prelude::*;

/// A server whose principals may make this many requests in a minute.
async fn start_limited(requests_per_minute: u32) -> TestServer {
    TestServer::start_with(|plan| plan.server.requests_per_minute = requests_per_minute).await
}

/// Makes requests until one is refused; returns the refusal.
async fn exhaust(api: &TestApiClient) -> reqwest::Response {
    for _ in 0..1000 {
        let answer = api.request(Method::GET, "/api/runs").send().await.unwrap();
        if answer.status() != 200 {
            return answer;
        }
    }
    panic!("no request was refused")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_principal_with_too_many_requests_is_told_to_wait_and_others_are_not() {
    let server = start_limited(20).await;
    let (busy, calm) =
        (server.api_with_new_token("busy", "write").await, server.api_with_new_token("calm", "read").await);
    let refused = exhaust(&busy).await;
    assert_eq!(refused.status(), 429);
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["code"], "too_many_requests");
    assert!(problem["detail"].as_str().unwrap().contains("requests_per_minute"), "{problem:#}");
    assert_eq!(calm.get("/api/runs").await.status, 200);
}

/// Every stop, while the one who asks for it has no requests left.
#[tokio::test(flavor = "multi_thread")]
async fn no_limiter_is_before_a_stop_or_the_hold() {
    let server = start_limited(30).await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let runs = [
        server.start_streaming_run("a").await,
        server.start_streaming_run("b").await,
        server.start_streaming_run("c").await,
        server.start_streaming_run("d").await,
        server.start_streaming_run("e").await,
        server.start_streaming_run("f").await,
        server.start_streaming_run("g").await,
    ];
    assert_eq!(exhaust(&server.http).await.status(), 429);
    let refused = client.request("runs.list", json!({})).await;
    assert_eq!(refused["error"]["details"]["code"], "TOO_MANY_REQUESTS", "{refused}");
    assert!(refused["error"]["retryAfterMs"].as_u64().unwrap() > 0, "{refused}");
    assert_problem(&server.post_run("a", &json!({"text": "hello"})).await, 429, "too_many_requests");

    let http = &server.http;
    let stopped = http.post(&format!("/api/runs/{}/stop?wait=1", runs[0]), &json!({})).await.expect_status(200);
    assert_eq!(stopped["verdict"]["kind"], "aborted", "{stopped:#}");
    for path in ["/api/sessions/b/stop?wait=1", "/api/agent/main/abort"] {
        assert_eq!(http.post(path, &json!({})).await.status, 200, "{path}");
    }
    let by_text = server.post_run("c", &json!({"text": "/stop"})).await;
    assert_eq!(by_text.status, 200, "{by_text:?}");
    client.call("runs.stop", json!({"runId": runs[3]})).await;
    client.call("chat.abort", json!({"sessionKey": "e"})).await;
    client.call("sessions.abort", json!({"key": "f"})).await;
    let stop_text = json!({"sessionKey": "g", "message": "/stop", "idempotencyKey": "stop-text"});
    client.call("chat.send", stop_text).await;
    assert_eq!(http.put("/api/hold", &json!({"reason": "busy"})).await.status, 200);
    assert_eq!(http.get("/api/hold").await.expect_status(200)["held"], true);
    client.call("hold.get", json!({})).await;
    assert_eq!(http.delete("/api/hold").await.status, 200);
    client.call("stop.all", json!({})).await;
    assert_eq!(http.post("/api/stop?wait=1", &json!({})).await.status, 200);
    assert_eq!(http.delete("/api/sessions/a/processes/none").await.status, 404, "it was looked for");
    // The requests above did not use up what comes back, and did not give anything back.
    assert_eq!(exhaust(http).await.status(), 429);
    for run in &runs {
        let live_run = server.engine.live_run(&parse_run_id(run));
        assert!(live_run.is_none_or(|live_run| live_run.verdict().is_some()), "{run} goes on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_tokens_from_one_address_never_make_a_stop_wait() {
    let (server, run) = TestServer::start_streaming().await;
    let guesser = server.http.with_token("wrong");
    for _ in 0..150 {
        let _ = guesser.get("/api/runs").await;
    }
    assert_eq!(guesser.get("/api/runs").await.status, 429);
    assert_problem(&guesser.post("/api/stop", &json!({})).await, 401, "unauthorized");
    server.assert_running(&run).await;
    assert_eq!(server.http.post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.status, 200);
}
