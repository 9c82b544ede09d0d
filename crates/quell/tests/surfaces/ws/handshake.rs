//! The handshake: its failures, the limits before authentication, and `hello-ok`.

use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::WsTestClient;
use super::start_with_socket;
use crate::prelude::*;
use crate::test_engine::skip_time;

#[tokio::test(flavor = "multi_thread")]
async fn hello_has_all_that_clients_need() {
    let (server, mut client) = start_with_socket().await;
    let hello = client.handshake(&server.token, json!({})).await["payload"].clone();
    assert_fields(&hello, &json!({"type": "hello-ok", "protocol": 4}));
    assert!(hello["server"]["version"].is_string() && hello["server"]["connId"].is_string(), "{hello:#}");
    let want = json!({
        "maxPayload": 26_214_400, "maxBufferedBytes": 52_428_800, "tickIntervalMs": 30_000,
        "attachments": {"maxBytes": 8_388_608, "maxImageBytes": 5_242_880},
    });
    assert_eq!(hello["policy"], want);
    let scopes = ["operator.read", "operator.write", "operator.admin", "operator.approvals"];
    assert_eq!(hello["auth"], json!({"role": "operator", "scopes": scopes}));
    let snapshot = &hello["snapshot"];
    assert_fields(snapshot, &json!({"presence": [], "stateVersion": {"presence": 0, "health": 0}}));
    assert!(snapshot["health"].is_object() && snapshot["uptimeMs"].is_number());
    let names = |field: &str| hello["features"][field].as_array().unwrap().clone();
    for method in ["chat.send", "chat.abort", "chat.history", "agent.wait", "runs.stop", "stop.all", "hold.set"] {
        assert!(names("methods").contains(&json!(method)), "{method}");
    }
    for event in ["tick", "chat", "run", "agents.changed", "execution:cancel", "shutdown"] {
        assert!(names("events").contains(&json!(event)), "{event}");
    }
    // Every announced method exists.
    for method in names("methods").iter().filter(|method| !["stop.all", "hold.set"].contains(&method.as_str().unwrap()))
    {
        let answer = client.request(method.as_str().unwrap(), json!({})).await;
        assert!(!answer.to_string().contains("unknown method"), "{answer}");
    }
}

#[rstest]
#[case::newest(4, 4, 4)]
#[case::old(3, 3, 3)]
#[case::bounded(3, 4, 4)]
#[case::future(4, 9, 4)]
#[tokio::test(flavor = "multi_thread")]
async fn versions_are_negotiated(#[case] min: u64, #[case] max: u64, #[case] spoken: u64) {
    let (server, mut client) = start_with_socket().await;
    let hello = client.handshake(&server.token, json!({"minProtocol": min, "maxProtocol": max})).await;
    assert_eq!(hello["payload"]["protocol"], spoken, "{hello}");
}

#[rstest]
#[case::too_old(1, 2)]
#[case::too_new(5, 6)]
#[case::upside_down(4, 3)]
#[tokio::test(flavor = "multi_thread")]
async fn other_versions_are_refused(#[case] min: u64, #[case] max: u64) {
    let (server, mut client) = start_with_socket().await;
    let answer = client.handshake(&server.token, json!({"minProtocol": min, "maxProtocol": max})).await;
    let want = json!({
        "code": "PROTOCOL_MISMATCH", "clientMinProtocol": min, "clientMaxProtocol": max,
        "expectedProtocol": 4, "minimumProbeProtocol": 3,
    });
    assert_eq!((&answer["error"]["code"], &answer["error"]["details"]), (&json!("INVALID_REQUEST"), &want));
    assert_eq!(client.wait_close().await.0, 1002);
}

#[rstest]
#[case::wrong(json!({"auth": {"token": "wrong"}}), "AUTH_TOKEN_MISMATCH")]
#[case::missing(json!({"auth": {}}), "AUTH_TOKEN_MISSING")]
#[case::none(json!({"auth": null}), "AUTH_TOKEN_MISSING")]
#[case::empty(json!({"auth": {"token": ""}}), "AUTH_TOKEN_MISSING")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_token_is_refused(#[case] changed: Value, #[case] code: &str) {
    let (_server, mut client) = start_with_socket().await;
    let error = client.handshake("", changed).await["error"].clone();
    assert_fields(&error, &json!({"code": "INVALID_REQUEST", "details": {"code": code}}));
    let details = &error["details"];
    assert!(details["authReason"].is_string() && details["recommendedNextStep"].is_string(), "{details}");
    assert_eq!(details["canRetryWithDeviceToken"], false);
    assert_eq!(client.wait_close().await.0, 1008);
}

#[rstest]
#[case::other_method("{\"type\":\"req\",\"id\":\"1\",\"method\":\"health\"}", 1008, true)]
#[case::no_client(
    r#"{"type":"req","id":"1","method":"connect","params":{"minProtocol":4,"maxProtocol":4}}"#,
    1008,
    true
)]
#[case::unknown_envelope_field("{\"type\":\"req\",\"id\":\"1\",\"method\":\"connect\",\"extra\":1}", 1008, true)]
#[case::not_json("hello", 1000, false)]
#[case::binary(Message::binary(vec![1, 2, 3]), 1000, false)]
#[case::just_too_much("x".repeat(64 * 1024 + 1), 1009, false)]
#[case::too_much("x".repeat(70_000), 1009, false)]
#[case::far_too_much("x".repeat(1024 * 1024), 1009, false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_first_frame_ends_it(#[case] frame: impl Into<Message>, #[case] code: u16, #[case] answered: bool) {
    let (_server, mut client) = start_with_socket().await;
    client.wait_event("connect.challenge").await;
    client.send_frame(frame.into()).await;
    let (closed, _, before) = client.wait_close().await;
    assert_eq!(closed, code);
    assert_eq!(before.len(), usize::from(answered), "{before:#?}");
    if answered {
        assert_eq!((&before[0]["id"], &before[0]["error"]["code"]), (&json!("1"), &json!("INVALID_REQUEST")));
    }
}

#[tokio::test]
async fn silence_ends_it_after_fifteen_seconds() {
    let (server, mut silent) = start_with_socket().await;
    let mut late = WsTestClient::open_socket(&server).await;
    silent.wait_event("connect.challenge").await;
    skip_time(Duration::from_secs(10)).await;
    assert_eq!(late.handshake(&server.token, json!({})).await["ok"], true);
    skip_time(Duration::from_secs(5)).await;
    assert_eq!(silent.wait_close().await.0, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_paths_upgrade_and_browsers_are_checked() {
    let server = TestServer::start().await;
    for path in ["/", "/ws"] {
        let url = format!("ws://{}{path}", server.address);
        assert!(tokio_tungstenite::connect_async(&url).await.is_ok());
        let mut request = url.into_client_request().unwrap();
        request.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
        let refused = tokio_tungstenite::connect_async(request).await.unwrap_err();
        let tokio_tungstenite::tungstenite::Error::Http(answer) = refused else { panic!("{refused:?}") };
        assert_eq!(answer.status(), 403);
    }
}
