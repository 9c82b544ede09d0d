//! List and show sessions and runs; the OpenAPI document; metrics; security headers.

use metrics_exporter_prometheus::PrometheusBuilder;
use quell_protocol::ErrorCode;
use quell_server::{ServerSettings, ServerState};
use quell_testkit::daemon::TestApiClient;
use reqwest::Method;
use serde_json::json;

use crate::test_server::{TestServer, assert_problem, serve};

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
    assert_problem(&server.http.get("/api/sessions/three").await, 404, "session_not_found");
    assert_problem(&server.http.get("/api/sessions/three/history").await, 404, "session_not_found");
    assert_problem(&server.http.post("/api/sessions/three/reset", &json!({})).await, 404, "session_not_found");
    assert_problem(&server.http.delete("/api/sessions/three").await, 404, "session_not_found");
    let _ = server.http.post("/api/sessions/one/reset", &json!({})).await.expect_status(200);
    server.run_to_end("one").await;
    let sent = server.model.recorded_requests().pop().unwrap();
    let user_messages: Vec<_> = sent.messages().iter().filter(|message| message["role"] == "user").collect();
    assert_eq!(user_messages.len(), 1, "the history was emptied");
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
        path = format!("/api/runs?limit=2&cursor={}", crate::test_server::percent_encode(cursor));
    }
    runs.reverse();
    assert_eq!(found, runs);
    let none = server.http.get("/api/runs?session=other").await.expect_status(200);
    assert_eq!(none["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_names_every_code() {
    let server = TestServer::start().await;
    let document = server.http.get("/openapi.json").await.expect_status(200);
    assert_eq!(document["openapi"].as_str().map(|version| version.starts_with("3.")), Some(true));
    let about = document["info"]["description"].as_str().unwrap();
    for code in ErrorCode::ALL {
        assert!(about.contains(code.as_str()), "{}", code.as_str());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_is_there() {
    let server = TestServer::start().await;
    assert_problem(&server.http.get("/metrics").await, 404, "not_found");
    let metrics = PrometheusBuilder::new().install_recorder().unwrap();
    let address = serve(ServerState::new(server.engine.clone(), ServerSettings::default(), Some(metrics))).await;
    let api = TestApiClient::new(&format!("http://{address}"), &server.token);
    server.start_streaming_run("s").await;
    let answer = api.get("/metrics").await;
    assert!(answer.content_type.starts_with("text/plain"), "{}", answer.content_type);
    let text = answer.expect_status(200).as_str().unwrap().to_owned();
    for line in [
        "quell_runs{state=\"running\"} 1",
        "quell_runs{state=\"queued\"} 0",
        "quell_model_requests 1",
        "quell_processes 0",
        "quell_background_processes 0",
        "quell_sessions_live 1",
        "quell_held 0",
        "quell_streams 0",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
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
