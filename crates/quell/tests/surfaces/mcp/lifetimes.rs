//! How long servers live: idle timeout, session end, shutdown, kill.

use super::*;
use crate::test_engine::skip_time;

#[tokio::test]
async fn an_unused_server_is_closed_and_comes_back() {
    let fixture = McpFixture::start_with(|server| server.idle_s = Some(300)).await;
    let first = fixture.call_and_answer("s", "pid").await;
    skip_time(Duration::from_secs(200)).await;
    assert_eq!(fixture.call_and_answer("s", "pid").await, first);
    skip_time(Duration::from_secs(200)).await;
    assert_eq!(fixture.call_and_answer("s", "pid").await, first, "closed too early");
    skip_time(Duration::from_secs(300)).await;
    fixture.wait_servers(0).await;
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    assert_ne!(fixture.call_and_answer("s", "pid").await, first);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_takes_its_servers_with_it() {
    let fixture = McpFixture::start().await;
    fixture.call_and_answer("one", "pid").await;
    fixture.call_and_answer("two", "pid").await;
    fixture.wait_servers(2).await;
    assert!(fixture.delete_session("one").await);
    fixture.wait_servers(1).await;
    let (two, ask) = (parse_session_key("two"), stop_ask(StopLevel::Gentle));
    assert!(fixture.engine.reset_session(&root(), &two, &ask).await.unwrap());
    fixture.wait_servers(0).await;
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_stuck_servers_and_calls() {
    shut_down_stuck_servers().await;
}

/// Returns the time that the shutdown took.
async fn shut_down_stuck_servers() -> Duration {
    let fixture = McpFixture::start_with(|server| set_env(server, &["MCP_STUCK"])).await;
    fixture.call_and_answer("idle", "pid").await;
    let run = fixture.start_call("busy", "deaf", json!({})).await;
    fixture.wait_printed(&run, "progress").await;
    fixture.wait_servers(2).await;
    let begun = Instant::now();
    let left = fixture.engine.shut_down().await;
    let took = begun.elapsed();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fixture.marker.marked_processes(), []);
    assert_eq!(fixture.engine.mcp().count_live(), 0);
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_sees_the_end_of_its_input_at_shutdown() {
    shut_down_idle_server().await;
}

/// Returns the time that the shutdown took.
async fn shut_down_idle_server() -> Duration {
    let fixture = McpFixture::start().await;
    fixture.call_and_answer("s", "pid").await;
    let begun = Instant::now();
    assert!(fixture.engine.shut_down().await.is_empty());
    let took = begun.elapsed();
    assert_eq!(fixture.marker.marked_processes(), []);
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn no_server_outlives_a_daemon_that_is_killed() {
    let _process_lock = ProcessLock::shared().await;
    let (marker, folder) = (ProcessMarker::new(), tempfile::tempdir().unwrap());
    let env = format!("MCP_MARK = \"{}\", MCP_STUCK = \"1\"", marker.as_str());
    let (model, daemon) = start_daemon(&config_section(folder.path(), &env)).await;
    model.script(ScriptedResponse::tool_call("c1", "test__fork", &json!({})));
    let run = daemon.api().send_message("s", "do it").await;
    daemon.api().run_events(&run, 0).await.wait_for("tool.output").await;
    marker.wait_for_count(2).await;
    daemon.kill9().await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    // The MCP library logs whole messages at info; the daemon's log must not contain them.
    let log = daemon.output();
    assert!(log.contains("MCP server started"), "{log}");
    assert!(!log.contains("jsonrpc") && !log.contains("protocol_version"), "{log}");
}

mod timing {
    use super::*;

    /// The targets are 5 s for servers that are stuck and 2 s for idle ones.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_shutdown_ends_servers() {
        report_time("a shutdown of stuck servers", shut_down_stuck_servers().await);
        report_time("a shutdown of an idle server", shut_down_idle_server().await);
    }
}
