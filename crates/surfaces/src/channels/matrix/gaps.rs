//! Rooms of which a poll has left something out. What is missing is asked for beside listening, because a homeserver may take long
//! to find it; what is newer in the same room waits behind it, so that everything is heard in its order.

use std::collections::{HashMap, VecDeque};

use futures_util::FutureExt;

use super::Matrix;
use super::events::Event;
use super::fault::Fault;
use super::few::Few;

/// Pages of missing messages of one gap, a hundred events each. What is older than that is not heard.
const MOST_PAGES: usize = 5;
/// So many events of one room wait behind its gap.
const MOST_BEHIND: usize = 2_000;

/// All gaps of one connection.
pub(super) struct Gaps<'a> {
    matrix: &'a Matrix,
    filling: Few<'a, Result<Filled, Fault>>,
    /// What waits, by room. Each room that is being filled has an entry.
    behind: HashMap<String, Behind>,
}

/// Between which places something is missing.
#[derive(Debug)]
pub(super) struct Gap {
    /// The place before what the poll has brought.
    pub(super) end: String,
    /// From where the poll went on.
    pub(super) since: String,
}

/// What waits behind a gap: events, and then further gaps with their events.
#[derive(Default)]
struct Behind {
    newer: Vec<Event>,
    further: VecDeque<(Gap, Vec<Event>)>,
}

/// What was missing in a room.
struct Filled {
    room: String,
    /// Memberships of those who have written.
    writers: Vec<Event>,
    /// In their order.
    missing: Vec<Event>,
}

/// A part of a room without gaps.
pub(super) struct Whole {
    pub(super) room: String,
    /// Memberships of those who have written.
    pub(super) writers: Vec<Event>,
    /// In their order.
    pub(super) events: Vec<Event>,
}

impl<'a> Gaps<'a> {
    pub(super) fn new(matrix: &'a Matrix) -> Self {
        Self { matrix, filling: Few::new(), behind: HashMap::new() }
    }

    /// Whether nothing is missing anywhere.
    pub(super) fn is_empty(&self) -> bool {
        self.behind.is_empty()
    }

    /// Takes in a room with a gap, and what comes after it.
    pub(super) fn open(&mut self, room: &str, gap: Gap, newer: Vec<Event>) {
        match self.behind.get_mut(room) {
            Some(behind) if behind.has_place_for(&newer) => behind.further.push_back((gap, newer)),
            Some(_) => self.too_much(room),
            None => {
                self.behind.insert(room.to_owned(), Behind { newer, further: VecDeque::new() });
                self.filling.push(fill(self.matrix, room.to_owned(), gap).boxed());
            }
        }
    }

    /// Takes in what is new in a room without a gap, and gives it back where nothing is missing before it.
    pub(super) fn after(&mut self, room: &str, events: Vec<Event>) -> Vec<Event> {
        let Some(behind) = self.behind.get_mut(room) else { return events };
        if !behind.has_place_for(&events) {
            self.too_much(room);
            return Vec::new();
        }
        let last = behind.further.back_mut().map_or(&mut behind.newer, |(_, newer)| newer);
        last.extend(events);
        Vec::new()
    }

    /// The next part that has become whole; never where nothing is missing.
    ///
    /// # Errors
    /// What ends the connection: the next one finds the same gap.
    ///
    /// # Cancel safety
    /// Safe: what was begun goes on at the next call.
    pub(super) async fn next(&mut self) -> Result<Whole, Fault> {
        let Filled { room, writers, missing } = self.filling.next().await?;
        let Behind { newer, mut further } = self.behind.remove(&room).unwrap_or_default();
        if let Some((gap, newer)) = further.pop_front() {
            self.behind.insert(room.clone(), Behind { newer, further });
            self.filling.push(fill(self.matrix, room.clone(), gap).boxed());
        }
        Ok(Whole { room, writers, events: missing.into_iter().chain(newer).collect() })
    }

    fn too_much(&self, room: &str) {
        tracing::warn!(
            channel = self.matrix.channel,
            room,
            "more is written than can be read: some of it was not heard"
        );
    }
}

impl Behind {
    fn has_place_for(&self, events: &[Event]) -> bool {
        let waiting: usize = self.further.iter().map(|(_, newer)| newer.len()).sum();
        self.newer.len() + waiting + events.len() <= MOST_BEHIND
    }
}

/// Asks for what is missing.
async fn fill(matrix: &Matrix, room: String, gap: Gap) -> Result<Filled, Fault> {
    let Gap { end: mut from, since } = gap;
    let (mut missing, mut writers, mut is_whole) = (Vec::new(), Vec::new(), false);
    for _ in 0..MOST_PAGES {
        let page = match matrix.api.gap(&room, &from, &since).await {
            // A room that cannot be read any more must not end all listening for good.
            Err(error @ (Fault::Refused { .. } | Fault::Failed(_))) => {
                tracing::warn!(channel = matrix.channel, room, %error, "missing messages cannot be asked for");
                break;
            }
            answer => answer?,
        };
        missing.extend(page.read());
        writers.extend(page.read_state());
        match page.end {
            Some(end) if !page.is_empty() => from = end,
            _ => {
                is_whole = true;
                break;
            }
        }
    }
    if !is_whole {
        tracing::warn!(channel = matrix.channel, room, "older messages that came while nobody listened were not heard");
    }
    missing.reverse();
    Ok(Filled { room, writers, missing })
}
