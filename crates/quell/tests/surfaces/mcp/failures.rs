//! Servers that do not start or die: the run continues and the model is told why.

use super::*;
use crate::test_engine::skip_time;

fn set_short_call(server: &mut McpConfig) {
    (server.call_timeout_s, server.grace_ms) = (Some(1), Some(300));
}

/// A server that obeys is waited for as long as a loaded machine needs.
fn set_short_call_with_long_grace(server: &mut McpConfig) {
    (server.call_timeout_s, server.grace_ms) = (Some(1), Some(20_000));
}

#[rstest]
#[case::died(|_: &mut _| {}, "die", &["was lost with the MCP server test", "exit code 3"])]
#[case::answered_too_much(|_: &mut _| {}, "huge", &["was restarted because it sent a message of more than 16 MiB"])]
#[case::silent(set_short_call_with_long_grace, "wait", &["no answer and no progress for 1 s: the MCP server test was told to cancel it"])]
#[case::deaf(
    set_short_call,
    "deaf",
    &["no answer and no progress for 1 s: the MCP server test went on with it and was ended"]
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_in_a_call_fails_that_call_alone(
    #[case] configure: fn(&mut McpConfig),
    #[case] tool: &str,
    #[case] words: &[&str],
) {
    let fixture = McpFixture::start_with(configure).await;
    let result = fixture.call_and_answer("s", tool).await;
    assert!(words.iter().all(|word| result.contains(word)), "{result}");
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}

fn set_mute(server: &mut McpConfig) {
    set_env(server, &["MCP_MUTE"]);
    server.start_timeout_s = Some(1);
}

#[rstest]
#[case::no_program(
    |server: &mut McpConfig| server.command = Some("no-such-program-anywhere".to_owned()),
    &["MCP server test is not available", "no-such-program-anywhere"]
)]
#[case::no_hello(set_mute, &["not ready within 1 s"])]
#[case::a_hello_that_is_too_long(
    |server: &mut McpConfig| set_env(server, &["MCP_HUGE"]),
    &["is not available: it sent a message of more than 16 MiB"]
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_start_is_ended_and_costs_one_wait(
    #[case] configure: fn(&mut McpConfig),
    #[case] words: &[&str],
) {
    let fixture = McpFixture::start_with(configure).await;
    let result = fixture.call_and_answer("s", "echo").await;
    assert!(words.iter().all(|word| result.contains(word)), "{result}");
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    let count_starts = || mcp::received_messages_of(&fixture.log, "initialize").len();
    let starts = count_starts();
    fixture.model.script(ScriptedResponse::text("fine"));
    assert_eq!(fixture.run_message("s", "hello").await.verdict, Some(Verdict::Completed));
    assert_eq!(count_starts(), starts, "another run waited for the broken server");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_its_input_is_ended_and_its_call_fails() {
    let fixture = McpFixture::start().await;
    assert_eq!(fixture.call_and_answer("s", "shut").await, "shut");
    let result = fixture.call_and_answer("s", "echo").await;
    assert!(result.contains("was lost with the MCP server test: it does not read its input"), "{result}");
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}

/// The stop may come before or after Quell notices that the server does not read. It ends the server only in the second
/// case.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_not_held_up_by_a_server_that_closed_its_input() {
    let fixture = McpFixture::start().await;
    assert_eq!(fixture.call_and_answer("s", "shut").await, "shut");
    let run = fixture.start_call("s", "echo", json!({})).await;
    fixture.wait_resource_held(&run, ResourceKind::McpCall).await;
    fixture.stop_to_end(&run).await;
    fixture.close().await;
}

#[tokio::test]
async fn a_call_that_reports_progress_may_take_long() {
    let fixture = McpFixture::start_with(|server| server.call_timeout_s = Some(100)).await;
    let mut watcher = NoticeRecorder::subscribe(&fixture.engine);
    let run = fixture.start_call("s", "tick", json!({})).await;
    fixture.wait_printed(&run, "progress").await;
    for _ in 0..3 {
        let before = count_progress(&mut watcher, &run);
        skip_time(Duration::from_secs(60)).await;
        // The first one may have arrived before the time was skipped.
        poll_until("more progress", async || (count_progress(&mut watcher, &run) >= before + 2).then_some(())).await;
    }
    assert!(fixture.holds_call(&run), "it has timed out");
    fixture.stop_to_end(&run).await;
    fixture.close().await;
}

fn count_progress(watcher: &mut NoticeRecorder, run: &RunId) -> usize {
    let count = |kind: &EventKind| match kind {
        EventKind::ToolOutput { text, .. } => text.matches("progress: ").count(),
        _ => 0,
    };
    watcher.run_events(run).iter().map(|event| count(&event.kind)).sum()
}
