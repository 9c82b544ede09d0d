//! The same with OpenAI's own clients for Python and JavaScript.
//!
//! `QUELL_SKIP_MODEL_CLIENTS=1` skips those in Python, `QUELL_SKIP_NODE=1` those in JavaScript, with a message.

use quell_testkit::model::UsageReporting;

use crate::openai_responses::official_clients::OfficialClient::{self, Node, Python};

use crate::prelude::*;

const MODEL: &str = "scripted/model";

async fn run_client(client: OfficialClient, task: &str, server: &TestServer) -> Value {
    client.run("openai_chat", task, server).await
}

/// Checks that the oldest run was stopped because its client was gone.
async fn assert_first_run_stopped(server: &TestServer) {
    server.model.request_at(0).wait_client_left().await;
    // It is stored at its end.
    let run = poll_until("the run", async || {
        let runs = server.http.get("/api/runs").await.expect_status(200);
        runs["items"].as_array()?.last()?["runId"].as_str().map(str::to_owned)
    })
    .await;
    let receipt = server.wait_ended(&run).await["receipt"].clone();
    assert_fields(&receipt, &json!({"verdict": {"kind": "aborted", "reason": "disconnect"}, "leftovers": []}));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_gets_whole_and_streamed_answers(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("It rains."));
    server.model.script(ScriptedStream::new().text("It ").text("rains ü.").usage(UsageReporting::default(), 12, 3));
    let seen = run_client(client, "exchange", &server).await;
    let expected = json!({"whole": "It rains.", "streamed": "It rains ü.", "finish": "stop", "tokens": 15});
    assert_eq!(seen, expected);
    server.model.assert_histories_valid();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_carries_out_its_own_tools(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::tool_call("call_1", "weather", &json!({"place": "Bern"})));
    server.model.script(ScriptedStream::new().text("It ").text("rains."));
    let seen = run_client(client, "tools", &server).await;
    assert_eq!(seen, json!({"call": ["weather", {"place": "Bern"}], "text": "It rains."}));
    server.model.assert_histories_valid();
}

/// The library collects the call from the stream, carries it out, and asks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tool_runner_of_the_official_client_works() {
    if Node.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::tool_call("call_1", "weather", &json!({"place": "Bern"})));
    server.model.script(ScriptedStream::new().text("It ").text("rains."));
    let seen = run_client(Node, "runTools", &server).await;
    assert_eq!(seen, json!({"text": "It rains.", "asked": ["Bern"]}));
    server.model.assert_histories_valid();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_stops_by_closing_its_stream(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::text("next"));
    assert_eq!(run_client(client, "leave", &server).await, json!({"seen": "begun", "next": "next"}));
    assert_first_run_stopped(&server).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_official_client_that_dies_stops_its_run(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    assert_eq!(run_client(client, "lost", &server).await, json!({"seen": "begun"}));
    assert_first_run_stopped(&server).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_raises_when_somebody_else_stops_its_run(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let seen = run_client(client, "stopped", &server).await;
    assert_fields(
        &seen,
        &json!({"text": "begun", "error": "stopped", "verdict": {"kind": "aborted", "reason": "user"}}),
    );
    assert_eq!(server.model.request_count(), 1, "it was repeated");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_knows_every_error(#[values(Python, Node)] client: OfficialClient) {
    if client.is_skipped() {
        return;
    }
    let server = TestServer::start().await;
    let seen = run_client(client, "errors", &server).await;
    let expected = json!({
        "model": ["NotFoundError", "model_not_found", null],
        "field": ["BadRequestError", "invalid_request", "n"],
        "key": ["AuthenticationError", "invalid_api_key", null],
        "models": ["agent/main", "agent/team/writer", MODEL],
    });
    assert_eq!(seen, expected);
}
