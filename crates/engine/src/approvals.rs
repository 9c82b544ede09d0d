//! Calls that wait for a person: which they are, and the one answer that each gets. A fact behind one lock.
//!
//! A stop settles what waits in its own synchronous call, through the run's ledger; whoever answers afterwards is told so.
//! It knows neither runs nor tools.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::approval::{ApprovalInput, Approver, MayNot, may_answer, settle};
use quell_protocol::approval::{ApprovalRow, ApprovalState, Decision};
use quell_protocol::{By, Surface};
use tokio::sync::watch;
use uuid::Uuid;

/// Settled approvals that are remembered, so that a late answer hears what came of them.
const REMEMBERED: usize = 1024;

/// All approvals of an engine. Clones are the same.
#[derive(Clone, Default)]
pub struct Approvals(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    /// Asked later is later here: ids are in the order of time.
    open: BTreeMap<String, Open>,
    settled: VecDeque<ApprovalRow>,
}

struct Open {
    row: ApprovalRow,
    tell: watch::Sender<ApprovalState>,
    settled: Box<dyn FnOnce(&ApprovalState) + Send>,
}

/// The caller's end of an approval that waits. Dropping it settles it as cancelled.
#[must_use = "dropping it cancels the approval"]
pub struct Waiting {
    approvals: Approvals,
    id: String,
    state: watch::Receiver<ApprovalState>,
}

/// Why an answer was not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AnswerError {
    /// There is no such approval, or it was forgotten.
    #[error("there is no approval {0:?}; `quell approvals` lists those that wait")]
    Unknown(String),
    /// It is not this one's to give that answer.
    #[error("the approval {0:?} is not yours to answer so: {1}")]
    NotYours(String, MayNot),
    /// It was settled before.
    #[error("the approval {:?} was settled before ({}); the answer changes nothing", .0.id, .0.state.word())]
    Settled(Box<ApprovalRow>),
}

impl Approvals {
    /// An id for a new approval.
    #[must_use]
    pub fn new_id() -> String {
        Uuid::now_v7().to_string()
    }

    /// Opens an approval. `asked` tells of it, under the lock of this table: whoever hears of it finds it, and nobody hears of
    /// its answer first. `settled` is called exactly once, by whoever settles it, with no lock of this table held.
    ///
    /// # Errors
    /// Those of `asked`; there is no approval then.
    pub fn open<E>(
        &self,
        row: ApprovalRow,
        asked: impl FnOnce(&ApprovalRow) -> Result<(), E>,
        settled: impl FnOnce(&ApprovalState) + Send + 'static,
    ) -> Result<Waiting, E> {
        let (tell, state) = watch::channel(ApprovalState::Pending);
        let id = row.id.clone();
        let mut table = self.table();
        asked(&row)?;
        table.open.insert(id.clone(), Open { row, tell, settled: Box::new(settled) });
        drop(table);
        Ok(Waiting { approvals: self.clone(), id, state })
    }

    /// Those that wait, oldest first.
    #[must_use]
    pub fn pending(&self) -> Vec<ApprovalRow> {
        self.table().open.values().map(|open| open.row.clone()).collect()
    }

    /// A person's answer.
    ///
    /// # Errors
    /// [`AnswerError`]; nothing has changed then.
    pub fn answer(
        &self,
        id: &str,
        who: &Approver,
        surface: Surface,
        decision: Decision,
    ) -> Result<ApprovalRow, AnswerError> {
        let by = By { principal: who.principal.clone(), surface };
        let input = match decision {
            Decision::Allow => ApprovalInput::Allow(by),
            Decision::Deny => ApprovalInput::Deny(by),
        };
        let may = {
            let table = self.table();
            let open = table.open.get(id).map(|open| &open.row);
            let row = open.or_else(|| table.settled.iter().find(|row| row.id == id));
            may_answer(who, row.ok_or_else(|| AnswerError::Unknown(id.to_owned()))?, decision)
        };
        may.map_err(|why| AnswerError::NotYours(id.to_owned(), why))?;
        self.settle(id, input).ok_or_else(|| {
            let row = self.table().settled.iter().find(|row| row.id == id).cloned();
            row.map_or_else(|| AnswerError::Unknown(id.to_owned()), |row| AnswerError::Settled(Box::new(row)))
        })
    }

    /// The run was stopped: what it asks for is not answered any more. Synchronous.
    pub fn cancel(&self, id: &str) {
        self.settle(id, ApprovalInput::Cancel);
    }

    /// Settles an approval that waits; none when it was settled before.
    fn settle(&self, id: &str, input: ApprovalInput) -> Option<ApprovalRow> {
        let mut table = self.table();
        let state = settle(&table.open.get(id)?.row.state, input)?;
        let open = table.open.remove(id)?;
        let row = ApprovalRow { state, ..open.row };
        if table.settled.len() == REMEMBERED {
            table.settled.pop_front();
        }
        table.settled.push_back(row.clone());
        drop(table);
        // Told first, so that the event is never later than what the call does next.
        (open.settled)(&row.state);
        open.tell.send_replace(row.state.clone());
        Some(row)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Waits for the answer, at most so long; silence is settled as a time-out.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn settled(&mut self, patience: Duration) -> ApprovalState {
        let answered = self.state.wait_for(|state| *state != ApprovalState::Pending);
        if tokio::time::timeout(patience, answered).await.is_err() {
            // An answer that came in this very moment stands, and whoever gave it is about to tell.
            self.approvals.settle(&self.id, ApprovalInput::TimedOut);
        }
        // The sender tells before it goes, so waiting cannot fail but by a panic there: then nobody has said anything.
        let told = self.state.wait_for(|state| *state != ApprovalState::Pending).await;
        told.map_or(ApprovalState::TimedOut, |state| state.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.approvals.cancel(&self.id);
    }
}

impl std::fmt::Debug for Approvals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Approvals({} open)", self.table().open.len())
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiting({})", self.id)
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

    /// An event that told of an approval reached its reader before the list did.
    #[test]
    fn whoever_hears_of_an_approval_finds_it_in_the_list() {
        let (approvals, row) = (Approvals::default(), row());
        let (look, id) = (approvals.clone(), row.id.clone());
        let (told, heard) = mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            heard.recv().unwrap();
            look.pending().iter().any(|row| row.id == id)
        });
        let asked = |_: &ApprovalRow| told.send(());
        let _waiting = approvals.open(row, asked, |_| {}).unwrap();
        assert!(reader.join().unwrap(), "it was told of before it was there");
    }

    /// The answer is taken, and the time is over before it is told.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_crosses_the_time_out_stands_and_is_never_taken_for_a_stop() {
        let (approvals, row) = (Approvals::default(), row());
        let who = Approver { principal: row.principal.clone(), admin: false, approve: true };
        let ((taken, is_taken), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        let told = move |_: &ApprovalState| {
            taken.send(()).unwrap();
            goes_on.recv().unwrap();
        };
        let mut waiting = approvals.open(row.clone(), |_| Ok::<_, Infallible>(()), told).unwrap();
        let answering = std::thread::spawn(move || approvals.answer(&row.id, &who, Surface::Http, Decision::Allow));
        is_taken.recv().unwrap();
        let patience = Duration::from_secs(1);
        let mut settled = pin!(waiting.settled(patience));
        let early = tokio::time::timeout(2 * patience, settled.as_mut()).await;
        assert!(early.is_err(), "nothing has been told yet: {early:?}");
        go_on.send(()).unwrap();
        assert!(matches!(settled.await, ApprovalState::Allowed { .. }));
        assert!(answering.join().unwrap().is_ok());
    }
}
