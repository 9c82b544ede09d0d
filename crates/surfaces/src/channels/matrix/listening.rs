//! Listening: one look at all rooms, then one long poll after the other.
//!
//! The first look says which rooms there are and how many are in each, and names the place from which a new account goes on, so that
//! nothing from before is answered. Each poll's messages are heard as soon as it is read. While the next one waits, chores are done and
//! the place is kept.

use std::convert::Infallible;
use std::pin::pin;

use futures_util::{StreamExt, stream};

use super::Matrix;
use super::chores::{Chore, Chores, Keeper};
use super::events::{Event, Invited, Membership, Sync};
use super::fault::Fault;
use super::hearing::{Hearing, begin};
use super::rooms::Rooms;
use crate::channels::seam::{Ear, Lost, Own};

/// Rooms whose missing messages are fetched at a time.
const MOST_GAPS_AT_A_TIME: usize = 4;
/// Pages of missing messages of one room, a hundred events each. What is older than that is not heard.
const MOST_GAP_PAGES: usize = 5;

/// Listens until the connection is lost.
pub(super) async fn listen(matrix: &Matrix, ear: &dyn Ear) -> Lost {
    let Err(fault) = hear_all(matrix, ear).await;
    fault.into_lost()
}

async fn hear_all(matrix: &Matrix, ear: &dyn Ear) -> Result<Infallible, Fault> {
    let own = matrix.introduce().await?;
    let survey = matrix.api.survey().await?;
    let mut listening = Listening {
        matrix,
        ear,
        own: own.clone(),
        rooms: Rooms::default(),
        chores: Chores::new(matrix),
        keeper: Keeper::new(ear),
    };
    listening.survey(&survey);
    let mut since = match ear.cursor().await {
        Some(cursor) => cursor,
        None => listening.start_now(&survey),
    };
    ear.connected(own);
    // The server may not know a place that was kept long ago, or by another server; after the first poll it is its own.
    let first = match listening.poll(&since).await {
        Err(Fault::Refused { code, why }) => {
            tracing::warn!(
                channel = matrix.channel,
                code,
                why,
                "messages from before cannot be asked for: it goes on from now"
            );
            since = listening.start_now(&survey);
            listening.poll(&since).await?
        }
        answer => answer?,
    };
    listening.take(&since, &first).await?;
    since = first.next_batch;
    loop {
        let news = listening.poll(&since).await?;
        listening.take(&since, &news).await?;
        since = news.next_batch;
    }
}

/// One connection.
struct Listening<'a> {
    matrix: &'a Matrix,
    ear: &'a dyn Ear,
    own: Own,
    rooms: Rooms,
    chores: Chores<'a>,
    keeper: Keeper<'a>,
}

/// A room of which a poll has left something out.
struct Gap {
    room: String,
    /// Where the missing messages end.
    end: String,
    /// What comes after them.
    newer: Vec<Event>,
}

/// The same room with nothing left out.
struct Filled {
    room: String,
    /// Memberships of those who have written.
    writers: Vec<Event>,
    /// All that is new, in its order.
    events: Vec<Event>,
}

impl Listening<'_> {
    fn survey(&mut self, survey: &Sync) {
        for (id, joined) in &survey.rooms.join {
            self.rooms.learn(id, joined);
        }
        self.take_invitations(survey);
        for room in self.matrix.settings.join.iter().filter(|room| !self.rooms.contains(room)) {
            self.chores.add(Chore::Join(room.clone()));
        }
    }

    fn start_now(&mut self, survey: &Sync) -> String {
        self.keeper.keep(&survey.next_batch);
        survey.next_batch.clone()
    }

    /// Waits for news, and does what else there is to do meanwhile.
    async fn poll(&mut self, since: &str) -> Result<Sync, Fault> {
        let mut polling = pin!(self.matrix.api.poll(since));
        loop {
            // Nothing is lost by whoever comes second: the poll is pinned, and the others keep what they have begun.
            tokio::select! {
                biased;
                answer = &mut polling => return answer,
                () = self.keeper.progress() => {}
                () = self.chores.progress() => {}
            }
        }
    }

    /// Hears what a poll has brought. Rooms of which it has left something out come last, because more has to be asked for.
    async fn take(&mut self, since: &str, news: &Sync) -> Result<(), Fault> {
        self.take_invitations(news);
        news.rooms.leave.keys().for_each(|id| self.rooms.forget(id));
        let mut gaps = Vec::new();
        for (id, joined) in &news.rooms.join {
            let is_new = self.rooms.learn(id, joined);
            let events = joined.timeline.read();
            let was_member = !is_new && begin(&events, &self.own.id).is_none();
            match &joined.timeline.prev_batch {
                // What was before the account came is not missing.
                Some(end) if joined.timeline.limited && was_member => {
                    gaps.push(Gap { room: id.clone(), end: end.clone(), newer: events });
                }
                _ => self.hear(id, &events),
            }
        }
        let matrix = self.matrix;
        let mut filled = stream::iter(gaps).map(|gap| fill(matrix, gap, since)).buffer_unordered(MOST_GAPS_AT_A_TIME);
        while let Some(filled) = filled.next().await {
            let Filled { room, writers, events } = filled?;
            writers.iter().for_each(|writer| self.rooms.of(&room).learn(writer));
            self.hear(&room, &events);
        }
        if news.next_batch != since {
            self.keeper.keep(&news.next_batch);
        }
        Ok(())
    }

    /// Hears what was written since the account came.
    fn hear(&mut self, id: &str, events: &[Event]) {
        let hearing = Hearing { own: &self.own, mention_only: self.matrix.settings.mention_only };
        let room = self.rooms.of(id);
        events.iter().for_each(|event| room.learn(event));
        let begun = begin(events, &self.own.id).unwrap_or(0);
        for event in events.iter().skip(begun) {
            if event.kind == "m.room.encrypted" && event.sender != self.own.id {
                self.chores.add(Chore::TellEncrypted(id.to_owned()));
            } else if let Some(heard) = hearing.message(id, room, event) {
                self.ear.hear(heard);
            }
        }
    }

    fn take_invitations(&mut self, news: &Sync) {
        for (room, invited) in &news.rooms.invite {
            let Some(inviter) = inviter(invited, &self.own.id) else { continue };
            if self.matrix.settings.welcomes(&inviter, room) {
                self.chores.add(Chore::Join(room.clone()));
            } else {
                tracing::info!(
                    channel = self.matrix.channel,
                    room,
                    inviter,
                    "an invitation by somebody not in allow is ignored"
                );
            }
        }
    }
}

/// Asks for what is missing.
async fn fill(matrix: &Matrix, gap: Gap, since: &str) -> Result<Filled, Fault> {
    let Gap { room, end: mut from, newer } = gap;
    let (mut missing, mut writers, mut is_whole) = (Vec::new(), Vec::new(), false);
    for _ in 0..MOST_GAP_PAGES {
        let page = match matrix.api.gap(&room, &from, since).await {
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
    let events = missing.into_iter().rev().chain(newer).collect();
    Ok(Filled { room, writers, events })
}

/// Who has invited this account.
fn inviter(invited: &Invited, own: &str) -> Option<String> {
    let events = invited.invite_state.read();
    let own_event = events.iter().rev().find(|event| event.membership() == Some((own, Membership::Invited)));
    own_event.map(|event| event.sender.clone())
}
