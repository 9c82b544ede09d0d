//! The handle through which the agent loop writes draft, journal and events until the turn is sealed.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::Moment;
use quell_kernel::journal::JournalLine;
use quell_kernel::registry::NewRun;
use quell_kernel::turn::{
    AnsweredCall, AssistantMessage, CallResult, Compaction, ModelMessage, RETURNED_TO_CLIENT, ToolCall, TurnDraft,
};
use quell_llm::ModelHandle;
use quell_protocol::agents::Price;
use quell_protocol::approval::{ApprovalRow, ApprovalState};
use quell_protocol::{CallEnd, CallId, EventKind, ToolOutputStream, Usage};
use quell_scope::Cancelled;
use quell_scope::clock::Clock;

use super::events::{tool_ended_event, truncate_output, whole_micros};
use super::{AnnouncedApproval, ClientAnswer, LiveRun, LiveRunState, ProviderChange};
use crate::journal::JournalWriteError;

/// The draft is sealed: nothing more can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the turn is sealed")]
pub struct TurnSealed;

impl From<TurnSealed> for Cancelled {
    fn from(_: TurnSealed) -> Self {
        Self
    }
}

#[derive(Debug, Clone)]
pub struct RunWriter(Arc<LiveRun>);

impl RunWriter {
    pub(super) fn new(live_run: Arc<LiveRun>) -> Self {
        Self(live_run)
    }

    pub fn with_draft<T>(&self, read: impl FnOnce(&TurnDraft) -> T) -> Result<T, TurnSealed> {
        self.0.lock_state().draft.as_ref().map(read).ok_or(TurnSealed)
    }

    pub fn begin_step(&self, step: u32) -> Result<(), TurnSealed> {
        self.write_if_open(|live_run, state| {
            state.steps = step;
            state.step_start = state.draft.as_ref().map_or(0, TurnDraft::message_count);
            live_run.journal.write_line(JournalLine::Step { step });
            live_run.emit_event(state, EventKind::StepStarted { step });
        })
    }

    /// Adds a steered message, received at `received_at`, to the turn.
    pub fn add_user_message(&self, text: String, received_at: Moment) -> Result<(), TurnSealed> {
        self.apply_line(JournalLine::User { text, at: Some(self.0.clock.rfc3339(received_at)) })
    }

    /// Replaces the user's message for the model: a hook changed it, or attachments were added.
    pub fn replace_question(&self, text: String) -> Result<(), TurnSealed> {
        self.apply_line(JournalLine::Asked { text })
    }

    /// Replaces the answer that readers get from now on.
    pub fn replace_answer(&self, text: String) -> Result<(), TurnSealed> {
        self.apply_line(JournalLine::Answered { text })
    }

    /// Waits until everything written so far is in the database.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_journal(&self) -> Result<(), JournalWriteError> {
        self.0.journal.wait_written().await
    }

    /// Appends streamed text. Dropped once the stream is closed.
    pub fn append_text(&self, text: &str) {
        // A late delta is not an error: the stream was closed while it was on its way.
        let _ = self.write_if_open(|live_run, state| {
            state.step_usage.output_tokens += estimate_tokens(text);
            live_run.apply_and_journal(state, JournalLine::Text { text: text.to_owned() });
            live_run.emit_event(state, EventKind::TextDelta { text: text.to_owned() });
        });
    }

    /// Appends streamed reasoning. Dropped once the stream is closed.
    pub fn append_thinking(&self, text: &str) {
        let _ = self.write_if_open(|live_run, state| {
            state.step_usage.output_tokens += estimate_tokens(text);
            live_run.apply_and_journal(state, JournalLine::Thinking { text: text.to_owned() });
            live_run.emit_event(state, EventKind::ThinkingDelta { text: text.to_owned() });
        });
    }

    /// Reports that attempt `attempt` of at most `attempts` of a model call failed and that the next one starts after `delay`. Dropped
    /// once the stream is closed.
    pub fn report_retry(&self, attempt: u32, attempts: u32, delay: Duration, reason: &str) {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let _ = self.write_if_open(|live_run, state| {
            let reason = reason.to_owned();
            live_run.emit_event(state, EventKind::ModelRetry { attempt, attempts, delay_ms, reason });
        });
    }

    /// Reports what the provider has searched for. Dropped once the stream is closed.
    pub fn report_web_search(&self, query: &str) {
        let _ = self.write_if_open(|live_run, state| {
            live_run.emit_event(state, EventKind::ModelSearch { query: query.to_owned() });
        });
    }

    /// Reports that another model takes over; its provider bills what the run uses from now on, at
    /// `price`.
    ///
    /// # Errors
    /// [`TurnSealed`] once the stream is closed.
    pub fn report_fallback(
        &self,
        from: &str,
        to: &ModelHandle,
        price: Option<Price>,
        reason: String,
    ) -> Result<(), TurnSealed> {
        self.write_if_open(|live_run, state| {
            state.settle_step_usage();
            state.provider_changes.push(ProviderChange {
                to: to.provider_name().to_owned(),
                price,
                usage_before: state.usage,
            });
            let (from, to) = (from.to_owned(), to.name().to_owned());
            live_run.emit_event(state, EventKind::ModelFallback { from, to, reason });
        })
    }

    /// Records that a model request is sent. Its tokens are estimated until they are counted.
    pub fn record_model_request(&self, input_tokens: u64) {
        let mut state = self.0.lock_state();
        state.settle_step_usage();
        state.step_usage = Usage { input_tokens, output_tokens: 0, cached_tokens: 0, estimated: true };
        self.0.journal.write_line(JournalLine::Spent { usage: state.current_usage() });
    }

    /// Records the usage of a model call, as counted by the provider or estimated from the received text.
    pub fn record_model_usage(&self, usage: Usage) {
        let mut state = self.0.lock_state();
        state.step_usage = usage;
        state.settle_step_usage();
        self.0.journal.write_line(JournalLine::Spent { usage: state.usage });
    }

    pub fn total_tokens(&self) -> u64 {
        let usage = self.0.lock_state().current_usage();
        usage.input_tokens.saturating_add(usage.output_tokens)
    }

    /// Completes the model's message. Returns its calls, each with an id that is unique in the turn.
    pub fn finish_message(&self, message: AssistantMessage) -> Result<Vec<ToolCall>, TurnSealed> {
        let mut state = self.0.lock_state();
        state.settle_step_usage();
        let draft = state.draft.as_mut().ok_or(TurnSealed)?;
        let message = AssistantMessage { at: Some(self.0.rfc3339_now()), ..message };
        self.0.journal.write_line(JournalLine::Message { message: message.clone() });
        Ok(draft.finish_message(message))
    }

    /// Adds what models have answered so far to the message of a client, with the results that the client brought.
    ///
    /// # Errors
    /// [`TurnSealed`] once the draft is sealed.
    pub fn add_continuation(&self, continuation: &[ModelMessage<AnsweredCall>]) -> Result<(), TurnSealed> {
        for message in continuation {
            let results: Vec<CallResult> = message.calls().map(|call| call.result.clone()).collect();
            let message = message.clone().map_calls(|answered| answered.call);
            let mut state = self.0.lock_state();
            let draft = state.draft.as_mut().ok_or(TurnSealed)?;
            self.0.journal.write_line(JournalLine::Message { message: message.clone() });
            let calls = draft.finish_message(message);
            for (call, result) in calls.into_iter().zip(results) {
                self.0.apply_and_journal(&mut state, JournalLine::Finished { call: call.id, result });
            }
        }
        Ok(())
    }

    /// Records how the answer to a client ended. Its calls are answered in the draft: the client carries them out.
    ///
    /// # Errors
    /// [`TurnSealed`] once the stream is closed.
    pub fn record_client_answer(&self, answer: ClientAnswer) -> Result<(), TurnSealed> {
        self.report_waiting_calls(&answer.calls)?;
        for call in &answer.calls {
            self.finish_call(&call.id, CallResult::new(CallEnd::NotStarted, RETURNED_TO_CLIENT), Duration::ZERO)?;
        }
        self.0.lock_state().client_answer = Some(answer);
        Ok(())
    }

    /// Records that a summary replaces old turns from now on.
    pub fn record_compaction(&self, compaction: Compaction, turns: usize) -> Result<(), TurnSealed> {
        self.write_if_open(|live_run, state| {
            let summary = compaction.summary.clone();
            live_run.apply_and_journal(state, JournalLine::Compacted { compaction });
            live_run
                .emit_event(state, EventKind::Compacted { turns: u32::try_from(turns).unwrap_or(u32::MAX), summary });
        })
    }

    /// Writes to the journal that a call is about to start, and waits until this is stored: a later daemon then knows
    /// that the call may have had effects. Once the stream is closed nothing is written, and [`RunWriter::begin_call`]
    /// fails.
    ///
    /// # Errors
    /// [`JournalWriteError`] if the journal cannot be written: the call must not start then.
    ///
    /// # Cancel safety
    /// Safe: a call that is in the journal and does not start counts as one that may have started.
    pub async fn journal_call_start(&self, call: &CallId) -> Result<(), JournalWriteError> {
        let at = Some(self.0.clock.rfc3339(self.0.clock.now()));
        match self
            .write_if_open(|live_run, _| live_run.journal.write_line(JournalLine::Began { call: call.clone(), at }))
        {
            Ok(()) => self.0.journal.wait_written().await,
            Err(TurnSealed) => Ok(()),
        }
    }

    /// Announces the calls of a message in their order, before any of them starts. Each of them starts later, or ends
    /// with the turn.
    ///
    /// # Errors
    /// [`TurnSealed`] once the stream is closed.
    pub fn report_waiting_calls(&self, calls: &[ToolCall]) -> Result<(), TurnSealed> {
        self.write_if_open(|live_run, state| {
            for call in calls {
                state.waiting_calls.insert(call.id.clone());
                let (call_id, tool, arguments) = (call.id.clone(), call.tool.clone(), call.arguments.clone());
                live_run.emit_event(state, EventKind::ToolWaiting { call_id, tool, arguments });
            }
        })
    }

    /// Records the start of a call: side effects are possible from here on.
    ///
    /// # Errors
    /// [`TurnSealed`] once the stream is closed: the call must not start then.
    pub fn begin_call(&self, call: &ToolCall) -> Result<(), TurnSealed> {
        self.write_if_open(|live_run, state| {
            if let Some(draft) = &mut state.draft {
                draft.begin_call(&call.id);
            }
            state.waiting_calls.remove(&call.id);
            state.running_calls.insert(call.id.clone(), live_run.clock.now());
            let (tool, arguments) = (call.tool.clone(), call.arguments.clone());
            live_run.emit_event(state, EventKind::ToolStarted { call_id: call.id.clone(), tool, arguments });
        })
    }

    /// Appends the output of a running call. Still allowed while the run is ending.
    pub fn append_output(&self, call: &CallId, stream: ToolOutputStream, text: &str) {
        let mut state = self.0.lock_state();
        if state.draft.is_some() {
            self.0.apply_and_journal(&mut state, JournalLine::Printed { call: call.clone(), text: text.to_owned() });
            self.0.emit_event(
                &mut state,
                EventKind::ToolOutput { call_id: call.clone(), stream, text: truncate_output(text) },
            );
        }
    }

    /// Records the end of a call. Still allowed while the run is ending.
    ///
    /// # Errors
    /// [`TurnSealed`] once the draft is sealed: the turn already says that the call was cut off.
    pub fn finish_call(&self, call: &CallId, result: CallResult, duration: Duration) -> Result<(), TurnSealed> {
        let mut state = self.0.lock_state();
        if state.draft.is_none() {
            return Err(TurnSealed);
        }
        let (took_us, at) = (Some(whole_micros(duration)), Some(self.0.rfc3339_now()));
        let result = CallResult { took_us, at, ..result };
        let event = tool_ended_event(call.clone(), &result);
        self.0.apply_and_journal(&mut state, JournalLine::Finished { call: call.clone(), result });
        state.running_calls.remove(call);
        state.waiting_calls.remove(call);
        self.0.emit_event(&mut state, event);
        Ok(())
    }

    /// The writers of the runs above that are in memory, the nearest first.
    pub fn of_ancestors(&self) -> impl Iterator<Item = Self> {
        self.0.live_ancestors().map(Self)
    }

    /// Announces that a call waits for a person.
    ///
    /// # Errors
    /// [`TurnSealed`] once the stream is closed: nobody is asked then.
    pub fn emit_approval_requested(&self, row: &ApprovalRow) -> Result<(), TurnSealed> {
        self.write_if_open(|live_run, state| {
            state.note_pending_approval(row);
            let (id, call_id, tool) = (row.id.clone(), row.call_id.clone(), row.tool.clone());
            let (arguments, expires_at, quorum) = (row.arguments.clone(), row.expires_at.clone(), row.quorum);
            let escalation = row.escalation.clone().map(Box::new);
            let event = EventKind::ApprovalRequested { id, call_id, tool, arguments, escalation, expires_at, quorum };
            live_run.emit_event(state, event);
        })
    }

    /// Announces that a call of a run below waits for a person. Nothing is announced once this run ends: a sub-run in the
    /// background may outlive it.
    pub fn emit_sub_run_approval_requested(&self, row: &ApprovalRow) {
        let _ = self.write_if_open(|live_run, state| {
            state.note_pending_approval(row);
            let approval = Box::new(row.clone());
            live_run.emit_event(state, EventKind::SubRunApprovalRequested { approval });
        });
    }

    /// Notes that one principal more has allowed a call of a run below. No event tells it: it is still the same question.
    pub fn note_sub_run_approval_updated(&self, row: &ApprovalRow) {
        self.0.lock_state().update_pending_approval(row);
    }

    /// Announces the result of an approval that was announced by [`RunWriter::emit_sub_run_approval_requested`]. Still
    /// allowed while the run is ending.
    pub fn emit_sub_run_approval_resolved(&self, id: &str, settled: &ApprovalState) {
        let mut state = self.0.lock_state();
        let Some(pending) = state.pending_approvals.remove(id) else { return };
        if state.draft.is_some() {
            let approval = Box::new(ApprovalRow { state: settled.clone(), ..pending.row });
            self.0.emit_event(&mut state, EventKind::SubRunApprovalResolved { approval });
        }
    }

    /// Announces that one principal more has allowed a call. Nothing is announced while the run is ending.
    pub fn emit_approval_updated(&self, row: &ApprovalRow) {
        // If the stream is closed, a stop settles the approval.
        let _ = self.write_if_open(|live_run, state| {
            state.update_pending_approval(row);
            let (id, allowed_by, quorum) = (row.id.clone(), row.allowed_by.clone(), row.quorum);
            live_run.emit_event(state, EventKind::ApprovalUpdated { id, allowed_by, quorum });
        });
    }

    /// Announces the result of an approval. Still allowed while the run is ending.
    pub fn emit_approval_resolved(&self, id: &str, state: &ApprovalState) {
        let (by, reason) = match state {
            ApprovalState::Allowed { by } => (Some(by.clone()), None),
            ApprovalState::Denied { by, reason } => (Some(by.clone()), reason.clone()),
            ApprovalState::Pending | ApprovalState::TimedOut | ApprovalState::Cancelled => (None, None),
        };
        let mut run_state = self.0.lock_state();
        run_state.pending_approvals.remove(id);
        if run_state.draft.is_some() {
            let (id, decision) = (id.to_owned(), state.decision_str().to_owned());
            self.0.emit_event(&mut run_state, EventKind::ApprovalResolved { id, decision, by, reason });
        }
    }

    pub fn run(&self) -> &NewRun {
        &self.0.run
    }

    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    fn apply_line(&self, line: JournalLine) -> Result<(), TurnSealed> {
        let mut state = self.0.lock_state();
        if state.draft.is_none() {
            return Err(TurnSealed);
        }
        self.0.apply_and_journal(&mut state, line);
        Ok(())
    }

    /// Writes what is allowed only while the stream is open.
    fn write_if_open(&self, write: impl FnOnce(&LiveRun, &mut LiveRunState)) -> Result<(), TurnSealed> {
        let mut state = self.0.lock_state();
        if state.draft.is_none() || state.events.is_stream_closed() {
            return Err(TurnSealed);
        }
        write(&self.0, &mut state);
        Ok(())
    }
}

impl LiveRun {
    /// Applies the line to the draft and writes it to the journal, so that both agree.
    fn apply_and_journal(&self, state: &mut LiveRunState, line: JournalLine) {
        if let Some(draft) = &mut state.draft {
            draft.apply(&line);
        }
        self.journal.write_line(line);
    }

    fn rfc3339_now(&self) -> String {
        self.clock.rfc3339(self.clock.now())
    }
}

impl LiveRunState {
    /// Notes an approval whose announcement is the next event.
    fn note_pending_approval(&mut self, row: &ApprovalRow) {
        let pending = AnnouncedApproval { seq: self.events.last_seq() + 1, row: row.clone() };
        self.pending_approvals.insert(row.id.clone(), pending);
    }

    fn update_pending_approval(&mut self, row: &ApprovalRow) {
        if let Some(pending) = self.pending_approvals.get_mut(&row.id) {
            pending.row = row.clone();
        }
    }
}

/// Estimates the tokens of a streamed piece: providers send about one at a time, and a token is about four characters.
fn estimate_tokens(piece: &str) -> u64 {
    u64::try_from(piece.len().div_ceil(4)).unwrap_or(u64::MAX)
}
