//! A stop in the middle of a call: the cancel is sent, the connection is kept, and a server that goes on is restarted.

use std::sync::{Arc, Mutex};

use quell_engine::scope::Point;
use quell_kernel::{Push, StopScope};
use quell_protocol::{ResourceKind, Rung, Verdict};
use quell_testkit::{Behaviour, mcp};
use rstest::rstest;
use serde_json::json;

use super::{Scene, call_row, shown};
use crate::harness::{PATIENCE, alice, ask, key, message, of_run, receipt};

#[rstest]
#[case::silent("wait", "unconfirmed")]
#[case::answering("decline", "cancelled")]
#[tokio::test(flavor = "multi_thread")]
async fn an_obedient_server_is_told_and_kept(#[case] tool: &str, #[case] how: &str) {
    let scene = Scene::open().await;
    let before = scene.answer("s", "pid").await;
    let run = scene.calling("s", tool, json!({})).await;
    scene.house.holds(&run, ResourceKind::McpCall).await;
    let calls = scene.got("tools/call", 2).await;
    assert_eq!(scene.house.stop(&run).aborted.len(), 1);
    let cancels = scene.got("notifications/cancelled", 1).await;
    assert_eq!(cancels[0].message["params"]["requestId"], calls[1].message["id"]);
    let view = scene.house.ended(&run).await;
    assert!(matches!(view.verdict, Some(Verdict::Aborted { .. })), "{view:#?}");
    let row = call_row(&view);
    assert_eq!((row.how.as_str(), row.label.as_str()), (how, format!("test: {tool}").as_str()));
    assert_eq!((receipt(&view).rung, receipt(&view).leftovers.len()), (Rung::Cancel, 0));
    assert_eq!(scene.answer("s", "pid").await, before, "the connection was not kept");
    let says = if tool == "decline" { "test has cancelled it" } else { "test was told to cancel it" };
    let shown = shown(&scene.house);
    assert!(shown.contains(&format!("[Stopped while it ran: the MCP server {says}. Side effects")), "{shown}");
    assert_eq!(scene.got("notifications/cancelled", 1).await.len(), 1, "the cancel was sent again");
    scene.close().await;
}

#[rstest]
#[case::deaf("deaf", "does not read its input")]
#[case::with_descendants("fork", "does not read its input")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_on_is_restarted_and_the_receipt_says_so(#[case] tool: &str, #[case] why: &str) {
    let scene = Scene::with(|server| server.grace_ms = Some(300)).await;
    let before = scene.answer("s", "pid").await;
    let run = scene.calling("s", tool, json!({})).await;
    scene.house.printed(&run, "progress").await;
    let before_stop = scene.mark.survivors();
    assert!(before_stop.len() > 1, "{before_stop:#?}");
    assert_eq!(scene.house.stop(&run).aborted.len(), 1);
    let view = scene.house.ended(&run).await;
    let row = call_row(&view);
    assert_eq!(row.how, "term", "{row:#?}");
    assert!(row.label.contains(why) && row.label.contains("was restarted"), "{row:#?}");
    assert!(receipt(&view).leftovers.is_empty() && receipt(&view).rung == Rung::Term, "{view:#?}");
    // Nothing of it is alive once its run has ended.
    assert_eq!(scene.mark.survivors().len(), 0, "{:#?}", scene.mark.survivors());
    assert_ne!(scene.answer("s", "pid").await, before);
    assert!(shown(&scene.house).contains("[Stopped while it ran: the MCP server test went on with it and was ended."));
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_answered_after_its_cancel_is_told_with_its_result() {
    let scene = Scene::open().await;
    let run = scene.calling("s", "finish", json!({})).await;
    scene.got("tools/call", 1).await;
    scene.house.stop(&run);
    let view = scene.house.ended(&run).await;
    assert_eq!(call_row(&view).how, "finished", "{view:#?}");
    scene.answer("s", "echo").await;
    let shown = shown(&scene.house);
    assert!(
        shown
            .contains("came to its own end after the request was stopped. Its effects stand.]\\nfinished all the same"),
        "{shown}"
    );
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_stop_does_not_wait_for_the_grace() {
    let scene = Scene::open().await;
    let run = scene.calling("s", "deaf", json!({})).await;
    scene.house.printed(&run, "progress").await;
    let stop = scene.house.engine.stop(&alice(), &of_run(&run), &ask(Push::Forced));
    assert_eq!(stop.aborted.len(), 1);
    let view = scene.house.ended(&run).await;
    assert!(receipt(&view).settled_at.ms.unwrap() < 800.0, "{view:#?}");
    assert!(matches!(call_row(&view).how.as_str(), "term" | "kill"), "{view:#?}");
    scene.mark.gone(PATIENCE).await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_works_on_in_secret_is_restarted_when_it_is_found_out() {
    // With so short a grace nothing of its work is seen until it is over.
    let scene = Scene::with(|server| server.grace_ms = Some(1)).await;
    let run = scene.calling("s", "tick", json!({})).await;
    scene.house.printed(&run, "progress").await;
    assert_eq!(scene.house.stop(&run).aborted.len(), 1);
    scene.house.ended(&run).await;
    scene.servers(0).await;
    scene.mark.gone(PATIENCE).await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_a_server_starts_ends_the_server() {
    let scene = Scene::with(|server| {
        server.env.insert("MCP_MUTE".to_owned(), "1".to_owned());
        server.env.insert("MCP_STUCK".to_owned(), "1".to_owned());
    })
    .await;
    scene.house.model.script(Behaviour::text("never said"));
    let run = scene.house.send(message("s", "hello")).await;
    scene.got("initialize", 1).await;
    assert_eq!(scene.house.stop(&run).aborted.len(), 1);
    let view = scene.house.ended(&run).await;
    assert_eq!(scene.mark.survivors().len(), 0, "it outlived the run that waited for it");
    let rows = &receipt(&view).resources;
    let start = rows.iter().find(|row| row.label == "test: start").unwrap_or_else(|| panic!("{rows:#?}"));
    assert_eq!(start.how, "kill");
    scene.servers(0).await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_before_a_server_is_needed_starts_none() {
    let scene = Scene::open().await;
    scene.house.model.script(Behaviour::text("never said"));
    let (engine, alive) = (scene.house.engine.clone(), Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&alive);
    scene.house.trap.arm(Point::McpStart, 1, move || {
        let stop = engine.stop(&alice(), &StopScope::whole_session(key("s")), &ask(Push::Gentle));
        *seen.lock().unwrap() = Some((stop.aborted.len(), engine.mcp().alive()));
    });
    let run = scene.house.send(message("s", "hello")).await;
    let view = scene.house.ended(&run).await;
    assert_eq!(*alive.lock().unwrap(), Some((1, 0)), "a server was started before the stop was looked for");
    assert!(receipt(&view).resources.iter().all(|row| row.kind != ResourceKind::McpCall), "{view:#?}");
    scene.servers(0).await;
    assert_eq!(mcp::received(&scene.log).len(), 0);
    scene.close().await;
}
