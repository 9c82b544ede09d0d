//! Initial sync, then one long poll after the other.
//!
//! The initial sync gives the rooms and the number of their members. It also gives the position from which a new
//! account starts, so that older messages are not answered. Messages of a poll are delivered as soon as it is parsed.
//! Slow work runs beside the next poll.

use std::convert::Infallible;
use std::pin::pin;

use futures_util::FutureExt;

use super::MatrixNetwork;
use super::events::{InvitedRoom, MatrixEvent, MembershipChange, SyncResponse};
use super::known_rooms::KnownRooms;
use super::limiter::TaskLimiter;
use super::message_parser::{MatrixMessageParser, own_membership_start};
use super::room_tasks::{join_room, mark_notified, send_encryption_notice};
use super::settings::server_name;
use super::timeline_gaps::{GaplessEvents, TimelineGap, TimelineGaps};
use crate::network::{InboundSink, OwnAccount};
use crate::wire::call_error::CallError;
use crate::wire::cursor_saver::CursorSaver;

/// Largest number of waiting room tasks: anybody may invite the account any number of times.
const MAX_ROOM_TASKS: usize = 1_000;

/// Listens until the connection is lost.
///
/// # Cancel safety
/// Safe: messages that were delivered but not stored come again.
pub(super) async fn listen_until_lost(
    network: &MatrixNetwork,
    sink: &dyn InboundSink,
) -> Result<Infallible, CallError> {
    let account = network.fetch_account().await?;
    let initial_sync = network.api.initial_sync().await?;
    let mut listener = MatrixListener {
        network,
        sink,
        account: account.clone(),
        rooms: KnownRooms::default(),
        since_token: initial_sync.next_batch.clone(),
        room_tasks: TaskLimiter::new(),
        gaps: TimelineGaps::new(network),
        cursor_saver: CursorSaver::new(sink),
    };
    listener.apply_initial_sync(&initial_sync);
    match sink.load_cursor().await {
        Some(saved_cursor) => listener.since_token = saved_cursor,
        None => listener.save_position(),
    }
    sink.on_connected(account);
    // The server may not know a cursor that is very old or from another server. After the first poll the cursor is its
    // own.
    let first = match listener.poll_sync().await {
        Err(error @ CallError::Refused { .. }) => {
            tracing::warn!(
                channel = network.channel_name,
                %error,
                "cannot sync from the saved position: messages since then are skipped"
            );
            listener.since_token = initial_sync.next_batch;
            listener.save_position();
            listener.poll_sync().await?
        }
        response => response?,
    };
    listener.apply_sync(first);
    loop {
        let sync = listener.poll_sync().await?;
        listener.apply_sync(sync);
    }
}

/// One connection: the polls and the work beside them.
struct MatrixListener<'a> {
    network: &'a MatrixNetwork,
    sink: &'a dyn InboundSink,
    account: OwnAccount,
    rooms: KnownRooms,
    /// Token from which the next poll continues.
    since_token: String,
    room_tasks: TaskLimiter<'a, ()>,
    gaps: TimelineGaps<'a>,
    cursor_saver: CursorSaver<'a>,
}

impl MatrixListener<'_> {
    fn apply_initial_sync(&mut self, sync: &SyncResponse) {
        for (id, joined) in &sync.rooms.join {
            self.rooms.apply_joined_room(id, joined);
        }
        self.accept_invitations(sync);
        for room in self.network.settings.rooms_to_join.iter().filter(|room| !self.rooms.contains(room)) {
            self.room_tasks.push(join_room(self.network, room.clone(), Vec::new()).boxed());
        }
        // Rooms that were replaced while nothing listened, or whose replacement could not be joined the last time.
        for (id, joined) in &sync.rooms.join {
            self.follow_replacements(id, &joined.state.events.parse());
        }
    }

    /// Waits for the next sync response and runs the slow work meanwhile.
    async fn poll_sync(&mut self) -> Result<SyncResponse, CallError> {
        let (network, since) = (self.network, self.since_token.clone());
        let mut polling = pin!(network.api.poll(&since));
        loop {
            // Nothing is lost when another branch wins: the poll is pinned, and the others keep their running futures.
            tokio::select! {
                biased;
                response = &mut polling => return response,
                gapless = self.gaps.next_gapless() => self.handle_gapless_events(gapless?),
                _ = self.cursor_saver.save_next() => {}
                () = self.room_tasks.next_outcome() => {}
            }
        }
    }

    /// Applies a sync response and delivers its messages.
    fn apply_sync(&mut self, sync: SyncResponse) {
        self.accept_invitations(&sync);
        sync.rooms.leave.keys().for_each(|id| self.rooms.remove(id));
        for (id, joined) in &sync.rooms.join {
            let is_new = self.rooms.apply_joined_room(id, joined);
            self.follow_replacements(id, &joined.state.events.parse());
            let events = joined.timeline.events.parse();
            let was_member = !is_new && own_membership_start(&events, &self.account.id).is_none();
            match &joined.timeline.prev_batch {
                // Events from before the account joined are not a gap.
                Some(end) if joined.timeline.limited && was_member => {
                    let gap = TimelineGap { end_token: end.clone(), since_token: self.since_token.clone() };
                    self.gaps.open_gap(id, gap, events);
                }
                _ => {
                    let events = self.gaps.queue_behind_gap(id, events);
                    self.handle_events(id, &events);
                }
            }
        }
        if sync.next_batch != self.since_token {
            self.since_token = sync.next_batch;
            self.save_position();
        }
    }

    fn handle_gapless_events(&mut self, gapless: GaplessEvents) {
        let room = self.rooms.get_or_insert(&gapless.room);
        gapless.writer_memberships.iter().for_each(|writer| room.apply_member_event(writer));
        self.handle_events(&gapless.room, &gapless.events);
        self.save_position();
    }

    /// Saves the position, once no earlier event is missing.
    fn save_position(&mut self) {
        if self.gaps.is_empty() {
            self.cursor_saver.set_cursor(self.since_token.clone());
        }
    }

    /// Delivers the messages since the account joined.
    fn handle_events(&mut self, id: &str, events: &[MatrixEvent]) {
        self.follow_replacements(id, events);
        let parser = MatrixMessageParser { account: &self.account, mention_only: self.network.settings.mention_only };
        let room = self.rooms.get_or_insert(id);
        events.iter().for_each(|event| room.apply_member_event(event));
        let start = own_membership_start(events, &self.account.id).unwrap_or(0);
        for event in events.iter().skip(start) {
            if event.kind == "m.room.encrypted" && event.sender != self.account.id {
                if mark_notified(self.network, id) {
                    self.room_tasks.push(send_encryption_notice(self.network, id.to_owned()).boxed());
                }
            } else if let Some(inbound) = parser.parse_message(id, room, event) {
                self.sink.on_message(inbound);
            }
        }
    }

    fn accept_invitations(&mut self, sync: &SyncResponse) {
        for (room, invited) in &sync.rooms.invite {
            let Some(inviter) = find_inviter(invited, &self.account.id) else { continue };
            let channel = &self.network.channel_name;
            if !self.network.settings.accepts_invitation(&inviter, room) {
                tracing::info!(channel, room, inviter, "an invitation by somebody not in allow is ignored");
            } else if self.room_tasks.len() >= MAX_ROOM_TASKS {
                tracing::warn!(channel, room, inviter, "too many invitations at once: this one is not accepted");
            } else {
                self.room_tasks.push(join_room(self.network, room.clone(), Vec::new()).boxed());
            }
        }
    }

    /// Joins the room that replaces another one, if the sender of the event is allowed to invite the account.
    fn follow_replacements(&mut self, old: &str, events: &[MatrixEvent]) {
        let (network, channel) = (self.network, &self.network.channel_name);
        for event in events {
            let Some(new) = event.replacement_room().filter(|new| !self.rooms.contains(new)) else { continue };
            let sender = &event.sender;
            if !network.settings.allows_replacement(sender, old, new) {
                tracing::info!(
                    channel,
                    old,
                    new,
                    sender,
                    "a room was replaced by somebody not in allow: it is not followed"
                );
            } else if self.room_tasks.len() >= MAX_ROOM_TASKS {
                tracing::warn!(channel, old, new, "too many rooms at once: this one is not followed");
            } else {
                tracing::info!(channel, old, new, "the room was replaced; the account goes into the new one");
                // The id of a newer room names no server, but the sender's server knows the room.
                let via_servers = server_name(sender).map(str::to_owned).into_iter().collect();
                self.room_tasks.push(join_room(network, new.to_owned(), via_servers).boxed());
            }
        }
    }
}

/// The user who invited this account.
fn find_inviter(invited: &InvitedRoom, own_id: &str) -> Option<String> {
    let events = invited.invite_state.events.parse();
    let own_event =
        events.iter().rev().find(|event| event.membership_change() == Some((own_id, MembershipChange::Invited)));
    own_event.map(|event| event.sender.clone())
}
