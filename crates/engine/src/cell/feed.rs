//! The events of one run: a ring of the newest, and followers that read it by cursor.
//!
//! The ring is bounded in bytes, so a reader can fall behind; it then gets one snapshot that stands for what it missed, and
//! goes on. Nobody waits for a reader, and no reader has a queue of its own. No event counts for more than a quarter of the
//! ring: a reader is never behind because one event was large.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quell_kernel::turn::{CallResult, with_ends};
use quell_protocol::event::SnapshotCall;
use quell_protocol::{CallId, EventKind, RunEvent};

use super::{Cell, Progress};

/// Bytes of events kept per run (decisions.md: a ring of 16 KiB).
const RING_BYTES: usize = 16 * 1024;
/// What an event costs besides its text, roughly.
const EVENT_BYTES: usize = 192;
/// The most that one event counts for. Output of tools is cut to so many bytes. Text of the model, arguments and receipts are
/// told whole: their run holds them anyway.
const MOST_EVENT_BYTES: usize = RING_BYTES / 4 - EVENT_BYTES;
/// The most that the outputs of all calls in a snapshot have together, as long as that leaves each its ends.
const SNAPSHOT_OUTPUT: usize = 64 * 1024;
/// What each call in a snapshot has at least, bytes.
const LEAST_OUTPUT: usize = 256;

#[derive(Default)]
pub(super) struct Feed {
    ring: VecDeque<Arc<RunEvent>>,
    bytes: usize,
    seq: u64,
    closed: bool,
}

impl Feed {
    pub(super) fn last_seq(&self) -> u64 {
        self.seq
    }

    /// From now on deltas and tool starts are refused by the pen.
    pub(super) fn close_stream(&mut self) {
        self.closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn push(&mut self, event: Arc<RunEvent>) {
        self.seq = event.seq;
        self.bytes += weight(&event);
        self.ring.push_back(event);
        while self.bytes > RING_BYTES && self.ring.len() > 1 {
            if let Some(old) = self.ring.pop_front() {
                self.bytes -= weight(&old);
            }
        }
    }

    fn after(&self, seq: u64) -> Next {
        let Some(oldest) = self.ring.front() else { return Next::Nothing };
        if seq >= self.seq {
            return Next::Nothing;
        }
        if seq + 1 < oldest.seq {
            return Next::Missed;
        }
        let at = usize::try_from(seq + 1 - oldest.seq).unwrap_or(usize::MAX);
        self.ring.get(at).map_or(Next::Nothing, |event| Next::Event(Arc::clone(event)))
    }

    fn last(&self) -> Option<Arc<RunEvent>> {
        self.ring.back().cloned()
    }
}

enum Next {
    Event(Arc<RunEvent>),
    Missed,
    Nothing,
}

/// Output of a tool as an event tells it.
pub(super) fn cut(output: &str) -> String {
    with_ends(output, MOST_EVENT_BYTES - 64).into_owned()
}

/// The end of a call as an event.
pub(super) fn ended(call_id: CallId, result: &CallResult) -> EventKind {
    let (end, code, ms) = (result.end, result.code, result.ms().unwrap_or_default());
    EventKind::ToolEnded { call_id, end, code, output: cut(&result.output), ms }
}

pub(super) fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn weight(event: &RunEvent) -> usize {
    let text = match &event.kind {
        EventKind::TextDelta { text } | EventKind::ThinkingDelta { text } | EventKind::ToolOutput { text, .. } => {
            text.len()
        }
        EventKind::ToolEnded { output, .. } => output.len(),
        EventKind::ToolStarted { tool, .. } => tool.len() + 256,
        EventKind::ModelRetry { reason, .. } => reason.len(),
        EventKind::Snapshot { text, thinking, .. } => text.len() + thinking.len(),
        EventKind::Ended { receipt, text, .. } => {
            text.as_ref().map_or(0, String::len) + 256 * (receipt.resources.len() + 1)
        }
        _ => 64,
    };
    EVENT_BYTES + text.min(MOST_EVENT_BYTES)
}

/// A reader of one run's events.
#[derive(Debug)]
pub struct Follower {
    cell: Arc<Cell>,
    after: u64,
    over: bool,
}

impl Follower {
    pub(super) fn new(cell: Arc<Cell>, after: u64) -> Self {
        let over = false;
        Self { cell, after, over }
    }

    /// The next event; `None` after the terminal one, and when the run is over without one because another run took its
    /// message over. A cursor beyond the end gets the terminal event again, so that a client always learns of it.
    ///
    /// # Cancel safety
    /// Safe: the cursor moves only when an event is handed out.
    pub async fn next(&mut self) -> Option<Arc<RunEvent>> {
        if self.over {
            return None;
        }
        let mut seq = self.cell.seq.subscribe();
        loop {
            seq.borrow_and_update();
            if let Some(event) = self.take() {
                return Some(event);
            }
            // The senders live in the cell, which this follower holds. Both arms only wait.
            tokio::select! {
                _ = seq.changed() => {}
                () = self.cell.reached(Progress::Ended) => return self.take(),
            }
        }
    }

    /// The next event if it is there already.
    pub fn take(&mut self) -> Option<Arc<RunEvent>> {
        if self.over {
            return None;
        }
        let facts = self.cell.facts();
        let event = match facts.feed.after(self.after) {
            Next::Event(event) => event,
            Next::Missed => Arc::new(self.snapshot(&facts)),
            Next::Nothing => facts.feed.last().filter(|last| is_terminal(last) && self.after >= last.seq)?,
        };
        drop(facts);
        self.after = self.after.max(event.seq);
        self.over = is_terminal(&event);
        Some(event)
    }

    /// The run.
    #[must_use]
    pub fn cell(&self) -> &Arc<Cell> {
        &self.cell
    }

    /// Stands for everything up to just before the oldest event that is kept, or up to the last event when the run is over.
    fn snapshot(&self, facts: &super::Facts) -> RunEvent {
        let oldest = facts.feed.ring.front().map_or(facts.feed.seq, |event| event.seq);
        let (text, thinking) = match &facts.draft {
            Some(draft) => (draft.partial_text().to_owned(), draft.partial_thinking().to_owned()),
            None => (facts.output().unwrap_or_default(), String::new()),
        };
        let calls = match (&facts.draft, &facts.sealed) {
            (Some(draft), _) => shown(draft.results()),
            (None, Some(turn)) => shown(turn.results().map(|(id, tool, result)| (id, tool, Some(result)))),
            (None, None) => Vec::new(),
        };
        // The draft holds the newest text, which the kept deltas would repeat: skip to the last event that is kept, unless
        // what is kept tells the end.
        let last_delta = facts.feed.ring.iter().rev().find(|event| event.kind.is_delta()).map_or(0, |event| event.seq);
        RunEvent {
            run_id: self.cell.run.id.clone(),
            session_key: self.cell.run.session.clone(),
            seq: last_delta.max(oldest.saturating_sub(1)).max(self.after + 1),
            at: self.cell.clock.rfc3339(self.cell.clock.now()),
            kind: EventKind::Snapshot { text, thinking, calls },
        }
    }
}

/// The calls of a run in a snapshot: the more there are, the less of the output of each.
fn shown<'a>(calls: impl Iterator<Item = (&'a CallId, &'a str, Option<&'a CallResult>)>) -> Vec<SnapshotCall> {
    let calls: Vec<_> = calls.collect();
    let most = (SNAPSHOT_OUTPUT / calls.len().max(1)).clamp(LEAST_OUTPUT, MOST_EVENT_BYTES - 64);
    let call = |(id, tool, result): (&CallId, &str, Option<&CallResult>)| SnapshotCall {
        call_id: id.clone(),
        tool: tool.to_owned(),
        end: result.map(|result| result.end),
        code: result.and_then(|result| result.code),
        ms: result.and_then(CallResult::ms),
        output: result.map(|result| with_ends(&result.output, most).into_owned()),
    };
    calls.into_iter().map(call).collect()
}

fn is_terminal(event: &RunEvent) -> bool {
    matches!(event.kind, EventKind::Ended { .. })
}
