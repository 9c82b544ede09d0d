//! Messages and tasks: a normal exchange, a lost connection, and approvals.

use super::*;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_streamed_with_its_answer_and_receipt(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("Hello")).script(ScriptedResponse::text("again"));
    let client = A2aTestClient::new(&server.http, binding);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    assert_fields(&task, &json!({"status": {"state": "TASK_STATE_SUBMITTED"}, "metadata": {"agent": "main"}}));
    assert_eq!(task["history"][0]["parts"][0]["text"], "hi");
    let parts = stream.read_to_end().await;
    assert_eq!(states_of(&parts), ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]);
    assert_eq!(answer_of(&parts), "Hello");
    assert_eq!(last_status(&parts)["metadata"]["receipt"]["leftovers"], json!([]));
    let context = task["contextId"].as_str().unwrap();
    assert!(context.starts_with("a2a:"), "{context}");
    let found = client.task("GetTask", &json!({"id": id_of(&task)})).await;
    assert_fields(&found, &json!({"contextId": context, "status": {"state": "TASK_STATE_COMPLETED"}}));
    assert_eq!(found["artifacts"][0]["parts"][0]["text"], "Hello");
    assert_eq!(found["metadata"]["receipt"]["runId"], task["id"]);
    let without = client.task("GetTask", &json!({"id": id_of(&task), "historyLength": 0})).await;
    assert!(without.get("history").is_none(), "{without:#}");
    // The next message of the context knows what was said.
    let next = client.task("SendMessage", &message("and now?", &json!({"contextId": context}))).await;
    assert_fields(&next, &json!({"contextId": context, "status": {"state": "TASK_STATE_COMPLETED"}}));
    assert_eq!(next["artifacts"][0]["parts"][0]["text"], "again");
    assert!(messages_as_text(server.model.recorded_requests()[1].messages()).contains("Hello"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_return_before_its_task_is_over() {
    let server = TestServer::start().await;
    server.model.script(gated_response("go"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::Rest);
    let mut params = message("hi", &json!({}));
    params["configuration"] = json!({"returnImmediately": true, "historyLength": 0});
    let task = client.task("SendMessage", &params).await;
    let state = task["status"]["state"].as_str().unwrap();
    assert!(matches!(state, "TASK_STATE_SUBMITTED" | "TASK_STATE_WORKING"), "{task:#}");
    assert!(task.get("history").is_none(), "{task:#}");
    server.model.open_gate("go");
    assert_fields(&server.wait_ended(id_of(&task)).await, &json!({"output": "begun and done", "surface": "a2a"}));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stream_stops_nothing_and_is_resumed(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start().await;
    server.model.script(gated_response("go"));
    let client = A2aTestClient::new(&server.http, binding);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    server.model.wait_for_requests(1).await[0].wait_paused().await;
    drop(stream);
    let subscription = json!({"id": id_of(&task)});
    let mut one = client.open_stream("SubscribeToTask", &subscription).await;
    let mut two = client.open_stream("SubscribeToTask", &subscription).await;
    for resumed in [&mut one, &mut two] {
        let first = resumed.first_task().await;
        assert_fields(&first, &json!({"id": task["id"], "status": {"state": "TASK_STATE_WORKING"}}));
        resumed.read_until("begun").await;
    }
    server.model.open_gate("go");
    for resumed in [one, two] {
        let parts = resumed.read_to_end().await;
        assert_eq!((answer_of(&parts).as_str(), states_of(&parts)), (" and done", vec!["TASK_STATE_COMPLETED"]));
    }
    assert_eq!(client.error("SubscribeToTask", &subscription).await, "UNSUPPORTED_OPERATION");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_for_a_working_task_steers_it() {
    let server = TestServer::start().await;
    server.model.script(ScriptedStream::new().wait_for_gate("go").tool_call("c1", "list_files", &json!({"path": "."})));
    server.model.script(ScriptedResponse::text("done"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::JsonRpc);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    server.model.wait_for_requests(1).await[0].wait_paused().await;
    let word = message("look at the tests", &json!({"taskId": id_of(&task)}));
    let mut followed = client.open_stream("SendStreamingMessage", &word).await;
    assert_eq!(followed.first_task().await["id"], task["id"]);
    server.model.open_gate("go");
    for stream in [stream, followed] {
        assert_eq!(answer_of(&stream.read_to_end().await), "done");
    }
    assert!(messages_as_text(server.model.recorded_requests()[1].messages()).contains("look at the tests"));
    // It is over now, and takes no message; the context does.
    assert_eq!(client.error("SendMessage", &word).await, "UNSUPPORTED_OPERATION");
    let listed = client.call("ListTasks", &json!({})).await.unwrap();
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 1, "a steered message is no task: {listed:#}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_answered_by_a_message_for_its_task(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = start_asking().await;
    server.model.script(list_files_call()).script(ScriptedResponse::text("listed"));
    let writer = A2aTestClient::new(&server.api_with_new_token("writer", "write").await, binding);
    let stream = writer.open_stream("SendStreamingMessage", &message("list", &json!({}))).await;
    let parts = stream.read_to_end().await;
    // The stream ends when the task waits for input.
    assert_eq!(states_of(&parts), ["TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"]);
    let question = last_status(&parts)["status"]["message"]["parts"].clone();
    assert!(
        question[0]["text"].as_str().unwrap().contains("call list_files. Answer allow, approve, yes"),
        "{question}"
    );
    assert_eq!(question[1]["data"]["arguments"], json!({"path": "."}));
    let id = last_status(&parts)["taskId"].as_str().unwrap().to_owned();
    let waiting = writer.task("GetTask", &json!({"id": id})).await;
    assert_eq!(waiting["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let answer = |text: &str| message(text, &json!({"taskId": id}));
    assert_eq!(writer.error("SendMessage", &answer("perhaps")).await, "INVALID_PARAMS");
    // A token may not allow the calls of its own runs.
    assert_eq!(writer.error("SendMessage", &answer("allow")).await, "FORBIDDEN");
    let mut watching = writer.open_stream("SubscribeToTask", &json!({"id": id})).await;
    assert_eq!(watching.first_task().await["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let secret = json!({"name": "approver", "scope": ["write", "read:all", "approve"]});
    let made = server.http.post("/api/tokens", &secret).await.expect_status(201);
    let approver = writer.with_api(server.http.with_token(made["token"].as_str().unwrap()));
    let done = approver.task("SendMessage", &answer("Yes.")).await;
    assert_fields(&done, &json!({"id": id, "status": {"state": "TASK_STATE_COMPLETED"}}));
    assert_eq!(done["artifacts"][0]["parts"][0]["text"], "listed");
    let parts = watching.read_to_end().await;
    assert_eq!(states_of(&parts), ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_by_data_may_say_why() {
    let server = start_asking().await;
    server.model.script(list_files_call()).script(ScriptedResponse::text("not listed"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::JsonRpc);
    let waiting = client.task("SendMessage", &message("list", &json!({}))).await;
    assert_eq!(waiting["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{waiting:#}");
    let mut answer = message("", &json!({"taskId": id_of(&waiting)}));
    let question = &waiting["status"]["message"]["parts"][1]["data"];
    let mut decide = async |approval: &Value| {
        let data = json!({"approval": approval, "decision": "deny", "reason": "not these files"});
        answer["message"]["parts"] = json!([{"data": data}]);
        client.call("SendMessage", &answer).await
    };
    // An answer to another call than the one that waits decides nothing.
    assert_eq!(decide(&json!("another")).await.unwrap_err(), "INVALID_PARAMS");
    let done = decide(&question["approval"]).await.unwrap()["task"].clone();
    assert_eq!(done["artifacts"][0]["parts"][0]["text"], "not listed", "{done:#}");
    assert!(messages_as_text(server.model.recorded_requests()[1].messages()).contains("not these files"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_agent_that_asks_is_input_that_the_task_needs() {
    let server = TestServer::start_with_asking_sub_agent().await;
    script_asking_sub_agent(&server);
    let client = A2aTestClient::new(&server.http, A2aTestBinding::JsonRpc);
    let waiting = client.task("SendMessage", &message("go", &json!({}))).await;
    assert_eq!(waiting["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{waiting:#}");
    let listed = client.call("ListTasks", &json!({"status": "TASK_STATE_INPUT_REQUIRED"})).await.unwrap();
    assert_eq!(listed["tasks"][0]["id"], waiting["id"], "{listed:#}");
    let done = client.task("SendMessage", &message("no", &json!({"taskId": id_of(&waiting)}))).await;
    assert_fields(&done, &json!({"id": waiting["id"], "status": {"state": "TASK_STATE_COMPLETED"}}));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_tells_that_a_sub_agent_asks(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start_with_asking_sub_agent().await;
    script_asking_sub_agent(&server);
    let client = A2aTestClient::new(&server.http, binding);
    let stream = client.open_stream("SendStreamingMessage", &message("go", &json!({}))).await;
    let parts = stream.read_to_end().await;
    assert_eq!(states_of(&parts), ["TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"]);
    let asked = last_status(&parts);
    let question = asked["status"]["message"]["parts"].clone();
    assert!(
        question[0]["text"].as_str().unwrap().starts_with("The sub-agent team/writer wants to call list_files."),
        "{question}"
    );
    let id = asked["taskId"].as_str().unwrap();
    let shown = client.task("GetTask", &json!({"id": id})).await;
    assert_eq!(shown["status"]["message"], asked["status"]["message"]);
    let mut watching = client.open_stream("SubscribeToTask", &json!({"id": id})).await;
    assert_eq!(watching.first_task().await["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let mut answer = message("", &json!({"taskId": id}));
    let approval = &question[1]["data"]["approval"];
    answer["message"]["parts"] = json!([{"data": {"approval": approval, "decision": "deny"}}]);
    let done = client.task("SendMessage", &answer).await;
    assert_fields(&done, &json!({"id": id, "status": {"state": "TASK_STATE_COMPLETED"}}));
    assert_eq!(states_of(&watching.read_to_end().await), ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_to_an_approval_is_refused() {
    let server = TestServer::start().await;
    server.model.script(gated_response("go"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::Rest);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    server.model.wait_for_requests(1).await[0].wait_paused().await;
    let mut answer = message("", &json!({"taskId": id_of(&task)}));
    answer["message"]["parts"] = json!([{"data": {"decision": "allow"}}]);
    assert_eq!(client.error("SendMessage", &answer).await, "INVALID_PARAMS");
    server.model.open_gate("go");
    assert_eq!(answer_of(&stream.read_to_end().await), "begun and done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_in_a_message_reaches_the_model() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("a note"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::Rest);
    let mut params = message("what is this?", &json!({}));
    let file = json!({"raw": "aGVsbG8gZmlsZQ==", "filename": "note.txt", "mediaType": "text/plain"});
    params["message"]["parts"].as_array_mut().unwrap().push(file);
    let task = client.task("SendMessage", &params).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task:#}");
    let sent = messages_as_text(server.model.recorded_requests()[0].messages());
    assert!(sent.contains("note.txt"), "{sent}");
}
