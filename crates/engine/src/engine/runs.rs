//! Show and follow runs.

use std::sync::Arc;

use quell_protocol::api::{Page, RunView};
use quell_protocol::{EventKind, RunEvent, RunId, SessionKey};
use quell_store::{RunListFilter, RunRow, StoreError, StorePage, StoredRunState};

use super::{Engine, Follower, RemoteFollower};
use crate::live_run::LiveRun;

#[derive(Debug)]
pub enum RunFollow {
    Live(Follower),
    /// The run is on another node.
    Remote(Box<RemoteFollower>),
    /// The run is over and only in the database: the remaining events, the terminal event last.
    Ended(Vec<RunEvent>),
}

impl Engine {
    /// One run: from memory, from the node of the cluster that it is on, or else from the database.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn find_run(&self, id: &RunId) -> Result<Option<RunView>, StoreError> {
        if let Some(live_run) = self.inner().runs.live_run(id) {
            return Ok(Some(live_run.detailed_view()));
        }
        let stored = self.find_stored_run(id).await?;
        let Some(view) = stored.as_ref().filter(|_| self.cluster().is_some()) else { return Ok(stored) };
        self.refresh_owner(&view.session_key).await?;
        if view.receipt.is_some() {
            return Ok(stored);
        }
        match self.find_run_of_peer(id).await? {
            Some(current) => Ok(Some(current)),
            // It may have ended since.
            None => self.find_stored_run(id).await,
        }
    }

    /// One run from the database, also for a chat message that was delivered again and has the id of an earlier run.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn find_stored_run(&self, id: &RunId) -> Result<Option<RunView>, StoreError> {
        if let Some(view) = self.find_unsealed_run(id) {
            return Ok(Some(view));
        }
        self.inner().store.runs().find(id.clone()).await?.map(|row| parse_run_view(&row)).transpose()
    }

    /// Runs that are not over, in order of acceptance.
    pub fn active_runs(&self) -> Vec<RunView> {
        self.inner().runs.active_runs().iter().map(|live_run| live_run.view()).collect()
    }

    /// Runs of a session that are not over, in order of acceptance.
    pub fn active_runs_of_session(&self, key: &SessionKey) -> Vec<RunView> {
        self.inner().runs.runs_of_session(key).iter().map(|live_run| live_run.view()).collect()
    }

    /// Ids of a session's runs that are not over, in order of acceptance.
    pub fn active_run_ids_of_session(&self, key: &SessionKey) -> Vec<RunId> {
        self.inner().runs.runs_of_session(key).iter().map(|live_run| live_run.run.id.clone()).collect()
    }

    /// The messages that a run of this node would take at its next step, oldest first. Each is a run of its own until
    /// then.
    pub fn waiting_steering_messages(&self, id: &RunId) -> Vec<RunId> {
        self.inner().runs.waiting_steering_messages(id)
    }

    /// The live run of a run that is in memory.
    pub fn live_run(&self, id: &RunId) -> Option<Arc<LiveRun>> {
        self.inner().runs.live_run(id)
    }

    /// All runs, newest first.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_runs(&self, filter: RunListFilter) -> Result<Page<RunView>, StoreError> {
        let (rows, next_cursor) = self.inner().store.runs().list(filter).await?;
        let mut items = Vec::with_capacity(rows.len());
        for row in &rows {
            items.push(self.current_view(row).await?);
        }
        Ok(Page { items, next_cursor })
    }

    /// As [`Engine::list_runs`], each run with the cursor of a page that begins behind it.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_runs_with_cursors(
        &self,
        filter: RunListFilter,
    ) -> Result<StorePage<(RunView, String)>, StoreError> {
        let (rows, next_cursor) = self.inner().store.runs().list_with_cursors(filter).await?;
        let mut views = Vec::with_capacity(rows.len());
        for (row, cursor) in rows {
            views.push((self.current_view(&row).await?, cursor));
        }
        Ok((views, next_cursor))
    }

    /// The view of a run whose row was read a moment ago.
    async fn current_view(&self, row: &RunRow) -> Result<RunView, StoreError> {
        if let Some(live_run) = self.inner().runs.live_run(&row.id) {
            return Ok(live_run.view());
        }
        match self.find_unsealed_run(&row.id) {
            Some(view) => Ok(view),
            None => view_outside_memory(row, || self.inner().store.runs().find(row.id.clone())).await,
        }
    }

    /// Follows a run's events after number `after`.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn follow_run(&self, id: &RunId, after: u64) -> Result<Option<RunFollow>, StoreError> {
        let is_elsewhere = match self.cluster() {
            // Also one of this node that is in memory no more, and whose end is still to be stored.
            Some(cluster) if self.live_run(id).is_none() => cluster.store().open_run_node(id.clone()).await?.is_some(),
            _ => false,
        };
        if is_elsewhere {
            return Ok(Some(RunFollow::Remote(Box::new(RemoteFollower::new(self.clone(), id.clone(), after)))));
        }
        self.follow_run_here(id, after).await
    }

    /// Follows a run that is in memory or in the database.
    pub(super) async fn follow_run_here(&self, id: &RunId, after: u64) -> Result<Option<RunFollow>, StoreError> {
        if let Some(live_run) = self.inner().runs.live_run(id).filter(|live_run| !live_run.is_steered()) {
            return Ok(Some(RunFollow::Live(live_run.follow(after))));
        }
        Ok(self.find_stored_run(id).await?.and_then(|view| remaining_events(view, after)).map(RunFollow::Ended))
    }

    pub fn count_model_requests(&self) -> usize {
        self.inner().models.active_requests().count()
    }
}

/// The view of a run that is not in memory. `row` was read while it may have been: what its end has stored since counts,
/// so a row without an end is read again with `find`. A run of another node is read twice.
async fn view_outside_memory<F>(row: &RunRow, find: impl FnOnce() -> F) -> Result<RunView, StoreError>
where
    F: Future<Output = Result<Option<RunRow>, StoreError>>,
{
    match row.state {
        StoredRunState::Ended | StoredRunState::Steered { .. } => parse_run_view(row),
        StoredRunState::Accepted | StoredRunState::Started => {
            let stored = find().await?;
            // There is no row any more if its session was deleted meanwhile.
            parse_run_view(stored.as_ref().unwrap_or(row))
        }
    }
}

fn parse_run_view(row: &RunRow) -> Result<RunView, StoreError> {
    let mut view: RunView = serde_json::from_str(&row.view)
        .map_err(|error| StoreError::Corrupt(format!("the stored view of run {} cannot be read: {error}", row.id)))?;
    if let StoredRunState::Steered { .. } = row.state {
        view.state = "steered".to_owned();
    }
    Ok(view)
}

/// The events after number `after` of a run whose events are gone: a snapshot in place of the missed ones, and the end.
pub(super) fn remaining_events(view: RunView, after: u64) -> Option<Vec<RunEvent>> {
    let receipt = view.receipt?;
    let at = view.ended_at.unwrap_or_default();
    let event = |seq, kind| {
        let (run_id, session_key) = (view.run_id.clone(), view.session_key.clone());
        RunEvent { run_id, session_key, seq, at: at.clone(), kind }
    };
    let before = view.seq.saturating_sub(1);
    let missed = (after < before).then(|| {
        let text = view.output.clone().unwrap_or_default();
        let (earlier_text, thinking, calls, approvals) = (String::new(), String::new(), Vec::new(), Vec::new());
        event(before, EventKind::Snapshot { earlier_text, text, thinking, calls, approvals })
    });
    let verdict = receipt.verdict.clone();
    let text = view.output.clone().filter(|_| verdict == quell_protocol::Verdict::Completed);
    let end = EventKind::Ended { verdict, text, receipt: Box::new(receipt), steps: view.steps };
    Some(missed.into_iter().chain([event(view.seq, end)]).collect())
}

#[cfg(test)]
mod tests {
    use quell_protocol::{AgentId, Principal, Usage};

    use super::*;

    fn stored_row(state: StoredRunState, shown: &str) -> RunRow {
        let view = serde_json::json!({
            "runId": "r", "sessionKey": "s", "agent": "main", "state": shown, "principal": "ann", "surface": "http",
            "text": "hello", "acceptedAt": "", "steps": 0, "usage": Usage::default(), "seq": 0, "processes": 0,
        });
        RunRow {
            id: RunId::parse("r").unwrap(),
            session: SessionKey::parse("s").unwrap(),
            agent: AgentId::parse("main").unwrap(),
            principal: Principal::parse("ann").unwrap(),
            fingerprint: String::new(),
            state,
            accepted_at: String::new(),
            view: view.to_string(),
        }
    }

    /// A list used to show what a run was when it was accepted, if the run left the memory while the list was made.
    #[tokio::test]
    async fn a_run_that_leaves_the_memory_while_it_is_listed_shows_its_end() {
        let into = RunId::parse("other").unwrap();
        let read = stored_row(StoredRunState::Accepted, "queued");
        for (since, shown) in [
            (stored_row(StoredRunState::Ended, "ended"), "ended"),
            (stored_row(StoredRunState::Steered { into }, "queued"), "steered"),
        ] {
            let view = view_outside_memory(&read, || std::future::ready(Ok(Some(since.clone())))).await.unwrap();
            assert_eq!(view.state, shown);
            let final_view = view_outside_memory(&since, || -> std::future::Ready<_> { panic!("it is final") });
            assert_eq!(final_view.await.unwrap(), view);
        }
        let deleted = view_outside_memory(&read, || std::future::ready(Ok(None))).await.unwrap();
        assert_eq!(deleted.state, "queued");
    }
}
