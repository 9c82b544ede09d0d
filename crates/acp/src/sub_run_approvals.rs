//! Calls of sub-runs that wait for a person. No event of the run above announces them, so they are listed again and
//! again.

use std::collections::HashMap;
use std::iter;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use quell_client::daemon_client::ClientRunFilter;
use quell_client::{ClientError, DaemonClient};
use quell_protocol::RunId;
use quell_protocol::approval::{ApprovalRow, ApprovalState};

/// How long a question of a sub-run may stay unseen.
const INTERVAL: Duration = Duration::from_secs(1);

/// The pending approvals of all runs below this one, anew after each [`INTERVAL`]. A list that fails is left out: the
/// events of the run tell that the daemon is lost.
///
/// # Cancel safety
/// A dropped wait for the next list starts nothing anew: the stream keeps its progress.
pub(crate) fn watch_sub_run_approvals(client: DaemonClient, run: RunId) -> BoxStream<'static, Vec<ApprovalRow>> {
    let lists = stream::unfold((client, run), |(client, run)| async move {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if let Ok(rows) = list_below(&client, &run).await {
                return Some((rows, (client, run)));
            }
        }
    });
    lists.boxed()
}

async fn list_below(client: &DaemonClient, run: &RunId) -> Result<Vec<ApprovalRow>, ClientError> {
    let mut rows = client.list_approvals().await?;
    rows.retain(|row| row.state == ApprovalState::Pending && row.run_id != *run);
    if rows.is_empty() {
        return Ok(rows);
    }
    let active = client.list_runs(ClientRunFilter::Active).await?;
    let parents = active.into_iter().filter_map(|view| Some((view.run_id, view.parent?))).collect();
    rows.retain(|row| is_below(&parents, &row.run_id, run));
    Ok(rows)
}

/// Whether a run was started by another one, or by a run below that.
fn is_below(parents: &HashMap<RunId, RunId>, run: &RunId, above: &RunId) -> bool {
    iter::successors(parents.get(run), |parent| parents.get(*parent)).take(parents.len()).any(|parent| parent == above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_at_any_depth_are_below() {
        let id = |text: &str| RunId::parse(text).unwrap();
        let parents = [("b", "a"), ("c", "b"), ("y", "x"), ("loop", "loop")];
        let parents = parents.map(|(run, parent)| (id(run), id(parent))).into();
        for (run, expected) in [("b", true), ("c", true), ("a", false), ("y", false), ("loop", false)] {
            assert_eq!(is_below(&parents, &id(run), &id("a")), expected, "{run}");
        }
    }
}
