//! The journal of a run at work: what its draft goes through, as lines that another daemon can fold after a crash.
//!
//! One algebra for stop, failure and crash: the lines rebuild the draft, and the draft is sealed like any other.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use quell_protocol::{CallId, RunId, Usage, Verdict};
use serde::{Deserialize, Serialize};

use crate::turn::{AssistantMessage, CallResult, Clipped, Compaction, TurnDraft};

/// How long text may wait to be written together with what follows it (decisions.md, "Journal, crash, hold").
pub const TEXT_WAITS: Duration = Duration::from_millis(250);
/// Bytes of the model's text that do not wait any longer (decisions.md, the same place).
pub const TEXT_BYTES: usize = 4 * 1024;
/// How long a fact may wait. Most runs that are stopped or done have their whole turn written before that, and then need no
/// line.
const FACT_WAITS: Duration = Duration::from_millis(20);
/// How long further output of a call may wait: its row is written anew with all that is kept of it.
const REWRITE_WAITS: Duration = Duration::from_secs(1);
/// How many event numbers are reserved at a time: far more than a run can tell before a line is written.
const NUMBERS: u64 = 65_536;

/// One thing that happened to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// A steered message joined the turn.
    User {
        /// The message.
        text: String,
        /// RFC 3339: when it came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// The user's message was changed before the model read it: a hook did, or files came with it.
    Asked {
        /// The message as the model reads it.
        text: String,
    },
    /// The answer was changed before it was shown.
    Answered {
        /// The answer as it is shown.
        text: String,
    },
    /// Visible text streamed in.
    Text {
        /// The text.
        text: String,
    },
    /// Reasoning streamed in.
    Thinking {
        /// The reasoning.
        text: String,
    },
    /// The model's message is complete.
    Message {
        /// The message, with the ids of calls as they came.
        message: AssistantMessage,
    },
    /// A call is about to start: from here on side effects are possible.
    Began {
        /// Its id.
        call: CallId,
        /// RFC 3339: when; lines of older daemons do not say it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// A running call printed something.
    Printed {
        /// The id of the call.
        call: CallId,
        /// What it printed; of a flood head and tail.
        text: String,
    },
    /// A call is over.
    Finished {
        /// Its id.
        call: CallId,
        /// Its result.
        result: CallResult,
    },
    /// A summary stands in for old turns from now on.
    Compacted {
        /// The summary.
        compaction: Compaction,
    },
    /// A step began.
    Step {
        /// Its number, from 1.
        step: u32,
    },
    /// Tokens of the run so far, an estimate of the call that is out included.
    Spent {
        /// The tokens.
        usage: Usage,
    },
    /// Events up to this number may have been told.
    Numbers {
        /// The number.
        until: u64,
    },
    /// The verdict stands.
    Ending {
        /// The verdict.
        verdict: Verdict,
        /// RFC 3339: when the stop was asked for, if one was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested_at: Option<String>,
    },
}

impl Line {
    /// How long it may wait to be written.
    #[must_use]
    pub fn patience(&self) -> Duration {
        match self {
            Self::Began { .. } => Duration::ZERO,
            Self::Text { .. }
            | Self::Thinking { .. }
            | Self::Printed { .. }
            | Self::Step { .. }
            | Self::Spent { .. } => TEXT_WAITS,
            Self::User { .. }
            | Self::Asked { .. }
            | Self::Answered { .. }
            | Self::Message { .. }
            | Self::Finished { .. }
            | Self::Compacted { .. }
            | Self::Numbers { .. }
            | Self::Ending { .. } => FACT_WAITS,
        }
    }
}

impl TurnDraft {
    /// Does to the draft what the line says. Lines that say nothing about the draft change nothing.
    pub fn apply(&mut self, line: &Line) {
        match line {
            Line::User { text, at } => self.add_user(text.clone(), at.clone()),
            Line::Asked { text } => self.ask_instead(text.clone()),
            Line::Answered { text } => self.answer_instead(text.clone()),
            Line::Text { text } => self.push_text(text),
            Line::Thinking { text } => self.push_thinking(text),
            Line::Message { message } => drop(self.finish_message(message.clone())),
            Line::Began { call, .. } => self.begin_call(call),
            Line::Printed { call, text } => self.append_output(call, text),
            Line::Finished { call, result } => self.finish_call(call, result.clone()),
            Line::Compacted { compaction } => self.compact(compaction.clone()),
            Line::Step { .. } | Line::Spent { .. } | Line::Numbers { .. } | Line::Ending { .. } => {}
        }
    }
}

/// Lines that wait to be written, and the numbers of their rows. What can be said in one line is: pieces of one text, and
/// numbers that only grow. What a call prints has one row, which is written anew and is the result's in the end: a call that
/// prints for ever costs no more room than its draft.
#[derive(Debug, Clone, Default)]
pub struct Waiting {
    rows: Vec<(u32, Line)>,
    /// Calls at work that have printed.
    printing: BTreeMap<CallId, Printing>,
    text: usize,
    /// The number of the next row.
    next: u32,
}

#[derive(Debug, Clone, Default)]
struct Printing {
    output: Clipped,
    /// The row, once it is written.
    row: Option<u32>,
    /// The row does not say all of it.
    news: bool,
}

impl Waiting {
    /// Adds a line. Answers how long it may wait.
    pub fn push(&mut self, line: Line) -> Duration {
        let patience = line.patience();
        match (line, self.rows.last_mut()) {
            (Line::Printed { call, text }, _) => {
                let printing = self.printing.entry(call).or_default();
                printing.output.push(&text);
                printing.news = true;
                return if printing.row.is_some() { REWRITE_WAITS } else { patience };
            }
            (Line::Finished { call, result }, _) => {
                let row = self.printing.remove(&call).and_then(|printing| printing.row);
                let row = row.unwrap_or_else(|| number(&mut self.next));
                self.rows.push((row, Line::Finished { call, result }));
            }
            (Line::Text { text }, Some((_, Line::Text { text: before })))
            | (Line::Thinking { text }, Some((_, Line::Thinking { text: before }))) => {
                self.text += text.len();
                before.push_str(&text);
            }
            (Line::Spent { usage }, Some((_, Line::Spent { usage: before }))) => *before = usage,
            (line, _) => {
                if let Line::Text { text } | Line::Thinking { text } = &line {
                    self.text += text.len();
                }
                self.rows.push((number(&mut self.next), line));
            }
        }
        if self.text >= TEXT_BYTES { Duration::ZERO } else { patience }
    }

    /// True when nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && !self.printing.values().any(|printing| printing.news)
    }

    /// Takes everything, each line with the number of its row. One that was taken before is to be replaced.
    pub fn take(&mut self) -> Vec<(u32, Line)> {
        self.text = 0;
        let mut rows = std::mem::take(&mut self.rows);
        for (call, printing) in self.printing.iter_mut().filter(|(_, printing)| printing.news) {
            printing.news = false;
            let row = *printing.row.get_or_insert_with(|| number(&mut self.next));
            rows.push((row, Line::Printed { call: call.clone(), text: printing.output.text() }));
        }
        rows
    }
}

fn number(next: &mut u32) -> u32 {
    *next += 1;
    *next - 1
}

/// Which event numbers a run may use without a further line in its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers(u64);

impl Default for Numbers {
    /// The first block belongs to every run.
    fn default() -> Self {
        Self(NUMBERS)
    }
}

impl Numbers {
    /// An event has this number. Answers the line to write when the block runs out.
    pub fn used(&mut self, seq: u64) -> Option<Line> {
        if seq + NUMBERS / 2 < self.0 {
            return None;
        }
        self.0 += NUMBERS;
        Some(Line::Numbers { until: self.0 })
    }

    /// No event has been told with a higher number.
    #[must_use]
    pub fn until(self) -> u64 {
        self.0
    }

    /// A number above all that events may have had, where one is known to have had `seen`: the lines go with the turn, and
    /// then that number is all there is.
    #[must_use]
    pub fn beyond(self, seen: u64) -> u64 {
        self.0.max(seen.saturating_add(NUMBERS)) + 1
    }
}

/// What the lines of a run say of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Folded {
    /// The turn as far as it had come.
    pub draft: TurnDraft,
    /// Steps that had begun.
    pub steps: u32,
    /// Tokens so far.
    pub usage: Usage,
    /// The numbers that events may have had.
    pub numbers: Numbers,
    /// The verdict and when the stop was asked for, if the run was ending.
    pub ending: Option<(Verdict, Option<String>)>,
    /// The step whose model call was out.
    pub asking: Option<u32>,
    /// When calls began, as far as that is known.
    pub began: BTreeMap<CallId, String>,
    /// It had begun to work: a run that is withdrawn from its queue ends as well, and leaves no turn.
    pub at_work: bool,
}

impl Folded {
    /// Folds the lines of a run that began with this message, in the order in which they were written.
    #[must_use]
    pub fn of(run: RunId, user: String, lines: impl IntoIterator<Item = Line>) -> Self {
        Self::onto(TurnDraft::new(run, user), lines)
    }

    /// Folds the lines of a run into the draft that it began with, in the order in which they were written.
    #[must_use]
    pub fn onto(draft: TurnDraft, lines: impl IntoIterator<Item = Line>) -> Self {
        let (usage, numbers) = (Usage::default(), Numbers::default());
        let began = BTreeMap::new();
        let mut folded = Self { draft, steps: 0, usage, numbers, ending: None, asking: None, began, at_work: false };
        for line in lines {
            folded.at_work |= !matches!(line, Line::Ending { .. } | Line::Numbers { .. });
            folded.draft.apply(&line);
            match line {
                Line::Step { step } => (folded.steps, folded.asking) = (step, Some(step)),
                Line::Message { .. } => folded.asking = None,
                Line::Spent { usage } => folded.usage = usage,
                Line::Numbers { until } => folded.numbers = Numbers(until),
                Line::Began { call, at: Some(at) } => drop(folded.began.insert(call, at)),
                Line::Ending { verdict, requested_at } => folded.ending = Some((verdict, requested_at)),
                _ => {}
            }
        }
        folded
    }
}
