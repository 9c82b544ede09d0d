//! Sealed turns on their way into the database: a session's in their order, and each as often as it takes.

use std::sync::Arc;

use quell_kernel::Input;

use super::finish::stored_view;
use super::{Runs, debts_of};
use crate::cell::Cell;
use crate::store::StoreError;

impl Runs {
    /// Records the turn of a sealed run, and before it what the database refused of its session: history keeps its order. A
    /// run that is over by then has its receipt made anew.
    pub(super) async fn record(&self, cell: &Arc<Cell>) -> Result<(), StoreError> {
        for earlier in self.refused_before(cell) {
            match self.append(&earlier).await {
                // It was deleted with its session.
                Err(StoreError::NoSuchRun(_)) => self.give_up(&earlier),
                appended => appended.inspect_err(|_| self.refuse_turn(cell))?,
            }
        }
        self.append(cell).await.inspect_err(|_| self.refuse_turn(cell))
    }

    /// What is not recorded by now will not be.
    pub(super) fn give_up(&self, cell: &Cell) {
        cell.close_page();
        self.lock().refused.retain(|other| other.id() != cell.id());
    }

    async fn append(&self, cell: &Cell) -> Result<(), StoreError> {
        let Some(turn) = cell.sealed_now() else { return Ok(()) };
        let (session, run) = (cell.run.session.clone(), cell.run.id.clone());
        self.store().append_turn(session, run, turn.to_stored(), stored_view(cell)).await?;
        cell.recorded();
        let mut state = self.lock();
        state.refused.retain(|other| other.id() != cell.id());
        if let Some(entry) = state.registry.get(cell.id()).filter(|entry| entry.state.is_ended()) {
            cell.amend_receipt(debts_of(entry));
        }
        drop(state);
        self.input(cell.id(), Input::Recorded);
        Ok(())
    }

    fn refuse_turn(&self, cell: &Arc<Cell>) {
        let refused = &mut self.lock().refused;
        if !refused.iter().any(|other| other.id() == cell.id()) {
            refused.push(Arc::clone(cell));
        }
    }

    fn refused_before(&self, cell: &Cell) -> Vec<Arc<Cell>> {
        let state = self.lock();
        let before = state.refused.iter().take_while(|other| other.id() != cell.id());
        before.filter(|other| other.run.session == cell.run.session).cloned().collect()
    }
}
