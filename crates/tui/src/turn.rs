//! The displayed content of one run, built from its events or from the stored history; independent of layout and style.

mod end;

use std::collections::HashMap;
use std::time::Duration;

use quell_client::text_format::{one_line, tool_call_label};
use quell_protocol::api::HistoryMessage;
use quell_protocol::event::SnapshotCall;
use quell_protocol::{AgentId, CallEnd, CallId, EventKind, RunId, Verdict};
use serde_json::Value;

use crate::unix_millis::UnixMillis;

pub(crate) use end::ChatTurnEnd;

const MAX_NAME_CHARS: usize = 60;
/// A label is cut further to the width of the screen.
const MAX_LABEL_CHARS: usize = 300;
/// The end of a call's output is kept up to this size in bytes; the daemon has more.
const MAX_OUTPUT_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct ChatTurn {
    pub(crate) blocks: Vec<TurnBlock>,
    pub(crate) activity: ChatRunActivity,
    pub(crate) end: Option<ChatTurnEnd>,
    /// The run cannot be followed any more and its end is unknown.
    lost: bool,
    /// Steered messages that wait for the next step.
    pub(crate) pending_steered: Vec<String>,
    /// Runs that it started in other agents, as far as known.
    pub(crate) sub_runs: Vec<ChatSubRun>,
    /// Index of the first block of the current step.
    step_start: usize,
    call_blocks: HashMap<CallId, usize>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum TurnBlock {
    Text {
        text: String,
        partial: TextCompleteness,
    },
    Thinking(String),
    Call(ChatToolCall),
    /// A message that was handed to the active run.
    Steered(String),
    /// Number of older turns that were summarised.
    Compacted(u32),
    /// What the provider has searched for by itself.
    WebSearch(String),
    /// The names of a model that failed and of the one that took over.
    ModelFallback {
        from: String,
        to: String,
    },
}

/// Whether a text is a whole answer or was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextCompleteness {
    Complete,
    /// Cut off; not known yet whether the model sees it.
    Cut,
    /// Cut off; the model does not see it.
    CutUnseen,
    /// Cut off; the model sees it.
    CutKept,
}

#[derive(Debug, PartialEq)]
pub(crate) struct ChatToolCall {
    pub(crate) tool: String,
    pub(crate) label: String,
    pub(crate) since: Option<UnixMillis>,
    pub(crate) end: Option<CallEnd>,
    pub(crate) ms: Option<f64>,
    pub(crate) output: String,
    /// Unified diffs of the files that the call changed.
    pub(crate) diff: String,
    /// Id of the approval that the call waits for.
    pub(crate) pending_approval: Option<String>,
    /// The call has not started, because it waits for others of the same message.
    pub(crate) waits_for_calls: bool,
    /// The tool has started, so side effects are possible.
    tool_started: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChatSubRun {
    pub(crate) run: RunId,
    pub(crate) agent: AgentId,
    pub(crate) since: UnixMillis,
    pub(crate) state: ChatSubRunState,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ChatSubRunState {
    /// Works for its parent; the text says what it does.
    Working(String),
    /// Its parent has ended; the sub-run continues in the background.
    InBackground,
    /// Its parent was stopped, and the sub-run with it; its end is not known yet.
    Stopped,
    /// Ended, with the text of its end.
    Ended(String),
}

impl ChatSubRun {
    /// Updates the state after the parent's end.
    fn parent_ended(&mut self, verdict: Option<&Verdict>) {
        if matches!(self.state, ChatSubRunState::Working(_)) {
            self.state = match verdict {
                Some(Verdict::Aborted { .. }) => ChatSubRunState::Stopped,
                _ => ChatSubRunState::InBackground,
            };
        }
    }

    /// True when its end is known.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, ChatSubRunState::Ended(_))
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum ChatRunActivity {
    #[default]
    Starting,
    WaitingForModel,
    Retrying(ModelRetryWait),
    Thinking,
    Answering,
    Tool(String),
    Approval(String),
    Ending,
}

/// A failed attempt of a model call, and the wait for the next one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelRetryWait {
    pub(crate) attempt: u32,
    pub(crate) attempts: u32,
    pub(crate) next_attempt_at: UnixMillis,
    pub(crate) reason: String,
}

impl ChatTurn {
    pub(crate) fn apply_event(&mut self, kind: &EventKind, now: UnixMillis) {
        match kind {
            EventKind::Queued { .. }
            | EventKind::Usage { .. }
            | EventKind::ApprovalUpdated { .. }
            | EventKind::SubRunApprovalRequested { .. }
            | EventKind::SubRunApprovalResolved { .. } => {}
            EventKind::Started { .. } => self.activity = ChatRunActivity::WaitingForModel,
            EventKind::StepStarted { .. } => {
                self.blocks.extend(self.pending_steered.drain(..).map(TurnBlock::Steered));
                self.step_start = self.blocks.len();
                self.activity = ChatRunActivity::WaitingForModel;
            }
            EventKind::TextDelta { text } => self.append_text(text),
            EventKind::ThinkingDelta { text } => self.append_thinking(text),
            EventKind::ToolWaiting { call_id, tool, arguments } => self.add_waiting_call(call_id, tool, arguments),
            EventKind::ToolStarted { call_id, tool, arguments } => self.start_call(call_id, tool, arguments, now),
            EventKind::ToolOutput { call_id, text, .. } => {
                self.call_mut(call_id).into_iter().for_each(|call| call.append_output(text));
            }
            EventKind::ToolEnded { call_id, end, output, diff, ms, .. } => {
                self.end_call(call_id, *end, output, Some(*ms));
                self.set_diff(call_id, diff.as_deref());
            }
            EventKind::ApprovalRequested { id, call_id, tool, arguments, .. } => {
                self.request_approval(id, call_id, tool, arguments, now);
            }
            EventKind::ApprovalResolved { id, .. } => self.resolve_approval(id),
            EventKind::Snapshot { text, thinking, calls, .. } => self.apply_snapshot(text, thinking, calls, now),
            EventKind::ModelRetry { attempt, attempts, delay_ms, reason } => {
                self.activity = ChatRunActivity::Retrying(ModelRetryWait {
                    attempt: *attempt,
                    attempts: *attempts,
                    next_attempt_at: now.plus(Duration::from_millis(*delay_ms)),
                    reason: one_line(reason, MAX_LABEL_CHARS),
                });
            }
            EventKind::ModelSearch { query } => {
                self.blocks.push(TurnBlock::WebSearch(one_line(query, MAX_LABEL_CHARS)));
            }
            EventKind::ModelFallback { from, to, .. } => {
                let [from, to] = [from, to].map(|name| one_line(name, MAX_LABEL_CHARS));
                self.blocks.push(TurnBlock::ModelFallback { from, to });
            }
            EventKind::Compacted { turns, .. } => self.blocks.push(TurnBlock::Compacted(*turns)),
            EventKind::Ending { .. } => self.activity = ChatRunActivity::Ending,
            EventKind::Ended { verdict, receipt, steps, text } => {
                let (verdict, receipt) = (verdict.clone(), Some((**receipt).clone()));
                self.end_turn(ChatTurnEnd { verdict, steps: Some(*steps), receipt }, text.as_deref());
            }
        }
    }

    /// All text of a step is one block, after one block with its thinking, as in the history.
    fn append_text(&mut self, added: &str) {
        self.activity = ChatRunActivity::Answering;
        let text = self.blocks[self.step_start..].iter_mut().find_map(|block| match block {
            TurnBlock::Text { text, .. } => Some(text),
            _ => None,
        });
        match text {
            Some(text) => text.push_str(added),
            None => self.blocks.push(TurnBlock::Text { text: added.to_owned(), partial: TextCompleteness::Complete }),
        }
    }

    fn append_thinking(&mut self, added: &str) {
        self.activity = ChatRunActivity::Thinking;
        let thinking = self.blocks[self.step_start..].iter_mut().find_map(|block| match block {
            TurnBlock::Thinking(text) => Some(text),
            _ => None,
        });
        match thinking {
            Some(text) => text.push_str(added),
            None => self.insert_thinking(added.to_owned()),
        }
    }

    /// Inserts thinking before the text of the step. Later blocks move by one, so the indexes of calls are updated.
    fn insert_thinking(&mut self, thinking: String) {
        let at = self.blocks[self.step_start..].iter().position(|block| matches!(block, TurnBlock::Text { .. }));
        let at = at.map_or(self.blocks.len(), |at| self.step_start + at);
        self.blocks.insert(at, TurnBlock::Thinking(thinking));
        self.call_blocks.values_mut().filter(|place| **place >= at).for_each(|place| *place += 1);
    }

    fn start_call(&mut self, id: &CallId, tool: &str, arguments: &Value, now: UnixMillis) {
        let tool = one_line(tool, MAX_NAME_CHARS);
        self.activity = ChatRunActivity::Tool(tool.clone());
        if let Some(call) = self.call_mut(id) {
            call.pending_approval = None;
            call.tool_started = true;
            call.waits_for_calls = false;
            call.label = tool_call_label(arguments, MAX_LABEL_CHARS);
            call.since = Some(now);
            return;
        }
        let call = ChatToolCall::new(tool, tool_call_label(arguments, MAX_LABEL_CHARS), Some(now));
        self.add_call(id, ChatToolCall { tool_started: true, ..call });
    }

    /// Adds a call that waits for others of the same message.
    fn add_waiting_call(&mut self, id: &CallId, tool: &str, arguments: &Value) {
        if self.call_mut(id).is_none() {
            let (tool, label) = (one_line(tool, MAX_NAME_CHARS), tool_call_label(arguments, MAX_LABEL_CHARS));
            self.add_call(id, ChatToolCall { waits_for_calls: true, ..ChatToolCall::new(tool, label, None) });
        }
    }

    fn add_call(&mut self, id: &CallId, call: ChatToolCall) {
        self.call_blocks.insert(id.clone(), self.blocks.len());
        self.blocks.push(TurnBlock::Call(call));
    }

    fn request_approval(&mut self, approval: &str, id: &CallId, tool: &str, arguments: &Value, now: UnixMillis) {
        if self.call_mut(id).is_none() {
            let (tool, label) = (one_line(tool, MAX_NAME_CHARS), tool_call_label(arguments, MAX_LABEL_CHARS));
            self.add_call(id, ChatToolCall::new(tool, label, Some(now)));
        }
        if let Some(call) = self.call_mut(id) {
            call.pending_approval = Some(approval.to_owned());
            call.waits_for_calls = false;
            call.since = call.since.or(Some(now));
        }
        self.activity = ChatRunActivity::Approval(one_line(tool, MAX_NAME_CHARS));
    }

    fn resolve_approval(&mut self, approval: &str) {
        for call in self.calls_mut().filter(|call| call.pending_approval.as_deref() == Some(approval)) {
            call.pending_approval = None;
        }
        if self.activity != ChatRunActivity::Ending {
            self.activity = self.current_activity();
        }
    }

    fn calls_mut(&mut self) -> impl Iterator<Item = &mut ChatToolCall> {
        self.blocks.iter_mut().filter_map(|block| match block {
            TurnBlock::Call(call) => Some(call),
            _ => None,
        })
    }

    fn call_mut(&mut self, id: &CallId) -> Option<&mut ChatToolCall> {
        match self.blocks.get_mut(*self.call_blocks.get(id)?)? {
            TurnBlock::Call(call) => Some(call),
            _ => None,
        }
    }

    fn end_call(&mut self, id: &CallId, end: CallEnd, output: &str, ms: Option<f64>) {
        if let Some(call) = self.call_mut(id) {
            call.end = Some(end);
            call.waits_for_calls = false;
            call.ms = ms;
            call.pending_approval = None;
            // The output that the model reads replaces what was streamed.
            call.output.clear();
            call.append_output(output);
        }
        if self.activity != ChatRunActivity::Ending {
            self.activity = self.current_activity();
        }
    }

    fn set_diff(&mut self, id: &CallId, diff: Option<&str>) {
        if let (Some(call), Some(diff)) = (self.call_mut(id), diff) {
            diff.clone_into(&mut call.diff);
        }
    }

    /// True if the run changed files.
    pub(crate) fn has_diffs(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, TurnBlock::Call(call) if !call.diff.is_empty()))
    }

    fn current_activity(&self) -> ChatRunActivity {
        let open = self.blocks.iter().find_map(|block| match block {
            TurnBlock::Call(call) if call.end.is_none() && !call.waits_for_calls => Some(call),
            _ => None,
        });
        match open {
            Some(call) if call.pending_approval.is_some() => ChatRunActivity::Approval(call.tool.clone()),
            Some(call) => ChatRunActivity::Tool(call.tool.clone()),
            None => ChatRunActivity::WaitingForModel,
        }
    }

    /// Applies missed data: the whole current step, and the calls of the whole run.
    fn apply_snapshot(&mut self, text: &str, thinking: &str, calls: &[SnapshotCall], now: UnixMillis) {
        let is_call = |block: &TurnBlock| matches!(block, TurnBlock::Call(_));
        if !self.blocks[self.step_start..].iter().any(is_call) {
            self.blocks.truncate(self.step_start);
        }
        for seen in calls {
            if self.call_mut(&seen.call_id).is_none() {
                let call = ChatToolCall::new(one_line(&seen.tool, MAX_NAME_CHARS), String::new(), Some(now));
                self.add_call(&seen.call_id, ChatToolCall { tool_started: !seen.waiting, ..call });
            }
            if let Some(call) = self.call_mut(&seen.call_id).filter(|call| call.end.is_none()) {
                call.end = seen.end;
                call.waits_for_calls = seen.waiting;
                if let Some(output) = &seen.output {
                    call.ms = seen.ms;
                    call.output.clear();
                    call.append_output(output);
                }
                if let Some(diff) = &seen.diff {
                    diff.clone_into(&mut call.diff);
                }
            }
        }
        let known = |block: &TurnBlock| matches!(block, TurnBlock::Text { text: shown, .. } if text.starts_with(shown.as_str()));
        if !thinking.is_empty() && !self.blocks[self.step_start..].iter().any(|b| matches!(b, TurnBlock::Thinking(_))) {
            self.insert_thinking(thinking.to_owned());
        }
        match self.blocks[self.step_start..].iter_mut().find(|block| known(block)) {
            Some(TurnBlock::Text { text: shown, .. }) => *shown = text.to_owned(),
            _ if text.is_empty() => {}
            _ => self.blocks.push(TurnBlock::Text { text: text.to_owned(), partial: TextCompleteness::Complete }),
        }
        self.activity = self.current_activity();
    }

    fn end_turn(&mut self, end: ChatTurnEnd, text: Option<&str>) {
        let is_call = |block: &TurnBlock| matches!(block, TurnBlock::Call(_));
        let cut = end.verdict != Verdict::Completed && !self.blocks[self.step_start..].iter().any(is_call);
        for block in &mut self.blocks[self.step_start..] {
            if let TurnBlock::Text { partial, .. } = block
                && cut
            {
                *partial = TextCompleteness::Cut;
            }
        }
        let shown =
            |block: &TurnBlock| matches!(block, TurnBlock::Text { text: shown, .. } if Some(shown.as_str()) == text);
        if let Some(text) = text.filter(|text| !text.is_empty())
            && !self.blocks.iter().any(shown)
        {
            // The end has the whole answer, including everything that was missed.
            self.blocks.truncate(self.blocks.iter().rposition(is_call).map_or(self.step_start, |at| at + 1));
            self.blocks.push(TurnBlock::Text { text: text.to_owned(), partial: TextCompleteness::Complete });
        }
        // A steered message that was not taken becomes a run of its own.
        self.pending_steered.clear();
        self.settle_open_parts(Some(&end.verdict));
        self.end = Some(end);
    }

    /// The run cannot be followed any more.
    pub(crate) fn mark_lost(&mut self) {
        self.lost = true;
        self.settle_open_parts(None);
    }

    /// Ends open calls and waits of an ended run, with the same ends as in the sealed turn.
    fn settle_open_parts(&mut self, verdict: Option<&Verdict>) {
        self.activity = ChatRunActivity::Ending;
        let cut_off = verdict.is_some_and(|verdict| *verdict != Verdict::Completed);
        for call in self.calls_mut() {
            call.pending_approval = None;
            call.since = None;
            call.waits_for_calls = false;
            if cut_off && call.end.is_none() {
                call.end = Some(if call.tool_started { CallEnd::Stopped } else { CallEnd::NotStarted });
            }
        }
        self.sub_runs.iter_mut().for_each(|below| below.parent_ended(verdict));
    }

    /// True until the run has ended or is lost.
    pub(crate) fn is_live(&self) -> bool {
        self.end.is_none() && !self.lost
    }

    /// Adds or updates a sub-run. A known end is final.
    pub(crate) fn upsert_sub_run(&mut self, mut seen: ChatSubRun) {
        if !self.is_live() {
            seen.parent_ended(self.end.as_ref().map(|end| &end.verdict));
        }
        match self.sub_runs.iter_mut().find(|known| known.run == seen.run) {
            Some(known) if known.has_ended() => {}
            Some(known) => *known = seen,
            None => self.sub_runs.push(seen),
        }
    }

    /// True when a text was cut off and it is not known yet whether the model sees it.
    pub(crate) fn has_undecided_cut(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, TurnBlock::Text { partial: TextCompleteness::Cut, .. }))
    }

    /// Sets whether the model sees the text that was cut off, as the history says.
    pub(crate) fn resolve_cut(&mut self, seen: TextCompleteness) {
        for block in &mut self.blocks {
            if let TurnBlock::Text { partial, .. } = block
                && *partial == TextCompleteness::Cut
            {
                *partial = seen;
            }
        }
    }

    /// Applies the next stored message of the run.
    pub(crate) fn apply_stored_message(&mut self, message: &HistoryMessage) {
        match message.role.as_str() {
            "assistant" => {
                if !message.thinking.is_empty() {
                    self.blocks.push(TurnBlock::Thinking(message.thinking.clone()));
                }
                if !message.text.is_empty() {
                    let partial = completeness_of(message);
                    self.blocks.push(TurnBlock::Text { text: message.text.clone(), partial });
                }
                for call in &message.calls {
                    let Ok(id) = CallId::parse(&call.id) else { continue };
                    let label = tool_call_label(&call.arguments, MAX_LABEL_CHARS);
                    self.add_call(&id, ChatToolCall::new(one_line(&call.tool, MAX_NAME_CHARS), label, None));
                }
            }
            "tool" => {
                let id = message.call_id.as_deref().and_then(|id| CallId::parse(id).ok());
                if let Some(call) = id.and_then(|id| self.call_mut(&id)) {
                    call.append_output(&message.text);
                    call.diff = message.diff.clone().unwrap_or_default();
                    call.end = message.end.or(call.end);
                    call.ms = message.ms.or(call.ms);
                }
            }
            _ => {}
        }
        if let Some(verdict) = &message.verdict {
            self.end = Some(ChatTurnEnd { verdict: verdict.clone(), steps: None, receipt: None });
        }
    }
}

/// Whether a stored text was cut off, and whether the model sees it.
pub(crate) fn completeness_of(message: &HistoryMessage) -> TextCompleteness {
    match (message.partial, message.kept) {
        (true, _) => TextCompleteness::CutUnseen,
        (false, true) => TextCompleteness::CutKept,
        (false, false) => TextCompleteness::Complete,
    }
}

impl ChatToolCall {
    fn new(tool: String, label: String, since: Option<UnixMillis>) -> Self {
        Self {
            tool,
            label,
            since,
            end: None,
            ms: None,
            output: String::new(),
            diff: String::new(),
            pending_approval: None,
            waits_for_calls: false,
            tool_started: false,
        }
    }

    /// True for a to-do list.
    pub(crate) fn is_plan(&self) -> bool {
        self.tool == "todo" && self.end == Some(CallEnd::Ok)
    }

    /// How many lines of files were added and removed; `None` if no file was changed.
    pub(crate) fn changed_lines(&self) -> Option<String> {
        if self.diff.is_empty() {
            return None;
        }
        let count = |mark: char, head: &str| {
            self.diff.lines().filter(|line| line.starts_with(mark) && !line.starts_with(head)).count()
        };
        Some(format!("+{} -{}", count('+', "+++ "), count('-', "--- ")))
    }

    fn append_output(&mut self, text: &str) {
        // A carriage return at the beginning replaces the open line: progress output.
        let line = text.strip_prefix('\r').unwrap_or(text);
        if line.len() < text.len() {
            self.output.truncate(self.output.rfind('\n').map_or(0, |at| at + 1));
        }
        self.output.push_str(line);
        if self.output.len() > MAX_OUTPUT_BYTES {
            let from = self.output.len() - MAX_OUTPUT_BYTES;
            let from = (from..self.output.len()).find(|at| self.output.is_char_boundary(*at)).unwrap_or(0);
            self.output.drain(..from);
        }
    }
}

#[cfg(test)]
mod tests;
