//! MCP servers reached by URL: failures fail one call and leave no socket or session.

use super::*;

/// Starts a server that is reached by URL, and an engine that has called it once.
async fn start_connected() -> (FakeMcpServer, McpFixture) {
    let (server, fixture) = start_unconnected(McpConfig { grace_ms: Some(300), ..McpConfig::default() }).await;
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    (server, fixture)
}

async fn start_unconnected(config: McpConfig) -> (FakeMcpServer, McpFixture) {
    let server = FakeMcpServer::start().await;
    let config = McpConfig { url: Some(server.url()), start_timeout_s: Some(1), ..config };
    let fixture = McpFixture::start_with(|plan| *plan = config).await;
    (server, fixture)
}

#[rstest]
#[case::server_error(Some(McpFault::Status(500)), "HTTP 500")]
#[case::bad_gateway(Some(McpFault::Status(502)), "HTTP 502")]
#[case::too_many(Some(McpFault::Status(429)), "HTTP 429")]
#[case::cut(Some(McpFault::Cut), "it ended its answer too early")]
#[case::huge(Some(McpFault::Huge), "exceeded the maximum size")]
#[case::refused(None, "cannot be reached")]
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_fails_its_call_and_the_next_one_connects_anew(
    #[case] fault: Option<McpFault>,
    #[case] why: &str,
) {
    let (server, fixture) = start_connected().await;
    match fault {
        Some(fault) => server.fault_next("tools/call", fault),
        None => server.refuse_connections().await,
    }
    let result = fixture.call_and_answer("s", "echo").await;
    assert!(result.contains("was lost with the MCP server test") && result.contains(why), "{result}");
    match fault {
        Some(_) => assert!(result.contains("may have had effects"), "{result}"),
        None => server.accept_connections(),
    }
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    assert_eq!(server.received_count("initialize"), 2, "the next call used the broken connection");
    fixture.close().await;
}

/// The server does not answer the call, and the cancel fails in one of these ways.
#[rstest]
#[case::server_error(Some(McpFault::Status(500)))]
#[case::too_many(Some(McpFault::Status(429)))]
#[case::silent(Some(McpFault::Silent))]
#[case::refused(None)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_not_held_up_by_a_cancel_that_fails(#[case] fault: Option<McpFault>) {
    let (server, fixture) = start_connected().await;
    server.fault_next("tools/call", McpFault::Silent);
    let run = fixture.start_call("s", "echo", json!({})).await;
    fixture.wait_resource_held(&run, ResourceKind::McpCall).await;
    server.wait_received("tools/call", 2).await;
    match fault {
        Some(fault) => server.fault_next("notifications/cancelled", fault),
        None => server.refuse_connections().await,
    }
    let view = fixture.stop_to_end(&run).await;
    assert!(matches!(view.verdict, Some(Verdict::Aborted { .. })), "{view:#?}");
    let row = call_row(&view);
    assert!(row.label.contains("the server does not read its input after the cancel"), "{row:#?}");
    if fault.is_none() {
        server.accept_connections();
    }
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_and_a_stop_at_once_end_the_run_at_once() {
    let (server, fixture) = start_connected().await;
    server.fault_next("tools/call", McpFault::Status(500));
    let run = fixture.start_call("s", "echo", json!({})).await;
    server.wait_received("tools/call", 2).await;
    fixture.stop_to_end(&run).await;
    fixture.close().await;
}

/// The request of the handshake at which the server falls silent.
#[rstest]
#[case::hello("initialize")]
#[case::welcome("notifications/initialized")]
#[case::tools("tools/list")]
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_or_late_start_leaves_no_socket_and_no_session(
    #[case] silent: &'static str,
    #[values(true, false)] stops: bool,
) {
    let (server, fixture) = start_unconnected(McpConfig { grace_ms: Some(300), ..McpConfig::default() }).await;
    server.fault_always(silent, McpFault::Silent);
    if stops {
        let run = fixture.send(submission("s", "hello")).await;
        server.wait_received(silent, 1).await;
        let view = fixture.stop_and_wait(&run).await;
        let rows = &receipt_of(&view).resources;
        assert!(rows.iter().any(|row| row.label == "test: start" && row.how == "closed"), "{rows:#?}");
    } else {
        let result = fixture.call_and_answer("s", "echo").await;
        assert!(result.contains("not ready within 1 s"), "{result}");
    }
    server.wait_idle().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_server_has_no_session_and_one_that_keeps_it_holds_up_nobody() {
    let (server, fixture) = start_connected().await;
    fixture.engine.mcp().close_session(&parse_session_key("s"));
    fixture.wait_servers(0).await;
    server.wait_idle().await;
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    server.fault_next("DELETE", McpFault::Silent);
    fixture.engine.mcp().close_session(&parse_session_key("s"));
    fixture.wait_servers(0).await;
    assert_eq!(server.received_count("DELETE"), 2);
    fixture.close().await;
}

#[rstest]
#[case::silent(McpFault::Silent)]
#[case::torn(McpFault::CutResumable)]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_never_answered_ends_after_its_time(#[case] fault: McpFault) {
    let (server, fixture) = start_unconnected(McpConfig { call_timeout_s: Some(1), ..McpConfig::default() }).await;
    server.fault_next("tools/call", fault);
    server.fault_always("GET", McpFault::Status(503));
    let result = fixture.call_and_answer("s", "echo").await;
    let why = "no answer and no progress for 1 s: the MCP server test was told to cancel it";
    assert!(result.contains(why), "{result}");
    assert_eq!(server.received_count("notifications/cancelled"), 1);
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}
