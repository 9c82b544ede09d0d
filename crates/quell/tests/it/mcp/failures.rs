//! Servers that do not start or die: the run continues and the model is told why.

use super::{McpFixture, call_row};
use crate::prelude::*;

#[rstest]
#[case::died("die", &["was lost with the MCP server test", "exit code 3"])]
#[case::answered_too_much("huge", &["was restarted because it sent a message of more than 16 MiB"])]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_in_a_call_fails_that_call_alone(#[case] tool: &str, #[case] words: &[&str]) {
    let fixture = McpFixture::start().await;
    let result = fixture.call_and_answer("s", tool).await;
    assert!(words.iter().all(|word| result.contains(word)), "{result}");
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_fails_no_run() {
    let fixture = McpFixture::start_with(|server| server.command = Some("no-such-program-anywhere".to_owned())).await;
    let result = fixture.call_and_answer("s", "echo").await;
    assert!(
        result.contains("MCP server test is not available") && result.contains("no-such-program-anywhere"),
        "{result}"
    );
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_says_hello_is_given_up_and_ended() {
    let fixture = McpFixture::start_with(|server| {
        server.env.insert("MCP_MUTE".to_owned(), "1".to_owned());
        server.start_timeout_s = Some(1);
    })
    .await;
    let result = fixture.call_and_answer("s", "echo").await;
    assert!(result.contains("not ready within 1 s"), "{result}");
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    let starts = fixture.wait_messages("initialize", 1).await.len();
    fixture.model.script(ScriptedResponse::text("fine"));
    assert_eq!(fixture.run_message("s", "hello").await.verdict, Some(Verdict::Completed));
    assert_eq!(fixture.wait_messages("initialize", 1).await.len(), starts, "another run waited for the broken server");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_call_stands_in_the_receipt_as_finished() {
    let fixture = McpFixture::start().await;
    fixture.model.script(ScriptedResponse::tool_call("c", "test__echo", &json!({"text": "x"})));
    fixture.model.script(ScriptedResponse::text("fine"));
    let view = fixture.run_message("s", "hello").await;
    assert_eq!((call_row(&view).how.as_str(), call_row(&view).label.as_str()), ("finished", "test: echo"));
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
    fixture.stop(&run);
    let view = fixture.wait_ended(&run).await;
    assert!(receipt_of(&view).leftovers.is_empty(), "{view:#?}");
    assert_ne!(receipt_of(&view).rung, Rung::Abandoned, "{view:#?}");
    fixture.close().await;
}

#[rstest]
#[case::silent("wait", "was told to cancel it")]
#[case::deaf("deaf", "went on with it and was ended")]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_too_long_is_cancelled_and_is_an_error(#[case] tool: &str, #[case] what: &str) {
    let fixture =
        McpFixture::start_with(|server| (server.call_timeout_s, server.grace_ms) = (Some(1), Some(300))).await;
    let result = fixture.call_and_answer("s", tool).await;
    assert!(result.contains(&format!("no answer and no progress for 1 s: the MCP server test {what}")), "{result}");
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_reports_progress_may_take_long() {
    let fixture = McpFixture::start_with(|server| server.call_timeout_s = Some(1)).await;
    assert_eq!(fixture.call_and_answer("s", "slow").await, "done");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_is_too_long_is_a_start_that_failed() {
    let fixture = McpFixture::start_with(|server| {
        server.env.insert("MCP_HUGE".to_owned(), "1".to_owned());
    })
    .await;
    let result = fixture.call_and_answer("s", "echo").await;
    assert!(result.contains("is not available: it sent a message of more than 16 MiB"), "{result}");
    fixture.close().await;
}
