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
    /// Senders with a waiting message; the sender whose turn is next comes first.
    sender_rotation: VecDeque<SenderKey>,
    waiting: HashMap<SenderKey, VecDeque<SequencedMessage<X>>>,
    buckets: HashMap<SessionKey, DebounceBucket<X>>,
    in_flight: HashMap<SessionKey, InFlight<X>>,
    seen_ids: HashMap<String, SeenMessageIds>,
    waiting_count: usize,
    last_seq: u64,
}

#[derive(Debug)]
struct SequencedMessage<X> {
    seq: u64,
    item: InboxMessage<X>,
}

#[derive(Debug)]
struct DebounceBucket<X> {
    messages: Vec<SequencedMessage<X>>,
    due_at: Moment,
    /// Later messages do not move `due_at` past this moment.
    latest_due_at: Moment,
}

#[derive(Debug)]
struct InFlight<X> {
    channel: String,
    scope: InterruptionScope,
    work: InFlightWork<X>,
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
            waiting: HashMap::new(),
            buckets: HashMap::new(),
            in_flight: HashMap::new(),
            seen_ids: HashMap::new(),
            waiting_count: 0,
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
        self.last_seq += 1;
        let sequenced = SequencedMessage { seq: self.last_seq, item: message };
        let queue = self.waiting.entry(sender.clone()).or_default();
        if queue.is_empty() {
            self.sender_rotation.push_back(sender);
        }
        queue.push_back(sequenced);
        self.waiting_count += 1;
        if self.waiting_count <= self.limits.waiting {
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
            if let Some(messages) = self.take_due_bucket(now) {
                return InboxPoll::Ready(messages);
            }
            let Some(message) = self.take_from_next_sender() else { break };
            match self.start_or_debounce(message, now) {
                Some(messages) => return InboxPoll::Ready(messages),
                None => continue,
            }
        }
        let free = |(key, bucket): (&SessionKey, &DebounceBucket<X>)| {
            (!self.in_flight.contains_key(key)).then_some(bucket.due_at)
        };
        self.buckets.iter().filter_map(free).min().map_or(InboxPoll::Idle, InboxPoll::WaitUntil)
    }

    /// Ends the in-flight state of a conversation: its run exists, or could not be made.
    pub fn finish(&mut self, conversation: &SessionKey) {
        self.in_flight.remove(conversation);
    }

    /// Withdraws every message whose scope `covered` accepts, in one step.
    pub fn stop(&mut self, covered: impl Fn(&InterruptionScope) -> bool) -> InboxWithdrawal<X> {
        let of = |message: &ChannelMessage| covered(&message.interruption_scope());
        let mut messages = Vec::new();
        for queue in self.waiting.values_mut() {
            let (out, kept): (Vec<_>, Vec<_>) = std::mem::take(queue).into_iter().partition(|it| of(&it.item.message));
            queue.extend(kept);
            messages.extend(out.into_iter().map(|sequenced| (sequenced.seq, sequenced.item)));
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        self.sender_rotation.retain(|sender| self.waiting.contains_key(sender));
        for bucket in self.buckets.values_mut() {
            let (out, kept): (Vec<_>, Vec<_>) =
                std::mem::take(&mut bucket.messages).into_iter().partition(|it| of(&it.item.message));
            bucket.messages = kept;
            messages.extend(out.into_iter().map(|sequenced| (sequenced.seq, sequenced.item)));
        }
        self.buckets.retain(|_, bucket| !bucket.messages.is_empty());
        messages.sort_by_key(|(seq, _)| *seq);
        self.waiting_count -= messages.len();
        let (mut in_flight, mut commands) = (Vec::new(), Vec::new());
        for entry in self.in_flight.values().filter(|it| covered(&it.scope)) {
            match &entry.work {
                InFlightWork::Run(run) => in_flight.push((run.clone(), entry.scope.sender.clone())),
                InFlightWork::Command(extra) => commands.push(extra.clone()),
            }
        }
        InboxWithdrawal { messages: messages.into_iter().map(|(_, message)| message).collect(), in_flight, commands }
    }

    /// Sequence number of the newest message, for [`Inbox::is_drained_up_to`].
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// True when no message of the channel with this sequence number or a lower one is waiting, debounced or in flight.
    #[must_use]
    pub fn is_drained_up_to(&self, channel: &str, seq: u64) -> bool {
        let is_waiting = |it: &SequencedMessage<X>| it.item.message.channel == channel && it.seq <= seq;
        let is_in_flight = |it: &InFlight<X>| it.channel == channel && it.last_seq <= seq;
        let debounced = self.buckets.values().flat_map(|bucket| &bucket.messages);
        !self.waiting.values().flatten().chain(debounced).any(is_waiting) && !self.in_flight.values().any(is_in_flight)
    }

    /// Evicts the newest message of the sender with the most messages.
    fn evict_from_busiest_sender(&mut self) -> InboxPushOutcome<X> {
        // Borrow the names: this runs for each message of a flood, while others wait for the lock of the inbox.
        let mut counts: HashMap<(&str, &str), (usize, u64)> = HashMap::new();
        for ((channel, sender), queue) in &self.waiting {
            // On a tie, choose the sender who wrote last: the others were waiting before.
            let newest = queue.back().map_or(0, |sequenced| sequenced.seq);
            counts.insert((channel, sender), (queue.len(), newest));
        }
        for sequenced in self.buckets.values().flat_map(|bucket| &bucket.messages) {
            let message = &sequenced.item.message;
            counts.entry((&message.channel, &message.sender)).or_default().0 += 1;
        }
        let busiest = counts.into_iter().max_by_key(|(_, count)| *count);
        let busiest = busiest.map(|((channel, sender), _)| (channel.to_owned(), sender.to_owned()));
        let Some(busiest) = busiest else { return InboxPushOutcome::Queued };
        let message = match self.waiting.get_mut(&busiest).and_then(VecDeque::pop_back) {
            Some(sequenced) => sequenced.item,
            None => match self.pop_debounced(&busiest) {
                Some(message) => message,
                None => return InboxPushOutcome::Queued,
            },
        };
        if self.waiting.get(&busiest).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&busiest);
            self.sender_rotation.retain(|other| *other != busiest);
        }
        self.waiting_count -= 1;
        InboxPushOutcome::Evicted(Box::new(message))
    }

    fn pop_debounced(&mut self, sender: &SenderKey) -> Option<InboxMessage<X>> {
        let of_sender =
            |bucket: &DebounceBucket<X>| bucket.messages.last().is_some_and(|it| sender_key(&it.item) == *sender);
        let key = self.buckets.iter().find(|(_, bucket)| of_sender(bucket)).map(|(key, _)| key.clone())?;
        let bucket = self.buckets.get_mut(&key)?;
        let message = bucket.messages.pop()?.item;
        if bucket.messages.is_empty() {
            self.buckets.remove(&key);
        }
        Some(message)
    }

    /// Takes the oldest message of the next sender whose conversation is not in flight.
    fn take_from_next_sender(&mut self) -> Option<SequencedMessage<X>> {
        let (place, at) = self.sender_rotation.iter().enumerate().find_map(|(place, sender)| {
            // If the first message of a conversation is blocked, this test blocks its later ones too.
            let free = |it: &SequencedMessage<X>| !self.in_flight.contains_key(&it.item.conversation);
            Some((place, self.waiting.get(sender)?.iter().position(free)?))
        })?;
        let sender = self.sender_rotation.remove(place)?;
        let queue = self.waiting.get_mut(&sender)?;
        let sequenced = queue.remove(at);
        if queue.is_empty() {
            self.waiting.remove(&sender);
        } else {
            self.sender_rotation.push_back(sender);
        }
        sequenced
    }

    /// Returns the message as a batch, or puts it into its bucket. Messages already in the bucket go first.
    fn start_or_debounce(&mut self, sequenced: SequencedMessage<X>, now: Moment) -> Option<Vec<InboxMessage<X>>> {
        let key = sequenced.item.conversation.clone();
        let debounce = sequenced.item.debounce;
        let scope = sequenced.item.message.interruption_scope();
        let bucket_head = self.buckets.get(&key).and_then(|bucket| bucket.messages.first());
        // Do not merge messages of different interruption scopes: they are stopped separately.
        let has_other_scope = bucket_head.is_some_and(|first| first.item.message.interruption_scope() != scope);
        if debounce.is_zero() || has_other_scope {
            let Some(bucket) = self.buckets.remove(&key) else {
                return Some(self.mark_in_flight(vec![sequenced]));
            };
            let sender = sender_key(&sequenced.item);
            let queue = self.waiting.entry(sender.clone()).or_default();
            if queue.is_empty() {
                self.sender_rotation.push_front(sender);
            }
            queue.push_front(sequenced);
            return Some(self.mark_in_flight(bucket.messages));
        }
        let (due, latest) = (now.plus(debounce), now.plus(debounce * MAX_DEBOUNCE_FACTOR));
        let bucket = self.buckets.entry(key).or_insert_with(|| DebounceBucket {
            messages: Vec::new(),
            due_at: due,
            latest_due_at: latest,
        });
        bucket.messages.push(sequenced);
        bucket.due_at = due.min(bucket.latest_due_at);
        None
    }

    fn take_due_bucket(&mut self, now: Moment) -> Option<Vec<InboxMessage<X>>> {
        let is_due = |(key, bucket): &(&SessionKey, &DebounceBucket<X>)| {
            bucket.due_at <= now && !self.in_flight.contains_key(*key)
        };
        let key = self.buckets.iter().filter(is_due).min_by_key(|(_, bucket)| bucket.due_at)?.0.clone();
        let bucket = self.buckets.remove(&key)?;
        Some(self.mark_in_flight(bucket.messages))
    }

    fn mark_in_flight(&mut self, messages: Vec<SequencedMessage<X>>) -> Vec<InboxMessage<X>> {
        self.waiting_count -= messages.len();
        let last_seq = messages.iter().map(|sequenced| sequenced.seq).max().unwrap_or_default();
        if let Some(SequencedMessage { item: first, .. }) = messages.first() {
            let (channel, scope) = (first.message.channel.clone(), first.message.interruption_scope());
            let work = match ChannelCommand::parse(&first.message.content) {
                Some(_) => InFlightWork::Command(first.extra.clone()),
                None => InFlightWork::Run(first.run_id.clone()),
            };
            self.in_flight.insert(first.conversation.clone(), InFlight { channel, scope, work, last_seq });
        }
        messages.into_iter().map(|sequenced| sequenced.item).collect()
    }
}

fn sender_key<X>(message: &InboxMessage<X>) -> SenderKey {
    (message.message.channel.clone(), message.message.sender.clone())
}

#[cfg(test)]
mod tests;
