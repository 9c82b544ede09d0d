//! Append sealed turns to the database in session order, with retries of refused ones.

use std::sync::Arc;

use quell_kernel::RunStateInput;
use quell_store::{SealedTurn, StoreError};

use super::finaliser::serialize_view;
use super::{RunTable, debts_of};
use crate::live_run::LiveRun;

impl RunTable {
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
        let sealed = SealedTurn { session, run, turn: turn.to_stored(), view: serialize_view(live_run) };
        self.store().history().append_turn(sealed).await?;
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
