//! The places at MCP servers where a stop can find a run: a server that starts, a call that obeys, a call that does not.

use quell_engine::mcp::McpConfig;
use quell_protocol::ResourceKind;
use quell_testkit::mcp::HttpServer;
use quell_testkit::{Behaviour, leaks, mcp};
use serde_json::json;

use super::cases::{Case, Doing, Moment, model_says};
use super::scene::Scene;
use crate::harness::PATIENCE;

/// Servers of the site: one that works, and two that never say hello, as a process and by URL. Nobody keeps them when a run
/// is over.
pub(super) fn servers(far: &HttpServer) -> Vec<(String, McpConfig)> {
    let server = || McpConfig {
        command: Some("sh".to_owned()),
        args: vec!["-c".to_owned(), mcp::SERVER.to_owned()],
        idle_s: Some(0),
        grace_ms: Some(100),
        ..McpConfig::default()
    };
    let mut mute = server();
    mute.env.insert("MCP_MUTE".to_owned(), "1".to_owned());
    let far = McpConfig { url: Some(far.url()), ..McpConfig::default() };
    vec![("test".to_owned(), server()), ("mute".to_owned(), mute), ("far".to_owned(), far)]
}

pub(super) fn cases() -> Vec<Case> {
    let starting = Case {
        agent: "starting",
        ..Case::new("MCP server starting", |_| Box::pin(async {}), Moment::When(|scene| Box::pin(holds_call(scene))))
    };
    let reaching = Case {
        agent: "reaching",
        ..Case::new(
            "MCP server by URL starting",
            |_| Box::pin(async {}),
            Moment::When(|scene| Box::pin(is_reached(scene))),
        )
    };
    let calling = Case {
        seen: &["Stopped while it ran"],
        ..Case::new(
            "MCP call",
            |scene| call(scene, "test__decline"),
            Moment::When(|scene| Box::pin(is_called(scene, "test: decline"))),
        )
    };
    let deaf = Case {
        seen: &["Stopped while it ran"],
        ..Case::new(
            "MCP call of a deaf server",
            |scene| call(scene, "test__fork"),
            Moment::When(|scene| Box::pin(it_is_at_work(scene))),
        )
    };
    let silent = Case {
        seen: &["Stopped while it ran"],
        ..Case::new(
            "MCP call of a server that answers its ping alone",
            |scene| call(scene, "test__wait"),
            Moment::When(|scene| Box::pin(is_called(scene, "test: wait"))),
        )
    };
    vec![starting, reaching, calling, deaf, silent]
}

fn call<'a>(scene: &'a Scene<'a>, tool: &str) -> Doing<'a> {
    model_says(scene, [Behaviour::tool_call("c1", tool, &json!({}))])
}

/// The call is out, not only its server awaited.
async fn is_called(scene: &Scene<'_>, label: &'static str) {
    let (engine, run) = (scene.site.house.engine.clone(), scene.run.clone());
    leaks::settled(PATIENCE, move || {
        let rows = engine.live(&run).map(|cell| cell.scope.ledger().rows()).unwrap_or_default();
        let held = rows.iter().any(|row| row.label == label && row.released.is_none());
        if held { Ok(()) } else { Err(format!("{rows:#?}")) }
    })
    .await;
}

async fn it_is_at_work(scene: &Scene<'_>) {
    is_called(scene, "test: fork").await;
    scene.site.house.printed(&scene.run, "progress").await;
}

/// The request is there, not only the wait for it.
async fn is_reached(scene: &Scene<'_>) {
    holds_call(scene).await;
    scene.site.mute.is_talked_to().await;
}

async fn holds_call(scene: &Scene<'_>) {
    scene.site.house.holds(&scene.run, ResourceKind::McpCall).await;
}
