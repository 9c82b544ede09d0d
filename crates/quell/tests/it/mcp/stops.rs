//! Stop a run in the middle of a call: cancel, keep or restart the server.

use std::sync::Mutex;

use quell_testkit::mcp;

use super::{McpFixture, call_row, last_request_text};
use crate::prelude::*;

#[rstest]
#[case::silent("wait", "unconfirmed")]
#[case::answering("decline", "cancelled")]
#[tokio::test(flavor = "multi_thread")]
async fn an_obedient_server_is_told_and_kept(#[case] tool: &str, #[case] how: &str) {
    let fixture = McpFixture::start().await;
    let before = fixture.call_and_answer("s", "pid").await;
    let run = fixture.start_call("s", tool, json!({})).await;
    fixture.wait_resource_held(&run, ResourceKind::McpCall).await;
    let calls = fixture.wait_messages("tools/call", 2).await;
    assert_eq!(fixture.stop(&run).aborted.len(), 1);
    let cancels = fixture.wait_messages("notifications/cancelled", 1).await;
    assert_eq!(cancels[0].message["params"]["requestId"], calls[1].message["id"]);
    let view = fixture.wait_ended(&run).await;
    assert!(matches!(view.verdict, Some(Verdict::Aborted { .. })), "{view:#?}");
    let row = call_row(&view);
    assert_eq!((row.how.as_str(), row.label.as_str()), (how, format!("test: {tool}").as_str()));
    assert_eq!((receipt_of(&view).rung, receipt_of(&view).leftovers.len()), (Rung::Cancel, 0));
    assert_eq!(fixture.call_and_answer("s", "pid").await, before, "the connection was not kept");
    let says = if tool == "decline" { "test has cancelled it" } else { "test was told to cancel it" };
    let shown = last_request_text(&fixture);
    assert!(shown.contains(&format!("[Stopped while it ran: the MCP server {says}. Side effects")), "{shown}");
    assert_eq!(fixture.wait_messages("notifications/cancelled", 1).await.len(), 1, "the cancel was sent again");
    fixture.close().await;
}

#[rstest]
#[case::deaf("deaf", "does not read its input")]
#[case::with_descendants("fork", "does not read its input")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_on_is_restarted_and_the_receipt_says_so(#[case] tool: &str, #[case] why: &str) {
    let fixture = McpFixture::start_with(|server| server.grace_ms = Some(300)).await;
    let before = fixture.call_and_answer("s", "pid").await;
    let run = fixture.start_call("s", tool, json!({})).await;
    fixture.wait_printed(&run, "progress").await;
    let before_stop = fixture.marker.marked_processes();
    assert!(before_stop.len() > 1, "{before_stop:#?}");
    let view = fixture.stop_to_end(&run).await;
    let row = call_row(&view);
    assert_eq!(row.how, "term", "{row:#?}");
    assert!(row.label.contains(why) && row.label.contains("was restarted"), "{row:#?}");
    assert!(receipt_of(&view).leftovers.is_empty() && receipt_of(&view).rung == Rung::Term, "{view:#?}");
    // No process of the server is alive once the run has ended.
    assert_eq!(fixture.marker.marked_processes().len(), 0, "{:#?}", fixture.marker.marked_processes());
    assert_ne!(fixture.call_and_answer("s", "pid").await, before);
    assert!(
        last_request_text(&fixture)
            .contains("[Stopped while it ran: the MCP server test went on with it and was ended.")
    );
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_answered_after_its_cancel_is_told_with_its_result() {
    let fixture = McpFixture::start().await;
    let run = fixture.start_call("s", "finish", json!({})).await;
    fixture.wait_messages("tools/call", 1).await;
    fixture.stop(&run);
    let view = fixture.wait_ended(&run).await;
    assert_eq!(call_row(&view).how, "finished", "{view:#?}");
    fixture.call_and_answer("s", "echo").await;
    let shown = last_request_text(&fixture);
    assert!(
        shown
            .contains("came to its own end after the request was stopped. Its effects stand.]\\nfinished all the same"),
        "{shown}"
    );
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_stop_does_not_wait_for_the_grace() {
    let fixture = McpFixture::start().await;
    let run = fixture.start_call("s", "deaf", json!({})).await;
    fixture.wait_printed(&run, "progress").await;
    let stop = fixture.engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(StopLevel::Forced));
    assert_eq!(stop.aborted.len(), 1);
    let view = fixture.wait_ended(&run).await;
    assert!(receipt_of(&view).settled_at.ms.unwrap() < 800.0, "{view:#?}");
    assert!(matches!(call_row(&view).how.as_str(), "term" | "kill"), "{view:#?}");
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_works_on_in_secret_is_restarted_when_it_is_found_out() {
    // The grace is so short that the server's work is seen only after it.
    let fixture = McpFixture::start_with(|server| server.grace_ms = Some(1)).await;
    let run = fixture.start_call("s", "tick", json!({})).await;
    fixture.wait_printed(&run, "progress").await;
    fixture.stop_to_end(&run).await;
    fixture.wait_servers(0).await;
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_a_server_starts_ends_the_server() {
    let fixture = McpFixture::start_with(|server| {
        server.env.insert("MCP_MUTE".to_owned(), "1".to_owned());
        server.env.insert("MCP_STUCK".to_owned(), "1".to_owned());
    })
    .await;
    fixture.model.script(ScriptedResponse::text("never said"));
    let run = fixture.send(submission("s", "hello")).await;
    fixture.wait_messages("initialize", 1).await;
    let view = fixture.stop_to_end(&run).await;
    assert_eq!(fixture.marker.marked_processes().len(), 0, "the server outlived the run that waited for it");
    let rows = &receipt_of(&view).resources;
    let start = rows.iter().find(|row| row.label == "test: start").unwrap_or_else(|| panic!("{rows:#?}"));
    assert_eq!(start.how, "kill");
    fixture.wait_servers(0).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_before_a_server_is_needed_starts_none() {
    let fixture = McpFixture::start().await;
    fixture.model.script(ScriptedResponse::text("never said"));
    let (engine, alive) = (fixture.engine.clone(), Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&alive);
    fixture.point_hook.arm(Point::McpStart, 1, move || {
        let stop =
            engine.stop(&alice(), &StopScope::whole_session(parse_session_key("s")), &stop_ask(StopLevel::Gentle));
        *seen.lock().unwrap() = Some((stop.aborted.len(), engine.mcp().count_live()));
    });
    let run = fixture.send(submission("s", "hello")).await;
    let view = fixture.wait_ended(&run).await;
    assert_eq!(*alive.lock().unwrap(), Some((1, 0)), "a server was started before the stop was noticed");
    assert!(receipt_of(&view).resources.iter().all(|row| row.kind != ResourceKind::McpCall), "{view:#?}");
    fixture.wait_servers(0).await;
    assert_eq!(mcp::received_messages(&fixture.log).len(), 0);
    fixture.close().await;
}
