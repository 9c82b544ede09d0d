//! How soon a server has the cancel.

use std::time::{Duration, SystemTime};

use quell_protocol::ResourceKind;
use quell_testkit::pace::allowed;
use serde_json::json;

use super::Scene;

#[tokio::test(flavor = "multi_thread")]
async fn the_cancel_is_at_the_server_within_ten_milliseconds() {
    let scene = Scene::open().await;
    let mut took = Vec::new();
    for number in 1..=5 {
        let run = scene.calling(&format!("s{number}"), "decline", json!({})).await;
        scene.house.holds(&run, ResourceKind::McpCall).await;
        scene.got("tools/call", number).await;
        let asked = SystemTime::now();
        scene.house.stop(&run);
        let cancels = scene.got("notifications/cancelled", number).await;
        took.push(cancels[number - 1].at.duration_since(asked).unwrap_or_default());
        scene.house.ended(&run).await;
    }
    // Other tests share the machine: the best of them shows the way that a cancel takes.
    let best = took.iter().min().unwrap();
    assert!(*best < allowed(Duration::from_millis(10)), "{took:?}");
    scene.close().await;
}
