//! Limits of a connection and its end: frame sizes, invalid frames, a client that does not read, the daemon's shutdown.

use futures_util::StreamExt;
use tokio_tungstenite::tungstenite::Message;

use super::WsTestClient;
use super::{start_connected, start_streaming_and_connect};
use crate::prelude::*;
use crate::test_engine::skip_time;

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_frame_is_1009_and_the_daemon_lives() {
    let (server, mut client) = start_connected().await;
    client.send_text(&"x".repeat(26_214_401)).await;
    let (code, _, before) = client.wait_close().await;
    assert_eq!((code, before.len()), (1009, 0));
    WsTestClient::connect_operator(&server, &server.token).await.call("health", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_frames_are_refused_and_the_connection_goes_on() {
    let (_server, mut client) = start_connected().await;
    client.send_frame(Message::binary(vec![1])).await;
    assert_eq!(client.wait_response("").await["error"]["code"], "INVALID_REQUEST");
    client.send_text("not json").await;
    assert_eq!(client.wait_response("").await["error"]["code"], "INVALID_REQUEST");
    client.send_text(r#"{"type":"req","id":"e1","method":"health","extra":1}"#).await;
    let extra = client.wait_response("e1").await;
    assert!(extra["error"]["message"].as_str().unwrap().starts_with("invalid request frame"), "{extra}");
    client.send_text(r#"{"type":"event","id":"e2","method":"health"}"#).await;
    assert_eq!(client.wait_response("e2").await["ok"], false);
    client.send_text(r#"{"type":"req","id":7,"method":"health"}"#).await;
    assert_eq!(client.wait_response("").await["ok"], false);
    let unknown = client.call_refused("no.such", json!({})).await;
    assert_fields(&unknown, &json!({"code": "INVALID_REQUEST", "message": "unknown method: no.such"}));
    client.call_refused_as("INVALID_REQUEST", "connect", json!({})).await;
    client.send_frame(Message::Ping(vec![1].into())).await;
    client.send_chat("s", &"x".repeat(1_000_000), "r1").await;
    client.wait_event_with("chat", "state", "final").await;
    assert_eq!(client.call("health", json!({})).await["ok"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_given_up_and_harms_nobody() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done"));
    let mut good = WsTestClient::connect_operator(&server, &server.token).await;
    good.send_chat("long", &"x".repeat(4 * 1024 * 1024), "r1").await;
    good.wait_event_with("run", "state", "ended").await;
    let mut slow = WsTestClient::connect_operator(&server, &server.token).await;
    assert_eq!(server.state.stream_count(), 2);
    // Responses are never dropped: sixty of 4 MiB each do not fit into 50 MiB and the buffers of two sockets.
    for _ in 0..60 {
        slow.send_request("chat.history", json!({"sessionKey": "long"})).await;
    }
    let run = server.start_streaming_run("s").await;
    good.call("chat.abort", json!({"sessionKey": "s", "runId": run})).await;
    good.wait_event_with("chat", "state", "aborted").await;
    let state = server.state.clone();
    let given_up = move || match state.stream_count() {
        1 => Ok(()),
        streams => Err(format!("{streams} streams")),
    };
    // Without optimisation, fifteen responses of 4 MiB take their time.
    leaks::wait_until(Duration::from_secs(120), given_up).await;
    good.call("health", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closing_daemon_says_so_and_stops_the_runs() {
    let (server, run, mut client) = start_streaming_and_connect().await;
    server.engine.shut_down().await;
    let (code, why, before) = client.wait_close().await;
    assert_eq!((code, why.as_str()), (1012, "service restart"));
    let at = |name: &str, state: &str| {
        let fits = |frame: &&serde_json::Value| {
            frame["event"] == name && (state.is_empty() || frame["payload"]["state"] == state)
        };
        before.iter().position(|frame| fits(&frame)).unwrap_or_else(|| panic!("no {name} {state} in {before:#?}"))
    };
    assert_eq!(before[at("shutdown", "")]["payload"]["reason"], "shutdown");
    assert!(at("shutdown", "") < at("chat", "aborted") && at("chat", "aborted") < at("run", "ended"));
    assert_eq!(before[at("run", "ended")]["payload"]["runId"], run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_is_answered_and_its_place_is_free() {
    let (server, mut client) = start_connected().await;
    client.send_frame(Message::Close(None)).await;
    while let Some(Ok(_)) = client.socket.next().await {}
    let state = server.state.clone();
    leaks::wait_for_value("streams", 0, move || state.stream_count()).await;
}

#[tokio::test]
async fn a_tick_comes_every_thirty_seconds() {
    let (_server, mut client) = start_connected().await;
    for _ in 0..2 {
        skip_time(Duration::from_secs(20)).await;
        client.call("health", json!({})).await;
        assert!(client.unread.iter().all(|frame| frame["event"] != "tick"), "{:#?}", client.unread);
        skip_time(Duration::from_secs(10)).await;
        let tick = client.wait_event("tick").await;
        assert!(tick["payload"]["ts"].is_number() && tick["seq"].is_number(), "{tick}");
    }
}
