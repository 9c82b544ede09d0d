//! What one run looks like to a person: made from its events or from the stored history. It knows nothing of rows and colours.

mod end;

use std::collections::HashMap;
use std::time::Duration;

use quell_protocol::api::HistoryMessage;
use quell_protocol::event::SnapshotCall;
use quell_protocol::{AgentId, CallEnd, CallId, EventKind, RunId, ToolOutputStream, Verdict};
use serde_json::Value;

use super::clock::Moment;
use crate::words::{call_label, one_line};

pub(super) use end::End;

/// Longer names of tools are cut.
const MOST_NAME: usize = 60;
/// A label is cut again to the width of the screen.
const MOST_LABEL: usize = 300;
/// Of a call's output the last of this is kept; the daemon has more.
const MOST_OUTPUT: usize = 64 << 10;

/// What the assistant did in one run.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) blocks: Vec<Block>,
    pub(super) doing: Doing,
    pub(super) end: Option<End>,
    /// Nothing more can be learnt of it, and how it ended is not known.
    lost: bool,
    /// Messages that were handed to it and wait for its next step.
    pub(super) steered: Vec<String>,
    /// What it started in other agents, as far as it is known.
    pub(super) below: Vec<Below>,
    /// Number of the first block of the current step.
    step_from: usize,
    calls: HashMap<CallId, usize>,
}

/// A part of a turn.
#[derive(Debug, PartialEq)]
pub(super) enum Block {
    Text {
        text: String,
        partial: Partial,
    },
    Thinking(String),
    Call(Call),
    /// A message that was handed to the running run.
    Steered(String),
    /// Older turns were summarised.
    Compacted(u32),
}

/// Whether a text is an answer or was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Partial {
    No,
    /// Cut off; whether the model sees it is not known yet.
    Cut,
    /// Cut off, and the model does not see it.
    Unseen,
    /// Cut off, and the model sees it.
    Kept,
}

/// A tool call.
#[derive(Debug, PartialEq)]
pub(super) struct Call {
    pub(super) tool: String,
    pub(super) label: String,
    pub(super) since: Option<Moment>,
    pub(super) end: Option<CallEnd>,
    pub(super) ms: Option<f64>,
    pub(super) output: String,
    /// The approval that it waits for.
    pub(super) asking: Option<String>,
    /// Its tool has started: side effects are possible.
    begun: bool,
}

/// A run that this one started.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Below {
    pub(super) run: RunId,
    pub(super) agent: AgentId,
    pub(super) since: Moment,
    pub(super) state: BelowState,
}

/// How a run below another one stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum BelowState {
    /// At work for its parent, with what it does.
    Working(String),
    /// Its parent is over; it goes on in the background.
    Behind,
    /// Its parent was stopped, and it with it; how it ended is not known yet.
    Stopped,
    /// Over, with how it ended.
    Over(String),
}

impl Below {
    /// Its parent is over.
    fn leave(&mut self, verdict: Option<&Verdict>) {
        if matches!(self.state, BelowState::Working(_)) {
            self.state = match verdict {
                Some(Verdict::Aborted { .. }) => BelowState::Stopped,
                _ => BelowState::Behind,
            };
        }
    }

    /// True when its end is known.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, BelowState::Over(_))
    }
}

/// What a run does now.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Doing {
    #[default]
    Starting,
    Waiting,
    Retrying(Retry),
    Thinking,
    Answering,
    Tool(String),
    Approval(String),
    Ending,
}

/// An attempt of a model call that failed, and the wait for the next one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Retry {
    pub(super) attempt: u32,
    pub(super) attempts: u32,
    /// When the next one begins.
    pub(super) next: Moment,
    pub(super) why: String,
}

impl Turn {
    /// Takes the next event of the run.
    pub(super) fn take(&mut self, kind: &EventKind, now: Moment) {
        match kind {
            EventKind::Queued { .. } | EventKind::Usage { .. } => {}
            EventKind::Started { .. } => self.doing = Doing::Waiting,
            EventKind::StepStarted { .. } => {
                self.blocks.extend(self.steered.drain(..).map(Block::Steered));
                self.step_from = self.blocks.len();
                self.doing = Doing::Waiting;
            }
            EventKind::TextDelta { text } => self.add_text(text),
            EventKind::ThinkingDelta { text } => self.add_thinking(text),
            EventKind::ToolStarted { call_id, tool, arguments } => self.call(call_id, tool, arguments, now),
            EventKind::ToolOutput { call_id, stream, text } => self.output(call_id, *stream, text),
            EventKind::ToolEnded { call_id, end, output, ms, .. } => self.call_over(call_id, *end, output, Some(*ms)),
            EventKind::ApprovalRequested { id, call_id, tool, arguments, .. } => {
                self.asks((id, call_id), tool, arguments, now);
            }
            EventKind::ApprovalResolved { id, .. } => self.answered(id),
            EventKind::Snapshot { text, thinking, calls } => self.catch_up((text, thinking), calls, now),
            EventKind::ModelRetry { attempt, attempts, delay_ms, reason } => {
                let next = now.plus(Duration::from_millis(*delay_ms));
                let why = one_line(reason, MOST_LABEL);
                self.doing = Doing::Retrying(Retry { attempt: *attempt, attempts: *attempts, next, why });
            }
            EventKind::Compacted { turns, .. } => self.blocks.push(Block::Compacted(*turns)),
            EventKind::Ending { .. } => self.doing = Doing::Ending,
            EventKind::Ended { verdict, receipt, steps, text } => {
                self.close(End::of(verdict.clone(), receipt, *steps), text.as_deref());
            }
        }
    }

    /// All text of a step is one block, and all its thinking one before it, as in the history.
    fn add_text(&mut self, added: &str) {
        self.doing = Doing::Answering;
        let text = self.blocks[self.step_from..].iter_mut().find_map(|block| match block {
            Block::Text { text, .. } => Some(text),
            _ => None,
        });
        match text {
            Some(text) => text.push_str(added),
            None => self.blocks.push(Block::Text { text: added.to_owned(), partial: Partial::No }),
        }
    }

    fn add_thinking(&mut self, added: &str) {
        self.doing = Doing::Thinking;
        let of_step = &mut self.blocks[self.step_from..];
        match of_step.iter_mut().find_map(|block| match block {
            Block::Thinking(text) => Some(text),
            _ => None,
        }) {
            Some(text) => text.push_str(added),
            None => self.insert_thinking(added.to_owned()),
        }
    }

    /// Before what the step has said so far. Calls come behind their message, so that none changes its place by that.
    fn insert_thinking(&mut self, thinking: String) {
        let at = self.blocks[self.step_from..].iter().position(|block| matches!(block, Block::Text { .. }));
        let at = at.map_or(self.blocks.len(), |at| self.step_from + at);
        self.blocks.insert(at, Block::Thinking(thinking));
        self.calls.values_mut().filter(|place| **place >= at).for_each(|place| *place += 1);
    }

    fn call(&mut self, id: &CallId, tool: &str, arguments: &Value, now: Moment) {
        let tool = one_line(tool, MOST_NAME);
        self.doing = Doing::Tool(tool.clone());
        if let Some(call) = self.call_mut(id) {
            call.asking = None;
            call.begun = true;
            call.label = call_label(arguments, MOST_LABEL);
            call.since = Some(now);
            return;
        }
        let call = Call::new(tool, call_label(arguments, MOST_LABEL), Some(now));
        self.add_call(id, Call { begun: true, ..call });
    }

    fn add_call(&mut self, id: &CallId, call: Call) {
        self.calls.insert(id.clone(), self.blocks.len());
        self.blocks.push(Block::Call(call));
    }

    fn asks(&mut self, (approval, id): (&str, &CallId), tool: &str, arguments: &Value, now: Moment) {
        if self.call_mut(id).is_none() {
            self.add_call(id, Call::new(one_line(tool, MOST_NAME), call_label(arguments, MOST_LABEL), Some(now)));
        }
        if let Some(call) = self.call_mut(id) {
            call.asking = Some(approval.to_owned());
        }
        self.doing = Doing::Approval(one_line(tool, MOST_NAME));
    }

    fn answered(&mut self, approval: &str) {
        for call in self.calls_mut().filter(|call| call.asking.as_deref() == Some(approval)) {
            call.asking = None;
        }
        if self.doing != Doing::Ending {
            self.doing = self.next_doing();
        }
    }

    fn calls_mut(&mut self) -> impl Iterator<Item = &mut Call> {
        self.blocks.iter_mut().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            _ => None,
        })
    }

    fn call_mut(&mut self, id: &CallId) -> Option<&mut Call> {
        match self.blocks.get_mut(*self.calls.get(id)?)? {
            Block::Call(call) => Some(call),
            _ => None,
        }
    }

    fn output(&mut self, id: &CallId, _stream: ToolOutputStream, text: &str) {
        if let Some(call) = self.call_mut(id) {
            call.print(text);
        }
    }

    fn call_over(&mut self, id: &CallId, end: CallEnd, output: &str, ms: Option<f64>) {
        if let Some(call) = self.call_mut(id) {
            call.end = Some(end);
            call.ms = ms;
            call.asking = None;
            // What the model reads is the last word about what was printed.
            call.output.clear();
            call.print(output);
        }
        if self.doing != Doing::Ending {
            self.doing = self.next_doing();
        }
    }

    fn next_doing(&self) -> Doing {
        let open = self.blocks.iter().find_map(|block| match block {
            Block::Call(call) if call.end.is_none() => Some(call),
            _ => None,
        });
        match open {
            Some(call) if call.asking.is_some() => Doing::Approval(call.tool.clone()),
            Some(call) => Doing::Tool(call.tool.clone()),
            None => Doing::Waiting,
        }
    }

    /// Takes in what was missed: everything of the current step, and the calls of the whole run.
    fn catch_up(&mut self, (text, thinking): (&str, &str), calls: &[SnapshotCall], now: Moment) {
        let is_call = |block: &Block| matches!(block, Block::Call(_));
        if !self.blocks[self.step_from..].iter().any(is_call) {
            self.blocks.truncate(self.step_from);
        }
        for seen in calls {
            if self.call_mut(&seen.call_id).is_none() {
                let call = Call::new(one_line(&seen.tool, MOST_NAME), String::new(), Some(now));
                self.add_call(&seen.call_id, Call { begun: true, ..call });
            }
            if let Some(call) = self.call_mut(&seen.call_id).filter(|call| call.end.is_none()) {
                call.end = seen.end;
                if let Some(output) = &seen.output {
                    call.ms = seen.ms;
                    call.output.clear();
                    call.print(output);
                }
            }
        }
        let known =
            |block: &Block| matches!(block, Block::Text { text: shown, .. } if text.starts_with(shown.as_str()));
        if !thinking.is_empty() && !self.blocks[self.step_from..].iter().any(|b| matches!(b, Block::Thinking(_))) {
            self.insert_thinking(thinking.to_owned());
        }
        match self.blocks[self.step_from..].iter_mut().find(|block| known(block)) {
            Some(Block::Text { text: shown, .. }) => *shown = text.to_owned(),
            _ if text.is_empty() => {}
            _ => self.blocks.push(Block::Text { text: text.to_owned(), partial: Partial::No }),
        }
        self.doing = self.next_doing();
    }

    fn close(&mut self, end: End, text: Option<&str>) {
        let is_call = |block: &Block| matches!(block, Block::Call(_));
        let cut = end.verdict != Verdict::Completed && !self.blocks[self.step_from..].iter().any(is_call);
        for block in &mut self.blocks[self.step_from..] {
            if let Block::Text { partial, .. } = block
                && cut
            {
                *partial = Partial::Cut;
            }
        }
        let shown = |block: &Block| matches!(block, Block::Text { text: shown, .. } if Some(shown.as_str()) == text);
        if let Some(text) = text.filter(|text| !text.is_empty())
            && !self.blocks.iter().any(shown)
        {
            // The end knows the whole answer; whatever was missed of it before is in here.
            self.blocks.truncate(self.blocks.iter().rposition(is_call).map_or(self.step_from, |at| at + 1));
            self.blocks.push(Block::Text { text: text.to_owned(), partial: Partial::No });
        }
        // A message that was not taken becomes a run of its own.
        self.steered.clear();
        self.settle(Some(&end.verdict));
        self.end = Some(end);
    }

    /// Nothing more can be learnt of the run.
    pub(super) fn lose(&mut self) {
        self.lost = true;
        self.settle(None);
    }

    /// Nothing of a run that is over goes on or waits. The words are those of the sealed turn.
    fn settle(&mut self, verdict: Option<&Verdict>) {
        self.doing = Doing::Ending;
        let cut_off = verdict.is_some_and(|verdict| *verdict != Verdict::Completed);
        for call in self.calls_mut() {
            call.asking = None;
            call.since = None;
            if cut_off && call.end.is_none() {
                call.end = Some(if call.begun { CallEnd::Stopped } else { CallEnd::NotStarted });
            }
        }
        self.below.iter_mut().for_each(|below| below.leave(verdict));
    }

    /// True until its end, or until nothing more can be learnt of it.
    pub(super) fn is_live(&self) -> bool {
        self.end.is_none() && !self.lost
    }

    /// Notes a run below it, or what that does now. Its end is the last that is said of it.
    pub(super) fn put_below(&mut self, mut seen: Below) {
        if !self.is_live() {
            seen.leave(self.end.as_ref().map(|end| &end.verdict));
        }
        match self.below.iter_mut().find(|known| known.run == seen.run) {
            Some(known) if known.is_over() => {}
            Some(known) => *known = seen,
            None => self.below.push(seen),
        }
    }

    /// True when a text was cut off and nobody has said yet whether the model sees it.
    pub(super) fn wonders(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, Block::Text { partial: Partial::Cut, .. }))
    }

    /// Learns from the history whether the model sees what was cut off.
    pub(super) fn learn(&mut self, seen: Partial) {
        for block in &mut self.blocks {
            if let Block::Text { partial, .. } = block
                && *partial == Partial::Cut
            {
                *partial = seen;
            }
        }
    }

    /// Takes the next message of the run from the history.
    pub(super) fn recall(&mut self, message: &HistoryMessage) {
        match message.role.as_str() {
            "assistant" => {
                if !message.thinking.is_empty() {
                    self.blocks.push(Block::Thinking(message.thinking.clone()));
                }
                if !message.text.is_empty() {
                    let partial = partial_of(message);
                    self.blocks.push(Block::Text { text: message.text.clone(), partial });
                }
                for call in &message.calls {
                    let Ok(id) = CallId::parse(&call.id) else { continue };
                    let label = call_label(&call.arguments, MOST_LABEL);
                    self.add_call(&id, Call::new(one_line(&call.tool, MOST_NAME), label, None));
                }
            }
            "tool" => {
                let id = message.call_id.as_deref().and_then(|id| CallId::parse(id).ok());
                if let Some(call) = id.and_then(|id| self.call_mut(&id)) {
                    call.print(&message.text);
                    call.end = message.end.or(call.end);
                    call.ms = message.ms.or(call.ms);
                }
            }
            _ => {}
        }
        if let Some(verdict) = &message.verdict {
            self.end = Some(End {
                verdict: verdict.clone(),
                steps: None,
                receipt: None,
                amended: Vec::new(),
                unsettled: false,
                leftovers: false,
            });
        }
    }
}

/// Whether a stored text was cut off, and whether the model sees it.
pub(super) fn partial_of(message: &HistoryMessage) -> Partial {
    match (message.partial, message.kept) {
        (true, _) => Partial::Unseen,
        (false, true) => Partial::Kept,
        (false, false) => Partial::No,
    }
}

impl Call {
    fn new(tool: String, label: String, since: Option<Moment>) -> Self {
        Self { tool, label, since, end: None, ms: None, output: String::new(), asking: None, begun: false }
    }

    fn print(&mut self, text: &str) {
        // A return at the beginning takes back the line that is open: progress.
        let line = text.strip_prefix('\r').unwrap_or(text);
        if line.len() < text.len() {
            self.output.truncate(self.output.rfind('\n').map_or(0, |at| at + 1));
        }
        self.output.push_str(line);
        if self.output.len() > MOST_OUTPUT {
            let from = self.output.len() - MOST_OUTPUT;
            let from = (from..self.output.len()).find(|at| self.output.is_char_boundary(*at)).unwrap_or(0);
            self.output.drain(..from);
        }
    }
}

#[cfg(test)]
mod tests;
