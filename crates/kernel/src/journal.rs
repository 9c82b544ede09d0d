//! Lines of the run journal, the buffer that merges them before a write, and the replay after a crash.
//!
//! The lines rebuild the draft of a turn, and a rebuilt draft is sealed like any other. So stop, failure and crash
//! share one way to end a turn.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use quell_protocol::{CallId, Usage, Verdict};
use serde::{Deserialize, Serialize};

use crate::turn::{AssistantMessage, CallResult, Compaction, HeadTailBuffer, TurnDraft};

/// Maximum time that text may wait to be written together with later text (docs/design/decisions.md, "Journal, crash,
/// hold").
pub const TEXT_MAX_DELAY: Duration = Duration::from_millis(250);
/// Number of bytes of model text that is written without further delay (same section).
pub const TEXT_FLUSH_BYTES: usize = 4 * 1024;
/// Maximum time that a fact may wait. Most runs that end within it have their whole turn written and need no line.
const FACT_MAX_DELAY: Duration = Duration::from_millis(20);
/// Maximum time that further output of a call may wait: its row is written again with all the output that is kept.
const REWRITE_MAX_DELAY: Duration = Duration::from_secs(1);
/// Number of event numbers that are reserved at a time: far more than a run can send before a line is written.
const SEQ_BLOCK_SIZE: u64 = 65_536;

/// One change in the life of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum JournalLine {
    /// A steered message was added to the turn.
    User {
        text: String,
        /// Time at which the message came, RFC 3339.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// The user's message was changed before the model read it: by a hook, or because files came with it.
    Asked {
        /// The message as the model reads it.
        text: String,
    },
    /// The answer was changed before it was shown.
    Answered {
        /// The answer as it is shown.
        text: String,
    },
    Text {
        text: String,
    },
    Thinking {
        text: String,
    },
    Message {
        /// The message, with the call ids as the provider sent them.
        message: AssistantMessage,
    },
    /// A call is about to start. From here on side effects are possible.
    Began {
        call: CallId,
        /// Time of the start, RFC 3339. Lines of older daemons do not have it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    Printed {
        call: CallId,
        /// The output; of a large amount only head and tail.
        text: String,
    },
    Finished {
        call: CallId,
        result: CallResult,
    },
    /// A summary replaces old turns from now on.
    Compacted {
        compaction: Compaction,
    },
    Step {
        /// The number of the step, from 1.
        step: u32,
    },
    /// Tokens of the run so far, with an estimate of the model request that is active.
    Spent {
        usage: Usage,
    },
    /// Events with numbers up to this one may have been sent.
    Numbers {
        until: u64,
    },
    /// The run has its verdict and is ending.
    Ending {
        verdict: Verdict,
        /// Time at which the stop was requested, RFC 3339, if there was a stop.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested_at: Option<String>,
    },
}

impl JournalLine {
    /// Maximum time that the line may wait to be written.
    pub fn max_delay(&self) -> Duration {
        match self {
            Self::Began { .. } => Duration::ZERO,
            Self::Text { .. }
            | Self::Thinking { .. }
            | Self::Printed { .. }
            | Self::Step { .. }
            | Self::Spent { .. } => TEXT_MAX_DELAY,
            Self::User { .. }
            | Self::Asked { .. }
            | Self::Answered { .. }
            | Self::Message { .. }
            | Self::Finished { .. }
            | Self::Compacted { .. }
            | Self::Numbers { .. }
            | Self::Ending { .. } => FACT_MAX_DELAY,
        }
    }
}

impl TurnDraft {
    /// Applies the line to the draft. Lines that do not concern the draft change nothing.
    pub fn apply(&mut self, line: &JournalLine) {
        match line {
            JournalLine::User { text, at } => self.add_user(text.clone(), at.clone()),
            JournalLine::Asked { text } => self.replace_question(text.clone()),
            JournalLine::Answered { text } => self.replace_answer(text.clone()),
            JournalLine::Text { text } => self.push_text(text),
            JournalLine::Thinking { text } => self.push_thinking(text),
            JournalLine::Message { message } => drop(self.finish_message(message.clone())),
            JournalLine::Began { call, .. } => self.begin_call(call),
            JournalLine::Printed { call, text } => self.append_output(call, text),
            JournalLine::Finished { call, result } => self.finish_call(call, result.clone()),
            JournalLine::Compacted { compaction } => self.set_compaction(compaction.clone()),
            JournalLine::Step { .. }
            | JournalLine::Spent { .. }
            | JournalLine::Numbers { .. }
            | JournalLine::Ending { .. } => {}
        }
    }
}

/// Buffer of lines that wait to be written, with their row numbers. It merges pieces of one text, and numbers that only
/// grow. The output of a call has one row, which is replaced as the output grows and finally by the result. So a call
/// that prints without end takes no more space than its draft.
#[derive(Debug, Clone, Default)]
pub struct JournalBuffer {
    rows: Vec<(u32, JournalLine)>,
    printing: BTreeMap<CallId, PrintingCall>,
    text_bytes: usize,
    next_row: u32,
}

#[derive(Debug, Clone, Default)]
struct PrintingCall {
    output: HeadTailBuffer,
    /// The number of the call's row, once it has one.
    row: Option<u32>,
    /// True if the row lacks some of the output.
    is_dirty: bool,
}

impl JournalBuffer {
    /// Adds a line. Returns the maximum time that it may wait.
    pub fn push(&mut self, line: JournalLine) -> Duration {
        let max_delay = line.max_delay();
        match (line, self.rows.last_mut()) {
            (JournalLine::Printed { call, text }, _) => {
                let printing = self.printing.entry(call).or_default();
                printing.output.push(&text);
                printing.is_dirty = true;
                return if printing.row.is_some() { REWRITE_MAX_DELAY } else { max_delay };
            }
            (JournalLine::Finished { call, result }, _) => {
                let row = self.printing.remove(&call).and_then(|printing| printing.row);
                let row = row.unwrap_or_else(|| take_row_number(&mut self.next_row));
                self.rows.push((row, JournalLine::Finished { call, result }));
            }
            (JournalLine::Text { text }, Some((_, JournalLine::Text { text: before })))
            | (JournalLine::Thinking { text }, Some((_, JournalLine::Thinking { text: before }))) => {
                self.text_bytes += text.len();
                before.push_str(&text);
            }
            (JournalLine::Spent { usage }, Some((_, JournalLine::Spent { usage: before }))) => *before = usage,
            (line, _) => {
                if let JournalLine::Text { text } | JournalLine::Thinking { text } = &line {
                    self.text_bytes += text.len();
                }
                self.rows.push((take_row_number(&mut self.next_row), line));
            }
        }
        if self.text_bytes >= TEXT_FLUSH_BYTES { Duration::ZERO } else { max_delay }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && !self.printing.values().any(|printing| printing.is_dirty)
    }

    /// Takes all lines with their row numbers. A row whose number was taken before replaces the stored row.
    pub fn take_rows(&mut self) -> Vec<(u32, JournalLine)> {
        self.text_bytes = 0;
        let mut rows = std::mem::take(&mut self.rows);
        for (call, printing) in self.printing.iter_mut().filter(|(_, printing)| printing.is_dirty) {
            printing.is_dirty = false;
            let row = *printing.row.get_or_insert_with(|| take_row_number(&mut self.next_row));
            rows.push((row, JournalLine::Printed { call: call.clone(), text: printing.output.text() }));
        }
        rows
    }
}

fn take_row_number(next: &mut u32) -> u32 {
    *next += 1;
    *next - 1
}

/// Event numbers that a run may use before its journal needs another line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqReservation(u64);

impl Default for SeqReservation {
    /// Every run owns the first block.
    fn default() -> Self {
        Self(SEQ_BLOCK_SIZE)
    }
}

impl SeqReservation {
    /// Records that an event has this number. Returns the line to write when the block runs out.
    pub fn reserve_through(&mut self, seq: u64) -> Option<JournalLine> {
        if seq + SEQ_BLOCK_SIZE / 2 < self.0 {
            return None;
        }
        self.0 += SEQ_BLOCK_SIZE;
        Some(JournalLine::Numbers { until: self.0 })
    }

    /// A number above all event numbers, given that the number `seen` was used. The journal lines are deleted with the
    /// turn; then `seen` is the only known number.
    pub fn first_unused_after(self, seen: u64) -> u64 {
        self.0.max(seen.saturating_add(SEQ_BLOCK_SIZE)) + 1
    }
}

/// State of a run that was rebuilt from its lines.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayedRun {
    pub draft: TurnDraft,
    /// Number of steps that had begun.
    pub steps: u32,
    pub usage: Usage,
    /// The numbers that events may have had.
    pub seq_reservation: SeqReservation,
    /// The verdict and the time at which the stop was requested, if the run was ending.
    pub ending: Option<(Verdict, Option<String>)>,
    /// The step whose model request was active.
    pub pending_model_step: Option<u32>,
    /// Start times of calls, as far as they are known.
    pub call_started_at: BTreeMap<CallId, String>,
    /// True if the run had started. A run that is withdrawn from the queue ends as well, and leaves no turn.
    pub has_started: bool,
}

impl ReplayedRun {
    /// Replays the lines of a run on the draft that it began with, in the order in which they were written.
    #[must_use]
    pub fn replay(draft: TurnDraft, lines: impl IntoIterator<Item = JournalLine>) -> Self {
        let mut replayed = Self {
            draft,
            steps: 0,
            usage: Usage::default(),
            seq_reservation: SeqReservation::default(),
            ending: None,
            pending_model_step: None,
            call_started_at: BTreeMap::new(),
            has_started: false,
        };
        for line in lines {
            replayed.has_started |= !matches!(line, JournalLine::Ending { .. } | JournalLine::Numbers { .. });
            replayed.draft.apply(&line);
            match line {
                JournalLine::Step { step } => (replayed.steps, replayed.pending_model_step) = (step, Some(step)),
                JournalLine::Message { .. } => replayed.pending_model_step = None,
                JournalLine::Spent { usage } => replayed.usage = usage,
                JournalLine::Numbers { until } => replayed.seq_reservation = SeqReservation(until),
                JournalLine::Began { call, at: Some(at) } => drop(replayed.call_started_at.insert(call, at)),
                JournalLine::Ending { verdict, requested_at } => replayed.ending = Some((verdict, requested_at)),
                _ => {}
            }
        }
        replayed
    }
}
