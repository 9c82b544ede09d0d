//! How fast a cancel reaches the server.

use std::time::SystemTime;

use super::McpFixture;
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_cancel_is_at_the_server_within_ten_milliseconds() {
    let fixture = McpFixture::start().await;
    let mut took = Vec::new();
    for number in 1..=5 {
        let run = fixture.start_call(&format!("s{number}"), "decline", json!({})).await;
        fixture.wait_resource_held(&run, ResourceKind::McpCall).await;
        fixture.wait_messages("tools/call", number).await;
        let asked = SystemTime::now();
        fixture.stop(&run);
        let cancels = fixture.wait_messages("notifications/cancelled", number).await;
        took.push(cancels[number - 1].at.duration_since(asked).unwrap_or_default());
        fixture.wait_ended(&run).await;
    }
    // Other tests share the machine, so the best value counts.
    let best = took.iter().min().unwrap();
    assert!(*best < scaled_limit(Duration::from_millis(10)), "{took:?}");
    fixture.close().await;
}
