//! Servers that do not start, or end when they should not: a run goes on without them, and the model is told why.

use quell_protocol::{ResourceKind, Rung, Verdict};
use quell_testkit::Behaviour;
use rstest::rstest;
use serde_json::json;

use super::{Scene, call_row};
use crate::harness::{PATIENCE, receipt};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_during_a_call_is_an_error_of_that_call() {
    let scene = Scene::open().await;
    let told = scene.answer("s", "die").await;
    assert!(told.contains("was lost with the MCP server test") && told.contains("exit code 3"), "{told}");
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_fails_no_run() {
    let scene = Scene::with(|server| server.command = Some("no-such-program-anywhere".to_owned())).await;
    let told = scene.answer("s", "echo").await;
    assert!(told.contains("MCP server test is not available") && told.contains("no-such-program-anywhere"), "{told}");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_says_hello_is_given_up_and_ended() {
    let scene = Scene::with(|server| {
        server.env.insert("MCP_MUTE".to_owned(), "1".to_owned());
        server.start_timeout_s = Some(1);
    })
    .await;
    let told = scene.answer("s", "echo").await;
    assert!(told.contains("not ready within 1 s"), "{told}");
    scene.mark.gone(PATIENCE).await;
    let starts = scene.got("initialize", 1).await.len();
    scene.house.model.script(Behaviour::text("fine"));
    assert_eq!(scene.house.ask("s", "hello").await.verdict, Some(Verdict::Completed));
    assert_eq!(scene.got("initialize", 1).await.len(), starts, "each run pays for the broken server");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_call_stands_in_the_receipt_as_finished() {
    let scene = Scene::open().await;
    scene.house.model.script(Behaviour::tool_call("c", "test__echo", &json!({"text": "x"})));
    scene.house.model.script(Behaviour::text("fine"));
    let view = scene.house.ask("s", "hello").await;
    assert_eq!((call_row(&view).how.as_str(), call_row(&view).label.as_str()), ("finished", "test: echo"));
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_its_input_is_ended_and_its_call_fails() {
    let scene = Scene::open().await;
    assert_eq!(scene.answer("s", "shut").await, "shut");
    let told = scene.answer("s", "echo").await;
    assert!(told.contains("was lost with the MCP server test: it does not read its input"), "{told}");
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.close().await;
}

/// Whether the stop meets the call before or after it was found that the server does not read: only then is the server ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_not_held_up_by_a_server_that_closed_its_input() {
    let scene = Scene::open().await;
    assert_eq!(scene.answer("s", "shut").await, "shut");
    let run = scene.calling("s", "echo", json!({})).await;
    scene.house.holds(&run, ResourceKind::McpCall).await;
    scene.house.stop(&run);
    let view = scene.house.ended(&run).await;
    assert!(receipt(&view).leftovers.is_empty(), "{view:#?}");
    assert_ne!(receipt(&view).rung, Rung::Abandoned, "{view:#?}");
    scene.close().await;
}

#[rstest]
#[case::silent("wait", "was told to cancel it")]
#[case::deaf("deaf", "went on with it and was ended")]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_too_long_is_cancelled_and_is_an_error(#[case] tool: &str, #[case] what: &str) {
    let scene = Scene::with(|server| (server.call_timeout_s, server.grace_ms) = (Some(1), Some(300))).await;
    let told = scene.answer("s", tool).await;
    assert!(told.contains(&format!("no answer and no progress for 1 s: the MCP server test {what}")), "{told}");
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_reports_progress_may_take_long() {
    let scene = Scene::with(|server| server.call_timeout_s = Some(1)).await;
    assert_eq!(scene.answer("s", "slow").await, "done");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_long_ends_its_call_and_its_server() {
    let scene = Scene::open().await;
    let told = scene.answer("s", "huge").await;
    assert!(told.contains("was restarted because it sent a message of more than 16 MiB"), "{told}");
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_is_too_long_is_a_start_that_failed() {
    let scene = Scene::with(|server| {
        server.env.insert("MCP_HUGE".to_owned(), "1".to_owned());
    })
    .await;
    let told = scene.answer("s", "echo").await;
    assert!(told.contains("is not available: it sent a message of more than 16 MiB"), "{told}");
    scene.close().await;
}
