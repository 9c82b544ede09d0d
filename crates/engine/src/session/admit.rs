//! Letting a run in: its cell, and its acceptance made durable by a task of the engine, so that a caller who leaves tears
//! nothing. The same for messages from doors and for runs that runs start.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::expiry::{self, ExpiryLimits};
use quell_kernel::registry::NewRun;
use quell_kernel::rights::Rights;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, Surface};
use uuid::Uuid;

use super::Sessions;
use crate::cell::{Birth, Cell, Notice};
use crate::channel::Errand;
use crate::journal::Journal;
use crate::runs::{deadline, stored_view};
use crate::scope::{Probe, Scope};
use crate::store::{AcceptedRow, RunRow, StoreError, StoredState};

/// What every run is born with.
#[derive(Debug, Clone)]
pub struct Cradle {
    /// Row A5.
    pub expiry: ExpiryLimits,
    /// The time of a run that names none.
    pub run_timeout: Duration,
    /// Where runs write down what they go through.
    pub journal: Journal,
    /// Called at every point that a run reaches; for tests.
    pub probe: Probe,
}

/// A run as it is asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its id, if it is known; else a new one.
    pub id: Option<RunId>,
    /// Its session.
    pub session: SessionKey,
    /// The agent that runs.
    pub agent: AgentId,
    /// For whom.
    pub principal: Principal,
    /// True when that principal may stop any run.
    pub admin: bool,
    /// Through which door.
    pub surface: Surface,
    /// The run that starts it.
    pub parent: Option<RunId>,
    /// The message.
    pub text: String,
    /// Policy while the session is busy.
    pub on_busy: OnBusy,
    /// Its time from now; the usual one when absent.
    pub time: Option<Duration>,
    /// What idempotency compares, hashed.
    pub fingerprint: String,
    /// What it has to do with the chat network that its message came from.
    pub errand: Option<Errand>,
    /// What it may do at the most, when another run starts it.
    pub ceiling: Option<Rights>,
}

impl Sessions {
    /// A cell for a run that is to be let in.
    #[must_use]
    pub fn new_cell(&self, wanted: Wanted) -> Arc<Cell> {
        let (runs, cradle) = (&self.0.runs, &self.0.cradle);
        let (clock, now) = (runs.clock(), runs.clock().now());
        let time = wanted.time.unwrap_or(cradle.run_timeout);
        let policy = runs.workshop().society.get(&wanted.agent).map(|agent| agent.config.partial);
        let fresh = || RunId::parse(Uuid::now_v7().to_string());
        let Ok(id) = wanted.id.map_or_else(fresh, Ok) else { unreachable!("a UUID is a valid run id") };
        let run = NewRun {
            id,
            session: wanted.session,
            agent: wanted.agent,
            principal: wanted.principal,
            admin: wanted.admin,
            surface: wanted.surface,
            parent: wanted.parent,
            text: wanted.text,
            on_busy: wanted.on_busy,
            scope: wanted.errand.as_ref().map(|errand| Arc::new(errand.message().interruption_scope())),
            expires_at: expiry::expires_at(now, time, &cradle.expiry),
        };
        let policy: PartialPolicy = policy.unwrap_or_default();
        let page = cradle.journal.page(run.id.clone());
        let (fingerprint, errand, ceiling) = (wanted.fingerprint, wanted.errand, wanted.ceiling);
        let birth = Birth { run, fingerprint, policy, deadline: now.plus(time), page, errand, ceiling };
        Arc::new(Cell::new(birth, Scope::new(clock, cradle.probe.clone()), clock, runs.hub().clone()))
    }

    /// Makes the acceptance of a run durable that the registry has taken, and wakes its session.
    ///
    /// # Errors
    /// The store's error; the run is refused then. An engine that closes meanwhile is [`StoreError::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn make_durable(&self, cell: &Arc<Cell>) -> Result<AcceptedRow, StoreError> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let (sessions, cell) = (self.clone(), Arc::clone(cell));
        self.0.runs.spawn(async move {
            let accepted = sessions.store_acceptance(&cell).await;
            // Nobody may be waiting any more; the run goes on.
            let _ = answer.send(accepted);
        });
        answered.await.map_err(|_| StoreError::Closed)?
    }

    async fn store_acceptance(&self, cell: &Arc<Cell>) -> Result<AcceptedRow, StoreError> {
        let runs = &self.0.runs;
        let accepted = runs.store().accept_run(row_of(cell)).await;
        if !matches!(accepted, Ok(AcceptedRow::New)) {
            runs.refuse(cell);
            // It may have been the head behind which another waits.
            self.poke(&cell.run.session);
            return accepted;
        }
        // The runs that it interrupts are waited for by the session's order, not here.
        let _interrupted = runs.durable(cell);
        let (run, session) = (&cell.run.id, &cell.run.session);
        tracing::info!(%run, %session, agent = %cell.run.agent, "run accepted");
        runs.spawn(deadline(runs.clone(), Arc::clone(cell), cell.deadline));
        runs.hub().publish(&Notice::Session { key: session.clone(), reason: "message" });
        self.poke(session);
        accepted
    }
}

fn row_of(cell: &Cell) -> RunRow {
    RunRow {
        id: cell.run.id.clone(),
        session: cell.run.session.clone(),
        agent: cell.run.agent.clone(),
        principal: cell.run.principal.clone(),
        fingerprint: cell.fingerprint.clone(),
        state: StoredState::Accepted,
        accepted_at: cell.view().accepted_at,
        view: stored_view(cell),
    }
}
