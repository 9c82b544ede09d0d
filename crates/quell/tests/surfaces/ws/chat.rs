//! Send and watch: `chat.send` and its repeats, `chat` events, history, `agent.wait`, subscriptions, nodes.

use super::WsTestClient;
use super::{chat_send_params, start_connected, start_streaming_and_connect, start_with_socket};
use crate::prelude::*;

fn chat_payloads(client: &WsTestClient, run: &str) -> Vec<Value> {
    let mine = client.events.iter().filter(|event| event["event"] == "chat" && event["payload"]["runId"] == run);
    mine.map(|event| event["payload"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_in_deltas_and_a_final() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedStream::new().text("one ").wait_for_gate("go").text("two"));
    assert_fields(&client.send_chat("s", "hello", "r1").await, &json!({"runId": "r1", "status": "started"}));
    let delta = client.wait_event_with("chat", "state", "delta").await;
    assert_fields(&delta, &json!({"deltaText": "one ", "seq": 1, "sessionKey": "s"}));
    assert_eq!(delta["message"], json!({"role": "assistant", "content": [{"type": "text", "text": "one "}]}));
    server.model.open_gate("go");
    assert_eq!(client.wait_event_with("chat", "state", "final").await["message"]["content"][0]["text"], "one two");
    client.wait_event_with("run", "state", "ended").await;
    let chats = chat_payloads(&client, "r1");
    let seqs: Vec<u64> = chats.iter().map(|chat| chat["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=chats.len() as u64).collect::<Vec<_>>());
    let text: String = chats.iter().filter_map(|chat| chat["deltaText"].as_str()).collect();
    assert_eq!(text, "one two");
    let numbers: Vec<u64> = client.events.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "numbered per connection without a hole");
}

#[tokio::test(flavor = "multi_thread")]
async fn deltas_are_paced_and_whole() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedResponse::tokens_forever(Duration::from_millis(1)));
    let begin = std::time::Instant::now();
    client.send_chat("s", "hello", "r1").await;
    for _ in 0..6 {
        client.wait_event_with("chat", "state", "delta").await;
    }
    // Six deltas take at least four whole intervals of 75 ms, however late they are read.
    assert!(begin.elapsed() > Duration::from_millis(4 * 75), "{:?}", begin.elapsed());
    client.call("chat.abort", json!({"sessionKey": "s"})).await;
    let aborted = client.wait_event_with("chat", "state", "aborted").await;
    let chats = chat_payloads(&client, "r1");
    let mut text = String::new();
    for chat in &chats[..chats.len() - 1] {
        text.push_str(chat["deltaText"].as_str().unwrap());
        assert_eq!(chat["message"]["content"][0]["text"], text, "each delta carries all of it");
    }
    assert_eq!(aborted["message"]["content"][0]["text"], text, "what waited went out before the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_joins_midway_gets_the_whole_text() {
    let server = TestServer::start().await;
    server.model.script(gated_response("go"));
    let run = server.send_message("s", "hello").await;
    server.model.request_at(0).wait_paused().await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    loop {
        let history = client.call("chat.history", json!({"sessionKey": "s"})).await;
        assert_eq!(history["inFlightRun"]["runId"], run);
        if history["inFlightRun"]["text"] == "begun" {
            break;
        }
    }
    server.model.open_gate("go");
    let delta = client.wait_event_with("chat", "state", "delta").await;
    assert_eq!(delta["message"]["content"][0]["text"], "begun and done");
    assert_fields(&delta, &json!({"deltaText": "begun and done", "replace": true}));
    let last = client.wait_event_with("chat", "state", "final").await;
    assert_eq!(last["message"]["content"][0]["text"], "begun and done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_an_error_with_its_kind() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedResponse::status(400));
    client.send_chat("s", "hello", "r1").await;
    let error = client.wait_event_with("chat", "state", "error").await;
    assert!(error["errorMessage"].is_string() && error["errorKind"] == "unknown", "{error}");
    assert_eq!(error["errorDetail"], json!({"providerRuntimeFailureKind": "model_error"}));
    let waited = client.call("agent.wait", json!({"runId": "r1"})).await;
    assert_fields(&waited, &json!({"status": "error", "success": false, "cancelled": false}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_answers_what_became_of_the_first() {
    let (server, mut client) = start_connected().await;
    server.model.script(gated_response("go"));
    client.send_chat("s", "hello", "r1").await;
    client.wait_event_with("chat", "state", "delta").await;
    assert_eq!(client.send_chat("s", "hello", "r1").await["status"], "in_flight");
    let conflict = client.call_refused("chat.send", chat_send_params("s", "other", "r1")).await;
    assert_fields(&conflict, &json!({"code": "INVALID_REQUEST", "details": {"reason": "chat-request-conflict"}}));
    server.model.open_gate("go");
    client.wait_event_with("run", "state", "ended").await;
    assert_eq!(client.send_chat("s", "hello", "r1").await["status"], "ok");
    server.model.script(ScriptedResponse::SilentBeforeHeaders);
    client.send_chat("s", "again", "r2").await;
    client.call("chat.abort", json!({"sessionKey": "s", "runId": "r2"})).await;
    server.wait_forgotten("r2").await;
    let stopped = client.send_chat("s", "again", "r2").await;
    assert_fields(&stopped, &json!({"status": "timeout", "summary": "aborted", "stopReason": "user"}));
    assert!(stopped["endedAt"].is_number(), "{stopped}");
    // HTTP and WebSocket share their idempotency keys.
    let http = server.post_run("s", &json!({"text": "again", "idempotencyKey": "r2"})).await.expect_status(200);
    assert_eq!(http["state"], "ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_sends_are_refused() {
    let (server, mut client) = start_connected().await;
    for bad in [
        json!({"sessionKey": "s", "message": "x"}),
        json!({"sessionKey": "s", "idempotencyKey": "k"}),
        json!({"message": "x", "idempotencyKey": "k"}),
        chat_send_params("", "x", "k"),
        chat_send_params("s", "", "k"),
        chat_send_params("s", "a\u{0}b", "k"),
        chat_send_params("s", "x", ""),
        chat_send_params("s", "x", "a b"),
        json!({"sessionKey": "s", "message": 7, "idempotencyKey": "k"}),
        json!({"sessionKey": "s", "message": "x", "idempotencyKey": "k", "queueMode": "maybe"}),
        json!({"sessionKey": "s", "message": "x", "idempotencyKey": "k", "agentId": "nobody"}),
        json!([]),
    ] {
        client.call_refused_as("INVALID_REQUEST", "chat.send", bad).await;
    }
    assert!(server.model.recorded_requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_unavailable_and_can_be_set_from_here() {
    let (_server, mut client) = start_connected().await;
    assert_eq!(client.call("hold.set", json!({"held": true, "reason": "audit"})).await["held"], true);
    assert_eq!(client.wait_event("hold.changed").await["payload"]["held"], true);
    let error = client.call_refused("chat.send", chat_send_params("s", "x", "k")).await;
    assert_fields(&error, &json!({"code": "UNAVAILABLE", "retryable": true, "details": {"reason": "held"}}));
    assert!(error["retryAfterMs"].is_number());
    assert_eq!(client.call("hold.get", json!({})).await["reason"], "audit");
    assert_eq!(client.call("hold.set", json!({"held": false})).await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn steer_answers_and_closes_its_own_id() {
    let (_server, run, mut client) = start_streaming_and_connect().await;
    let mut params = chat_send_params("s", "this too", "m1");
    params["queueMode"] = json!("steer");
    let sent = client.call("chat.send", params).await;
    assert_fields(&sent, &json!({"runId": run, "messageId": "m1", "state": "steered"}));
    let closed = client.wait_event_with("chat", "runId", "m1").await;
    assert_eq!((&closed["state"], closed.get("message")), (&json!("final"), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_run() {
    let (_server, run, mut client) = start_streaming_and_connect().await;
    let pending = client.call("agent.wait", json!({"runId": run, "timeoutMs": 10})).await;
    assert_eq!(pending, json!({"runId": run, "status": "pending"}));
    let waiting = client.send_request("agent.wait", json!({"runId": run})).await;
    client.call("chat.abort", json!({"sessionKey": "s", "runId": run})).await;
    let ended = client.wait_response(&waiting).await["payload"].clone();
    assert_fields(&ended, &json!({"status": "timeout", "success": false, "cancelled": true}));
    assert_fields(&ended, &json!({"error": "Execution paused", "loopCount": 1}));
    client.call_refused_as("INVALID_REQUEST", "agent.wait", json!({"runId": "nobody"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_shows_what_is_queued_and_how_the_last_run_ended() {
    let (server, run) = TestServer::start_streaming().await;
    let queued = server.send_message("s", "later").await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let history = client.call("chat.history", json!({"sessionKey": "s", "limit": 200})).await;
    assert_fields(&history, &json!({"sessionKey": "s", "inFlightRun": {"runId": run}, "pendingInputs": {"total": 1}}));
    assert_eq!(history["pendingInputs"]["items"][0]["runId"], queued);
    assert_fields(&history, &json!({"sessionInfo": {"status": "running", "hasActiveRun": true}}));
    client.call("stop.all", json!({})).await;
    server.wait_forgotten(&run).await;
    server.wait_forgotten(&queued).await;
    let history = client.call("chat.history", json!({"sessionKey": "s"})).await;
    assert_fields(&history, &json!({"sessionInfo": {"status": "killed", "hasActiveRun": false}}));
    assert_eq!(history["messages"][0]["role"], "user");
    assert_eq!(history["messages"][0]["content"], json!([{"type": "text", "text": "go on for ever"}]));
    for field in ["sessionId", "defaults", "thinkingLevel", "fastMode", "verboseLevel"] {
        assert!(!history[field].is_null(), "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_clients_first_calls_are_answered() {
    let server = TestServer::start().await;
    server.run_to_end("s").await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    assert_eq!(client.call("sessions.subscribe", json!({})).await, json!({"subscribed": true}));
    let agents = client.call("agents.list", json!({})).await;
    assert_eq!((&agents["defaultId"], &agents["agents"][0]["id"]), (&json!("main"), &json!("main")));
    assert_eq!(client.call("question.list", json!({})).await, json!({"questions": []}));
    assert_eq!(client.call("plugin.approval.list", json!({})).await, json!([]));
    assert!(client.call("commands.list", json!({"scope": "text"})).await["commands"].is_array());
    assert_eq!(client.call("models.list", json!({})).await["models"][0]["id"], "model");
    assert_eq!(client.call("sessions.describe", json!({"key": "s"})).await["session"]["key"], "s");
    assert_eq!(client.call("sessions.list", json!({"limit": 1})).await["sessions"][0]["status"], "done");
    server.run_to_end("s").await;
    let changed = client.wait_event("sessions.changed").await;
    assert_fields(&changed, &json!({"payload": {"sessionKey": "s", "reason": "message"}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_sees_the_sessions_that_it_subscribed_to_and_nothing_else() {
    let (server, mut node) = start_with_socket().await;
    let hello = node.handshake(&server.token, json!({"role": "node", "scopes": []})).await;
    assert_eq!(hello["payload"]["auth"], json!({"role": "node", "scopes": []}));
    let params = |event: &str, key: &str| json!({"event": event, "payload": {"sessionKey": key}});
    let text = json!({"sessionKey": "mine"}).to_string();
    node.call("node.event", json!({"event": "chat.subscribe", "payloadJSON": text})).await;
    node.call_refused_as("INVALID_REQUEST", "node.event", params("chat.subscribe", "")).await;
    node.call_refused_as("FORBIDDEN", "chat.send", chat_send_params("mine", "x", "k")).await;
    let other = server.start_streaming_run("other").await;
    let mine = server.start_streaming_run("mine").await;
    let _ = server.http.post("/api/stop?wait=1", &json!({})).await.expect_status(200);
    assert_eq!(node.wait_event_with("chat", "state", "aborted").await["runId"], mine);
    node.wait_event_with("run", "state", "ended").await;
    node.call("node.event", params("chat.unsubscribe", "mine")).await;
    server.run_to_end("mine").await;
    node.call("health", json!({})).await;
    let seen: Vec<&Value> = node.events.iter().collect();
    assert!(!seen.iter().any(|event| event.to_string().contains(&other)), "{seen:#?}");
    assert!(!seen.iter().any(|event| event["event"] == "agents.changed"), "{seen:#?}");
    assert!(!seen.iter().any(|event| event["payload"]["state"] == "final"), "{seen:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_read_scope_gets_no_events() {
    let (server, mut blind) = start_with_socket().await;
    blind.handshake(&server.token, json!({"scopes": []})).await;
    server.run_to_end("s").await;
    let error = blind.call_refused("runs.list", json!({})).await;
    assert_fields(&error, &json!({"code": "FORBIDDEN", "details": {"missingScope": "operator.read"}}));
    server.start_streaming_run("s").await;
    server.engine.shut_down().await;
    let (code, _, before) = blind.wait_close().await;
    assert_eq!(code, 1012);
    let names: Vec<&Value> = before.iter().map(|frame| &frame["event"]).collect();
    assert_eq!(names, ["shutdown"]);
}
