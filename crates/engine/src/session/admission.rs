//! Create the live run for a request and make its acceptance durable. A task of the engine does this, so that a caller
//! that leaves does not interrupt it. Used for messages of clients and for sub-runs.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::expiry::{self, ExpiryLimits};
use quell_kernel::permissions::RunPermissions;
use quell_kernel::registry::NewRun;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, Surface};
use quell_scope::{PointProbe, Scope};
use quell_store::{AcceptRunOutcome, RunRow, StoreError, StoredRunState};
use uuid::Uuid;

use super::Sessions;
use crate::channel_origin::ChannelOrigin;
use crate::journal::Journal;
use crate::live_run::{EngineNotice, LiveRun, LiveRunInit};
use crate::runs::{abort_at_deadline, serialize_view};

/// Values that every run gets.
#[derive(Debug, Clone)]
pub struct RunDefaults {
    /// Bounds of a run's expiry (row A5 in `docs/design/requirements.md`).
    pub expiry: ExpiryLimits,
    /// Time limit of a run that sets none.
    pub run_timeout: Duration,
    pub journal: Journal,
    /// Called at every point that a run reaches; for tests.
    pub probe: PointProbe,
}

/// A run as requested.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// A new id if absent.
    pub id: Option<RunId>,
    pub session: SessionKey,
    pub agent: AgentId,
    pub principal: Principal,
    /// True if that principal may stop any run.
    pub admin: bool,
    pub surface: Surface,
    /// The run that starts it.
    pub parent: Option<RunId>,
    pub text: String,
    /// What to do if the session is busy.
    pub on_busy: OnBusy,
    /// Time limit from now; the default applies if absent.
    pub timeout: Option<Duration>,
    /// Hash of the request, compared for idempotency.
    pub fingerprint: String,
    /// The chat message that the run answers.
    pub channel_origin: Option<ChannelOrigin>,
    /// Upper bound of its permissions, if another run starts it.
    pub max_permissions: Option<RunPermissions>,
}

impl Sessions {
    /// Creates the live run for a request.
    #[must_use]
    pub fn new_live_run(&self, request: RunRequest) -> Arc<LiveRun> {
        let (runs, defaults) = (&self.0.runs, &self.0.run_defaults);
        let (clock, now) = (runs.clock(), runs.clock().now());
        let timeout = request.timeout.unwrap_or(defaults.run_timeout);
        let policy = runs.services().agents.get(&request.agent).map(|agent| agent.config.partial);
        let new_id = || RunId::parse(Uuid::now_v7().to_string());
        let Ok(id) = request.id.map_or_else(new_id, Ok) else { unreachable!("a UUID is a valid run id") };
        let run = NewRun {
            id,
            session: request.session,
            agent: request.agent,
            principal: request.principal,
            admin: request.admin,
            surface: request.surface,
            parent: request.parent,
            text: request.text,
            on_busy: request.on_busy,
            scope: request.channel_origin.as_ref().map(|origin| Arc::new(origin.message().interruption_scope())),
            expires_at: expiry::expires_at(now, timeout, &defaults.expiry),
        };
        let policy: PartialPolicy = policy.unwrap_or_default();
        let journal = defaults.journal.run_journal(run.id.clone());
        let (fingerprint, channel_origin, max_permissions) =
            (request.fingerprint, request.channel_origin, request.max_permissions);
        let init = LiveRunInit {
            run,
            fingerprint,
            partial_policy: policy,
            deadline: now.plus(timeout),
            journal,
            channel_origin,
            max_permissions,
        };
        Arc::new(LiveRun::new(init, Scope::new(clock, defaults.probe.clone()), clock, runs.hub().clone()))
    }

    /// Makes the acceptance of a run durable, after the registry accepted it, and wakes its session.
    ///
    /// # Errors
    /// The store's error; the run is refused then. [`StoreError::Closed`] if the engine closes meanwhile.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn commit_acceptance(&self, live_run: &Arc<LiveRun>) -> Result<AcceptRunOutcome, StoreError> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (sessions, live_run) = (self.clone(), Arc::clone(live_run));
        self.0.runs.spawn(async move {
            let accepted = sessions.store_acceptance(&live_run).await;
            // The caller may have left; the run goes on.
            let _ = sender.send(accepted);
        });
        receiver.await.map_err(|_| StoreError::Closed)?
    }

    async fn store_acceptance(&self, live_run: &Arc<LiveRun>) -> Result<AcceptRunOutcome, StoreError> {
        let runs = &self.0.runs;
        let accepted = runs.store().runs().accept(build_run_row(live_run)).await;
        if !matches!(accepted, Ok(AcceptRunOutcome::New)) {
            runs.rollback_acceptance(live_run);
            // Another run may have been queued behind it.
            self.wake_actor(&live_run.run.session);
            return accepted;
        }
        // The session's order waits for the interrupted runs, not this function.
        let _interrupted = runs.commit_acceptance(live_run);
        let (run, session) = (&live_run.run.id, &live_run.run.session);
        tracing::info!(%run, %session, agent = %live_run.run.agent, "run accepted");
        runs.spawn(abort_at_deadline(runs.clone(), Arc::clone(live_run), live_run.deadline));
        runs.hub().publish(&EngineNotice::Session { key: session.clone(), reason: "message" });
        self.wake_actor(session);
        accepted
    }
}

fn build_run_row(live_run: &LiveRun) -> RunRow {
    RunRow {
        id: live_run.run.id.clone(),
        session: live_run.run.session.clone(),
        agent: live_run.run.agent.clone(),
        principal: live_run.run.principal.clone(),
        fingerprint: live_run.fingerprint.clone(),
        state: StoredRunState::Accepted,
        accepted_at: live_run.view().accepted_at,
        view: serialize_view(live_run),
    }
}
