//! Servers that are reached by URL: what fails on the way is an error of one call, and nothing of them stays behind.

use quell_engine::mcp::McpConfig;
use quell_protocol::{ResourceKind, Verdict};
use quell_testkit::mcp::{HttpServer, Manner};
use rstest::rstest;
use serde_json::json;

use super::{Scene, call_row};
use crate::harness::{key, message, receipt};

/// A scene whose server is reached by URL.
async fn open(server: &HttpServer) -> Scene {
    Scene::with(|config| {
        let url = Some(server.url());
        *config = McpConfig { url, grace_ms: Some(300), start_timeout_s: Some(1), ..McpConfig::default() };
    })
    .await
}

#[rstest]
#[case::server_error(Manner::Status(500), "HTTP 500")]
#[case::bad_gateway(Manner::Status(502), "HTTP 502")]
#[case::too_many(Manner::Status(429), "HTTP 429")]
#[case::cut(Manner::Cut, "it ended its answer too early")]
#[case::huge(Manner::Huge, "exceeded the maximum size")]
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_fails_its_call_and_the_next_one_connects_anew(#[case] manner: Manner, #[case] why: &str) {
    let server = HttpServer::start().await;
    let scene = open(&server).await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    server.next("tools/call", manner);
    let told = scene.answer("s", "echo").await;
    assert!(told.contains("was lost with the MCP server test") && told.contains(why), "{told}");
    assert!(told.contains("may have had effects"), "{told}");
    assert_eq!(scene.answer("s", "echo").await, "hello");
    assert_eq!(server.got("initialize"), 2, "the next call took the broken connection");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_fails_its_call_and_the_next_one_connects_anew() {
    let server = HttpServer::start().await;
    let scene = open(&server).await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    server.refuse().await;
    let told = scene.answer("s", "echo").await;
    assert!(told.contains("was lost with the MCP server test") && told.contains("cannot be reached"), "{told}");
    server.listen().await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.close().await;
}

/// What becomes of the cancel of a call that the server does not answer.
#[rstest]
#[case::server_error(Some(Manner::Status(500)))]
#[case::too_many(Some(Manner::Status(429)))]
#[case::silent(Some(Manner::Silent))]
#[case::refused(None)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_not_held_up_by_a_cancel_that_fails(#[case] manner: Option<Manner>) {
    let server = HttpServer::start().await;
    let scene = open(&server).await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    server.next("tools/call", Manner::Silent);
    let run = scene.calling("s", "echo", json!({})).await;
    scene.house.holds(&run, ResourceKind::McpCall).await;
    server.has_got("tools/call", 2).await;
    match manner {
        Some(manner) => server.next("notifications/cancelled", manner),
        None => server.refuse().await,
    }
    assert_eq!(scene.house.stop(&run).aborted.len(), 1);
    let view = scene.house.ended(&run).await;
    assert!(matches!(view.verdict, Some(Verdict::Aborted { .. })), "{view:#?}");
    let row = call_row(&view);
    assert!(row.label.contains("the server does not read its input after the cancel"), "{row:#?}");
    assert!(receipt(&view).leftovers.is_empty() && receipt(&view).settled_at.ms.unwrap() < 3000.0, "{view:#?}");
    server.listen().await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_and_a_stop_at_once_end_the_run_at_once() {
    let server = HttpServer::start().await;
    let scene = open(&server).await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    server.next("tools/call", Manner::Status(500));
    let run = scene.calling("s", "echo", json!({})).await;
    server.has_got("tools/call", 2).await;
    scene.house.stop(&run);
    let view = scene.house.ended(&run).await;
    assert!(receipt(&view).leftovers.is_empty(), "{view:#?}");
    scene.close().await;
}

/// Where a server falls silent on the way to work.
#[rstest]
#[case::hello("initialize")]
#[case::welcome("notifications/initialized")]
#[case::tools("tools/list")]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_it_is_connected_to_leaves_no_socket_and_no_session(#[case] silent: &'static str) {
    let server = HttpServer::start().await;
    let scene = open(&server).await;
    server.always(silent, Manner::Silent);
    let run = scene.house.send(message("s", "hello")).await;
    server.has_got(silent, 1).await;
    scene.house.stop(&run);
    let view = scene.house.ended(&run).await;
    let rows = &receipt(&view).resources;
    assert!(rows.iter().any(|row| row.label == "test: start" && row.how == "closed"), "{rows:#?}");
    server.is_left_alone().await;
    scene.close().await;
}

#[rstest]
#[case::hello("initialize")]
#[case::welcome("notifications/initialized")]
#[case::tools("tools/list")]
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_takes_too_long_leaves_no_socket_and_no_session(#[case] silent: &'static str) {
    let server = HttpServer::start().await;
    let scene = open(&server).await;
    server.always(silent, Manner::Silent);
    let told = scene.answer("s", "echo").await;
    assert!(told.contains("not ready within 1 s"), "{told}");
    server.is_left_alone().await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_server_has_no_session_and_one_that_keeps_it_holds_up_nobody() {
    let server = HttpServer::start().await;
    let scene = open(&server).await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.house.engine.mcp().close_session(&key("s"));
    scene.servers(0).await;
    server.is_left_alone().await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    server.next("DELETE", Manner::Silent);
    scene.house.engine.mcp().close_session(&key("s"));
    scene.servers(0).await;
    assert_eq!(server.got("DELETE"), 2);
    scene.close().await;
}

#[rstest]
#[case::silent(Manner::Silent)]
#[case::torn(Manner::Torn)]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_never_answered_ends_after_its_time(#[case] manner: Manner) {
    let server = HttpServer::start().await;
    let scene = Scene::with(|config| {
        *config = McpConfig { url: Some(server.url()), call_timeout_s: Some(1), ..McpConfig::default() };
    })
    .await;
    server.next("tools/call", manner);
    server.always("GET", Manner::Status(503));
    let told = scene.answer("s", "echo").await;
    assert!(told.contains("no answer and no progress for 1 s: the MCP server test was told to cancel it"), "{told}");
    assert_eq!(server.got("notifications/cancelled"), 1);
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.close().await;
}
