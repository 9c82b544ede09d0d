//! Listening: one look at all rooms, then one long poll after the other.
//!
//! The first look says which rooms there are and how many are in each, and names the place from which a new account goes on, so that
//! nothing from before is answered. Each poll's messages are heard as soon as it is read. Whatever takes long is done beside the next one.

use std::convert::Infallible;
use std::pin::pin;

use futures_util::FutureExt;

use super::Matrix;
use super::chores::{is_news, join, tell_encrypted};
use super::events::{Event, Invited, Membership, Sync};
use super::fault::Fault;
use super::few::Few;
use super::gaps::{Gap, Gaps, Whole};
use super::hearing::{Hearing, begin};
use super::keeper::Keeper;
use super::rooms::Rooms;
use super::settings::server_of;
use crate::channels::seam::{Ear, Lost, Own};

/// So many chores may wait: anybody may invite, as often as they like.
const MOST_CHORES: usize = 1_000;

/// Listens until the connection is lost.
///
/// # Cancel safety
/// Safe: what was heard and not kept is told again.
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
        since: survey.next_batch.clone(),
        chores: Few::new(),
        gaps: Gaps::new(matrix),
        keeper: Keeper::new(ear),
    };
    listening.survey(&survey);
    match ear.cursor().await {
        Some(kept) => listening.since = kept,
        None => listening.keep(),
    }
    ear.connected(own);
    // The server may not know a place that was kept long ago, or by another server; after the first poll it is its own.
    let first = match listening.poll().await {
        Err(Fault::Refused { code, why }) => {
            tracing::warn!(channel = matrix.channel, code, why, "what came in the meantime cannot be asked for");
            listening.since = survey.next_batch;
            listening.keep();
            listening.poll().await?
        }
        answer => answer?,
    };
    listening.take(first);
    loop {
        let news = listening.poll().await?;
        listening.take(news);
    }
}

/// One connection.
struct Listening<'a> {
    matrix: &'a Matrix,
    ear: &'a dyn Ear,
    own: Own,
    rooms: Rooms,
    /// From where the next poll goes on.
    since: String,
    chores: Few<'a, ()>,
    gaps: Gaps<'a>,
    keeper: Keeper<'a>,
}

impl Listening<'_> {
    fn survey(&mut self, survey: &Sync) {
        for (id, joined) in &survey.rooms.join {
            self.rooms.learn(id, joined);
        }
        self.take_invitations(survey);
        for room in self.matrix.settings.join.iter().filter(|room| !self.rooms.contains(room)) {
            self.chores.push(join(self.matrix, room.clone(), Vec::new()).boxed());
        }
        // What was replaced while nobody listened, or could not be followed the last time.
        for (id, joined) in &survey.rooms.join {
            self.follow(id, &joined.state.read());
        }
    }

    /// Waits for news, and does what else there is to do meanwhile.
    async fn poll(&mut self) -> Result<Sync, Fault> {
        let (matrix, since) = (self.matrix, self.since.clone());
        let mut polling = pin!(matrix.api.poll(&since));
        loop {
            // Nothing is lost by whoever comes second: the poll is pinned, and the others keep what they have begun.
            tokio::select! {
                biased;
                answer = &mut polling => return answer,
                whole = self.gaps.next() => self.take_whole(whole?),
                () = self.keeper.progress() => {}
                () = self.chores.next() => {}
            }
        }
    }

    /// Hears what a poll has brought.
    fn take(&mut self, news: Sync) {
        self.take_invitations(&news);
        news.rooms.leave.keys().for_each(|id| self.rooms.forget(id));
        for (id, joined) in &news.rooms.join {
            let is_new = self.rooms.learn(id, joined);
            self.follow(id, &joined.state.read());
            let events = joined.timeline.read();
            let was_member = !is_new && begin(&events, &self.own.id).is_none();
            match &joined.timeline.prev_batch {
                // What was before the account came is not missing.
                Some(end) if joined.timeline.limited && was_member => {
                    let gap = Gap { end: end.clone(), since: self.since.clone() };
                    self.gaps.open(id, gap, events);
                }
                _ => {
                    let events = self.gaps.after(id, events);
                    self.hear(id, &events);
                }
            }
        }
        if news.next_batch != self.since {
            self.since = news.next_batch;
            self.keep();
        }
    }

    fn take_whole(&mut self, whole: Whole) {
        let room = self.rooms.of(&whole.room);
        whole.writers.iter().for_each(|writer| room.learn(writer));
        self.hear(&whole.room, &whole.events);
        self.keep();
    }

    /// Keeps where it has come to, once nothing before it is missing.
    fn keep(&mut self) {
        if self.gaps.is_empty() {
            self.keeper.keep(&self.since);
        }
    }

    /// Hears what was written since the account came.
    fn hear(&mut self, id: &str, events: &[Event]) {
        self.follow(id, events);
        let hearing = Hearing { own: &self.own, mention_only: self.matrix.settings.mention_only };
        let room = self.rooms.of(id);
        events.iter().for_each(|event| room.learn(event));
        let begun = begin(events, &self.own.id).unwrap_or(0);
        for event in events.iter().skip(begun) {
            if event.kind == "m.room.encrypted" && event.sender != self.own.id {
                if is_news(self.matrix, id) {
                    self.chores.push(tell_encrypted(self.matrix, id.to_owned()).boxed());
                }
            } else if let Some(heard) = hearing.message(id, room, event) {
                self.ear.hear(heard);
            }
        }
    }

    fn take_invitations(&mut self, news: &Sync) {
        for (room, invited) in &news.rooms.invite {
            let Some(inviter) = inviter(invited, &self.own.id) else { continue };
            let channel = &self.matrix.channel;
            if !self.matrix.settings.welcomes(&inviter, room) {
                tracing::info!(channel, room, inviter, "an invitation by somebody not in allow is ignored");
            } else if self.chores.len() >= MOST_CHORES {
                tracing::warn!(channel, room, inviter, "too many invitations at once: this one is not accepted");
            } else {
                self.chores.push(join(self.matrix, room.clone(), Vec::new()).boxed());
            }
        }
    }

    /// Goes into the room that has taken the place of another one, on the word of somebody who may invite the account.
    fn follow(&mut self, old: &str, events: &[Event]) {
        let (matrix, channel) = (self.matrix, &self.matrix.channel);
        for event in events {
            let Some(new) = event.replacement().filter(|new| !self.rooms.contains(new)) else { continue };
            let sender = &event.sender;
            if !matrix.settings.follows(sender, old, new) {
                tracing::info!(
                    channel,
                    old,
                    new,
                    sender,
                    "a room was replaced by somebody not in allow: it is not followed"
                );
            } else if self.chores.len() >= MOST_CHORES {
                tracing::warn!(channel, old, new, "too many rooms at once: this one is not followed");
            } else {
                tracing::info!(channel, old, new, "the room was replaced; the account goes into the new one");
                // The id of a newer room names no server: the sender's knows it.
                let known_to = server_of(sender).map(str::to_owned).into_iter().collect();
                self.chores.push(join(matrix, new.to_owned(), known_to).boxed());
            }
        }
    }
}

/// Who has invited this account.
fn inviter(invited: &Invited, own: &str) -> Option<String> {
    let events = invited.invite_state.read();
    let own_event = events.iter().rev().find(|event| event.membership() == Some((own, Membership::Invited)));
    own_event.map(|event| event.sender.clone())
}
