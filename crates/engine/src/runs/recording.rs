//! Store what a run leaves: its start, its turn in session order, its end with the receipt; with retries of what the
//! database refuses.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::RunStateInput;
use quell_store::{RunRow, SealedTurn, StoreError, StoredRunState};
use tokio::time::Instant;

use super::{RunTable, debts_of};
use crate::live_run::{Acceptance, LiveRun};

/// How long an end that cannot be stored is kept in memory and retried (row A6 in `docs/design/requirements.md`).
pub(super) const MAX_RETRY_TIME: Duration = Duration::from_secs(3600);
/// The waits between retries double from the first to the longest: most outages are short, and until an end is stored
/// the history lacks its turn.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The waits between retries of what the database refuses.
#[derive(Debug, Default)]
pub(super) struct RetryDelays {
    last: Option<Duration>,
}

impl RetryDelays {
    pub(super) fn next_delay(&mut self) -> Duration {
        let next = self.last.map_or(FIRST_RETRY_DELAY, |last| (last * 2).min(MAX_RETRY_DELAY));
        self.last = Some(next);
        next
    }
}

impl RunTable {
    /// Stores the end of a run that is over, with its turn if the database refused that before. A repeat changes only
    /// the view.
    pub(crate) async fn store_run_end(&self, live_run: &Arc<LiveRun>) -> Result<(), StoreError> {
        if live_run.is_unrecorded() {
            self.record_turn(live_run).await?;
        }
        let run_spend = self.spending().spend_of_run(live_run);
        let stored =
            self.store().runs().record_end(live_run.run.id.clone(), serialize_view(live_run), run_spend.clone()).await;
        // The usage of a deleted run is counted all the same.
        if matches!(stored, Ok(()) | Err(StoreError::NoSuchRun(_))) {
            self.spending().count_stored(live_run.id(), &run_spend);
        }
        stored
    }

    pub(super) async fn store_run_start(&self, live_run: &LiveRun) {
        if let Err(error) = self.store().runs().record_start(live_run.run.id.clone(), serialize_view(live_run)).await {
            tracing::error!(run = %live_run.id(), %error, "the start of a run could not be stored");
        }
    }

    pub(super) async fn save_message_note(&self, live_run: &LiveRun) {
        let channel_message = live_run.channel_origin.as_ref().map(|origin| (origin, live_run.run.text.as_str()));
        self.services()
            .memory
            .save_message(&live_run.run, channel_message, live_run.accepted_at(), || live_run.view().accepted_at)
            .await;
    }

    /// Records the turn of a sealed run, and before it the refused turns of the same session, because the history keeps
    /// its order. If the run is over by then, its receipt is built again.
    pub(super) async fn record_turn(&self, live_run: &Arc<LiveRun>) -> Result<(), StoreError> {
        for earlier in self.unrecorded_before(live_run) {
            match self.append_turn(&earlier).await {
                // It was deleted with its session.
                Err(StoreError::NoSuchRun(_)) => self.give_up_recording(&earlier),
                appended => appended.inspect_err(|_| self.add_unrecorded(live_run))?,
            }
        }
        self.append_turn(live_run).await.inspect_err(|_| self.add_unrecorded(live_run))
    }

    /// Stops recording the turn: a turn that is not recorded by now is lost.
    pub(super) fn give_up_recording(&self, live_run: &LiveRun) {
        live_run.close_journal();
        self.lock().unrecorded.retain(|other| other.id() != live_run.id());
    }

    async fn append_turn(&self, live_run: &LiveRun) -> Result<(), StoreError> {
        let Some(turn) = live_run.sealed_turn() else { return Ok(()) };
        let (session, run) = (live_run.run.session.clone(), live_run.run.id.clone());
        if live_run.work.is_model_call() {
            let row = build_run_row(live_run, StoredRunState::Started);
            self.store().runs().insert_with_turn(row, turn.to_stored()).await?;
        } else {
            let sealed = SealedTurn { session, run, turn: turn.to_stored(), view: serialize_view(live_run) };
            self.store().history().append_turn(sealed).await?;
        }
        live_run.mark_recorded();
        let mut state = self.lock();
        state.unrecorded.retain(|other| other.id() != live_run.id());
        if let Some(entry) = state.registry.get(live_run.id()).filter(|entry| entry.state.is_ended()) {
            live_run.rebuild_receipt(debts_of(entry));
        }
        drop(state);
        self.apply_input(live_run.id(), RunStateInput::Recorded);
        Ok(())
    }

    fn add_unrecorded(&self, live_run: &Arc<LiveRun>) {
        let refused = &mut self.lock().unrecorded;
        if !refused.iter().any(|other| other.id() == live_run.id()) {
            refused.push(Arc::clone(live_run));
        }
    }

    fn unrecorded_before(&self, live_run: &LiveRun) -> Vec<Arc<LiveRun>> {
        let state = self.lock();
        let before = state.unrecorded.iter().take_while(|other| other.id() != live_run.id());
        before.filter(|other| other.run.session == live_run.run.session).cloned().collect()
    }
}

/// Stores the end of a run, or its amended receipt, with its turn if the database refused that, and then forgets the
/// run. Returns whether it is stored. While the database refuses, the run stays in memory, so that its receipt can be
/// read. Its journal stays in the database, so that a later daemon can recover it.
pub(super) async fn store_end_and_forget(runs: RunTable, live_run: Arc<LiveRun>) -> bool {
    let (started_at, mut delays) = (Instant::now(), RetryDelays::default());
    let mut is_stored = false;
    while !is_stored && live_run.wait_for_acceptance().await == Acceptance::Durable {
        let Err(error) = runs.store_run_end(&live_run).await else {
            is_stored = true;
            continue;
        };
        // Its session was deleted with all its runs: a retry cannot succeed.
        if matches!(error, StoreError::NoSuchRun(_)) {
            break;
        }
        tracing::error!(run = %live_run.id(), %error, "the end of a run could not be stored");
        if started_at.elapsed() > MAX_RETRY_TIME {
            break;
        }
        tokio::time::sleep(delays.next_delay()).await;
    }
    runs.give_up_recording(&live_run);
    runs.forget_run(live_run.id());
    is_stored
}

/// Stores that another run took a message, after that run's journal has it: a crash cannot lose the message between the
/// two.
pub(super) async fn store_steered_message(runs: RunTable, live_run: Arc<LiveRun>, into: Arc<LiveRun>) {
    runs.save_message_note(&live_run).await;
    let mut delays = RetryDelays::default();
    while into.wait_for_journal().await.is_err() {
        tokio::time::sleep(delays.next_delay()).await;
    }
    if let Err(error) = runs.store().runs().record_steered(live_run.run.id.clone(), into.run.id.clone()).await {
        tracing::error!(run = %live_run.id(), %error, "a steered message could not be stored");
    }
    runs.forget_steered_message(live_run.id());
}

/// The row of a run in the database.
pub fn build_run_row(live_run: &LiveRun, state: StoredRunState) -> RunRow {
    RunRow {
        id: live_run.run.id.clone(),
        session: live_run.run.session.clone(),
        agent: live_run.run.agent.clone(),
        principal: live_run.run.principal.clone(),
        fingerprint: live_run.fingerprint.clone(),
        state,
        accepted_at: live_run.view().accepted_at,
        view: serialize_view(live_run),
    }
}

/// A run's view as the database stores it.
pub fn serialize_view(live_run: &LiveRun) -> String {
    serde_json::to_string(&live_run.view()).unwrap_or_default()
}
