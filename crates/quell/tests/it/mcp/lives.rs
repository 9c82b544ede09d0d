//! How long servers live: until nobody has used them for a while, until their session is gone, until the daemon ends.

use std::path::Path;
use std::time::{Duration, Instant};

use quell_kernel::Push;
use quell_testkit::commands::Marker;
use quell_testkit::daemon::Daemon;
use quell_testkit::pace::allowed;
use quell_testkit::{Behaviour, ScriptedModel, mcp};
use serde_json::json;

use super::Scene;
use crate::harness::{Claim, PATIENCE, ask, key, root};

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_server_is_closed_and_comes_back() {
    let scene = Scene::with(|server| server.idle_s = Some(0)).await;
    let first = scene.answer("s", "pid").await;
    scene.servers(0).await;
    scene.mark.gone(PATIENCE).await;
    assert_ne!(scene.answer("s", "pid").await, first);
    scene.servers(0).await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_use_is_kept_for_its_time() {
    let scene = Scene::with(|server| server.idle_s = Some(1)).await;
    let first = scene.answer("s", "pid").await;
    assert_eq!(scene.answer("s", "pid").await, first);
    let since = Instant::now();
    scene.servers(0).await;
    assert!(since.elapsed() > Duration::from_millis(700), "closed after {:?}", since.elapsed());
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_takes_its_servers_with_it() {
    let scene = Scene::open().await;
    scene.answer("one", "pid").await;
    scene.answer("two", "pid").await;
    scene.servers(2).await;
    assert!(scene.house.engine.delete_session(&root(), &key("one"), &ask(Push::Gentle)).await.unwrap());
    scene.servers(1).await;
    assert!(scene.house.engine.reset_session(&root(), &key("two"), &ask(Push::Gentle)).await.unwrap());
    scene.servers(0).await;
    scene.mark.gone(PATIENCE).await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_stuck_servers_and_calls_within_its_time() {
    let scene = Scene::with(|server| {
        server.env.insert("MCP_STUCK".to_owned(), "1".to_owned());
    })
    .await;
    scene.answer("idle", "pid").await;
    let run = scene.calling("busy", "deaf", json!({})).await;
    scene.house.printed(&run, "progress").await;
    scene.servers(2).await;
    let begun = Instant::now();
    let left = scene.house.engine.shut_down().await;
    let took = begun.elapsed();
    assert!(left.is_empty(), "{left:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(scene.mark.survivors().len(), 0, "{:#?}", scene.mark.survivors());
    assert_eq!(scene.house.engine.mcp().alive(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_sees_the_end_of_its_input_at_shutdown() {
    let scene = Scene::open().await;
    scene.answer("s", "pid").await;
    let begun = Instant::now();
    assert!(scene.house.engine.shut_down().await.is_empty());
    let took = begun.elapsed();
    assert!(took < allowed(Duration::from_secs(2)), "{took:?}");
    assert_eq!(scene.mark.survivors().len(), 0);
}

/// A section for a file, and the folder in which its server is.
fn section(mark: &Marker) -> (String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("server.sh");
    std::fs::write(&script, mcp::SERVER).unwrap();
    let section = format!(
        "\n[mcp.test]\ncommand = \"sh\"\nargs = [\"{}\"]\nenv = {{ MCP_MARK = \"{}\", MCP_STUCK = \"1\" }}\n",
        script.display(),
        mark.as_str()
    );
    (section, folder)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_server_outlives_a_daemon_that_is_killed() {
    let _claim = Claim::shared().await;
    let (mark, model) = (Marker::new(), ScriptedModel::start().await);
    let (section, _folder) = section(&mark);
    let provider = format!("[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\n", model.base_url());
    let daemon = Daemon::start(
        Path::new(env!("CARGO_BIN_EXE_quell")),
        &format!("{provider}\n[agents.main]\nmodel = \"scripted/model\"\n{section}"),
    )
    .await;
    model.script(Behaviour::tool_call("c1", "test__fork", &json!({})));
    let started = daemon.http().post("/api/sessions/s/runs", &json!({"text": "do it"})).await.expect_status(202);
    let run = started["runId"].as_str().unwrap();
    daemon.http().events(run, 0).await.until("tool.output").await;
    mark.at_least(2).await;
    daemon.kill9().await;
    mark.gone(PATIENCE).await;
    // The library tells whole messages at info; the daemon's log does not.
    let log = daemon.output();
    assert!(
        log.contains("MCP server started") && !log.contains("jsonrpc") && !log.contains("protocol_version"),
        "{log}"
    );
}
