//! Push notifications: what a receiver gets, who signed it, and the configs of a task.

use quell_test_support::a2a_client::pushes::{PUSH_SECRET, verify_notification, wait_told_states};
use quell_test_support::hook_receiver::HookReceiver;

use super::*;
use crate::test_server::TestServerConfig;

fn with_push(config: &mut TestServerConfig) {
    config.engine.hooks.secret = Some(PUSH_SECRET.to_owned().into());
    config.engine.tools.fetch.allow_private = true;
}

fn config_for(receiver: &HookReceiver, fields: &Value) -> Value {
    let authentication = json!({"scheme": "Bearer", "credentials": "hush"});
    let mut config = json!({"url": receiver.url("a2a"), "token": "mark", "authentication": authentication});
    config.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
    config
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_hears_of_its_task_and_of_its_end(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start_with(with_push).await;
    let receiver = HookReceiver::start().await;
    server.model.script(gated_response("go"));
    let card = server.http.get("/.well-known/agent-card.json").await.expect_status(200);
    assert_eq!(card["capabilities"]["pushNotifications"], true);
    let client = A2aTestClient::new(&server.api_with_new_token("writer", "write").await, binding);
    let mut params = message("hi", &json!({}));
    let config = config_for(&receiver, &json!({}));
    params["configuration"] = json!({"returnImmediately": true, "taskPushNotificationConfig": config});
    let task = client.task("SendMessage", &params).await;
    server.model.wait_for_requests(1).await[0].wait_paused().await;
    receiver.wait_received(1).await;
    server.model.open_gate("go");
    let states = wait_told_states(&server.http, &receiver, id_of(&task)).await;
    assert_eq!(states, ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]);
    let end = verify_notification(&server.http, receiver.wait_received(0).await.last().unwrap()).await;
    assert_eq!(end["task"]["artifacts"][0]["parts"][0]["text"], "begun and done");
    assert_eq!(end["task"]["metadata"]["receipt"]["leftovers"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_told_to_the_receiver() {
    let server = TestServer::start_with(with_push).await;
    let receiver = HookReceiver::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::Rest);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    stream.read_until("begun").await;
    let config = config_for(&receiver, &json!({"taskId": id_of(&task)}));
    client.call("CreateTaskPushNotificationConfig", &config).await.unwrap();
    receiver.wait_received(1).await;
    assert_eq!(client.task("CancelTask", &json!({"id": id_of(&task)})).await["status"]["state"], "TASK_STATE_CANCELED");
    let states = wait_told_states(&server.http, &receiver, id_of(&task)).await;
    assert_eq!(states, ["TASK_STATE_WORKING", "TASK_STATE_CANCELED"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_hears_that_a_sub_agent_asks() {
    let server = TestServer::start_with(|config| {
        with_push(config);
        config.ask_in_sub_agent();
    })
    .await;
    let receiver = HookReceiver::start().await;
    let delegation = json!({"agent": "team/writer", "prompt": "look"});
    let begun = ScriptedStream::new().wait_for_gate("begin").tool_call("c0", "spawn_agent", &delegation);
    server.model.script(begun).script(list_files_call());
    server.model.script(ScriptedResponse::text("not listed")).script(gated_response("end"));
    let client = A2aTestClient::new(&server.http, A2aTestBinding::JsonRpc);
    let config = config_for(&receiver, &json!({}));
    let mut params = message("go", &json!({}));
    params["configuration"] = json!({"returnImmediately": true, "taskPushNotificationConfig": config});
    let task = client.task("SendMessage", &params).await;
    receiver.wait_received(1).await;
    server.model.open_gate("begin");
    let told = receiver.wait_received(2).await.pop().unwrap();
    let asked = verify_notification(&server.http, &told).await["statusUpdate"]["status"].clone();
    let shown = client.task("GetTask", &json!({"id": id_of(&task)})).await;
    assert_eq!(asked["message"], shown["status"]["message"]);
    let mut answer = message("no", &json!({"taskId": id_of(&task)}));
    answer["configuration"] = json!({"returnImmediately": true});
    client.task("SendMessage", &answer).await;
    receiver.wait_received(3).await;
    server.model.open_gate("end");
    let states = wait_told_states(&server.http, &receiver, id_of(&task)).await;
    let expected = ["TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"];
    assert_eq!(states, expected);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_configs_of_a_task_are_created_read_and_deleted(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start_with(with_push).await;
    let receiver = HookReceiver::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let client = A2aTestClient::new(&server.api_with_new_token("writer", "write").await, binding);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    let of_task = |fields: Value| {
        let mut params = json!({"taskId": id_of(&task)});
        params.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
        params
    };
    let (create, list) = ("CreateTaskPushNotificationConfig", "ListTaskPushNotificationConfigs");
    let created = client.call(create, &config_for(&receiver, &of_task(json!({"id": "one"})))).await.unwrap();
    // The credentials are not shown again.
    let shown = json!({
        "id": "one",
        "taskId": task["id"],
        "url": receiver.url("a2a"),
        "token": "mark",
        "authentication": {"scheme": "Bearer"},
    });
    assert_eq!(created, shown);
    let unnamed = client.call(create, &config_for(&receiver, &of_task(json!({})))).await.unwrap();
    assert_eq!(client.call("GetTaskPushNotificationConfig", &of_task(json!({"id": "one"}))).await.unwrap(), shown);
    let listed = client.call(list, &of_task(json!({}))).await.unwrap();
    assert_eq!(listed, json!({"configs": [shown, unnamed], "nextPageToken": ""}));
    let stranger = client.with_api(server.api_with_new_token("bob", "write").await);
    assert_eq!(stranger.error(list, &of_task(json!({}))).await, "TASK_NOT_FOUND");
    for _ in 0..2 {
        let deleted = client.call("DeleteTaskPushNotificationConfig", &of_task(json!({"id": "one"}))).await;
        assert_eq!(deleted.unwrap(), json!({}));
    }
    let missing = client.error("GetTaskPushNotificationConfig", &of_task(json!({"id": "one"}))).await;
    assert_eq!(missing, "TASK_NOT_FOUND");
    let bad = of_task(json!({"url": "ftp://x.example"}));
    assert_eq!(client.error(create, &bad).await, "INVALID_PARAMS");
    let reader = client.with_api(server.api_with_new_token("reader", "read").await);
    assert_eq!(reader.error(create, &bad).await, "TASK_NOT_FOUND");
    client.task("CancelTask", &json!({"id": id_of(&task)})).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_is_not_told_that_it_deleted_the_config_of_another(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start_with(with_push).await;
    let receiver = HookReceiver::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let owner = A2aTestClient::new(&server.api_with_new_token("writer", "write").await, binding);
    let mut stream = owner.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    let config = json!({"taskId": id_of(&task), "id": "one"});
    owner.call("CreateTaskPushNotificationConfig", &config_for(&receiver, &config)).await.unwrap();
    let reader = owner.with_api(server.api_with_new_token("reader", "read:all").await);
    assert_eq!(reader.task("GetTask", &json!({"id": id_of(&task)})).await["id"], task["id"], "it may read the task");
    for operation in ["GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"] {
        assert_eq!(reader.error(operation, &config).await, "TASK_NOT_FOUND", "{operation}");
    }
    let kept = owner.call("GetTaskPushNotificationConfig", &config).await.unwrap();
    assert_eq!(kept["url"], receiver.url("a2a"));
    owner.task("CancelTask", &json!({"id": id_of(&task)})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_a_bad_receiver_leaves_no_work() {
    let server = TestServer::start_with(|config| {
        with_push(config);
        config.engine.tools.fetch.allow_private = false;
    })
    .await;
    let client = A2aTestClient::new(&server.http, A2aTestBinding::Rest);
    let mut params = message("hi", &json!({}));
    params["configuration"] = json!({"taskPushNotificationConfig": {"url": "http://127.0.0.1:9/private"}});
    assert_eq!(client.error("SendMessage", &params).await, "INVALID_PARAMS");
    let listed = client.call("ListTasks", &json!({})).await.unwrap();
    assert_eq!((&listed["tasks"], server.model.request_count()), (&json!([]), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_secret_there_are_no_push_notifications() {
    let server = TestServer::start().await;
    let card = server.http.get("/.well-known/agent-card.json").await.expect_status(200);
    assert_eq!(card["capabilities"]["pushNotifications"], false);
    assert_eq!(server.http.get("/.well-known/jwks.json").await.expect_status(200), json!({"keys": []}));
    let mut params = message("hi", &json!({}));
    params["configuration"] = json!({"taskPushNotificationConfig": {"url": "https://x.example"}});
    for binding in [A2aTestBinding::JsonRpc, A2aTestBinding::Rest] {
        let client = A2aTestClient::new(&server.http, binding);
        let refused = "PUSH_NOTIFICATION_NOT_SUPPORTED";
        assert_eq!(client.error("SendMessage", &params).await, refused);
        assert_eq!(client.error("ListTaskPushNotificationConfigs", &json!({"taskId": "x"})).await, refused);
    }
    assert_eq!(server.model.request_count(), 0);
}
