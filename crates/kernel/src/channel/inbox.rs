//! Bounded, fair queue of inbound chat messages that are not yet runs, with debouncing and withdrawal on stop.
//!
//! Senders take turns, and messages of one conversation keep their order. A stop covers the whole inbox in one step.
//!
//! A message *waits* until its sender's turn comes, then is *in flight* while a run is made from it. Messages of a
//! conversation that is debounced wait in its *bucket* in between. When the inbox is full, it evicts the newest message
//! of the sender with the most messages, so that the flood of one sender does not hold up the others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use quell_protocol::{ChannelMessage, InterruptionScope, RunId, SessionKey};

use super::commands::ChannelCommand;
use crate::time::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxLimits {
    /// Maximum number of waiting messages, those in buckets included. It also bounds the messages of one batch.
    pub waiting: usize,
    /// Maximum number of conversations in flight.
    pub in_flight: usize,
    /// Message ids that are remembered per channel, to recognise duplicates.
    pub remembered: usize,
}

impl Default for InboxLimits {
    /// A network repeats messages after a reconnect: far fewer than are remembered.
    fn default() -> Self {
        Self { waiting: 100, in_flight: 64, remembered: 4096 }
    }
}

/// An inbound message from which a run will be made. `X` is data of its channel.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxMessage<X> {
    pub message: ChannelMessage,
    /// Messages of one conversation are handled one after the other.
    pub conversation: SessionKey,
    /// Id of the run to be made from it.
    pub run_id: RunId,
    /// How long to wait for more messages of the conversation, which are merged with this one. Zero: do not wait.
    pub debounce: Duration,
    pub extra: X,
}

#[derive(Debug, Clone, PartialEq)]
pub enum InboxPushOutcome<X> {
    Queued,
    /// A duplicate: the message id was recorded before.
    Duplicate,
    /// The inbox was full: this message, or another one instead of it, is not answered.
    Evicted(Box<InboxMessage<X>>),
}

/// What the caller has to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum InboxPoll<X> {
    /// Make one run from this batch; then call [`Inbox::finish`].
    Ready(Vec<InboxMessage<X>>),
    /// Poll again at this moment, or after a push or finish.
    WaitUntil(Moment),
    /// Poll again after a push or finish.
    Idle,
}

/// What a stop withdrew, and what it found in flight.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxWithdrawal<X> {
    /// No run will be made from these.
    pub messages: Vec<InboxMessage<X>>,
    /// Runs that are being made, with the sender of each. The caller has to stop them by id; the registry may not know
    /// the id yet.
    pub in_flight: Vec<(RunId, String)>,
    /// Channel data of the commands that are being executed. The caller has to tell them of the stop; they end by
    /// themselves.
    pub commands: Vec<X>,
}

/// Maximum time that a conversation is debounced, as a multiple of its debounce time.
const MAX_DEBOUNCE_FACTOR: u32 = 5;

/// Channel and sender: sender names are unique only within a channel.
type SenderKey = (String, String);

/// Inbound messages that are not yet runs.
#[derive(Debug)]
pub struct Inbox<X> {
    limits: InboxLimits,
    /// Senders with a message that waits outside of buckets; the sender whose turn is next comes first.
    sender_rotation: VecDeque<SenderKey>,
    /// The messages that wait, those in buckets included; the oldest first.
    waiting: Vec<WaitingMessage<X>>,
    /// The conversations that have messages in a bucket.
    buckets: HashMap<SessionKey, DebounceBucket>,
    in_flight: HashMap<SessionKey, InFlight<X>>,
    seen_ids: HashMap<String, SeenMessageIds>,
    last_seq: u64,
}

#[derive(Debug)]
struct WaitingMessage<X> {
    seq: u64,
    /// It is in the bucket of its conversation.
    is_debounced: bool,
    item: InboxMessage<X>,
}

#[derive(Debug)]
struct DebounceBucket {
    due_at: Moment,
    /// Later messages do not move `due_at` past this moment.
    latest_due_at: Moment,
}

#[derive(Debug)]
struct InFlight<X> {
    channel: String,
    scope: InterruptionScope,
    work: InFlightWork<X>,
    /// A stop has covered it.
    is_stopped: bool,
    last_seq: u64,
}

#[derive(Debug)]
enum InFlightWork<X> {
    Run(RunId),
    /// A command, with the data of its channel.
    Command(X),
}

/// The newest message ids of a channel.
#[derive(Debug, Default)]
struct SeenMessageIds {
    order: VecDeque<String>,
    ids: HashSet<String>,
}

impl<X: Clone> Inbox<X> {
    #[must_use]
    pub fn new(limits: InboxLimits) -> Self {
        Self {
            limits,
            sender_rotation: VecDeque::new(),
            waiting: Vec::new(),
            buckets: HashMap::new(),
            in_flight: HashMap::new(),
            seen_ids: HashMap::new(),
            last_seq: 0,
        }
    }

    /// Records a message id. Returns false for a duplicate.
    pub fn record_message_id(&mut self, channel: &str, id: &str) -> bool {
        let seen = self.seen_ids.entry(channel.to_owned()).or_default();
        if !seen.ids.insert(id.to_owned()) {
            return false;
        }
        seen.order.push_back(id.to_owned());
        if seen.order.len() > self.limits.remembered
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.ids.remove(&oldest);
        }
        true
    }

    pub fn push(&mut self, message: InboxMessage<X>) -> InboxPushOutcome<X> {
        if !self.record_message_id(&message.message.channel, &message.message.id) {
            return InboxPushOutcome::Duplicate;
        }
        let sender = sender_key(&message);
        if !self.sender_rotation.contains(&sender) {
            self.sender_rotation.push_back(sender);
        }
        self.last_seq += 1;
        self.waiting.push(WaitingMessage { seq: self.last_seq, is_debounced: false, item: message });
        if self.waiting.len() <= self.limits.waiting {
            InboxPushOutcome::Queued
        } else {
            self.evict_from_busiest_sender()
        }
    }

    /// Takes the next batch, and marks it as in flight. Moves messages into debounce buckets on the way.
    pub fn poll(&mut self, now: Moment) -> InboxPoll<X> {
        loop {
            if self.in_flight.len() >= self.limits.in_flight {
                return InboxPoll::Idle;
            }
            if let Some(key) = self.due_bucket(now) {
                return InboxPoll::Ready(self.start_bucket(&key));
            }
            let Some(index) = self.take_turn() else { break };
            if let Some(messages) = self.start_or_debounce(index, now) {
                return InboxPoll::Ready(messages);
            }
        }
        let free = |(key, bucket): (&SessionKey, &DebounceBucket)| {
            (!self.in_flight.contains_key(key)).then_some(bucket.due_at)
        };
        self.buckets.iter().filter_map(free).min().map_or(InboxPoll::Idle, InboxPoll::WaitUntil)
    }

    /// Ends the in-flight state of a conversation: its run exists, or could not be made.
    pub fn finish(&mut self, conversation: &SessionKey) {
        self.in_flight.remove(conversation);
    }

    /// Turns a command in flight into the run that it makes: later stops list it as one. False if a stop has covered it
    /// before; then no run may be made.
    #[must_use]
    pub fn continue_as_run(&mut self, conversation: &SessionKey, run: &RunId) -> bool {
        match self.in_flight.get_mut(conversation) {
            Some(entry) if !entry.is_stopped => {
                entry.work = InFlightWork::Run(run.clone());
                true
            }
            Some(_) | None => false,
        }
    }

    /// Withdraws every message whose scope `covered` accepts, in one step.
    pub fn stop(&mut self, covered: impl Fn(&InterruptionScope) -> bool) -> InboxWithdrawal<X> {
        let is_covered = |it: &mut WaitingMessage<X>| covered(&it.item.message.interruption_scope());
        let messages = self.waiting.extract_if(.., is_covered).map(|it| it.item).collect();
        self.sender_rotation.retain(|sender| self.waiting.iter().any(|it| it.has_turn_of(sender)));
        self.buckets.retain(|key, _| self.waiting.iter().any(|it| it.is_in_bucket(key)));
        let (mut in_flight, mut commands) = (Vec::new(), Vec::new());
        for entry in self.in_flight.values_mut().filter(|it| covered(&it.scope)) {
            entry.is_stopped = true;
            match &entry.work {
                InFlightWork::Run(run) => in_flight.push((run.clone(), entry.scope.sender.clone())),
                InFlightWork::Command(extra) => commands.push(extra.clone()),
            }
        }
        InboxWithdrawal { messages, in_flight, commands }
    }

    /// Sequence number of the newest message, for [`Inbox::is_drained_up_to`].
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// True when no message of the channel with this sequence number or a lower one is waiting, debounced or in flight.
    #[must_use]
    pub fn is_drained_up_to(&self, channel: &str, seq: u64) -> bool {
        let is_waiting = |it: &WaitingMessage<X>| it.item.message.channel == channel && it.seq <= seq;
        let is_in_flight = |it: &InFlight<X>| it.channel == channel && it.last_seq <= seq;
        !self.waiting.iter().any(is_waiting) && !self.in_flight.values().any(is_in_flight)
    }

    /// Evicts the newest message of the sender with the most messages, from a bucket only if no other waits.
    fn evict_from_busiest_sender(&mut self) -> InboxPushOutcome<X> {
        // Borrow the names: this runs for each message of a flood, while others wait for the lock of the inbox.
        let mut counts: HashMap<(&str, &str), (usize, u64)> = HashMap::new();
        for WaitingMessage { seq, is_debounced, item } in &self.waiting {
            let (count, newest) = counts.entry((&item.message.channel, &item.message.sender)).or_default();
            *count += 1;
            // On a tie, choose the sender who wrote last: the others were waiting before.
            *newest = if *is_debounced { *newest } else { *seq };
        }
        let busiest = counts.into_iter().max_by_key(|(_, count)| *count);
        let Some(((channel, sender), _)) = busiest else { return InboxPushOutcome::Queued };
        let busiest = (channel.to_owned(), sender.to_owned());
        let newest = self.waiting.iter().rposition(|it| it.has_turn_of(&busiest));
        let newest = newest.or_else(|| self.waiting.iter().rposition(|it| sender_key(&it.item) == busiest));
        let Some(index) = newest else { return InboxPushOutcome::Queued };
        let evicted = self.waiting.remove(index).item;
        if !self.waiting.iter().any(|it| it.has_turn_of(&busiest)) {
            self.sender_rotation.retain(|other| *other != busiest);
        }
        if !self.waiting.iter().any(|it| it.is_in_bucket(&evicted.conversation)) {
            self.buckets.remove(&evicted.conversation);
        }
        InboxPushOutcome::Evicted(Box::new(evicted))
    }

    /// Takes the turn of the next sender with a conversation that is not in flight. Returns the index of the sender's
    /// oldest message in such a conversation.
    fn take_turn(&mut self) -> Option<usize> {
        let (place, index) = self.sender_rotation.iter().enumerate().find_map(|(place, sender)| {
            // If the first message of a conversation is blocked, this test blocks its later ones too.
            let is_free =
                |it: &WaitingMessage<X>| it.has_turn_of(sender) && !self.in_flight.contains_key(&it.item.conversation);
            Some((place, self.waiting.iter().position(is_free)?))
        })?;
        let sender = self.sender_rotation.remove(place)?;
        if self.waiting.iter().filter(|it| it.has_turn_of(&sender)).nth(1).is_some() {
            self.sender_rotation.push_back(sender);
        }
        Some(index)
    }

    /// Returns the message as a batch, or puts it into its bucket. Messages already in the bucket go first.
    fn start_or_debounce(&mut self, index: usize, now: Moment) -> Option<Vec<InboxMessage<X>>> {
        let item = &self.waiting[index].item;
        let (key, debounce) = (item.conversation.clone(), item.debounce);
        let bucket_head = self.waiting.iter().find(|it| it.is_in_bucket(&key));
        // Do not merge messages of different interruption scopes: they are stopped separately.
        let scope = item.message.interruption_scope();
        let has_other_scope = bucket_head.is_some_and(|first| first.item.message.interruption_scope() != scope);
        if !debounce.is_zero() && !has_other_scope {
            let (due, latest) = (now.plus(debounce), now.plus(debounce * MAX_DEBOUNCE_FACTOR));
            let bucket = self.buckets.entry(key).or_insert(DebounceBucket { due_at: due, latest_due_at: latest });
            bucket.due_at = due.min(bucket.latest_due_at);
            self.waiting[index].is_debounced = true;
            return None;
        }
        if bucket_head.is_none() {
            let message = self.waiting.remove(index);
            return Some(self.mark_in_flight(vec![message]));
        }
        let sender = sender_key(item);
        if !self.sender_rotation.contains(&sender) {
            self.sender_rotation.push_front(sender);
        }
        Some(self.start_bucket(&key))
    }

    fn due_bucket(&self, now: Moment) -> Option<SessionKey> {
        let is_due =
            |(key, bucket): &(&SessionKey, &DebounceBucket)| bucket.due_at <= now && !self.in_flight.contains_key(*key);
        self.buckets.iter().filter(is_due).min_by_key(|(_, bucket)| bucket.due_at).map(|(key, _)| key.clone())
    }

    fn start_bucket(&mut self, key: &SessionKey) -> Vec<InboxMessage<X>> {
        self.buckets.remove(key);
        let messages = self.waiting.extract_if(.., |it| it.is_in_bucket(key)).collect();
        self.mark_in_flight(messages)
    }

    fn mark_in_flight(&mut self, messages: Vec<WaitingMessage<X>>) -> Vec<InboxMessage<X>> {
        let last_seq = messages.iter().map(|it| it.seq).max().unwrap_or_default();
        if let Some(WaitingMessage { item: first, .. }) = messages.first() {
            let (channel, scope) = (first.message.channel.clone(), first.message.interruption_scope());
            let work = match ChannelCommand::parse(&first.message.content) {
                Some(_) => InFlightWork::Command(first.extra.clone()),
                None => InFlightWork::Run(first.run_id.clone()),
            };
            self.in_flight
                .insert(first.conversation.clone(), InFlight { channel, scope, work, is_stopped: false, last_seq });
        }
        messages.into_iter().map(|it| it.item).collect()
    }
}

impl<X> WaitingMessage<X> {
    /// True if it waits for the turn of this sender.
    fn has_turn_of(&self, (channel, sender): &SenderKey) -> bool {
        !self.is_debounced && self.item.message.channel == *channel && self.item.message.sender == *sender
    }

    fn is_in_bucket(&self, conversation: &SessionKey) -> bool {
        self.is_debounced && self.item.conversation == *conversation
    }
}

fn sender_key<X>(message: &InboxMessage<X>) -> SenderKey {
    (message.message.channel.clone(), message.message.sender.clone())
}

#[cfg(test)]
mod tests;
