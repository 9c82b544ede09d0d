//! Bounded ring of a run's newest events, and followers that read it by cursor.
//!
//! The ring is bounded in bytes, so a reader can fall behind. It then gets one snapshot instead of the events that it
//! missed, and continues. Nothing waits for a reader, and no reader has a queue of its own. No event counts for more
//! than a quarter of the ring, so that one large event alone cannot make a reader fall behind.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quell_kernel::turn::{CallResult, StreamedText, keep_both_ends};
use quell_protocol::approval::ApprovalRow;
use quell_protocol::event::SnapshotCall;
use quell_protocol::{CallId, EventKind, RunEvent};
use tokio::sync::watch;

use super::{LiveRun, RunProgress};

/// Bytes of events kept per run.
const RING_BYTES: usize = 16 * 1024;
/// Estimated size of an event without its text, bytes.
const EVENT_OVERHEAD_BYTES: usize = 192;
/// The most bytes that one event counts for. Tool output is cut to this size. Model text, arguments and receipts are
/// sent whole: the run holds them in memory anyway.
const MAX_EVENT_BYTES: usize = RING_BYTES / 4 - EVENT_OVERHEAD_BYTES;
/// The last line of a diff that is cut.
const CUT_DIFF_NOTE: &str = "[cut here: the history of the session has all of it]\n";
/// The most bytes of all tool outputs in a snapshot together, unless each call is at its minimum.
const MAX_SNAPSHOT_OUTPUT_BYTES: usize = 64 * 1024;
/// The least output of each call in a snapshot, bytes.
const MIN_CALL_OUTPUT_BYTES: usize = 256;

#[derive(Default)]
pub(super) struct RunEventRing {
    ring: VecDeque<Arc<RunEvent>>,
    bytes: usize,
    last_seq: u64,
    stream_closed: bool,
}

impl RunEventRing {
    pub(super) fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// From now on the [`RunWriter`](super::RunWriter) refuses deltas and tool starts.
    pub(super) fn close_stream(&mut self) {
        self.stream_closed = true;
    }

    pub(super) fn is_stream_closed(&self) -> bool {
        self.stream_closed
    }

    pub(super) fn push(&mut self, event: Arc<RunEvent>) {
        self.last_seq = event.seq;
        self.bytes += event_bytes(&event);
        self.ring.push_back(event);
        while self.bytes > RING_BYTES && self.ring.len() > 1 {
            if let Some(old) = self.ring.pop_front() {
                self.bytes -= event_bytes(&old);
            }
        }
    }

    fn next_after(&self, seq: u64) -> NextEvent {
        let Some(oldest) = self.ring.front() else { return NextEvent::UpToDate };
        if seq >= self.last_seq {
            return NextEvent::UpToDate;
        }
        if seq + 1 < oldest.seq {
            return NextEvent::Evicted;
        }
        let at = usize::try_from(seq + 1 - oldest.seq).unwrap_or(usize::MAX);
        self.ring.get(at).map_or(NextEvent::UpToDate, |event| NextEvent::Event(Arc::clone(event)))
    }

    fn last_event(&self) -> Option<Arc<RunEvent>> {
        self.ring.back().cloned()
    }
}

enum NextEvent {
    Event(Arc<RunEvent>),
    Evicted,
    UpToDate,
}

/// Cuts tool output to the size of an event.
pub(super) fn truncate_output(output: &str) -> String {
    keep_both_ends(output, MAX_EVENT_BYTES - 64).into_owned()
}

/// Builds the event for the end of a call.
pub(super) fn tool_ended_event(call_id: CallId, result: &CallResult) -> EventKind {
    let (end, code, ms) = (result.end, result.code, result.duration_ms().unwrap_or_default());
    // Together they are no longer than an output may be.
    let diff_bytes = result.diff.as_ref().map_or(0, |diff| diff.len().min(MAX_EVENT_BYTES / 2));
    let output = keep_both_ends(&result.output, MAX_EVENT_BYTES - 64 - diff_bytes).into_owned();
    let diff = result.diff.as_ref().map(|diff| shorten_diff(diff, diff_bytes));
    EventKind::ToolEnded { call_id, end, code, output, diff, ms }
}

/// The beginning of a diff, in whole lines.
fn shorten_diff(diff: &str, max_bytes: usize) -> String {
    if diff.len() <= max_bytes {
        return diff.to_owned();
    }
    let kept = &diff[..diff.floor_char_boundary(max_bytes.saturating_sub(CUT_DIFF_NOTE.len()))];
    format!("{}{CUT_DIFF_NOTE}", kept.rfind('\n').map_or("", |end| &kept[..=end]))
}

pub(super) fn whole_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn event_bytes(event: &RunEvent) -> usize {
    let text = match &event.kind {
        EventKind::TextDelta { text } | EventKind::ThinkingDelta { text } | EventKind::ToolOutput { text, .. } => {
            text.len()
        }
        EventKind::ToolEnded { output, diff, .. } => output.len() + diff.as_ref().map_or(0, String::len),
        EventKind::ToolStarted { tool, .. } | EventKind::ToolWaiting { tool, .. } => tool.len() + 256,
        EventKind::SubRunApprovalRequested { .. } | EventKind::SubRunApprovalResolved { .. } => 512,
        EventKind::ModelSearch { query } => query.len(),
        EventKind::ModelRetry { reason, .. } | EventKind::ModelFallback { reason, .. } => reason.len(),
        EventKind::Snapshot { earlier_text, text, thinking, .. } => earlier_text.len() + text.len() + thinking.len(),
        EventKind::Ended { receipt, text, .. } => {
            text.as_ref().map_or(0, String::len) + 256 * (receipt.resources.len() + 1)
        }
        _ => 64,
    };
    EVENT_OVERHEAD_BYTES + text.min(MAX_EVENT_BYTES)
}

#[derive(Debug)]
pub struct Follower {
    live_run: Arc<LiveRun>,
    /// Changes with each event. Both are kept from one event to the next, which is cheaper than new ones.
    seq: watch::Receiver<u64>,
    progress: watch::Receiver<RunProgress>,
    last_seen_seq: u64,
    is_finished: bool,
}

async fn wait_ended(progress: &mut watch::Receiver<RunProgress>) {
    let _ = progress.wait_for(|now| *now >= RunProgress::Ended).await;
}

impl Follower {
    pub(super) fn new(live_run: Arc<LiveRun>, last_seen_seq: u64) -> Self {
        let (seq, progress) = (live_run.seq.subscribe(), live_run.progress.subscribe());
        Self { live_run, seq, progress, last_seen_seq, is_finished: false }
    }

    /// The next event. `None` after the terminal event, and also if the run ended without one because another run took
    /// its message over. A cursor beyond the end gets the terminal event again, so that a client always receives it.
    ///
    /// # Cancel safety
    /// Safe: the cursor moves only when an event is returned.
    pub async fn next(&mut self) -> Option<Arc<RunEvent>> {
        if self.is_finished {
            return None;
        }
        loop {
            self.seq.borrow_and_update();
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            // The senders live in the live run, which this follower holds. Both arms only wait.
            tokio::select! {
                _ = self.seq.changed() => {}
                () = wait_ended(&mut self.progress) => return self.try_next(),
            }
        }
    }

    pub fn try_next(&mut self) -> Option<Arc<RunEvent>> {
        if self.is_finished {
            return None;
        }
        let state = self.live_run.lock_state();
        let event = match state.events.next_after(self.last_seen_seq) {
            NextEvent::Event(event) => event,
            NextEvent::Evicted => Arc::new(self.build_snapshot(&state)),
            NextEvent::UpToDate => {
                state.events.last_event().filter(|last| is_terminal(last) && self.last_seen_seq >= last.seq)?
            }
        };
        drop(state);
        self.last_seen_seq = self.last_seen_seq.max(event.seq);
        self.is_finished = is_terminal(&event);
        Some(event)
    }

    pub fn last_seen_seq(&self) -> u64 {
        self.last_seen_seq
    }

    pub fn live_run(&self) -> &Arc<LiveRun> {
        &self.live_run
    }

    /// Builds a snapshot that replaces all events before the oldest kept one, or up to the last event if the run is
    /// over.
    fn build_snapshot(&self, state: &super::LiveRunState) -> RunEvent {
        let oldest = state.events.ring.front().map_or(state.events.last_seq, |event| event.seq);
        let known = self.live_run.known_messages();
        let (text, thinking) = match (&state.draft, &state.sealed_turn) {
            (Some(draft), _) => (draft.streamed_text(known, state.step_start), draft.partial_thinking().to_owned()),
            (None, Some(turn)) => (turn.streamed_text(known, state.step_start), String::new()),
            (None, None) => (StreamedText::default(), String::new()),
        };
        let calls = match (&state.draft, &state.sealed_turn) {
            (Some(draft), _) => snapshot_calls(draft.results()),
            (None, Some(turn)) => snapshot_calls(turn.results().map(|(id, tool, result)| (id, tool, Some(result)))),
            (None, None) => Vec::new(),
        };
        let is_waiting = |id: &CallId| state.waiting_calls.contains(id);
        let calls = calls.into_iter().map(|call| SnapshotCall { waiting: is_waiting(&call.call_id), ..call }).collect();
        // The draft holds the newest text, which the kept deltas would repeat: skip to the last kept delta.
        let last_delta =
            state.events.ring.iter().rev().find(|event| event.kind.is_delta()).map_or(0, |event| event.seq);
        let seq = last_delta.max(oldest.saturating_sub(1)).max(self.last_seen_seq + 1);
        RunEvent {
            run_id: self.live_run.run.id.clone(),
            session_key: self.live_run.run.session.clone(),
            seq,
            at: self.live_run.clock.rfc3339(self.live_run.clock.now()),
            kind: EventKind::Snapshot {
                earlier_text: text.earlier,
                text: text.step,
                thinking,
                calls,
                approvals: snapshot_approvals(state, seq),
            },
        }
    }
}

/// The approvals that wait, without those whose announcement follows the snapshot. None once the turn is sealed: the run
/// waits for nobody then.
fn snapshot_approvals(state: &super::LiveRunState, seq: u64) -> Vec<ApprovalRow> {
    let waiting = state.pending_approvals.values().filter(|pending| state.draft.is_some() && pending.seq <= seq);
    waiting.map(|pending| pending.row.clone()).collect()
}

/// The calls of a run for a snapshot: the more calls, the less output of each.
fn snapshot_calls<'a>(calls: impl Iterator<Item = (&'a CallId, &'a str, Option<&'a CallResult>)>) -> Vec<SnapshotCall> {
    let calls: Vec<_> = calls.collect();
    let max_bytes = (MAX_SNAPSHOT_OUTPUT_BYTES / calls.len().max(1)).clamp(MIN_CALL_OUTPUT_BYTES, MAX_EVENT_BYTES - 64);
    let call = |(id, tool, result): (&CallId, &str, Option<&CallResult>)| SnapshotCall {
        call_id: id.clone(),
        tool: tool.to_owned(),
        waiting: false,
        end: result.map(|result| result.end),
        code: result.and_then(|result| result.code),
        ms: result.and_then(CallResult::duration_ms),
        output: result.map(|result| keep_both_ends(&result.output, max_bytes).into_owned()),
        diff: result.and_then(|result| result.diff.as_ref()).map(|diff| shorten_diff(diff, max_bytes)),
    };
    calls.into_iter().map(call).collect()
}

fn is_terminal(event: &RunEvent) -> bool {
    matches!(event.kind, EventKind::Ended { .. })
}
