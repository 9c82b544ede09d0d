//! Table of pending approvals: open, answer, time out or cancel each exactly once.
//!
//! The table is behind one lock. A stop cancels pending approvals in its own synchronous call, through the run's
//! ledger; a later answer is refused. This module knows neither runs nor tools.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::approval::{ApprovalInput, Approver, DecisionForbidden, authorize_decision, settle_approval};
use quell_protocol::approval::{ApprovalRow, ApprovalState, Decision};
use quell_protocol::{Requester, Surface};
use tokio::sync::watch;
use uuid::Uuid;

/// Maximum number of settled approvals that are kept, to answer late decisions.
const MAX_SETTLED: usize = 1024;

/// All approvals of an engine. Clones share the table.
#[derive(Clone, Default)]
pub struct Approvals(Arc<Mutex<ApprovalTable>>);

#[derive(Default)]
struct ApprovalTable {
    /// In order of opening, because ids are ordered by time.
    pending: BTreeMap<String, PendingApproval>,
    settled: VecDeque<ApprovalRow>,
}

struct PendingApproval {
    row: ApprovalRow,
    state_sender: watch::Sender<ApprovalState>,
    on_settled: Box<dyn FnOnce(&ApprovalState) + Send>,
}

/// The caller's handle of a pending approval. Dropping it cancels the approval.
#[must_use = "dropping it cancels the approval"]
pub struct ApprovalWaiter {
    approvals: Approvals,
    id: String,
    state_receiver: watch::Receiver<ApprovalState>,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AnswerError {
    /// There is no such approval, or it is no longer kept.
    #[error("there is no approval {0:?}; `quell approvals` lists the pending ones")]
    Unknown(String),
    /// The approver may not give this decision.
    #[error("you may not decide the approval {0:?} this way: {1}")]
    NotAllowed(String, DecisionForbidden),
    #[error("the approval {:?} was settled before ({}); the answer changes nothing", .0.id, .0.state.decision_str())]
    AlreadySettled(Box<ApprovalRow>),
}

impl Approvals {
    pub fn new_id() -> String {
        Uuid::now_v7().to_string()
    }

    /// Opens an approval.
    ///
    /// `announce` is called under the lock of this table. So a reader of the announcement finds the approval, and its
    /// answer is never announced first. `on_settled` is called exactly once, without the lock, by the caller that
    /// settles it.
    ///
    /// # Errors
    /// The error of `announce`; then there is no approval.
    pub fn open<E>(
        &self,
        row: ApprovalRow,
        announce: impl FnOnce(&ApprovalRow) -> Result<(), E>,
        on_settled: impl FnOnce(&ApprovalState) + Send + 'static,
    ) -> Result<ApprovalWaiter, E> {
        let (state_sender, state_receiver) = watch::channel(ApprovalState::Pending);
        let id = row.id.clone();
        let mut table = self.lock_table();
        announce(&row)?;
        table.pending.insert(id.clone(), PendingApproval { row, state_sender, on_settled: Box::new(on_settled) });
        drop(table);
        Ok(ApprovalWaiter { approvals: self.clone(), id, state_receiver })
    }

    /// Pending approvals, oldest first.
    pub fn pending(&self) -> Vec<ApprovalRow> {
        self.lock_table().pending.values().map(|open| open.row.clone()).collect()
    }

    /// Settles an approval by the decision of a person.
    ///
    /// # Errors
    /// A refusal changes nothing.
    pub fn answer(
        &self,
        id: &str,
        approver: &Approver,
        surface: Surface,
        decision: Decision,
    ) -> Result<ApprovalRow, AnswerError> {
        let by = Requester { principal: approver.principal.clone(), surface };
        let input = match decision {
            Decision::Allow => ApprovalInput::Allow(by),
            Decision::Deny => ApprovalInput::Deny(by),
        };
        let permission = {
            let table = self.lock_table();
            let open = table.pending.get(id).map(|open| &open.row);
            let row = open.or_else(|| table.settled.iter().find(|row| row.id == id));
            authorize_decision(approver, row.ok_or_else(|| AnswerError::Unknown(id.to_owned()))?, decision)
        };
        permission.map_err(|why| AnswerError::NotAllowed(id.to_owned(), why))?;
        self.settle(id, input).ok_or_else(|| {
            let row = self.lock_table().settled.iter().find(|row| row.id == id).cloned();
            row.map_or_else(|| AnswerError::Unknown(id.to_owned()), |row| AnswerError::AlreadySettled(Box::new(row)))
        })
    }

    /// Cancels an approval because its run was stopped. Synchronous.
    pub fn cancel(&self, id: &str) {
        self.settle(id, ApprovalInput::Cancel);
    }

    /// Settles a pending approval. Returns `None` if it was settled before.
    fn settle(&self, id: &str, input: ApprovalInput) -> Option<ApprovalRow> {
        let mut table = self.lock_table();
        let state = settle_approval(&table.pending.get(id)?.row.state, input)?;
        let approval = table.pending.remove(id)?;
        let row = ApprovalRow { state, ..approval.row };
        if table.settled.len() == MAX_SETTLED {
            table.settled.pop_front();
        }
        table.settled.push_back(row.clone());
        drop(table);
        // First, so that the event comes before anything that the call does next.
        (approval.on_settled)(&row.state);
        approval.state_sender.send_replace(row.state.clone());
        Some(row)
    }

    fn lock_table(&self) -> MutexGuard<'_, ApprovalTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApprovalWaiter {
    /// Waits until the approval is settled. Settles it as timed out after `timeout`.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition of a `watch` value.
    pub async fn wait_settled(&mut self, timeout: Duration) -> ApprovalState {
        let answer = self.state_receiver.wait_for(|state| *state != ApprovalState::Pending);
        if tokio::time::timeout(timeout, answer).await.is_err() {
            // An answer that arrived at the same moment stands; its state is about to be sent.
            self.approvals.settle(&self.id, ApprovalInput::TimedOut);
        }
        // The sender sends the state before it is dropped, so this fails only after a panic there; then nobody has
        // answered.
        let settled_state = self.state_receiver.wait_for(|state| *state != ApprovalState::Pending).await;
        settled_state.map_or(ApprovalState::TimedOut, |state| state.clone())
    }
}

impl Drop for ApprovalWaiter {
    fn drop(&mut self) {
        self.approvals.cancel(&self.id);
    }
}

impl std::fmt::Debug for Approvals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Approvals({} open)", self.lock_table().pending.len())
    }
}

impl std::fmt::Debug for ApprovalWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApprovalWaiter({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::sync::mpsc;

    use quell_protocol::{AgentId, CallId, Principal, RunId, SessionKey};

    use super::*;

    fn row() -> ApprovalRow {
        let text = "x".to_owned();
        ApprovalRow {
            id: Approvals::new_id(),
            run_id: RunId::parse("r").unwrap(),
            session_key: SessionKey::parse("s").unwrap(),
            agent: AgentId::parse("main").unwrap(),
            principal: Principal::parse("alice").unwrap(),
            call_id: CallId::parse("c1").unwrap(),
            tool: text.clone(),
            arguments: serde_json::Value::Null,
            requested_at: text.clone(),
            expires_at: text,
            own_model: false,
            state: ApprovalState::Pending,
        }
    }

    /// The event of an approval used to reach its reader before the approval was in the list.
    #[test]
    fn an_announced_approval_is_already_in_the_list() {
        let (approvals, row) = (Approvals::default(), row());
        let (reader_approvals, id) = (approvals.clone(), row.id.clone());
        let (announced_sender, announced) = mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            announced.recv().unwrap();
            reader_approvals.pending().iter().any(|row| row.id == id)
        });
        let announce = |_: &ApprovalRow| announced_sender.send(());
        let _waiting = approvals.open(row, announce, |_| {}).unwrap();
        assert!(reader.join().unwrap(), "it was announced before it was in the list");
    }

    /// The time-out comes after the answer was accepted and before its state is sent.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_crosses_the_time_out_stands_and_is_never_taken_for_a_stop() {
        let (approvals, row) = (Approvals::default(), row());
        let approver = Approver { principal: row.principal.clone(), admin: false, approve: true };
        let ((accepted_sender, accepted), (proceed_sender, proceed)) = (mpsc::channel(), mpsc::channel());
        let on_settled = move |_: &ApprovalState| {
            accepted_sender.send(()).unwrap();
            proceed.recv().unwrap();
        };
        let mut waiting = approvals.open(row.clone(), |_| Ok::<_, Infallible>(()), on_settled).unwrap();
        let answering =
            std::thread::spawn(move || approvals.answer(&row.id, &approver, Surface::Http, Decision::Allow));
        accepted.recv().unwrap();
        let timeout = Duration::from_secs(1);
        let mut settled = pin!(waiting.wait_settled(timeout));
        let early = tokio::time::timeout(2 * timeout, settled.as_mut()).await;
        assert!(early.is_err(), "the state has not been sent yet: {early:?}");
        proceed_sender.send(()).unwrap();
        assert!(matches!(settled.await, ApprovalState::Allowed { .. }));
        assert!(answering.join().unwrap().is_ok());
    }
}
