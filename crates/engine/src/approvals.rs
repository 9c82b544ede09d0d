//! Table of pending approvals: open, answer, time out or cancel each exactly once.
//!
//! The table is behind one lock. A stop cancels pending approvals in its own synchronous call, through the run's
//! ledger; a later answer is refused. This module knows neither runs nor tools.

mod rules;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use quell_kernel::approval::{
    ApprovalInput, ApprovalStep, Approver, DecisionForbidden, OwnCallRule, apply_to_approval, authorize_decision,
};
use quell_kernel::approval_rules::{Allowance, AllowanceProblem};
use quell_kernel::server_question::{QuestionProblem, check_question_answer};
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, ApprovalRule, ApprovalState, Decision, MAX_REASON_CHARS};
use quell_protocol::{Requester, Surface};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;
use uuid::Uuid;

use rules::RuleUseCallback;

/// Maximum number of settled approvals that are kept, to answer late decisions.
const MAX_SETTLED: usize = 1024;

/// The `[approvals]` section of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalSettings {
    /// Allows a token to allow the calls of its own runs. By default it may do so only as a verified person: on the
    /// daemon's machine, or in a page that was signed in by a one-time link.
    pub by_own_principal: bool,
}

impl ApprovalSettings {
    fn own_call_rule(self) -> OwnCallRule {
        if self.by_own_principal { OwnCallRule::Allowed } else { OwnCallRule::PersonOnly }
    }
}

/// All approvals of an engine. Clones share the table.
#[derive(Clone, Default)]
pub struct Approvals {
    table: Arc<Mutex<ApprovalTable>>,
    rule_use_callback: Arc<OnceLock<RuleUseCallback>>,
}

#[derive(Default)]
struct ApprovalTable {
    /// In order of opening, because ids are ordered by time.
    pending: BTreeMap<String, PendingApproval>,
    settled: VecDeque<ApprovalRow>,
    /// Remembered allowances, oldest first.
    rules: VecDeque<ApprovalRule>,
    settings: ApprovalSettings,
}

/// An answer with where and when it was given.
#[derive(Debug, Clone)]
pub struct GivenAnswer {
    pub answer: ApprovalAnswer,
    pub surface: Surface,
    /// RFC 3339.
    pub at: String,
}

struct PendingApproval {
    row: ApprovalRow,
    row_sender: watch::Sender<ApprovalRow>,
    announcer: Box<dyn ApprovalAnnouncer>,
}

/// Announces what happens to an open approval: counted any number of times, then settled once.
pub trait ApprovalAnnouncer: Send {
    /// One principal more has allowed the call. Called under the lock of the table.
    fn announce_counted(&self, row: &ApprovalRow);
    /// Called without the lock, by the caller that settles it.
    fn announce_settled(self: Box<Self>, state: &ApprovalState);
}

/// The caller's handle of a pending approval. Dropping it cancels the approval.
#[must_use = "dropping it cancels the approval"]
pub struct ApprovalWaiter {
    approvals: Approvals,
    id: String,
    row_receiver: watch::Receiver<ApprovalRow>,
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
    /// The same principal has allowed it before.
    #[error(
        "you have allowed the call already, and it needs {} more; somebody else has to answer", .0.missing_allowances()
    )]
    AlreadyCounted(Box<ApprovalRow>),
    #[error("the reason is too long; it may have {MAX_REASON_CHARS} characters")]
    ReasonTooLong,
    #[error(transparent)]
    WrongScope(AllowanceProblem),
    #[error(transparent)]
    WrongFields(QuestionProblem),
}

impl Approvals {
    pub fn new(settings: ApprovalSettings) -> Self {
        let table = ApprovalTable { settings, ..ApprovalTable::default() };
        Self { table: Arc::new(Mutex::new(table)), ..Self::default() }
    }

    pub fn new_id() -> String {
        Uuid::now_v7().to_string()
    }

    /// Opens an approval.
    ///
    /// `announce` is called under the lock of this table. So a reader of the announcement finds the approval, and its
    /// answer is never announced first.
    ///
    /// # Errors
    /// The error of `announce`; then there is no approval.
    pub fn open<E>(
        &self,
        row: ApprovalRow,
        announce: impl FnOnce(&ApprovalRow) -> Result<(), E>,
        announcer: impl ApprovalAnnouncer + 'static,
    ) -> Result<ApprovalWaiter, E> {
        let (row_sender, row_receiver) = watch::channel(row.clone());
        let id = row.id.clone();
        let mut table = self.lock_table();
        announce(&row)?;
        table.pending.insert(id.clone(), PendingApproval { row, row_sender, announcer: Box::new(announcer) });
        drop(table);
        Ok(ApprovalWaiter { approvals: self.clone(), id, row_receiver })
    }

    /// Pending approvals, oldest first.
    pub fn pending(&self) -> Vec<ApprovalRow> {
        self.lock_table().pending.values().map(|open| open.row.clone()).collect()
    }

    /// An approval that is pending, or was settled recently.
    pub fn find(&self, id: &str) -> Option<ApprovalRow> {
        self.lock_table().find(id).cloned()
    }

    /// Follows a pending approval. The last value is the settled row; then the sender is gone.
    pub fn watch(&self, id: &str) -> Option<watch::Receiver<ApprovalRow>> {
        self.lock_table().pending.get(id).map(|open| open.row_sender.subscribe())
    }

    /// Counts the decision of a person. The approval is settled when it needs no other. An allowance for more than this
    /// call is remembered.
    ///
    /// # Errors
    /// A refusal changes nothing.
    pub fn answer(&self, id: &str, approver: &Approver, given: GivenAnswer) -> Result<ApprovalRow, AnswerError> {
        let GivenAnswer { answer, surface, at } = given;
        let (decision, reason) = (answer.decision, answer.reason.clone());
        if reason.as_ref().is_some_and(|reason| reason.chars().count() > MAX_REASON_CHARS) {
            return Err(AnswerError::ReasonTooLong);
        }
        let mut table = self.lock_table();
        let row = table.find(id).ok_or_else(|| AnswerError::Unknown(id.to_owned()))?.clone();
        let rule = table.settings.own_call_rule();
        authorize_decision(approver, &row, decision, rule)
            .map_err(|why| AnswerError::NotAllowed(id.to_owned(), why))?;
        let fields = check_fields(&answer, &row).map_err(AnswerError::WrongFields)?;
        let allowance = Allowance::of_answer(&answer, &row).map_err(AnswerError::WrongScope)?;
        if let Some(open) = table.pending.get_mut(id) {
            open.row.answer_fields = fields;
        }
        let by = Requester { principal: approver.principal.clone(), surface };
        let rule = allowance.into_rule(&row, Self::new_id(), by.clone(), at);
        let input = match decision {
            Decision::Allow => ApprovalInput::Allow(by),
            Decision::Deny => ApprovalInput::Deny { by, reason: reason.filter(|reason| !reason.trim().is_empty()) },
        };
        match Self::apply(table, id, input, rule) {
            ApprovalStep::Settled(row) | ApprovalStep::Counted(row) => Ok(row),
            ApprovalStep::CountedBefore => Err(AnswerError::AlreadyCounted(Box::new(row))),
            ApprovalStep::SettledBefore => Err(AnswerError::AlreadySettled(Box::new(row))),
        }
    }

    /// Cancels an approval because its run was stopped. Synchronous.
    pub fn cancel(&self, id: &str) {
        Self::apply(self.lock_table(), id, ApprovalInput::Cancel, None);
    }

    /// Applies an input to a pending approval, and unlocks the table. `rule` is what the last allowance leaves.
    fn apply(
        mut table: MutexGuard<'_, ApprovalTable>,
        id: &str,
        input: ApprovalInput,
        rule: Option<ApprovalRule>,
    ) -> ApprovalStep {
        let Some(open) = table.pending.get_mut(id) else { return ApprovalStep::SettledBefore };
        let step = apply_to_approval(&open.row, input);
        match &step {
            ApprovalStep::CountedBefore | ApprovalStep::SettledBefore => {}
            ApprovalStep::Counted(row) => {
                open.row = row.clone();
                open.announcer.announce_counted(row);
                open.row_sender.send_replace(row.clone());
            }
            ApprovalStep::Settled(row) => {
                let settled = table.pending.remove(id);
                if table.settled.len() == MAX_SETTLED {
                    table.settled.pop_front();
                }
                table.settled.push_back(row.clone());
                // Before the call goes on, so that it covers the next one.
                rule.into_iter().for_each(|rule| table.remember(rule));
                drop(table);
                if let Some(PendingApproval { row_sender, announcer, .. }) = settled {
                    // First, so that the event comes before anything that the call does next.
                    announcer.announce_settled(&row.state);
                    row_sender.send_replace(row.clone());
                }
            }
        }
        step
    }

    fn lock_table(&self) -> MutexGuard<'_, ApprovalTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fields of an accepted answer to a question, in its types.
fn check_fields(answer: &ApprovalAnswer, row: &ApprovalRow) -> Result<Option<Map<String, Value>>, QuestionProblem> {
    let Some(question) = &row.question else {
        return if answer.fields.is_some() { Err(QuestionProblem::NoQuestion) } else { Ok(None) };
    };
    match answer.decision {
        _ if answer.scope.is_some() || answer.pattern.is_some() => Err(QuestionProblem::WithScope),
        Decision::Deny if answer.fields.is_some() => Err(QuestionProblem::DeclinedWithFields),
        Decision::Deny => Ok(None),
        Decision::Allow => check_question_answer(question, answer.fields.as_ref()).map(Some),
    }
}

impl ApprovalTable {
    /// An approval that is pending, or was settled recently.
    fn find(&self, id: &str) -> Option<&ApprovalRow> {
        let pending = self.pending.get(id).map(|open| &open.row);
        pending.or_else(|| self.settled.iter().find(|row| row.id == id))
    }
}

impl ApprovalWaiter {
    /// Waits until the approval is settled. Settles it as timed out after `timeout`.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition of a `watch` value.
    pub async fn wait_settled(&mut self, timeout: Duration) -> ApprovalState {
        let answer = self.row_receiver.wait_for(|row| row.state != ApprovalState::Pending);
        if tokio::time::timeout(timeout, answer).await.is_err() {
            // An answer that arrived at the same moment stands; its state is about to be sent.
            Approvals::apply(self.approvals.lock_table(), &self.id, ApprovalInput::TimedOut, None);
        }
        // The sender sends the state before it is dropped, so this fails only after a panic there; then nobody has
        // answered.
        let settled_row = self.row_receiver.wait_for(|row| row.state != ApprovalState::Pending).await;
        settled_row.map_or(ApprovalState::TimedOut, |row| row.state.clone())
    }

    /// The fields of the accepted answer to a question, once it is settled.
    pub fn answer_fields(&self) -> Map<String, Value> {
        self.row_receiver.borrow().answer_fields.clone().unwrap_or_default()
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
            escalation: None,
            question: None,
            answer_fields: None,
            requested_at: text.clone(),
            expires_at: text,
            own_model: false,
            quorum: 1,
            allowed_by: Vec::new(),
            state: ApprovalState::Pending,
        }
    }

    /// Tells each announcement, and waits for permission before the last one returns.
    struct TestAnnouncer {
        announced: mpsc::Sender<&'static str>,
        proceed: Option<mpsc::Receiver<()>>,
    }

    impl ApprovalAnnouncer for TestAnnouncer {
        fn announce_counted(&self, _row: &ApprovalRow) {
            self.announced.send("counted").unwrap();
        }

        fn announce_settled(self: Box<Self>, _state: &ApprovalState) {
            // Fails where the test no longer listens.
            let _ = self.announced.send("settled");
            if let Some(proceed) = self.proceed {
                proceed.recv().unwrap();
            }
        }
    }

    fn approver(name: &str) -> Approver {
        let principal = Principal::parse(name).unwrap();
        Approver { principal, admin: false, approve: true, verified_person: false }
    }

    fn allow() -> GivenAnswer {
        GivenAnswer { answer: Decision::Allow.into(), surface: Surface::Http, at: String::new() }
    }

    /// The event of an approval used to reach its reader before the approval was in the list.
    #[test]
    fn an_announced_approval_is_already_in_the_list() {
        let (approvals, row) = (Approvals::default(), row());
        let (reader_approvals, id) = (approvals.clone(), row.id.clone());
        let (announced_sender, announced) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            announced.recv().unwrap();
            reader_approvals.pending().iter().any(|row| row.id == id)
        });
        let announcer = TestAnnouncer { announced: announced_sender.clone(), proceed: None };
        let _waiting = approvals.open(row, |_| announced_sender.send("opened"), announcer).unwrap();
        assert!(reader.join().unwrap(), "it was announced before it was in the list");
    }

    /// The time-out comes after the answer was accepted and before its state is sent.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_crosses_the_time_out_stands_and_is_never_taken_for_a_stop() {
        let (approvals, row) = (Approvals::default(), row());
        let ((accepted_sender, accepted), (proceed_sender, proceed)) = (mpsc::channel(), mpsc::channel());
        let announcer = TestAnnouncer { announced: accepted_sender, proceed: Some(proceed) };
        let mut waiting = approvals.open(row.clone(), |_| Ok::<_, Infallible>(()), announcer).unwrap();
        let answering = std::thread::spawn(move || approvals.answer(&row.id, &approver("bob"), allow()));
        accepted.recv().unwrap();
        let timeout = Duration::from_secs(1);
        let mut settled = pin!(waiting.wait_settled(timeout));
        let early = tokio::time::timeout(2 * timeout, settled.as_mut()).await;
        assert!(early.is_err(), "the state has not been sent yet: {early:?}");
        proceed_sender.send(()).unwrap();
        assert!(matches!(settled.await, ApprovalState::Allowed { .. }));
        assert!(answering.join().unwrap().is_ok());
    }

    #[test]
    fn a_quorum_is_announced_in_order_and_the_row_shows_it() {
        let (approvals, row) = (Approvals::default(), ApprovalRow { quorum: 2, ..row() });
        let (announced_sender, announced) = mpsc::channel();
        let announcer = TestAnnouncer { announced: announced_sender, proceed: None };
        let waiting = approvals.open(row.clone(), |_| Ok::<_, Infallible>(()), announcer).unwrap();
        let watched = approvals.watch(&row.id).unwrap();
        let answer = |name| approvals.answer(&row.id, &approver(name), allow());
        assert!(matches!(answer("alice"), Err(AnswerError::NotAllowed(_, DecisionForbidden::OwnCall))));
        assert_eq!(answer("bob").unwrap().state, ApprovalState::Pending);
        assert_eq!(approvals.pending()[0].allowed_by.len(), 1);
        assert_eq!(watched.borrow().allowed_by.len(), 1);
        assert!(matches!(answer("bob"), Err(AnswerError::AlreadyCounted(_))));
        assert!(matches!(answer("cy").unwrap().state, ApprovalState::Allowed { .. }));
        assert!(matches!(answer("dee"), Err(AnswerError::AlreadySettled(row)) if row.allowed_by.len() == 2));
        drop(waiting);
        assert!(watched.borrow().allowed_by.len() == 2 && watched.has_changed().is_err(), "the last value stays");
        assert!(approvals.watch(&row.id).is_none() && approvals.find(&row.id).is_some());
        assert_eq!(announced.try_iter().collect::<Vec<_>>(), ["counted", "settled"]);
    }

    #[test]
    fn the_operator_may_let_a_token_answer_for_its_own_runs() {
        let approvals = Approvals::new(ApprovalSettings { by_own_principal: true });
        let (announced, _announcements) = mpsc::channel();
        let (row, announcer) = (row(), TestAnnouncer { announced, proceed: None });
        let _waiting = approvals.open(row.clone(), |_| Ok::<_, Infallible>(()), announcer).unwrap();
        assert!(approvals.answer(&row.id, &approver("alice"), allow()).is_ok());
    }
}
