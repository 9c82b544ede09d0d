//! A message whose answer is the stream of its run, and whose connection is the life of the run.

use crate::prelude::*;

const ATTACHED: &str = "/api/sessions/s/runs?stopOnDisconnect=1";

fn message(key: &str) -> Value {
    json!({"text": "hello", "idempotencyKey": key})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_is_the_stream_of_the_run() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done"));
    let answer = server.http.request(Method::POST, ATTACHED).json(&message("k1")).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let text = answer.text().await.unwrap();
    assert!(text.contains("\nevent: run.ended\ndata: {") && text.contains("\"completed\""), "{text}");
    // Its end was no lost connection.
    assert_eq!(server.wait_ended("k1").await["verdict"]["kind"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_stops_the_run() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let mut answer = server.http.request(Method::POST, ATTACHED).json(&message("k1")).send().await.unwrap();
    let mut seen = String::new();
    while !seen.contains("begun") {
        seen.push_str(std::str::from_utf8(&answer.chunk().await.unwrap().unwrap()).unwrap());
    }
    drop(answer);
    let view = server.wait_ended("k1").await;
    assert_fields(
        &view,
        &json!({"verdict": {"kind": "aborted", "reason": "disconnect"}, "receipt": {"leftovers": []}}),
    );
    server.model.wait_for_connections(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_message_are_for_its_run() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("I see."));
    let file = json!({"name": "notes.txt", "content": "aGVsbG8="});
    let body = json!({"text": "read", "attachments": [file]});
    let sent = server.post_run("s", &body).await.expect_status(202);
    server.wait_ended(sent["runId"].as_str().unwrap()).await;
    let messages = messages_as_text(server.model.recorded_requests()[0].messages());
    assert!(messages.contains("[FILE:") && messages.contains("notes.txt"), "{messages}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_and_leaves_no_run() {
    let server = TestServer::start().await;
    let attached = async |body: Value| server.http.post(ATTACHED, &body).await;
    assert_problem(&attached(json!({"text": "x"})).await, 400, "invalid_request");
    let steer = json!({"text": "x", "idempotencyKey": "k", "onBusy": "steer"});
    assert_problem(&attached(steer).await, 400, "invalid_request");
    let bad_file = json!({"text": "x", "attachments": [{"content": "a*b"}]});
    assert_problem(&server.post_run("s", &bad_file).await, 400, "invalid_request");
    let many = json!({"text": "x", "attachments": vec![json!({"content": "YQ=="}); 11]});
    assert_problem(&server.post_run("s", &many).await, 400, "invalid_request");
    // A refused message stops nothing, and its key may be used again.
    let _ = server.http.put("/api/hold", &json!({})).await.expect_status(200);
    assert_problem(&attached(message("k1")).await, 503, "held");
    let _ = server.http.delete("/api/hold").await.expect_status(200);
    server.model.script(ScriptedResponse::text("done"));
    let _ = server.post_run("s", &message("k1")).await.expect_status(202);
    assert_eq!(server.wait_ended("k1").await["verdict"]["kind"], "completed");
}
