//! Read-only queries of runs, sessions, agents, history and background processes.

use std::sync::Arc;

use quell_kernel::StopLevel;
use quell_kernel::approval::Approver;
use quell_kernel::registry::{AgentRunFilter, StopRequest, StopScope};
use quell_kernel::turn::Turn;
use quell_protocol::api::{AgentAbortAnswer, AgentRow, HistoryMessage, Page, Provenance, RunView, SessionRow};
use quell_protocol::approval::{ApprovalRow, Decision};
use quell_protocol::audit::Action;
use quell_protocol::{AgentId, EventKind, RunEvent, RunId, SessionKey};
use quell_store::{HistoryItem, RunListFilter, RunRow, SessionListFilter, StoreError, StoredSession};
use quell_tools::background::BackgroundProcess;

use super::{AnswerError, AuditAction, Caller, Engine, Follower, StopResult};
use crate::agent::build_agent_tree;

/// How to follow a run.
#[derive(Debug)]
pub enum RunFollow {
    Live(Follower),
    /// The run is over and only in the database: the remaining events, the terminal event last.
    Ended(Vec<RunEvent>),
}

/// A page of a session's history.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryPage {
    pub messages: Vec<HistoryMessage>,
    /// Cursor for the page before this one; `None` at the beginning of the history.
    pub before: Option<String>,
}

/// A turn of a session as messages for people.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberedTurn {
    /// Numbers rise with time and may have gaps.
    pub number: i64,
    pub run: RunId,
    pub messages: Vec<HistoryMessage>,
}

impl Engine {
    /// One run, from memory or else from the database.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn find_run(&self, id: &RunId) -> Result<Option<RunView>, StoreError> {
        if let Some(live_run) = self.inner().runs.live_run(id) {
            return Ok(Some(live_run.detailed_view()));
        }
        self.find_stored_run(id).await
    }

    /// One run from the database, also for a chat message that was delivered again and has the id of an earlier run.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn find_stored_run(&self, id: &RunId) -> Result<Option<RunView>, StoreError> {
        if let Some(view) = self.find_unsealed_run(id) {
            return Ok(Some(view));
        }
        self.inner().store.runs().find(id.clone()).await?.map(|row| parse_run_view(&row)).transpose()
    }

    /// Runs that are not over, in order of acceptance.
    #[must_use]
    pub fn active_runs(&self) -> Vec<RunView> {
        self.inner().runs.active_runs().iter().map(|live_run| live_run.view()).collect()
    }

    /// Runs of a session that are not over, in order of acceptance.
    #[must_use]
    pub fn active_runs_of_session(&self, key: &SessionKey) -> Vec<RunView> {
        self.inner().runs.runs_of_session(key).iter().map(|live_run| live_run.view()).collect()
    }

    /// Ids of a session's runs that are not over, in order of acceptance.
    #[must_use]
    pub fn active_run_ids_of_session(&self, key: &SessionKey) -> Vec<RunId> {
        self.inner().runs.runs_of_session(key).iter().map(|live_run| live_run.run.id.clone()).collect()
    }

    /// The live run of a run that is in memory.
    #[must_use]
    pub fn live_run(&self, id: &RunId) -> Option<Arc<crate::live_run::LiveRun>> {
        self.inner().runs.live_run(id)
    }

    /// All runs, newest first.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_runs(&self, filter: RunListFilter) -> Result<Page<RunView>, StoreError> {
        let (rows, next_cursor) = self.inner().store.runs().list(filter).await?;
        let stored_view = |row: &RunRow| self.find_unsealed_run(&row.id).map_or_else(|| parse_run_view(row), Ok);
        let current_view = |row: &RunRow| {
            self.inner().runs.live_run(&row.id).map_or_else(|| stored_view(row), |live_run| Ok(live_run.view()))
        };
        Ok(Page { items: rows.iter().map(current_view).collect::<Result<_, _>>()?, next_cursor })
    }

    /// Follows a run's events after number `after`.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn follow_run(&self, id: &RunId, after: u64) -> Result<Option<RunFollow>, StoreError> {
        if let Some(live_run) = self.inner().runs.live_run(id).filter(|live_run| !live_run.is_steered()) {
            return Ok(Some(RunFollow::Live(live_run.follow(after))));
        }
        Ok(self.find_run(id).await?.and_then(|view| remaining_events(view, after)).map(RunFollow::Ended))
    }

    #[must_use]
    pub fn list_agents(&self) -> Vec<AgentRow> {
        let registry = &self.inner().services.agents;
        let snapshot = registry.snapshot();
        let tree = build_agent_tree(&snapshot);
        let row = |agent: &Arc<crate::agent::Agent>| {
            let (compute_status, active_runs) = self.inner().runs.agent_state(&agent.id);
            AgentRow {
                id: agent.id.clone(),
                model: agent.config.model.clone(),
                parent: agent.config.parent.clone(),
                children: tree.children(&agent.id).iter().map(|id| (*id).clone()).collect(),
                role: agent.config.role.clone(),
                compute_status,
                active_runs,
                default: agent.id == registry.default_agent(),
            }
        };
        snapshot.values().map(row).collect()
    }

    #[must_use]
    pub fn find_agent(&self, id: &AgentId) -> Option<AgentRow> {
        self.list_agents().into_iter().find(|row| row.id == *id)
    }

    /// Stops the runs of an agent that are in `phase` (row B4 in `docs/design/requirements.md`). The transport waits
    /// for the tickets before it answers (row B5).
    #[must_use]
    pub fn abort_agent(
        &self,
        caller: &Caller,
        id: &AgentId,
        phase: AgentRunFilter,
        request: &StopRequest,
    ) -> (AgentAbortAnswer, StopResult) {
        let stop_result = self.stop(caller, &StopScope::Agent { id: id.clone(), phase }, request);
        let aborted = stop_result.stopped_anything();
        let reason = (!aborted).then(|| "not_waiting_llm".to_owned());
        (
            AgentAbortAnswer { ok: true, agent_id: id.clone(), aborted, run_ids: stop_result.aborted.clone(), reason },
            stop_result,
        )
    }

    /// Sessions, the most recently used first.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_sessions(&self, filter: SessionListFilter) -> Result<Page<SessionRow>, StoreError> {
        let (sessions, next_cursor) = self.inner().store.sessions().list(filter).await?;
        Ok(Page { items: sessions.into_iter().map(|session| self.build_session_row(session)).collect(), next_cursor })
    }

    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn find_session(&self, key: &SessionKey) -> Result<Option<SessionRow>, StoreError> {
        let session = self.inner().store.sessions().find(key.clone()).await?;
        Ok(session.map(|session| self.build_session_row(session)))
    }

    /// A session's newest messages, for people: those of at most `turns` turns before the cursor `before`.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn history_page(
        &self,
        key: &SessionKey,
        turns: usize,
        before: Option<String>,
    ) -> Result<HistoryPage, StoreError> {
        let (stored, before) = self.inner().store.history().page(key.clone(), turns, before).await?;
        let mut messages = Vec::new();
        for item in stored {
            match item {
                HistoryItem::Turn { turn, agent, principal } => {
                    let mut turn = parse_turn(&turn)?.history();
                    if let Some(first) = turn.first_mut() {
                        (first.agent, first.principal) = (Some(agent), Some(principal));
                    }
                    messages.extend(turn);
                }
                HistoryItem::Reset { at } => messages.push(reset_message(at)),
            }
        }
        Ok(HistoryPage { messages, before })
    }

    /// The newest turns of a session after its last reset and before number `before`, the newest first; at most
    /// `limit`.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn newest_turns(
        &self,
        key: &SessionKey,
        before: i64,
        limit: usize,
    ) -> Result<Vec<NumberedTurn>, StoreError> {
        let stored = self.inner().store.history().newest_turns(key.clone(), before, limit).await?;
        let parse = |(number, text): (i64, String)| {
            let turn = parse_turn(&text)?;
            Ok(NumberedTurn { number, run: turn.run_id().clone(), messages: turn.history() })
        };
        stored.into_iter().map(parse).collect()
    }

    /// The messages of the first turn of a session after its last reset.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn first_messages(&self, key: &SessionKey) -> Result<Vec<HistoryMessage>, StoreError> {
        let first = self.inner().store.history().first_turn(key.clone()).await?;
        first.map_or_else(|| Ok(Vec::new()), |text| Ok(parse_turn(&text)?.history()))
    }

    /// A session's background commands, oldest first, including the recently ended ones.
    #[must_use]
    pub fn session_processes(&self, key: &SessionKey) -> Vec<Arc<BackgroundProcess>> {
        self.inner().services.background.of_session(key)
    }

    /// The background commands of all sessions, including those of sub-agents, oldest first.
    #[must_use]
    pub fn all_processes(&self) -> Vec<Arc<BackgroundProcess>> {
        self.inner().services.background.all_processes()
    }

    #[must_use]
    pub fn find_process(&self, key: &SessionKey, id: &str) -> Option<Arc<BackgroundProcess>> {
        self.inner().services.background.get(key, id)
    }

    #[must_use]
    pub fn count_live_processes(&self) -> usize {
        self.inner().services.background.count_alive()
    }

    /// Tells a background command to end. False if `caller` may not end it.
    #[must_use]
    pub fn end_process(&self, caller: &Caller, process: &BackgroundProcess, level: StopLevel) -> bool {
        let requester = caller.who();
        if !requester.admin && process.owner.principal != requester.principal {
            return false;
        }
        tracing::info!(principal = %caller.principal, process = process.id, session = %process.owner.session, "background process is ended");
        let is_first_request = process.send_end(level);
        if is_first_request {
            let audit_action = AuditAction::on_target(Action::EndProcess, "process", &process.id);
            self.audit(
                caller,
                audit_action
                    .with_detail(format!("session: {}; started by run {}", process.owner.session, process.owner.run)),
            );
        }
        true
    }

    /// Calls that wait for a person, oldest first.
    #[must_use]
    pub fn pending_approvals(&self) -> Vec<ApprovalRow> {
        self.inner().services.approvals.pending()
    }

    /// Answers an approval in the name of `caller`.
    ///
    /// # Errors
    /// [`AnswerError`] if the approval is unknown, belongs to somebody else, or is settled; nothing has changed then.
    pub fn answer_approval(&self, caller: &Caller, id: &str, decision: Decision) -> Result<ApprovalRow, AnswerError> {
        let approver =
            Approver { principal: caller.principal.clone(), admin: caller.is_admin(), approve: caller.may_approve() };
        let row = self.inner().services.approvals.answer(id, &approver, caller.surface, decision)?;
        tracing::info!(principal = %caller.principal, run = %row.run_id, tool = row.tool, ?decision, "approval answered");
        let action = match decision {
            Decision::Allow => Action::Approve,
            Decision::Deny => Action::Deny,
        };
        let audit_action = AuditAction::on_target(action, "approval", id);
        self.audit(
            caller,
            audit_action.with_detail(format!("run: {}; tool: {}; of {}", row.run_id, row.tool, row.principal)),
        );
        Ok(row)
    }

    /// Model requests in flight.
    #[must_use]
    pub fn count_model_requests(&self) -> usize {
        self.inner().models.active_requests().count()
    }

    pub(super) fn build_session_row(&self, session: StoredSession) -> SessionRow {
        let active_runs = self.active_run_ids_of_session(&session.key);
        let status = self.inner().sessions.session_status(&session.key);
        SessionRow {
            state: status.state.to_owned(),
            key: session.key,
            agent: Some(session.agent),
            created_at: session.created_at,
            last_used_at: status.last_used_at.into_iter().chain([session.last_used_at]).max().unwrap_or_default(),
            active_runs,
            turns: session.turns,
            imported: session.imported_at.map(|at| Provenance { at, by: session.owner, claims: None }),
        }
    }
}

fn parse_run_view(row: &RunRow) -> Result<RunView, StoreError> {
    let mut view: RunView = serde_json::from_str(&row.view)
        .map_err(|error| StoreError::Corrupt(format!("the stored view of run {} cannot be read: {error}", row.id)))?;
    if let quell_store::StoredRunState::Steered { .. } = row.state {
        view.state = "steered".to_owned();
    }
    Ok(view)
}

fn parse_turn(text: &str) -> Result<Turn, StoreError> {
    Turn::from_stored(text).map_err(|error| StoreError::Corrupt(error.to_string()))
}

fn reset_message(at: String) -> HistoryMessage {
    HistoryMessage::new(None, "reset", "", &at)
}

/// The events after number `after` of a run whose events are gone: a snapshot in place of the missed ones, and the end.
fn remaining_events(view: RunView, after: u64) -> Option<Vec<RunEvent>> {
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
