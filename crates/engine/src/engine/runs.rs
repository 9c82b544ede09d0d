//! Show and follow runs.

use std::sync::Arc;

use quell_protocol::api::{Page, RunView};
use quell_protocol::{EventKind, RunEvent, RunId, SessionKey};
use quell_store::{RunListFilter, RunRow, StoreError, StorePage};

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
        Ok(Page { items: rows.iter().map(|row| self.current_view(row)).collect::<Result<_, _>>()?, next_cursor })
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
        let views = rows.into_iter().map(|(row, cursor)| Ok((self.current_view(&row)?, cursor)));
        Ok((views.collect::<Result<_, StoreError>>()?, next_cursor))
    }

    fn current_view(&self, row: &RunRow) -> Result<RunView, StoreError> {
        match self.inner().runs.live_run(&row.id) {
            Some(live_run) => Ok(live_run.view()),
            None => self.find_unsealed_run(&row.id).map_or_else(|| parse_run_view(row), Ok),
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

fn parse_run_view(row: &RunRow) -> Result<RunView, StoreError> {
    let mut view: RunView = serde_json::from_str(&row.view)
        .map_err(|error| StoreError::Corrupt(format!("the stored view of run {} cannot be read: {error}", row.id)))?;
    if let quell_store::StoredRunState::Steered { .. } = row.state {
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
