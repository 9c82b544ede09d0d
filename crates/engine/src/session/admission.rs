//! Create the live run for a request and make its acceptance durable. A task of the engine does this, so that a caller
//! that leaves does not interrupt it. Used for messages of clients and for sub-runs.

use std::sync::Arc;

use quell_store::{AcceptRunOutcome, Store, StoreError, StoredRunState, StoredSchedule};

use super::{SessionClaim, Sessions};
use crate::live_run::{EngineNotice, LiveRun, RunRequest};
use crate::runs::{abort_at_deadline, build_run_row};

impl Sessions {
    #[must_use]
    pub fn new_live_run(&self, request: RunRequest) -> Arc<LiveRun> {
        let runs = &self.0.runs;
        let agent = runs.services().agents.get(&request.agent);
        let partial_policy = agent.map(|agent| agent.config.partial).unwrap_or_default();
        Arc::new(LiveRun::new(request, partial_policy, &self.0.run_defaults, runs.clock(), runs.hub().clone()))
    }

    /// Makes the acceptance of a run durable, after the registry accepted it, and wakes its session. `claim` is the
    /// session of the run.
    ///
    /// # Errors
    /// The store's error; the run is refused then. [`StoreError::Closed`] if the engine closes meanwhile.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn commit_acceptance(
        &self,
        live_run: &Arc<LiveRun>,
        claim: SessionClaim,
    ) -> Result<AcceptRunOutcome, StoreError> {
        self.commit(live_run, claim, None).await
    }

    /// Makes the acceptance of the run of a firing durable, and replaces its schedule in the same write.
    ///
    /// # Errors
    /// As for [`Sessions::commit_acceptance`].
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn commit_firing(
        &self,
        live_run: &Arc<LiveRun>,
        claim: SessionClaim,
        schedule: StoredSchedule,
    ) -> Result<AcceptRunOutcome, StoreError> {
        self.commit(live_run, claim, Some(schedule)).await
    }

    async fn commit(
        &self,
        live_run: &Arc<LiveRun>,
        claim: SessionClaim,
        firing_of: Option<StoredSchedule>,
    ) -> Result<AcceptRunOutcome, StoreError> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (sessions, live_run) = (self.clone(), Arc::clone(live_run));
        self.0.runs.spawn(async move {
            let accepted = sessions.store_acceptance(&live_run, claim, firing_of).await;
            // The caller may have left; the run goes on.
            let _ = sender.send(accepted);
        });
        receiver.await.map_err(|_| StoreError::Closed)?
    }

    async fn store_acceptance(
        &self,
        live_run: &Arc<LiveRun>,
        claim: SessionClaim,
        firing_of: Option<StoredSchedule>,
    ) -> Result<AcceptRunOutcome, StoreError> {
        let runs = &self.0.runs;
        let accepted = self.store_in_own_session(live_run, firing_of).await;
        if !matches!(accepted, Ok(AcceptRunOutcome::New)) {
            runs.rollback_acceptance(live_run);
            // Another run may have been queued behind it.
            self.wake_actor(&live_run.run.session);
            return accepted;
        }
        claim.confirm(runs.store()).await;
        // The session's order waits for the interrupted runs, not this function.
        let _interrupted = runs.commit_acceptance(live_run);
        let (run, session) = (&live_run.run.id, &live_run.run.session);
        tracing::info!(%run, %session, agent = %live_run.run.agent, "run accepted");
        runs.spawn(abort_at_deadline(runs.clone(), Arc::clone(live_run), live_run.deadline));
        runs.hub().publish(&EngineNotice::session_changed(session.clone(), "message"));
        self.wake_actor(session);
        accepted
    }
}

impl Sessions {
    /// Stores an accepted run. A node makes the session its own first, and again if it was given back at that moment.
    async fn store_in_own_session(
        &self,
        live_run: &LiveRun,
        firing_of: Option<StoredSchedule>,
    ) -> Result<AcceptRunOutcome, StoreError> {
        let (key, store) = (&live_run.run.session, self.0.runs.store());
        self.claim_for_node(key).await?;
        match (accept(store, live_run, firing_of.clone()).await, &self.0.cluster) {
            (Err(StoreError::OtherNode(_)), Some(cluster)) => {
                cluster.forget_session(key);
                self.claim_for_node(key).await?;
                accept(store, live_run, firing_of.clone()).await
            }
            (accepted, _) => accepted,
        }
    }
}

async fn accept(
    store: &Store,
    live_run: &LiveRun,
    firing_of: Option<StoredSchedule>,
) -> Result<AcceptRunOutcome, StoreError> {
    let row = build_run_row(live_run, StoredRunState::Accepted);
    match firing_of {
        None => store.runs().accept(row).await,
        Some(schedule) => store.schedules().fire(schedule, row).await,
    }
}
