//! Stops of tasks: by their client, by somebody else, and by a text.

use super::*;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_a_stop_and_ends_all_streams_of_the_task(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::text("on"));
    let client = A2aTestClient::new(&server.api_with_new_token("writer", "write").await, binding);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    let params = json!({"id": id_of(&task)});
    let mut watching = client.open_stream("SubscribeToTask", &params).await;
    watching.first_task().await;
    stream.read_until("begun").await;
    watching.read_until("begun").await;
    let cancelled = client.task("CancelTask", &params).await;
    assert_fields(&cancelled, &json!({"id": task["id"], "status": {"state": "TASK_STATE_CANCELED"}}));
    assert_eq!(cancelled["metadata"]["receipt"]["leftovers"], json!([]), "{cancelled:#}");
    server.model.request_at(0).wait_client_left().await;
    for stream in [stream, watching] {
        let parts = stream.read_to_end().await;
        assert_eq!(states_of(&parts), ["TASK_STATE_CANCELED"]);
        let text = last_status(&parts)["status"]["message"]["parts"][0]["text"].as_str().unwrap();
        assert!(text.contains("stopped by writer (a2a)") && text.contains("history valid"), "{text}");
        assert_eq!(last_status(&parts)["metadata"]["receipt"]["leftovers"], json!([]));
    }
    // A terminal state never changes.
    assert_eq!(client.error("CancelTask", &params).await, "TASK_NOT_CANCELABLE");
    assert_eq!(client.task("GetTask", &params).await["status"]["state"], "TASK_STATE_CANCELED");
    let context = json!({"contextId": task["contextId"]});
    let next = client.task("SendMessage", &message("and now?", &context)).await;
    assert_eq!(next["status"]["state"], "TASK_STATE_COMPLETED", "{next:#}");
    server.model.assert_histories_valid();
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_by_somebody_else_ends_the_stream_as_canceled(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let client = A2aTestClient::new(&server.api_with_new_token("writer", "write").await, binding);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    stream.read_until("begun").await;
    server.http.stop_run(id_of(&task)).await;
    let parts = stream.read_to_end().await;
    assert_eq!(states_of(&parts), ["TASK_STATE_CANCELED"]);
    let text = last_status(&parts)["status"]["message"]["parts"][0]["text"].as_str().unwrap();
    assert!(text.contains("stopped by admin (http)"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_message_answers_with_the_stop() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::JsonRpc);
    let params = message("hi", &json!({"contextId": "c"}));
    let stop = async {
        server.model.wait_for_requests(1).await[0].wait_streaming().await;
        server.http.post("/api/sessions/c/stop", &json!({})).await.expect_status(200);
    };
    let (task, ()) = tokio::join!(client.task("SendMessage", &params), stop);
    assert_eq!(task["status"]["state"], "TASK_STATE_CANCELED", "{task:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_covers_what_was_said_to_the_task() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::JsonRpc);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({"contextId": "c"}))).await;
    let task = stream.first_task().await;
    stream.read_until("begun").await;
    let word = message("do this, too", &json!({"taskId": id_of(&task)}));
    let cancel = async {
        poll_until("the message waits for the next step", async || {
            let runs = server.http.get("/api/runs?state=active").await.expect_status(200);
            (runs["items"].as_array().unwrap().len() == 2).then_some(())
        })
        .await;
        client.task("CancelTask", &json!({"id": id_of(&task)})).await
    };
    let (said, cancelled) = tokio::join!(client.task("SendMessage", &word), cancel);
    for shown in [said, cancelled] {
        assert_fields(&shown, &json!({"id": task["id"], "status": {"state": "TASK_STATE_CANCELED"}}));
    }
    server.model.script(ScriptedResponse::text("next"));
    let next = client.task("SendMessage", &message("and now?", &json!({"contextId": "c"}))).await;
    assert_eq!(next["status"]["state"], "TASK_STATE_COMPLETED", "{next:#}");
    assert_eq!(server.model.request_count(), 2, "the message has begun to run");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_word_of_a_program_is_only_a_text() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("the opposite of start"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::Rest);
    let task = client.task("SendMessage", &message("stop", &json!({}))).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task:#}");
    assert_eq!(task["history"][0]["parts"][0]["text"], "stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_works_beyond_the_limit_of_requests() {
    let server = TestServer::start_with(|plan| plan.server.requests_per_minute = 3).await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::JsonRpc);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    stream.read_until("begun").await;
    let params = json!({"id": id_of(&task)});
    let refused = async || client.call("GetTask", &params).await.err();
    poll_until("the limit", async || refused().await.filter(|reason| reason == "TOO_MANY_REQUESTS")).await;
    assert_eq!(client.task("CancelTask", &params).await["status"]["state"], "TASK_STATE_CANCELED");
}
