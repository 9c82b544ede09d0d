//! Fetch events missing from limited timelines; newer events of the same room wait behind the gap.
//!
//! The missing events are fetched beside listening, because a homeserver may take long to find them. The newer events
//! of the room wait, so that everything is delivered in order.

use std::collections::{HashMap, VecDeque};

use futures_util::FutureExt;

use super::MatrixNetwork;
use super::events::MatrixEvent;
use super::limiter::TaskLimiter;
use crate::wire::call_error::CallError;

/// Largest number of pages fetched for one gap, with a hundred events each. Older events are skipped.
const MAX_GAP_PAGES: usize = 5;
/// Largest number of events of one room that wait behind its gap.
const MAX_WAITING_EVENTS: usize = 2_000;

pub(super) struct TimelineGaps<'a> {
    network: &'a MatrixNetwork,
    fill_tasks: TaskLimiter<'a, Result<GaplessEvents, CallError>>,
    /// Waiting events by room. Each room whose gap is being filled has an entry.
    waiting_by_room: HashMap<String, WaitingEvents>,
}

/// The tokens between which events are missing.
#[derive(Debug)]
pub(super) struct TimelineGap {
    /// Token before the first event of the poll.
    pub(super) end_token: String,
    /// Token from which the poll continued.
    pub(super) since_token: String,
}

/// Events that wait behind a gap, then further gaps with the events behind them.
#[derive(Default)]
struct WaitingEvents {
    newer_events: Vec<MatrixEvent>,
    further_gaps: VecDeque<(TimelineGap, Vec<MatrixEvent>)>,
}

/// Events of a room without a gap before or between them.
pub(super) struct GaplessEvents {
    pub(super) room: String,
    /// Membership events of the senders.
    pub(super) writer_memberships: Vec<MatrixEvent>,
    /// Oldest first.
    pub(super) events: Vec<MatrixEvent>,
}

impl<'a> TimelineGaps<'a> {
    pub(super) fn new(network: &'a MatrixNetwork) -> Self {
        Self { network, fill_tasks: TaskLimiter::new(), waiting_by_room: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting_by_room.is_empty()
    }

    /// Begins to fill a gap, and queues the events behind it.
    pub(super) fn open_gap(&mut self, room: &str, gap: TimelineGap, newer_events: Vec<MatrixEvent>) {
        match self.waiting_by_room.get_mut(room) {
            Some(waiting) if waiting.has_room_for(&newer_events) => waiting.further_gaps.push_back((gap, newer_events)),
            Some(_) => self.warn_events_dropped(room),
            None => {
                self.waiting_by_room
                    .insert(room.to_owned(), WaitingEvents { newer_events, further_gaps: VecDeque::new() });
                self.fill_tasks.push(fetch_missing_events(self.network, room.to_owned(), gap).boxed());
            }
        }
    }

    /// Queues new events of a room behind its gap. Returns them if the room has no gap.
    pub(super) fn queue_behind_gap(&mut self, room: &str, events: Vec<MatrixEvent>) -> Vec<MatrixEvent> {
        let Some(waiting) = self.waiting_by_room.get_mut(room) else { return events };
        if !waiting.has_room_for(&events) {
            self.warn_events_dropped(room);
            return Vec::new();
        }
        let last = waiting.further_gaps.back_mut().map_or(&mut waiting.newer_events, |(_, newer)| newer);
        last.extend(events);
        Vec::new()
    }

    /// The next events without a gap. Never returns if there is no gap.
    ///
    /// # Errors
    /// An error that ends the connection. The next connection finds the same gap.
    ///
    /// # Cancel safety
    /// Safe: the next call continues the running requests.
    pub(super) async fn next_gapless(&mut self) -> Result<GaplessEvents, CallError> {
        let mut gapless = self.fill_tasks.next_outcome().await?;
        let room = &gapless.room;
        let WaitingEvents { newer_events, mut further_gaps } = self.waiting_by_room.remove(room).unwrap_or_default();
        if let Some((gap, newer)) = further_gaps.pop_front() {
            self.waiting_by_room.insert(room.clone(), WaitingEvents { newer_events: newer, further_gaps });
            self.fill_tasks.push(fetch_missing_events(self.network, room.clone(), gap).boxed());
        }
        gapless.events.extend(newer_events);
        Ok(gapless)
    }

    fn warn_events_dropped(&self, room: &str) {
        tracing::warn!(channel = self.network.channel_name, room, "too many messages at once: some were skipped");
    }
}

impl WaitingEvents {
    fn has_room_for(&self, events: &[MatrixEvent]) -> bool {
        let waiting: usize = self.further_gaps.iter().map(|(_, newer)| newer.len()).sum();
        self.newer_events.len() + waiting + events.len() <= MAX_WAITING_EVENTS
    }
}

/// Fetches the missing events of a gap.
async fn fetch_missing_events(
    network: &MatrixNetwork,
    room: String,
    gap: TimelineGap,
) -> Result<GaplessEvents, CallError> {
    let TimelineGap { end_token: mut from, since_token: since } = gap;
    let (mut events, mut writer_memberships, mut is_complete) = (Vec::new(), Vec::new(), false);
    for _ in 0..MAX_GAP_PAGES {
        let page = match network.api.fetch_gap_page(&room, &from, &since).await {
            // A room that cannot be read any more must not end listening.
            Err(error @ (CallError::Refused { .. } | CallError::ServerError(_))) => {
                tracing::warn!(channel = network.channel_name, room, %error, "cannot fetch missing messages");
                break;
            }
            response => response?,
        };
        events.extend(page.chunk.parse());
        writer_memberships.extend(page.state.parse());
        match page.end {
            Some(end) if !page.chunk.is_empty() => from = end,
            _ => {
                is_complete = true;
                break;
            }
        }
    }
    if !is_complete {
        tracing::warn!(
            channel = network.channel_name,
            room,
            "too many messages were missed: the older ones were skipped"
        );
    }
    events.reverse();
    Ok(GaplessEvents { room, writer_memberships, events })
}
