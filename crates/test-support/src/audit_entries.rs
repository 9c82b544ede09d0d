//! Test support: the entries of the audit log.

use crate::prelude::*;

/// Waits until the log has `n` entries after `after`, besides those about access; a task of the engine writes them.
pub async fn wait_audit_entries(api: &TestApiClient, after: u64, n: usize) -> Vec<Value> {
    poll_until("the audit entries", async || {
        let list = api.get(&format!("/api/audit?after={after}")).await.expect_status(200);
        let is_action = |row: &&Value| !["new_address", "refused"].contains(&row["action"].as_str().unwrap());
        let items: Vec<Value> = list["items"].as_array().unwrap().iter().filter(is_action).cloned().collect();
        assert!(items.len() <= n, "{list:#}");
        (items.len() == n).then_some(items)
    })
    .await
}
