//! Methods and events that OpenClaw's clients use besides chats: settings of sessions, `agent`, approvals, previews.

use quell_kernel::approval::ApprovalPolicy;

use super::{WsTestClient, start_connected};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_created_and_its_model_is_changed() {
    let (server, mut client) = start_connected().await;
    let asked =
        json!({"key": "tui-1", "agentId": "main", "parentSessionKey": "agent:main:main", "succeedsParent": true});
    let created = client.call("sessions.create", asked).await;
    assert_fields(&created, &json!({"ok": true, "key": "agent:main:tui-1", "sessionId": "agent:main:tui-1"}));
    let patched = client.call("sessions.patch", json!({"key": "agent:main:tui-1", "model": "other"})).await;
    assert_fields(
        &patched["resolved"],
        &json!({"modelProvider": "scripted", "model": "other", "thinkingLevel": "off"}),
    );
    let described = client.call("sessions.describe", json!({"key": "agent:main:tui-1"})).await;
    assert_eq!(described["session"]["model"], "other", "{described}");
    server.model.script(ScriptedResponse::text("done"));
    client.send_chat("agent:main:tui-1", "hello", "k").await;
    client.wait_chat("k", "final").await;
    assert_eq!(server.model.recorded_requests()[0].body["model"], "other");
    let back = client.call("sessions.patch", json!({"key": "agent:main:tui-1", "model": null})).await;
    assert_eq!(back["resolved"]["model"], "model", "{back}");
    let shown = client.call("sessions.patch", json!({"key": "agent:main:tui-1", "verboseLevel": "on"})).await;
    assert_eq!(shown["entry"]["verboseLevel"], "on", "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_created_session_begins_with_its_first_message() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedResponse::text("done"));
    let created = client.call("sessions.create", json!({"message": "hello", "idempotencyKey": "k"})).await;
    assert_fields(&created, &json!({"runStarted": true, "runId": "k"}));
    assert!(created["key"].as_str().unwrap().starts_with("agent:main:"), "{created}");
    client.wait_chat("k", "final").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_is_refused_where_the_provider_has_none() {
    let (_server, mut client) = start_connected().await;
    let error = client.call_refused("sessions.patch", json!({"key": "s", "thinkingLevel": "high"})).await;
    assert!(error["message"].as_str().unwrap().contains("thinking"), "{error}");
    let unknown = client.call_refused("sessions.patch", json!({"key": "s", "thinkingLevel": "ultra"})).await;
    assert!(unknown["message"].as_str().unwrap().contains("adaptive"), "{unknown}");
    let off = client.call("sessions.patch", json!({"key": "s", "thinkingLevel": "off"})).await;
    assert_eq!(off["resolved"]["thinkingLevel"], "off", "{off}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_of_another_token_is_not_patched() {
    let (server, mut client) = start_connected().await;
    client.call("sessions.patch", json!({"key": "s", "model": "other"})).await;
    client.call("sessions.create", json!({"key": "agent:main:x"})).await;
    let token = server.create_token("bob", "write").await;
    let mut bob = WsTestClient::connect_operator(&server, &token).await;
    bob.call_refused_as("FORBIDDEN", "sessions.patch", json!({"key": "s", "model": "mine"})).await;
    bob.call_refused_as("FORBIDDEN", "sessions.create", json!({"key": "agent:main:x", "message": "x"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_method_answers_when_accepted_and_at_the_end() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedStream::new().wait_for_gate("go").text("the answer"));
    let params = json!({"message": "hello", "idempotencyKey": "k", "agentId": "main", "deliver": false});
    let id = client.send_request("agent", params.clone()).await;
    let first = client.wait_response(&id).await;
    assert_fields(&first["payload"], &json!({"status": "accepted", "runId": "k", "sessionKey": "agent:main:main"}));
    server.model.open_gate("go");
    let last = client.wait_response(&id).await;
    assert_fields(&last["payload"], &json!({"status": "ok", "runId": "k", "summary": "completed"}));
    assert_eq!(last["payload"]["result"]["payloads"][0]["text"], "the answer", "{last}");
    let again = client.send_request("agent", params).await;
    assert_eq!(client.wait_response(&again).await["payload"]["status"], "accepted");
    assert_eq!(client.wait_response(&again).await["payload"]["status"], "ok");
    let refused = client.call_refused("agent", json!({"message": "x", "idempotencyKey": "l", "model": "x"})).await;
    assert_eq!(refused["details"]["parameter"], "model", "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_request_ends_when_its_run_is_stopped() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let params = json!({"message": "hello", "idempotencyKey": "k", "sessionKey": "s"});
    let id = client.send_request("agent", params).await;
    client.wait_response(&id).await;
    client.wait_chat("k", "delta").await;
    client.call("chat.abort", json!({"sessionKey": "s", "runId": "k"})).await;
    let last = client.wait_response(&id).await;
    assert_fields(&last["payload"], &json!({"status": "timeout", "summary": "aborted", "runId": "k"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_call_is_announced_and_its_end_too() {
    let server = TestServer::start_with(|config| {
        let main = config.engine.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.insert("list_files".to_owned(), ApprovalPolicy::Ask);
    })
    .await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    server.model.script(list_files_call()).script(ScriptedResponse::text("done"));
    client.send_chat("s", "list", "k").await;
    let requested = client.wait_event("plugin.approval.requested").await["payload"].clone();
    assert_fields(&requested["request"], &json!({"toolName": "list_files", "sessionKey": "s", "runId": "k"}));
    assert_eq!(client.call("plugin.approval.list", json!({})).await[0], requested);
    let id = requested["id"].clone();
    client.call("plugin.approval.resolve", json!({"id": id, "decision": "deny"})).await;
    let resolved = client.wait_event("plugin.approval.resolved").await;
    assert_fields(&resolved["payload"], &json!({"id": id, "decision": "deny"}));
    client.wait_chat("k", "final").await;

    server.model.script(list_files_call());
    client.send_chat("s", "again", "l").await;
    let id = client.wait_event("plugin.approval.requested").await["payload"]["id"].clone();
    client.call("chat.abort", json!({"sessionKey": "s"})).await;
    assert_eq!(client.wait_event("plugin.approval.removed").await["payload"]["id"], id);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_subscribed_session_are_sent() {
    let (server, mut client) = start_connected().await;
    let subscribed = client.call("sessions.messages.subscribe", json!({"key": "s", "includeApprovals": true})).await;
    assert_eq!(subscribed, json!({"subscribed": true, "key": "s"}));
    server.model.script(ScriptedResponse::text("the answer"));
    client.send_chat("s", "hello", "k").await;
    let prompt = client.wait_event("session.message").await["payload"].clone();
    assert_fields(&prompt["message"], &json!({"role": "user", "__openclaw": {"idempotencyKey": "k:user"}}));
    let answer = client.wait_event("session.message").await["payload"].clone();
    assert_eq!(answer["message"]["content"][0]["text"], "the answer", "{answer}");
    client.call("sessions.messages.unsubscribe", json!({"key": "s"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_previews_and_usage_are_read() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedResponse::text("the answer"));
    client.send_chat("s", "hello", "k").await;
    client.wait_chat("k", "final").await;
    let started = client.call("chat.startup", json!({"sessionKey": "s", "inputRunIds": ["k", "none"]})).await;
    assert_eq!(started["messages"][0]["__openclaw"]["idempotencyKey"], "k:user", "{started}");
    let receipts = json!([{"runId": "k", "state": "consumed", "consumedByEventId": "k:0"}]);
    assert_eq!(started["inputReceipts"], receipts);
    let small = client.call("chat.history", json!({"sessionKey": "s", "maxBytes": 1024})).await;
    let one = client.call("chat.history", json!({"sessionKey": "s", "maxBytes": 300})).await;
    let rows = |history: &Value| history["messages"].as_array().unwrap().len();
    assert!(rows(&small) > rows(&one) && rows(&one) == 1, "{small} {one}");
    let rest = client.call("chat.history", json!({"sessionKey": "s", "cursor": one["nextCursor"]})).await;
    assert_eq!(rows(&rest), 1, "{rest}");
    assert_eq!(rows(&client.call("sessions.get", json!({"key": "s"})).await), 2);
    let previews = client.call("sessions.preview", json!({"keys": ["s", "none"]})).await["previews"].clone();
    let items = json!([{"role": "user", "text": "hello"}, {"role": "assistant", "text": "the answer"}]);
    assert_fields(&previews[0], &json!({"key": "s", "status": "ok", "items": items}));
    assert_eq!(previews[1]["status"], "missing");
    let usage = client.call("sessions.usage", json!({"key": "s"})).await;
    assert_fields(&usage["totals"], &json!({"input": 10, "output": 5, "totalTokens": 15}));
    let metadata = client.call("chat.metadata", json!({"sessionKey": "s"})).await;
    assert!(metadata["commands"].is_array() && metadata["models"].is_array(), "{metadata}");
    let config = client.call("config.get", json!({})).await;
    assert_eq!(config["config"]["agents"]["defaults"]["model"]["primary"], "scripted/model", "{config}");
    assert!(!config.to_string().contains(&server.token));
    assert_eq!(client.call("system-presence", json!({})).await[0]["mode"], "gateway");
    assert_eq!(client.call("exec.approval.list", json!({})).await, json!([]));
}
