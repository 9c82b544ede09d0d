//! The agent loop's hand: it writes the draft and the events of one run, until the draft is sealed.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::Moment;
use quell_kernel::journal::Line;
use quell_kernel::registry::NewRun;
use quell_kernel::turn::{AssistantMessage, CallResult, Compaction, ToolCall, TurnDraft};
use quell_protocol::approval::{ApprovalRow, ApprovalState};
use quell_protocol::{CallId, EventKind, ToolOutputStream, Usage};

use super::feed::{cut, ended, microseconds};
use super::{Cell, Facts};
use crate::clock::Clock;
use crate::journal::Unwritten;
use crate::scope::Cancelled;

/// The draft is closed: nothing more can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the turn is sealed")]
pub struct Sealed;

impl From<Sealed> for Cancelled {
    fn from(_: Sealed) -> Self {
        Self
    }
}

/// Writes one run's draft and events.
#[derive(Debug, Clone)]
pub struct Pen(Arc<Cell>);

impl Pen {
    pub(super) fn new(cell: Arc<Cell>) -> Self {
        Self(cell)
    }

    /// Looks at the draft.
    ///
    /// # Errors
    /// [`Sealed`] once the draft is closed.
    pub fn draft<T>(&self, look: impl FnOnce(&TurnDraft) -> T) -> Result<T, Sealed> {
        self.0.facts().draft.as_ref().map(look).ok_or(Sealed)
    }

    /// A step begins.
    ///
    /// # Errors
    /// [`Sealed`] once the draft is closed.
    pub fn step(&self, step: u32) -> Result<(), Sealed> {
        self.write(|cell, facts| {
            facts.steps = step;
            cell.page.write(Line::Step { step });
            cell.emit(facts, EventKind::StepStarted { step });
        })
    }

    /// A steered message, which came at the time `came`, joins the turn.
    ///
    /// # Errors
    /// [`Sealed`] once the draft is closed.
    pub fn add_user(&self, text: String, came: Moment) -> Result<(), Sealed> {
        self.change(Line::User { text, at: Some(self.0.clock.rfc3339(came)) })
    }

    /// The user's message is another one for the model: a hook changed it, or files came with it.
    ///
    /// # Errors
    /// [`Sealed`] once the stream is over.
    pub fn ask_instead(&self, text: String) -> Result<(), Sealed> {
        self.change(Line::Asked { text })
    }

    /// The answer is another one for whoever reads it, from now on.
    ///
    /// # Errors
    /// [`Sealed`] once the stream is over.
    pub fn answer_instead(&self, text: String) -> Result<(), Sealed> {
        self.change(Line::Answered { text })
    }

    /// Waits until everything that was written so far is in the database.
    ///
    /// # Errors
    /// [`Unwritten`] when the journal cannot be written.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn written(&self) -> Result<(), Unwritten> {
        self.0.page.written().await
    }

    /// Visible text streams in. Dropped once the stream is over.
    pub fn text(&self, text: &str) {
        // A late delta is not an error: the stream ended while it was on its way.
        let _ = self.write(|cell, facts| {
            facts.step_usage.output_tokens += estimate(text);
            cell.put(facts, Line::Text { text: text.to_owned() });
            cell.emit(facts, EventKind::TextDelta { text: text.to_owned() });
        });
    }

    /// Reasoning streams in. Dropped once the stream is over.
    pub fn thinking(&self, text: &str) {
        let _ = self.write(|cell, facts| {
            facts.step_usage.output_tokens += estimate(text);
            cell.put(facts, Line::Thinking { text: text.to_owned() });
            cell.emit(facts, EventKind::ThinkingDelta { text: text.to_owned() });
        });
    }

    /// Attempt number `attempt` of a model call failed, and the next one comes after `delay`. Not told once the stream is over.
    pub fn retry(&self, (attempt, attempts): (u32, u32), delay: Duration, reason: &str) {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let _ = self.write(|cell, facts| {
            let reason = reason.to_owned();
            cell.emit(facts, EventKind::ModelRetry { attempt, attempts, delay_ms, reason });
        });
    }

    /// A model call leaves: until it is counted, its tokens are estimated.
    pub fn call_sent(&self, input_tokens: u64) {
        let mut facts = self.0.facts();
        facts.settle_step_usage();
        facts.step_usage = Usage { input_tokens, output_tokens: 0, estimated: true };
        self.0.page.write(Line::Spent { usage: facts.usage_so_far() });
    }

    /// A model call was counted, by the provider or by an estimate of what came.
    pub fn call_counted(&self, usage: Usage) {
        let mut facts = self.0.facts();
        facts.step_usage = usage;
        facts.settle_step_usage();
        self.0.page.write(Line::Spent { usage: facts.usage });
    }

    /// Tokens of the run so far.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let usage = self.0.facts().usage_so_far();
        usage.input_tokens.saturating_add(usage.output_tokens)
    }

    /// The model's message is complete. Answers its calls, each with an id that is unique in the turn.
    ///
    /// # Errors
    /// [`Sealed`] once the draft is closed.
    pub fn finish_message(&self, message: AssistantMessage) -> Result<Vec<ToolCall>, Sealed> {
        let mut facts = self.0.facts();
        facts.settle_step_usage();
        let draft = facts.draft.as_mut().ok_or(Sealed)?;
        let message = AssistantMessage { at: Some(self.0.rfc3339_now()), ..message };
        self.0.page.write(Line::Message { message: message.clone() });
        Ok(draft.finish_message(message))
    }

    /// A summary stands in for old turns from now on.
    ///
    /// # Errors
    /// [`Sealed`] once the stream is over.
    pub fn compacted(&self, compaction: Compaction, turns: usize) -> Result<(), Sealed> {
        self.write(|cell, facts| {
            let summary = compaction.summary.clone();
            cell.put(facts, Line::Compacted { compaction });
            cell.emit(facts, EventKind::Compacted { turns: u32::try_from(turns).unwrap_or(u32::MAX), summary });
        })
    }

    /// Writes down that a call is about to start, and waits until it is written: whatever the call does, a later daemon knows
    /// that it may have. Once the stream is over nothing is written, and [`Pen::begin_call`] says so.
    ///
    /// # Errors
    /// [`Unwritten`] when the journal cannot be written: the call must not start then.
    ///
    /// # Cancel safety
    /// Safe: a call that was written down and does not start is taken for one that may have.
    pub async fn announce_call(&self, call: &CallId) -> Result<(), Unwritten> {
        let at = Some(self.0.clock.rfc3339(self.0.clock.now()));
        match self.write(|cell, _| cell.page.write(Line::Began { call: call.clone(), at })) {
            Ok(()) => self.0.page.written().await,
            Err(Sealed) => Ok(()),
        }
    }

    /// A call starts: side effects are possible from here on.
    ///
    /// # Errors
    /// [`Sealed`] once the stream is over: the call must not start then.
    pub fn begin_call(&self, call: &ToolCall) -> Result<(), Sealed> {
        self.write(|cell, facts| {
            if let Some(draft) = &mut facts.draft {
                draft.begin_call(&call.id);
            }
            facts.calls.insert(call.id.clone(), cell.clock.now());
            let (tool, arguments) = (call.tool.clone(), call.arguments.clone());
            cell.emit(facts, EventKind::ToolStarted { call_id: call.id.clone(), tool, arguments });
        })
    }

    /// A running call prints. Still allowed while the run is ending.
    pub fn output(&self, call: &CallId, stream: ToolOutputStream, text: &str) {
        let mut facts = self.0.facts();
        if facts.draft.is_some() {
            self.0.put(&mut facts, Line::Printed { call: call.clone(), text: text.to_owned() });
            self.0.emit(&mut facts, EventKind::ToolOutput { call_id: call.clone(), stream, text: cut(text) });
        }
    }

    /// A call is over. Still allowed while the run is ending.
    ///
    /// # Errors
    /// [`Sealed`] once the draft is closed: the turn says already that the call was cut off.
    pub fn finish_call(&self, call: &CallId, result: CallResult, took: Duration) -> Result<(), Sealed> {
        let mut facts = self.0.facts();
        if facts.draft.is_none() {
            return Err(Sealed);
        }
        let (took_us, at) = (Some(microseconds(took)), Some(self.0.rfc3339_now()));
        let result = CallResult { took_us, at, ..result };
        let event = ended(call.clone(), &result);
        self.0.put(&mut facts, Line::Finished { call: call.clone(), result });
        facts.calls.remove(call);
        self.0.emit(&mut facts, event);
        Ok(())
    }

    /// A call waits for a person from now on.
    ///
    /// # Errors
    /// [`Sealed`] once the stream is over: nobody is to be asked then.
    pub fn approval_requested(&self, row: &ApprovalRow) -> Result<(), Sealed> {
        self.write(|cell, facts| {
            let (id, call_id, tool) = (row.id.clone(), row.call_id.clone(), row.tool.clone());
            let (arguments, expires_at) = (row.arguments.clone(), row.expires_at.clone());
            cell.emit(facts, EventKind::ApprovalRequested { id, call_id, tool, arguments, expires_at });
        })
    }

    /// An approval is settled. Still allowed while the run is ending.
    pub fn approval_resolved(&self, id: &str, state: &ApprovalState) {
        let by = match state {
            ApprovalState::Allowed { by } | ApprovalState::Denied { by } => Some(by.clone()),
            ApprovalState::Pending | ApprovalState::TimedOut | ApprovalState::Cancelled => None,
        };
        let mut facts = self.0.facts();
        if facts.draft.is_some() {
            let (id, decision) = (id.to_owned(), state.word().to_owned());
            self.0.emit(&mut facts, EventKind::ApprovalResolved { id, decision, by });
        }
    }

    /// The run.
    #[must_use]
    pub fn run(&self) -> &NewRun {
        &self.0.run
    }

    /// The engine's clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    fn change(&self, line: Line) -> Result<(), Sealed> {
        let mut facts = self.0.facts();
        if facts.draft.is_none() {
            return Err(Sealed);
        }
        self.0.put(&mut facts, line);
        Ok(())
    }

    /// Writes what may only come while the stream is open.
    fn write(&self, write: impl FnOnce(&Cell, &mut Facts)) -> Result<(), Sealed> {
        let mut facts = self.0.facts();
        if facts.draft.is_none() || facts.feed.is_closed() {
            return Err(Sealed);
        }
        write(&self.0, &mut facts);
        Ok(())
    }
}

impl Cell {
    /// Does to the draft what the line says, and writes the line into the journal: one source for both.
    fn put(&self, facts: &mut Facts, line: Line) {
        if let Some(draft) = &mut facts.draft {
            draft.apply(&line);
        }
        self.page.write(line);
    }

    fn rfc3339_now(&self) -> String {
        self.clock.rfc3339(self.clock.now())
    }
}

/// Tokens of a streamed piece: providers send about one at a time, and a token is about four characters.
fn estimate(piece: &str) -> u64 {
    u64::try_from(piece.len().div_ceil(4)).unwrap_or(u64::MAX)
}
