//! The same with OpenAI's own client for Python. `QUELL_SKIP_MODEL_CLIENTS=1` skips the tests, with a message.

use super::*;
use crate::dialects::official_clients::{are_skipped, run_model_client};

async fn run_client(task: &str, server: &TestServer) -> Value {
    let address = format!("http://{}", server.address);
    run_model_client("openai_chat/official_clients.py", &[task, &address, &server.token]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_carries_out_its_own_tools() {
    if are_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::tool_call("call_1", "weather", &json!({"place": "Bern"})));
    server.model.script(ScriptedStream::new().text("It ").text("rains."));
    let seen = run_client("tools", &server).await;
    assert_eq!(seen, json!({"call": ["weather", {"place": "Bern"}], "text": "It rains."}));
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_stops_by_closing_its_stream() {
    if are_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::text("next"));
    assert_eq!(run_client("leave", &server).await, json!({"next": "next"}));
    server.model.request_at(0).wait_client_left().await;
    let runs = server.http.get("/api/runs").await.expect_status(200);
    let first = runs["items"].as_array().unwrap().last().unwrap()["runId"].as_str().unwrap().to_owned();
    let view = server.wait_ended(&first).await;
    assert_fields(&view["receipt"], &json!({"verdict": {"kind": "aborted", "reason": "disconnect"}, "leftovers": []}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_raises_when_somebody_else_stops_its_run() {
    if are_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let seen = run_client("stopped", &server).await;
    assert_fields(
        &seen,
        &json!({"text": "begun", "error": "stopped", "verdict": {"kind": "aborted", "reason": "user"}}),
    );
    assert_eq!(server.model.request_count(), 1, "it was repeated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_knows_every_error() {
    if are_skipped() {
        return;
    }
    let server = TestServer::start().await;
    let seen = run_client("errors", &server).await;
    let expected = json!({
        "model": ["NotFoundError", "model_not_found", null],
        "field": ["BadRequestError", "invalid_request", "n"],
        "key": ["AuthenticationError", "invalid_api_key", null],
        "models": ["agent/main", "agent/team/writer", MODEL],
    });
    assert_eq!(seen, expected);
}
