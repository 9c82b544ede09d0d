//! Looking: runs, sessions, agents, as views that the doors print.

use std::sync::Arc;

use quell_kernel::Push;
use quell_kernel::approval::Approver;
use quell_kernel::registry::{AgentPhase, StopAsk, StopScope};
use quell_kernel::turn::Turn;
use quell_protocol::api::{AgentAbortAnswer, AgentRow, HistoryMessage, List, Provenance, RunView, SessionRow};
use quell_protocol::approval::{ApprovalRow, Decision};
use quell_protocol::audit::Action;
use quell_protocol::{AgentId, EventKind, RunEvent, RunId, SessionKey};

use super::{AnswerError, Caller, Deed, Engine, Follower, Stop};
use crate::agent::tree_of;
use crate::scope::StopLevel;
use crate::store::{Past, RunFilter, RunRow, SessionFilter, StoreError, StoredSession};
use crate::tools::background::BackgroundProcess;

/// How to follow a run.
#[derive(Debug)]
pub enum Follow {
    /// It is in memory.
    Live(Follower),
    /// It is over and only the database knows it: what is left to tell, the terminal event last.
    Over(Vec<RunEvent>),
}

/// A page of a session's history.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryPage {
    /// Messages in order.
    pub messages: Vec<HistoryMessage>,
    /// Give this to get the messages before; absent at the beginning.
    pub before: Option<String>,
}

/// A turn of a session as people read it.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberedTurn {
    /// Its number. Numbers rise with time and are not without holes.
    pub number: i64,
    /// Its run.
    pub run: RunId,
    /// Its messages in order.
    pub messages: Vec<HistoryMessage>,
}

impl Engine {
    /// One run: as it is, or as the database keeps it.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn run(&self, id: &RunId) -> Result<Option<RunView>, StoreError> {
        if let Some(cell) = self.inner().runs.cell(id) {
            return Ok(Some(cell.view_with_ledger()));
        }
        self.stored_run(id).await
    }

    /// One run as the database keeps it, also while a message that is told again asks for its id.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn stored_run(&self, id: &RunId) -> Result<Option<RunView>, StoreError> {
        if let Some(view) = self.unsealed_run(id) {
            return Ok(Some(view));
        }
        self.inner().store.run(id.clone()).await?.map(|row| view_of(&row)).transpose()
    }

    /// Runs that are not over, in order of acceptance.
    #[must_use]
    pub fn active_runs(&self) -> Vec<RunView> {
        self.inner().runs.active().iter().map(|cell| cell.view()).collect()
    }

    /// Runs of a session that are not over, in order of acceptance.
    #[must_use]
    pub fn active_runs_of(&self, key: &SessionKey) -> Vec<RunView> {
        self.inner().runs.of_session(key).iter().map(|cell| cell.view()).collect()
    }

    /// Ids of a session's runs that are not over, in order of acceptance.
    #[must_use]
    pub fn active_of(&self, key: &SessionKey) -> Vec<RunId> {
        self.inner().runs.of_session(key).iter().map(|cell| cell.run.id.clone()).collect()
    }

    /// The cell of a run that is in memory.
    #[must_use]
    pub fn live(&self, id: &RunId) -> Option<Arc<crate::cell::Cell>> {
        self.inner().runs.cell(id)
    }

    /// All runs, newest first.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn runs(&self, filter: RunFilter) -> Result<List<RunView>, StoreError> {
        let (rows, next_cursor) = self.inner().store.runs(filter).await?;
        let stored = |row: &RunRow| self.unsealed_run(&row.id).map_or_else(|| view_of(row), Ok);
        let fresh = |row: &RunRow| self.inner().runs.cell(&row.id).map_or_else(|| stored(row), |cell| Ok(cell.view()));
        Ok(List { items: rows.iter().map(fresh).collect::<Result<_, _>>()?, next_cursor })
    }

    /// Follows a run's events after number `after`.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn follow(&self, id: &RunId, after: u64) -> Result<Option<Follow>, StoreError> {
        if let Some(cell) = self.inner().runs.cell(id).filter(|cell| !cell.is_handed_over()) {
            return Ok(Some(Follow::Live(cell.follow(after))));
        }
        Ok(self.run(id).await?.and_then(|view| last_events(view, after)).map(Follow::Over))
    }

    /// All agents.
    #[must_use]
    pub fn agents(&self) -> Vec<AgentRow> {
        let society = &self.inner().workshop.society;
        let roll = society.roll();
        let tree = tree_of(&roll);
        let row = |agent: &Arc<crate::agent::Agent>| {
            let (compute_status, active_runs) = self.inner().runs.agent(&agent.id);
            AgentRow {
                id: agent.id.clone(),
                model: agent.config.model.clone(),
                parent: agent.config.parent.clone(),
                children: tree.children(&agent.id).iter().map(|id| (*id).clone()).collect(),
                role: agent.config.role.clone(),
                compute_status,
                active_runs,
                default: agent.id == society.default_agent(),
            }
        };
        roll.values().map(row).collect()
    }

    /// One agent.
    #[must_use]
    pub fn agent(&self, id: &AgentId) -> Option<AgentRow> {
        self.agents().into_iter().find(|row| row.id == *id)
    }

    /// Stops runs of an agent (row B4); the tickets are to be waited for before answering (row B5).
    #[must_use]
    pub fn abort_agent(
        &self,
        caller: &Caller,
        id: &AgentId,
        phase: AgentPhase,
        ask: &StopAsk,
    ) -> (AgentAbortAnswer, Stop) {
        let stop = self.stop(caller, &StopScope::Agent { id: id.clone(), phase }, ask);
        let aborted = stop.did_something();
        let reason = (!aborted).then(|| "not_waiting_llm".to_owned());
        (AgentAbortAnswer { ok: true, agent_id: id.clone(), aborted, run_ids: stop.aborted.clone(), reason }, stop)
    }

    /// Sessions, the last used first.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn sessions(&self, filter: SessionFilter) -> Result<List<SessionRow>, StoreError> {
        let (sessions, next_cursor) = self.inner().store.sessions(filter).await?;
        Ok(List { items: sessions.into_iter().map(|session| self.session_row(session)).collect(), next_cursor })
    }

    /// One session.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn session(&self, key: &SessionKey) -> Result<Option<SessionRow>, StoreError> {
        let session = self.inner().store.session(key.clone()).await?;
        Ok(session.map(|session| self.session_row(session)))
    }

    /// A session's newest messages, for people: at most those of `turns` turns before cursor `before`.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn history(
        &self,
        key: &SessionKey,
        turns: usize,
        before: Option<String>,
    ) -> Result<HistoryPage, StoreError> {
        let (stored, before) = self.inner().store.turn_page(key.clone(), turns, before).await?;
        let mut messages = Vec::new();
        for past in stored {
            match past {
                Past::Turn { turn, agent, principal } => {
                    let mut turn = sealed(&turn)?.history();
                    if let Some(first) = turn.first_mut() {
                        (first.agent, first.principal) = (Some(agent), Some(principal));
                    }
                    messages.extend(turn);
                }
                Past::Reset { at } => messages.push(boundary(at)),
            }
        }
        Ok(HistoryPage { messages, before })
    }

    /// The newest turns of a session after its last reset and before number `before`, the newest first: at most `limit`.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn newest_turns(
        &self,
        key: &SessionKey,
        before: i64,
        limit: usize,
    ) -> Result<Vec<NumberedTurn>, StoreError> {
        let stored = self.inner().store.newest_turns(key.clone(), before, limit).await?;
        let read = |(number, text): (i64, String)| {
            let turn = sealed(&text)?;
            Ok(NumberedTurn { number, run: turn.run_id().clone(), messages: turn.history() })
        };
        stored.into_iter().map(read).collect()
    }

    /// The first messages of a session after its last reset: those of its first turn.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn first_messages(&self, key: &SessionKey) -> Result<Vec<HistoryMessage>, StoreError> {
        let first = self.inner().store.first_turn(key.clone()).await?;
        first.map_or_else(|| Ok(Vec::new()), |text| Ok(sealed(&text)?.history()))
    }

    /// A session's background commands, oldest first; the last ended ones too.
    #[must_use]
    pub fn processes(&self, key: &SessionKey) -> Vec<Arc<BackgroundProcess>> {
        self.inner().workshop.background.of_session(key)
    }

    /// The background commands of all sessions, those of sub-agents too, oldest first.
    #[must_use]
    pub fn all_processes(&self) -> Vec<Arc<BackgroundProcess>> {
        self.inner().workshop.background.all()
    }

    /// One background command of a session.
    #[must_use]
    pub fn process(&self, key: &SessionKey, id: &str) -> Option<Arc<BackgroundProcess>> {
        self.inner().workshop.background.get(key, id)
    }

    /// Background commands that live.
    #[must_use]
    pub fn living_processes(&self) -> usize {
        self.inner().workshop.background.alive()
    }

    /// Tells a background command to end. False when `caller` may not.
    #[must_use]
    pub fn end_process(&self, caller: &Caller, process: &BackgroundProcess, push: Push) -> bool {
        let who = caller.who();
        if !who.admin && process.owner.principal != who.principal {
            return false;
        }
        tracing::info!(principal = %caller.principal, process = process.id, session = %process.owner.session, "background process is ended");
        let fresh = process.end(match push {
            Push::Gentle => StopLevel::Gentle,
            Push::Forced => StopLevel::Forced,
        });
        if fresh {
            let deed = Deed::to(Action::EndProcess, "process", &process.id);
            self.audit(
                caller,
                deed.with(format!("session: {}; started by run {}", process.owner.session, process.owner.run)),
            );
        }
        true
    }

    /// Calls that wait for a person, oldest first.
    #[must_use]
    pub fn approvals(&self) -> Vec<ApprovalRow> {
        self.inner().workshop.approvals.pending()
    }

    /// A person's answer to a call that waits.
    ///
    /// # Errors
    /// [`AnswerError`]: unknown, somebody else's, or settled before; nothing has changed then.
    pub fn answer_approval(&self, caller: &Caller, id: &str, decision: Decision) -> Result<ApprovalRow, AnswerError> {
        let approver =
            Approver { principal: caller.principal.clone(), admin: caller.is_admin(), approve: caller.may_approve() };
        let row = self.inner().workshop.approvals.answer(id, &approver, caller.surface, decision)?;
        tracing::info!(principal = %caller.principal, run = %row.run_id, tool = row.tool, ?decision, "approval answered");
        let action = match decision {
            Decision::Allow => Action::Approve,
            Decision::Deny => Action::Deny,
        };
        let deed = Deed::to(action, "approval", id);
        self.audit(caller, deed.with(format!("run: {}; tool: {}; of {}", row.run_id, row.tool, row.principal)));
        Ok(row)
    }

    /// Model requests that are out now.
    #[must_use]
    pub fn model_requests(&self) -> usize {
        self.inner().models.active().count()
    }

    pub(super) fn session_row(&self, session: StoredSession) -> SessionRow {
        let active_runs = self.active_of(&session.key);
        let standing = self.inner().sessions.standing(&session.key);
        SessionRow {
            state: standing.state.to_owned(),
            key: session.key,
            agent: Some(session.agent),
            created_at: session.created_at,
            last_used_at: standing.used.into_iter().chain([session.last_used_at]).max().unwrap_or_default(),
            active_runs,
            turns: session.turns,
            imported: session.imported_at.map(|at| Provenance { at, by: session.owner, claims: None }),
        }
    }
}

fn view_of(row: &RunRow) -> Result<RunView, StoreError> {
    let mut view: RunView = serde_json::from_str(&row.view)
        .map_err(|error| StoreError::Corrupt(format!("the stored view of run {} cannot be read: {error}", row.id)))?;
    if let crate::store::StoredState::Steered { .. } = row.state {
        view.state = "steered".to_owned();
    }
    Ok(view)
}

fn sealed(text: &str) -> Result<Turn, StoreError> {
    Turn::from_stored(text).map_err(|error| StoreError::Corrupt(error.to_string()))
}

fn boundary(at: String) -> HistoryMessage {
    HistoryMessage::new(None, "reset", "", &at)
}

/// What a reader behind number `after` is still to be told of a run whose events are gone: a snapshot in place of those it has
/// missed, and the end.
fn last_events(view: RunView, after: u64) -> Option<Vec<RunEvent>> {
    let receipt = view.receipt?;
    let at = view.ended_at.unwrap_or_default();
    let event = |seq, kind| {
        let (run_id, session_key) = (view.run_id.clone(), view.session_key.clone());
        RunEvent { run_id, session_key, seq, at: at.clone(), kind }
    };
    let before = view.seq.saturating_sub(1);
    let missed = (after < before).then(|| {
        let text = view.output.clone().unwrap_or_default();
        event(before, EventKind::Snapshot { text, thinking: String::new(), calls: Vec::new() })
    });
    let verdict = receipt.verdict.clone();
    let text = view.output.clone().filter(|_| verdict == quell_protocol::Verdict::Completed);
    let end = EventKind::Ended { verdict, text, receipt: Box::new(receipt), steps: view.steps };
    Some(missed.into_iter().chain([event(view.seq, end)]).collect())
}
