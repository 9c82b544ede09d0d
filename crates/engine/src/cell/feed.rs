//! The events of one run: a ring of the newest, and followers that read it by cursor.
//!
//! The ring is bounded in bytes, so a reader can fall behind; it then gets one snapshot that stands for what it missed, and
//! goes on. Nobody waits for a reader, and no reader has a queue of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use quell_kernel::turn::TurnDraft;
use quell_protocol::event::SnapshotCall;
use quell_protocol::{EventKind, RunEvent};

use super::{Cell, Progress};

/// Bytes of events kept per run (decisions.md: a ring of 16 KiB).
const RING_BYTES: usize = 16 * 1024;
/// What an event costs besides its text, roughly.
const EVENT_BYTES: usize = 192;

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

fn weight(event: &RunEvent) -> usize {
    let text = match &event.kind {
        EventKind::TextDelta { text } | EventKind::ThinkingDelta { text } | EventKind::ToolOutput { text, .. } => {
            text.len()
        }
        EventKind::ToolEnded { output, .. } => output.len(),
        EventKind::ToolStarted { tool, .. } => tool.len() + 256,
        EventKind::Snapshot { text, thinking, .. } => text.len() + thinking.len(),
        EventKind::Ended { receipt, text, .. } => {
            text.as_ref().map_or(0, String::len) + 256 * (receipt.resources.len() + 1)
        }
        _ => 64,
    };
    EVENT_BYTES + text
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
        let (text, thinking, calls) = match &facts.draft {
            Some(draft) => (draft.partial_text().to_owned(), draft.partial_thinking().to_owned(), calls_of(draft)),
            None => (facts.output().unwrap_or_default(), String::new(), Vec::new()),
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

fn calls_of(draft: &TurnDraft) -> Vec<SnapshotCall> {
    draft.calls().map(|(id, tool, end)| SnapshotCall { call_id: id.clone(), tool: tool.to_owned(), end }).collect()
}

fn is_terminal(event: &RunEvent) -> bool {
    matches!(event.kind, EventKind::Ended { .. })
}
