//! One server for all sessions: what one session's stop costs the others is said to everybody.

use quell_kernel::Push;
use quell_protocol::{ResourceKind, Verdict};
use quell_testkit::Behaviour;
use serde_json::json;

use super::{Scene, call_row};
use crate::harness::{alice, ask, message, of_run, receipt};

#[tokio::test(flavor = "multi_thread")]
async fn sessions_have_servers_of_their_own_unless_one_is_shared() {
    let own = Scene::open().await;
    let (one, two) = (own.answer("one", "pid").await, own.answer("two", "pid").await);
    assert_ne!(one, two);
    assert_eq!(own.answer("one", "pid").await, one);
    own.close().await;
    let shared = Scene::with(|server| server.shared = true).await;
    assert_eq!(shared.answer("one", "pid").await, shared.answer("two", "pid").await);
    assert!(!shared.answer("two", "env").await.contains("QUELL_SESSION"));
    shared.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_a_shared_server_fails_no_call_silently() {
    let scene = Scene::with(|server| {
        server.shared = true;
        server.grace_ms = Some(300);
    })
    .await;
    let before = scene.answer("one", "pid").await;
    let other = scene.calling("two", "wait", json!({})).await;
    scene.house.holds(&other, ResourceKind::McpCall).await;
    scene.got("tools/call", 2).await;
    let stopped = scene.calling("one", "deaf", json!({})).await;
    scene.house.printed(&stopped, "progress").await;
    scene.house.model.script(Behaviour::text("I see"));
    assert_eq!(scene.house.stop(&stopped).aborted.len(), 1);
    let view = scene.house.ended(&stopped).await;
    let row = call_row(&view);
    assert!(row.label.contains("was restarted, which cost 1 call of another run"), "{row:#?}");
    let lost = scene.house.ended(&other).await;
    assert_eq!((lost.verdict.clone(), lost.output.as_deref()), (Some(Verdict::Completed), Some("I see")));
    assert_eq!(call_row(&lost).how, "failed");
    let told = scene.last_result();
    assert!(told.contains("was lost with the MCP server test: it was restarted because"), "{told}");
    assert!(told.contains("may have had effects"), "{told}");
    assert!(receipt(&lost).leftovers.is_empty());
    assert_ne!(scene.answer("two", "pid").await, before);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_one_call_leaves_the_other_calls_alone() {
    let scene = Scene::with(|server| server.shared = true).await;
    let other = scene.calling("two", "wait", json!({})).await;
    scene.house.holds(&other, ResourceKind::McpCall).await;
    scene.got("tools/call", 1).await;
    let stopped = scene.calling("one", "wait", json!({})).await;
    scene.got("tools/call", 2).await;
    assert_eq!(scene.house.stop(&stopped).aborted.len(), 1);
    assert_eq!(call_row(&scene.house.ended(&stopped).await).how, "unconfirmed");
    let rows = scene.house.engine.live(&other).unwrap().scope.ledger().rows();
    assert!(rows.iter().any(|row| row.kind == ResourceKind::McpCall && row.released.is_none()), "{rows:#?}");
    scene.house.stop(&other);
    scene.house.ended(&other).await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_one_that_waits_for_a_server_leaves_its_start_to_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("open");
    let scene = Scene::with(|server| {
        server.shared = true;
        server.args[1].insert_str(0, &format!("while [ ! -e '{}' ]; do sleep 0.01; done\n", gate.display()));
    })
    .await;
    let stopped = scene.house.send(message("one", "do it")).await;
    scene.house.holds(&stopped, ResourceKind::McpCall).await;
    let other = scene.house.send(message("two", "do it")).await;
    scene.house.holds(&other, ResourceKind::McpCall).await;
    assert_eq!(scene.house.stop(&stopped).aborted.len(), 1);
    let view = scene.house.ended(&stopped).await;
    assert!(receipt(&view).leftovers.is_empty(), "{view:#?}");
    scene.house.model.script(Behaviour::tool_call("c1", "test__pid", &json!({}))).script(Behaviour::text("fine"));
    std::fs::write(&gate, "").unwrap();
    assert_eq!(scene.house.ended(&other).await.output.as_deref(), Some("fine"));
    assert_eq!(scene.got("initialize", 1).await.len(), 1, "it was started once");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_stop_of_one_call_does_not_cost_the_calls_of_others() {
    let scene = Scene::with(|server| server.shared = true).await;
    let before = scene.answer("one", "pid").await;
    let other = scene.calling("two", "wait", json!({})).await;
    scene.got("tools/call", 2).await;
    let stopped = scene.calling("one", "nap", json!({})).await;
    scene.house.printed(&stopped, "progress").await;
    let stop = scene.house.engine.stop(&alice(), &of_run(&stopped), &ask(Push::Forced));
    assert_eq!(stop.aborted.len(), 1);
    let view = scene.house.ended(&stopped).await;
    assert!(!call_row(&view).label.contains("restarted"), "{view:#?}");
    let rows = scene.house.engine.live(&other).unwrap().scope.ledger().rows();
    assert!(rows.iter().any(|row| row.kind == ResourceKind::McpCall && row.released.is_none()), "{rows:#?}");
    assert_eq!(scene.answer("one", "pid").await, before);
    scene.house.stop(&other);
    scene.house.ended(&other).await;
    scene.close().await;
}
