//! Stop over the WebSocket: `chat.abort` exactly as the protocol says, and the other stop methods of the gateway.

use super::WsTestClient;
use super::{chat_send_params, start_connected, start_streaming_and_connect};
use crate::prelude::*;

#[rstest]
#[case::missing(json!({}))]
#[case::null_key(json!({"sessionKey": null}))]
#[case::number_key(json!({"sessionKey": 7}))]
#[case::empty_key(json!({"sessionKey": ""}))]
#[case::key_missing(json!({"runId": "RUN"}))]
#[case::empty_key_with_run(json!({"sessionKey": "", "runId": "RUN"}))]
#[case::empty_run(json!({"sessionKey": "s", "runId": ""}))]
#[case::null_run(json!({"sessionKey": "s", "runId": null}))]
#[case::number_run(json!({"sessionKey": "s", "runId": 7}))]
#[case::list_run(json!({"sessionKey": "s", "runId": ["RUN"]}))]
#[case::no_object(json!(["s"]))]
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_abort_is_refused_and_stops_nothing(#[case] params: Value) {
    let (server, run) = TestServer::start_streaming().await;
    let params: Value = serde_json::from_str(&params.to_string().replace("RUN", &run)).unwrap();
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let error = client.call_refused("chat.abort", params).await;
    assert_fields(&error, &json!({"code": "INVALID_REQUEST", "message": "missing runId or sessionKey"}));
    assert_eq!(client.call("runs.list", json!({"state": "active"})).await["items"][0]["state"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_needs_the_scope() {
    let (server, run) = TestServer::start_streaming().await;
    let mut client = WsTestClient::open_socket(&server).await;
    client.handshake(&server.token, json!({"scopes": ["operator.read"]})).await;
    for (method, params) in [
        ("chat.abort", json!({"sessionKey": "s", "runId": run})),
        ("chat.abort", json!({})),
        ("sessions.abort", json!({"key": "s"})),
        ("runs.stop", json!({"runId": run})),
        ("chat.send", chat_send_params("s", "/stop", "k")),
    ] {
        let error = client.call_refused_as("FORBIDDEN", method, params).await;
        let scope = "operator.write";
        assert_eq!(
            error["details"],
            json!({"code": "MISSING_SCOPE", "missingScope": scope, "requiredScopes": [scope]})
        );
    }
    for (method, params) in [("stop.all", json!({"hold": true})), ("hold.set", json!({"held": true}))] {
        assert_eq!(client.call_refused(method, params).await["details"]["missingScope"], "operator.admin");
    }
    server.assert_running(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_that_stops_nothing_always_answers_the_same() {
    let server = TestServer::start().await;
    let other = server.start_streaming_run("other").await;
    let ended = server.run_to_end("s").await;
    server.wait_forgotten(&ended).await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let nothing = json!({"ok": true, "aborted": false, "runIds": []});
    for run in ["unknown", "not a run id/", &ended, &other] {
        assert_eq!(client.call("chat.abort", json!({"sessionKey": "s", "runId": run})).await, nothing, "{run}");
    }
    let mine = server.start_streaming_run("s").await;
    let params = json!({"sessionKey": "s", "runId": mine});
    assert_eq!(client.call("chat.abort", params.clone()).await, json!({"ok": true, "aborted": true, "runIds": [mine]}));
    assert_eq!(client.call("chat.abort", params).await, nothing, "a repeat");
    assert_eq!(client.call("chat.abort", json!({"sessionKey": "nobody"})).await, nothing);
    let anna = server.create_token("anna", "write").await;
    let mut anna = WsTestClient::connect_operator(&server, &anna).await;
    assert_eq!(anna.call("chat.abort", json!({"sessionKey": "other", "runId": other})).await, nothing, "not hers");
    anna.call_refused_as("FORBIDDEN", "runs.stop", json!({"runId": other})).await;
    server.assert_running(&other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_told_in_order_with_its_receipt() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedResponse::silent_mid_stream("partial"));
    client.send_chat("s", "go", "r1").await;
    client.wait_event_with("chat", "state", "delta").await;
    client.call("chat.abort", json!({"sessionKey": "s", "stopReason": "enough"})).await;
    let ended = client.wait_event_with("run", "state", "ended").await;
    assert_eq!(ended["verdict"]["by"], json!({"principal": "admin", "surface": "ws"}));
    assert_fields(&ended, &json!({"receipt": {"leftovers": [], "turn": {"recorded": true}}}));
    let of_run = |event: &&Value| event["payload"]["runId"] == "r1" && event["event"] != "agent";
    let events: Vec<&Value> = client.events.iter().filter(of_run).collect();
    let names = events
        .iter()
        .map(|event| (event["event"].as_str().unwrap(), event["payload"]["state"].as_str().unwrap_or("-")));
    let order =
        [("chat", "delta"), ("execution:cancel", "-"), ("chat", "aborted"), ("run", "ending"), ("run", "ended")];
    assert_eq!(names.collect::<Vec<_>>(), order);
    assert_eq!(events[1]["payload"], json!({"runId": "r1", "sessionKey": "s", "reason": "enough"}));
    assert_fields(&events[2]["payload"], &json!({"seq": 2, "stopReason": "enough"}));
    assert_eq!(events[2]["payload"]["message"]["content"][0]["text"], "partial");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_before_any_text_has_number_one() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedResponse::SilentBeforeHeaders);
    client.send_chat("s", "go", "r1").await;
    server.model.request_at(0).wait_arrived().await;
    client.call("chat.abort", json!({"sessionKey": "s"})).await;
    let aborted = client.wait_event_with("chat", "state", "aborted").await;
    assert_eq!((&aborted["seq"], aborted.get("message")), (&json!(1), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_text_stops_the_session_and_says_command() {
    let (server, run) = TestServer::start_streaming().await;
    let queued = server.send_message("s", "later").await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let answer = client.send_chat("s", "Please stop!", "k").await;
    assert_fields(&answer, &json!({"ok": true, "aborted": true}));
    assert_eq!(answer["runIds"].as_array().unwrap().len(), 2);
    for id in [run, queued] {
        assert_eq!(client.wait_chat(&id, "aborted").await["stopReason"], "command");
    }
    assert_fields(&client.send_chat("s", "/stop", "k").await, &json!({"aborted": false, "runIds": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_abort_has_the_gateways_shape() {
    let (_server, run, mut client) = start_streaming_and_connect().await;
    for bad in [json!({}), json!({"key": ""}), json!({"key": "s", "runId": null}), json!({"key": "s", "runId": ""})] {
        client.call_refused_as("INVALID_REQUEST", "sessions.abort", bad).await;
    }
    let answer = client.call("sessions.abort", json!({"key": "s"})).await;
    assert_fields(&answer, &json!({"abortedRunId": run, "status": "aborted"}));
    let again = client.call("sessions.abort", json!({"key": "s"})).await;
    assert_eq!((&again["abortedRunId"], &again["status"]), (&Value::Null, &json!("no-active-run")));
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_stop_waits_for_the_receipt_when_asked() {
    let (_server, run, mut client) = start_streaming_and_connect().await;
    client.call_refused_as("INVALID_REQUEST", "runs.stop", json!({"runId": "nobody"})).await;
    client.call_refused_as("INVALID_REQUEST", "runs.stop", json!({"runId": run, "sessionKey": "t"})).await;
    let answer = client.call("runs.stop", json!({"runId": run, "wait": true, "force": true})).await;
    assert_fields(&answer, &json!({"aborted": true, "state": "ended", "receipt": {"leftovers": []}}));
    assert_eq!(client.call("runs.get", json!({"runId": run})).await["verdict"], answer["verdict"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_stops_from_here_too() {
    let server = TestServer::start().await;
    let runs = [server.start_streaming_run("a").await, server.start_streaming_run("b").await];
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let answer = client.call("stop.all", json!({"hold": true, "reason": "fire"})).await;
    assert_fields(&answer, &json!({"aborted": true, "held": true}));
    assert_eq!(answer["runIds"].as_array().unwrap().len(), runs.len());
    for run in &runs {
        assert_eq!(client.wait_chat(run, "aborted").await["stopReason"], "fire");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnected_owner_can_stop_its_run_and_an_abort_by_http_is_told() {
    let server = TestServer::start().await;
    let anna = server.create_token("anna", "write").await;
    let partial = ScriptedResponse::silent_mid_stream("partial");
    server.model.script(partial.clone()).script(partial);
    let mut first = WsTestClient::connect_operator(&server, &anna).await;
    first.send_chat("s", "go", "r1").await;
    first.send_chat("t", "go", "r2").await;
    drop(first);
    server.model.request_at(1).wait_paused().await;
    let mut again = WsTestClient::connect_operator(&server, &anna).await;
    assert_eq!(again.call("chat.abort", json!({"sessionKey": "s", "runId": "r1"})).await["aborted"], true);
    assert_eq!(again.wait_event_with("chat", "state", "aborted").await["runId"], "r1");
    let _ = server.http.post("/api/agent/main/abort", &json!({})).await.expect_status(200);
    let aborted = again.wait_event_with("chat", "state", "aborted").await;
    assert_fields(&aborted, &json!({"runId": "r2", "stopReason": "user"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_status_of_an_agent_is_told() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedResponse::silent_mid_stream("partial"));
    client.send_chat("s", "go", "r1").await;
    client.wait_event_with("agents.changed", "computeStatus", "waiting_llm").await;
    client.call("chat.abort", json!({"sessionKey": "s"})).await;
    client.wait_event_with("agents.changed", "computeStatus", "stopping").await;
    client.wait_event_with("run", "state", "ended").await;
    // The last status change is sent after the end of the run.
    while received_statuses(&client).last().map(String::as_str) != Some("idle") {
        client.wait_event("agents.changed").await;
    }
    let statuses = received_statuses(&client);
    assert!(statuses.windows(2).any(|pair| pair == ["processing", "waiting_llm"]), "{statuses:?}");
}

fn received_statuses(client: &WsTestClient) -> Vec<String> {
    let of_main = |event: &&Value| event["event"] == "agents.changed" && event["payload"]["agentId"] == "main";
    let status = |event: &Value| event["payload"]["computeStatus"].as_str().map(str::to_owned);
    client.events.iter().filter(of_main).filter_map(status).collect()
}

/// A caller who may not stop a run may not remove its history either.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_somebody_elses_run_is_neither_reset_nor_deleted() {
    let (server, run) = TestServer::start_streaming().await;
    let anna = server.create_token("anna", "write").await;
    let mut client = WsTestClient::connect_operator(&server, &anna).await;
    for method in ["sessions.reset", "sessions.delete"] {
        let error = client.call_refused(method, json!({"key": "s"})).await;
        assert_fields(&error, &json!({"code": "FORBIDDEN", "details": {"code": "NOT_OWNER"}}));
        server.assert_running(&run).await;
    }
    let mut admin = WsTestClient::connect_operator(&server, &server.token).await;
    assert_eq!(admin.call("sessions.delete", json!({"key": "s"})).await["deleted"], true);
    // The receipt stays; the texts of the run go once its records are closed.
    let closed = async || Some(server.http.run_view(&run).await).filter(|view| view["text"] == "");
    let view = poll_until("the removal of the text of a deleted session", closed).await;
    assert_eq!(view["verdict"]["kind"], "aborted", "{view:#}");
    assert!(view["receipt"].is_object() && view["output"].is_null(), "{view:#}");
    assert_eq!(admin.call("sessions.delete", json!({"key": "s"})).await["deleted"], false);
}

/// A run has ended but its background command has not: every way to stop ends the command and reports it.
#[rstest]
#[case::run("chat.abort", json!({"sessionKey": "s", "runId": "RUN"}))]
#[case::session("chat.abort", json!({"sessionKey": "s"}))]
#[case::sessions_abort("sessions.abort", json!({"key": "s"}))]
#[case::runs_stop("runs.stop", json!({"runId": "RUN", "wait": true}))]
#[case::all("stop.all", json!({}))]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_what_an_ended_run_left_did_something(#[case] method: &str, #[case] params: Value) {
    let (server, marker) = (TestServer::start_with_processes().await, ProcessMarker::new());
    server.model.script(background_call(commands::setsid_child(&marker))).script(ScriptedResponse::text("It runs."));
    let run = server.send_message("s", "serve").await;
    server.http.run_events(&run, 0).await.read_to_end().await.assert_valid();
    marker.wait_for_count(2).await;
    let params: Value = serde_json::from_str(&params.to_string().replace("RUN", &run)).unwrap();
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let answer = client.call(method, params.clone()).await;
    assert_eq!((&answer["runIds"], &answer["processes"][0]["startedByRun"]), (&json!([]), &json!(run)), "{answer:#}");
    let has_stopped = |answer: &Value| answer["aborted"] == true || answer["status"] == "aborted";
    assert!(has_stopped(&answer), "{answer:#}");
    if method == "runs.stop" {
        assert_eq!(answer["processes"][0]["state"], "ended", "it was waited for");
    }
    marker.wait_gone(WAIT_TIMEOUT).await;
    // The warden reports the end a moment later.
    let engine = server.engine.clone();
    leaks::wait_for_value("live processes", 0, move || engine.count_live_processes()).await;
    let again = client.call(method, params).await;
    assert!(!has_stopped(&again) && again["processes"].is_null(), "{again:#}");
}
